"""Traffic: KV blocks on their way from the device to the tiers behind it, and back.

Out goes, once, what a request leaves behind when it ends, if to bring it back would take less than to compute it. Back
come blocks that continue what the tree holds: cached blocks like others from the moment they land, whose contents
travel with the next plan, before its rows. Owns what waits for a plan or travels with one, and the counts; blocks are
the tree's, and what is evicted meanwhile just does not travel. A step moves no more than a share of its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from tapetum.cache.eviction import Worth
from tapetum.cache.ledger import Ledger
from tapetum.cache.names import block_name, kv_root_name
from tapetum.cache.prefix import PrefixNode, PrefixTree
from tapetum.cache.prompt_blocks import PromptBlocks
from tapetum.core.cost import CostModel
from tapetum.core.plan import BatchPlan, BlockArrival, BlockExport, Payload, StepResult
from tapetum.core.request import Request, RequestState

_LEAST_TOKENS = 128  # of a prefix without a picture that is worth an entry for each block
_BESIDE_S, _ALONE_S = 2e-3, 20e-3  # what moves may take of a step, beside rows and without any
_MOST_BLOCKS = 1024  # of a step, where moves seem to cost nothing


@dataclass(frozen=True, slots=True)
class Exported:
    """A block that was copied out."""

    name: bytes
    payload: Payload
    cost_s: float  # to compute it


class Traffic:
    """`load_s` predicts how long a tier takes to bring so many blocks; None = there is no tier."""

    def __init__(
        self,
        ledger: Ledger,
        cost: CostModel,
        block_bytes: int,
        load_s: Callable[[int], float] | None = None,
    ) -> None:
        self.num_exported = 0  # blocks since the start
        self.num_arrived = 0
        self._ledger = ledger
        self._cost = cost
        self._block_bytes = block_bytes
        self._load_s = load_s
        self._leaving: deque[PrefixNode] = deque()
        self._used: list[PrefixNode] = []  # that were kept before
        self._out: list[Exported] = []
        self._landed: list[tuple[PrefixNode, Payload]] = []
        self._in_flight: list[
            tuple[BlockExport | BlockArrival, list[PrefixNode]]
        ] = []  # of plans not settled

    @property
    def has_some(self) -> bool:
        """Whether the next plan has something to move."""
        return bool(self._leaving or self._landed)

    def ended(self, state: RequestState) -> None:
        """A request is about to give its blocks back: what it has computed is idle, and worth keeping or not."""
        last = self._ledger.last_published(state)
        if self._load_s is None or last is None:
            return
        path = _path(last)
        is_large = last.worth.has_picture or len(path) * self._ledger.block_size >= _LEAST_TOKENS
        back_s = self._load_s(len(path)) + self._cost.move_seconds(len(path) * self._block_bytes)
        if not is_large or back_s >= sum(node.worth.cost_s for node in path):
            return
        for node in path:
            if node.is_kept:
                self._used.append(node)
            else:
                self.leave(node)

    def leave(self, node: PrefixNode) -> None:
        """The block is copied out with one of the next plans."""
        node.is_kept = True
        self._leaving.append(node)

    def take_used(self) -> list[PrefixNode]:
        """What requests that have ended since the last call left behind and tiers should have, named."""
        taken, self._used = self._used, []
        for node in taken:
            self._name(node)
        return taken

    def blocks_of(self, request: Request) -> PromptBlocks:
        return self._ledger.blocks_of(request)

    def names(self, blocks: PromptBlocks) -> Iterator[tuple[int, bytes]]:
        """Of what could be found of a prompt behind what the tree holds: indices and names."""
        tree = self._ledger.tree
        if tree is None:
            return
        keys = blocks.keys(blocks.num_reusable)
        found = tree.match(blocks.root, keys)
        name = self._name(found[-1]) if found else self._root_name(blocks.root)
        for index in range(len(found), len(keys)):
            name = block_name(name, keys[index])
            yield index, name

    def land(self, blocks: PromptBlocks, first: int, payloads: Sequence[Payload], *, is_alone: bool) -> int:
        """What was found of a prompt's blocks, from the one of index `first` on -> how many are in the tree now.

        Fewer where a step moves no more, where the pool has no room for what is worth less than what it holds, and
        none where those before them are gone.
        """
        tree = self._ledger.tree
        assert tree is not None, "found without a tree"
        keys = blocks.keys(first + len(payloads))
        path = tree.match(blocks.root, keys)
        for node in path:
            tree.acquire(node, is_reuse=False)
        room = self._limit(is_alone=is_alone) - len(self._landed)
        for index in range(len(path), min(len(keys), len(path) + room) if len(path) >= first else 0):
            cost_s, parent = blocks.cost_s(index), path[-1] if path else None
            has_picture = bool(blocks.parts(index)) or (parent is not None and parent.worth.has_picture)
            if not self._has_room(tree, Worth(-1, blocks.account, has_picture, cost_s)):
                break
            block = self._ledger.allocate(blocks, index)
            path.append(tree.publish(blocks.root, parent, keys[index], block, cost_s))
            path[-1].is_kept = True
            self._landed.append((path[-1], payloads[index - first]))
        for node in reversed(path):
            tree.release(node.block)
        return max(0, len(path) - first)

    def is_full(self, *, is_alone: bool) -> bool:
        """Whether the next plan brings as much as a step may."""
        return len(self._landed) >= self._limit(is_alone=is_alone)

    def take_exports(self, *, is_alone: bool) -> tuple[BlockExport, ...]:
        """Those of the plan that is written now."""
        nodes: list[PrefixNode] = []
        limit = self._limit(is_alone=is_alone)
        while self._leaving and len(nodes) < limit:
            node = self._leaving.popleft()
            if self._is_there(node):
                nodes.append(node)
        if not nodes:
            return ()
        names = tuple(self._name(node) for node in nodes)
        export = BlockExport(names=names, block_ids=tuple(node.block for node in nodes))
        self._in_flight.append((export, nodes))
        return (export,)

    def take_arrivals(self) -> tuple[BlockArrival, ...]:
        landed = [(node, payload) for node, payload in self._landed if self._is_there(node)]
        self._landed.clear()
        if not landed:
            return ()
        nodes = [node for node, _ in landed]
        arrival = BlockArrival(
            block_ids=tuple(node.block for node in nodes), payloads=tuple(payload for _, payload in landed)
        )
        self._in_flight.append((arrival, nodes))
        return (arrival,)

    def tell_again(self, plan: BatchPlan) -> None:
        """A plan never ran, or nobody knows how far: what it was to move, the next one moves."""
        for export in plan.block_exports:
            self._leaving.extendleft(reversed(self._landing(export)))
        for arrival in plan.block_arrivals:
            self._landed[:0] = zip(self._landing(arrival), arrival.payloads, strict=True)

    def settle(self, plan: BatchPlan, result: StepResult) -> None:
        """A plan has run."""
        for export in plan.block_exports:
            for name, node in zip(export.names, self._landing(export), strict=True):
                if payload := result.exported_blocks.get(name):
                    self._out.append(Exported(name, payload, node.worth.cost_s))
                    self.num_exported += 1
                else:
                    node.is_kept = False
        for arrival in plan.block_arrivals:
            self.num_arrived += len(self._landing(arrival))

    def take_exported(self) -> list[Exported]:
        """What was copied out since the last call, for the tiers."""
        taken, self._out = self._out, []
        return taken

    def _landing(self, moved: BlockExport | BlockArrival) -> list[PrefixNode]:
        """It is in flight no more -> whose blocks it moved."""
        place = next(place for place, (other, _) in enumerate(self._in_flight) if other is moved)
        return self._in_flight.pop(place)[1]

    def _limit(self, *, is_alone: bool) -> int:
        """Blocks that a step moves."""
        first_s, two_s = (self._cost.move_seconds(count * self._block_bytes) for count in (1, 2))
        each_s = max(two_s - first_s, 1e-12)
        left_s = (_ALONE_S if is_alone else _BESIDE_S) - first_s
        return 1 + int(min(_MOST_BLOCKS, max(0.0, left_s) / each_s))

    def _has_room(self, tree: PrefixTree, worth: Worth) -> bool:
        pool = self._ledger.pool
        return bool(pool.num_free or (pool.num_cached and tree.order.prefers(worth)))

    def _is_there(self, node: PrefixNode) -> bool:
        return self._ledger.tree is not None and self._ledger.tree.has(node)

    def _name(self, node: PrefixNode) -> bytes:
        """Worked out from the nearest one above that has a name."""
        unnamed: list[PrefixNode] = []
        above: PrefixNode | None = node
        while above is not None and not above.name:
            unnamed.append(above)
            above = above.parent
        name = above.name if above is not None else self._root_name(node.root)
        for below in reversed(unnamed):
            name = below.name = block_name(name, below.key)
        return name

    def _root_name(self, root: tuple[Hashable, ...]) -> bytes:
        return kv_root_name(root, self._ledger.block_size)


def _path(node: PrefixNode) -> list[PrefixNode]:
    """From the root."""
    path: list[PrefixNode] = []
    above: PrefixNode | None = node
    while above is not None:
        path.append(above)
        above = above.parent
    return path[::-1]
