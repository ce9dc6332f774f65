"""Preempted requests on the host: whose KV blocks move there, and when they come back.

A request that gives its blocks back has them copied to host memory, or computed again later, whichever the cost model
says takes less time. What other requests hold too stays on the device and is not copied. Owns what was saved, until its
request is admitted again or ends; a slot is free for others one step later, when nothing reads it any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tapetum.cache.host import HostSlots
from tapetum.cache.ledger import Ledger
from tapetum.cache.visual import VisualCache
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.plan import Move
from tapetum.core.request import RequestState


@dataclass(frozen=True, slots=True)
class _Saved:
    first: int  # index of the first block saved; those before it are hoped to be found in the prefix tree
    num_tokens: int  # computed when it was saved, those before it included
    slots: tuple[int, ...]


class Swap:
    """`block_bytes` = keys and values of one block."""

    def __init__(
        self, host: HostSlots, ledger: Ledger, visual: VisualCache, cost: CostModel, block_bytes: int
    ) -> None:
        self.num_saved_blocks = 0  # since the start
        self.num_loaded_blocks = 0
        self._host = host
        self._ledger = ledger
        self._visual = visual
        self._cost = cost
        self._block_bytes = block_bytes
        self._saved: dict[str, _Saved] = {}
        self._saves: list[Move] = []  # of the step being written
        self._loads: list[Move] = []
        self._spent: list[int] = []  # slots that nobody needs after that step

    @property
    def num_host_blocks(self) -> int:
        """Slots taken now."""
        return self._host.num_taken

    def save(self, state: RequestState) -> None:
        """Of a request that is about to give its blocks back; nothing if that does not pay, or there is no room."""
        if not self._host.num_slots:
            return
        num_tokens = min(state.num_computed_tokens, state.num_exact_tokens)
        blocks = state.block_ids[: -(-num_tokens // self._ledger.block_size)]
        first = self._num_shared(blocks)
        own = blocks[first:]
        if not own or not self._pays(state, first, num_tokens):
            return
        slots = self._host.try_take(len(own))
        if slots is None:
            return
        name = state.request.request_id
        self._saved[name] = _Saved(first, num_tokens, slots)
        self._saves.append(Move(request_id=name, block_ids=own, slots=slots))
        self.num_saved_blocks += len(own)

    def load(self, state: RequestState, num_matched: int) -> int:
        """Of a request that has blocks again, with so many tokens found in them -> tokens there when its rows run."""
        name = state.request.request_id
        saved = self._saved.pop(name, None)
        if saved is None:
            return num_matched
        self._spent += saved.slots
        first = num_matched // self._ledger.block_size
        is_fresh = any(
            move.request_id == name for move in self._saves
        )  # a step does not rely on its own saves
        if is_fresh or first < saved.first or num_matched >= saved.num_tokens:
            return num_matched
        slots = saved.slots[first - saved.first :]
        block_ids = state.block_ids[first : first + len(slots)]
        self._loads.append(Move(request_id=name, block_ids=block_ids, slots=slots))
        self.num_loaded_blocks += len(slots)
        return saved.num_tokens

    def outlook(self, state: RequestState, num_matched: int) -> tuple[int, float]:
        """What `load` would give a request with so many tokens found, and the seconds that the move takes."""
        saved = self._saved.get(state.request.request_id)
        first = num_matched // self._ledger.block_size
        if saved is None or first < saved.first or num_matched >= saved.num_tokens:
            return num_matched, 0.0
        num_blocks = len(saved.slots) - (first - saved.first)
        return saved.num_tokens, self._cost.move_seconds(num_blocks * self._block_bytes)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Of requests that have ended, or of which nobody knows whether they were saved."""
        for name in request_ids:
            if saved := self._saved.pop(name, None):
                self._spent += saved.slots

    def take_moves(self) -> tuple[tuple[Move, ...], tuple[Move, ...]]:
        """Saves and loads of the step, which is written now: steps after it may have the slots that it leaves."""
        moves = tuple(self._saves), tuple(self._loads)
        self._saves.clear()
        self._loads.clear()
        if self._spent:
            self._host.give_back(self._spent)
            self._spent.clear()
        return moves

    def _num_shared(self, blocks: tuple[int, ...]) -> int:
        """How many of the first blocks are held by other requests too."""
        for index, block in enumerate(blocks):
            if self._ledger.pool.references(block) == 1:
                return index
        return len(blocks)

    def _pays(self, state: RequestState, first: int, num_tokens: int) -> bool:
        """Whether there and back takes less than to compute the tokens again, with pictures that are not cached."""
        size = self._ledger.block_size
        start, num_blocks = first * size, -(-num_tokens // size) - first
        length = num_tokens - start
        cost = self._cost
        again_s = cost.step_seconds(0, 0, length, chunk_context(start, length)) - cost.step_seconds(0, 0)
        for span in state.request.prompt.spans:
            is_needed = start < span.end and span.start < num_tokens
            if is_needed and self._visual.needs_encode(span.item):
                job = self._visual.job_of(span.item)
                again_s += cost.encode_seconds(job.num_patches, job.squares)
        return 2 * cost.move_seconds(num_blocks * self._block_bytes) < again_s
