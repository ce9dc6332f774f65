"""Ledger: one account of KV blocks per request, over pool and tree.

Owns the block lists of requests (`RequestState.block_ids`) from `admit` to `release`. All or nothing: a request is
admitted with blocks for all tokens it has so far, those of a cached prefix shared, or not at all. `has_room` and
`num_slots_ahead` ask; `admit` and `extend` evict when they must.

A match covers whole blocks strictly below `num_tokens`: the last token is always computed (its logits are wanted) and
what is computed is only ever written into blocks of one's own. When a block becomes full and the tree knows an
equal one, the request moves over to that and gives its own back: block lists may change between steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from tapetum.cache.blocks import BlockPool
from tapetum.cache.prefix import PrefixNode, PrefixTree
from tapetum.cache.prompt_blocks import PromptBlocks
from tapetum.cache.sightings import Sighting
from tapetum.core.cost import CostModel
from tapetum.core.request import Request, RequestState


@dataclass(slots=True, eq=False)
class _Account:
    """What the ledger knows of one request beyond its block list."""

    blocks: PromptBlocks
    node: PrefixNode | None = None  # of the last published block
    num_published: int = 0


class Ledger:
    """`tree` None = no reuse of prefixes. `fingerprints` = all that KV depends on besides tokens and tenant.

    `cost` says what published blocks are worth keeping for.
    """

    def __init__(
        self,
        pool: BlockPool,
        tree: PrefixTree | None,
        block_size: int,
        fingerprints: tuple[Hashable, ...] = (),
        cost: CostModel | None = None,
    ) -> None:
        self.block_size = block_size
        self.pool = pool
        self.tree = tree
        self._fingerprints = fingerprints
        self._cost = cost or CostModel()
        self._accounts: dict[str, _Account] = {}

    @property
    def num_slots(self) -> int:
        """Tokens that the whole pool holds."""
        return self.pool.num_blocks * self.block_size

    def has_room(self, num_blocks: int) -> bool:
        return num_blocks <= self.pool.num_available

    def admit(self, state: RequestState, spare: int = 0) -> int | None:
        """Reserve blocks for all tokens of a request -> tokens found in the tree, or None if there is no room.

        `spare` blocks must be left over for others.
        """
        assert not state.block_ids, f"request {state.request.request_id} holds blocks already"
        account = self._account(state.request)
        matched = self._match(state, account.blocks)
        num_fresh = self._num_blocks(state.num_tokens) - len(matched)
        num_revived = sum(self.pool.is_cached(node.block) for node in matched)
        if not self.has_room(num_fresh + num_revived + spare):
            return None
        for node in matched:
            assert self.tree is not None, "found without a tree"
            self.tree.acquire(node, is_reuse=not state.num_preemptions)
        state.block_ids = tuple(node.block for node in matched)
        self._append(state, account, num_fresh)
        account.node = matched[-1] if matched else None
        account.num_published = len(matched)
        return len(matched) * self.block_size

    def num_found(self, state: RequestState) -> int:
        """Tokens of a request without blocks that `admit` would find in the tree."""
        return len(self._match(state, self.blocks_of(state.request))) * self.block_size

    def extend(self, state: RequestState, num_ahead: int = 0) -> bool:
        """See to blocks for the newest token and so many behind it; False if there is no room."""
        num_missing = self._num_blocks(state.num_tokens + num_ahead) - len(state.block_ids)
        if num_missing <= 0:
            return True
        if not self.has_room(num_missing):
            return False
        self._append(state, self._accounts[state.request.request_id], num_missing)
        return True

    def num_slots_ahead(self, state: RequestState, *, may_grow: bool) -> int:
        """Slots behind the newest token: those of own blocks and, if it may grow, of all that can be had."""
        own = len(state.block_ids) * self.block_size - state.num_tokens
        return own + (self.pool.num_available * self.block_size if may_grow else 0)

    def trim(self, state: RequestState) -> None:
        """Give back the blocks behind the computed tokens."""
        num_kept = self._num_blocks(state.num_computed_tokens)
        if num_kept < len(state.block_ids):
            for block in reversed(state.block_ids[num_kept:]):
                self._release(block)
            state.block_ids = state.block_ids[:num_kept]

    def publish(self, state: RequestState) -> None:
        """Make the full blocks among the computed tokens findable."""
        if self.tree is None:
            return
        account = self._accounts[state.request.request_id]
        num_full = state.num_computed_tokens // self.block_size
        if account.num_published >= num_full:  # asked of every row
            return
        num_full = min(num_full, state.num_exact_tokens // self.block_size)
        keys = account.blocks.keys(num_full, state.output_token_ids)
        first, known = account.num_published, []
        for index in range(first, num_full):
            own = state.block_ids[index]
            cost_s = account.blocks.cost_s(index)
            node = self.tree.publish(account.blocks.root, account.node, keys[index], own, cost_s)
            if node.block != own:
                self.tree.acquire(node)
                self._release(own)
            known.append(node.block)
            account.node = node
        if (*known,) != state.block_ids[first:num_full]:
            state.block_ids = (*state.block_ids[:first], *known, *state.block_ids[num_full:])
        account.num_published = num_full

    def sightings(self, state: RequestState, media_key: bytes) -> Iterator[Sighting]:
        """Where a picture of the request lies in what others have published for the same tenant."""
        account = self._accounts[state.request.request_id]
        return iter(()) if self.tree is None else self.tree.sightings.find(account.blocks.root, media_key)

    def hold(self, sighting: Sighting) -> None:
        """Keep its blocks until `let_go`."""
        assert self.tree is not None, "seen without a tree"
        used = set(sighting.block_ids)
        for node in sighting.path:
            self.tree.acquire(node, is_reuse=node.block in used)

    def let_go(self, sighting: Sighting) -> None:
        for node in reversed(sighting.path):
            self._release(node.block)

    def last_published(self, state: RequestState) -> PrefixNode | None:
        """The end of what others can find of what the request has computed."""
        account = self._accounts.get(state.request.request_id)
        return None if account is None else account.node

    def release(self, state: RequestState) -> None:
        """Give back what the request holds, deepest blocks first; published ones stay findable."""
        self._accounts.pop(state.request.request_id, None)
        release = self.pool.release if self.tree is None else self.tree.release
        for block in reversed(state.block_ids):
            release(block)
        state.block_ids = ()

    def blocks_of(self, request: Request) -> PromptBlocks:
        return PromptBlocks(request, self.block_size, self._fingerprints, self._cost)

    def allocate(self, blocks: PromptBlocks, index: int) -> int:
        """A block for the tokens of that place; evicts if none is free. There must be one.

        One at a time, so that quotas see what is taken already.
        """
        if not self.pool.num_free:
            assert self.tree is not None, "blocks are cached without a tree"
            self.tree.evict()
        return self.pool.allocate(blocks.tag(index), blocks.account)

    def _append(self, state: RequestState, account: _Account, num_blocks: int) -> None:
        first = len(state.block_ids)
        state.block_ids += (
            *[self.allocate(account.blocks, index) for index in range(first, first + num_blocks)],
        )

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _account(self, request: Request) -> _Account:
        account = self._accounts.get(request.request_id)
        if account is None:
            account = self._accounts[request.request_id] = _Account(self.blocks_of(request))
        return account

    def _match(self, state: RequestState, blocks: PromptBlocks) -> list[PrefixNode]:
        if self.tree is None:
            return []
        num_blocks = (state.num_tokens - 1) // self.block_size
        return self.tree.match(blocks.root, blocks.keys(num_blocks, state.output_token_ids))

    def _release(self, block: int) -> None:
        if self.tree is None:
            self.pool.release(block)
        else:
            self.tree.release(block)
