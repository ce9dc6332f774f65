"""EvictionOrder: which of the cached blocks goes first.

Owns the order, not the blocks. Candidates are leaves of the prefix tree: nothing below them is lost with them. Two
things decide, the first before the second:

1. Soft quotas. A block goes the earlier the more of its quotas are exceeded: that of pictures (the visual budget), that
   of its account, and that of what was used once so far, which is how what a long document or a scan leaves behind
   makes room for itself and not at the cost of what others come back to. They say who goes first and
   nothing else: whatever is free anybody may have.
2. Worth, by GreedyDual-Size-Frequency: a block stands at `age + uses · seconds to compute it again`, all being of one
   size, and the lowest goes. The age rises to where the last one stood that went, so what nobody uses sinks.

A step costs O(log blocks). Cherkasova: Improving WWW proxies performance with GreedyDual-Size-Frequency (1998).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import product
from typing import Literal, NamedTuple, get_args

from tapetum.cache.blocks import BlockPool

Reason = Literal["worth", "visual", "tenant", "once"]  # of an eviction: a quota, the first that was exceeded
MAX_USES = 32  # counted, so that what many used once is old some day
_SLACK = 32  # entries of the past that a heap may hold beside as many as are of now


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Shares of the pool beyond which a block goes before others."""

    visual: float = 0.9  # blocks with tokens of pictures, so that the texts that all begin with stay
    tenant: float = 0.75  # of one account beside others; at least one half, so that one at most is above it
    once: float = 0.5  # blocks that were used once

    def __post_init__(self) -> None:
        assert self.tenant >= 0.5, "more than one account could be above its quota"


@dataclass(slots=True, eq=False)
class Worth:
    """A published block in the eyes of the order."""

    block: int
    account: str
    has_picture: bool  # in it or before it: what stands behind a picture goes before it
    cost_s: float  # to compute it again
    uses: int = 1  # requests that had it
    level: float = 0.0  # where it stands
    ticket: int = 0  # its place among those on a level; 0 = no candidate

    @property
    def is_reused(self) -> bool:
        return self.uses > 1


@dataclass(slots=True, eq=False)
class _Shelf:
    """Candidates of one kind, in a heap that also holds entries of some that are none any more."""

    entries: list[tuple[float, int, Worth]] = field(default_factory=list)
    num_candidates: int = 0

    def push(self, worth: Worth) -> None:
        heappush(self.entries, (worth.level, worth.ticket, worth))
        self.num_candidates += 1

    def drop(self) -> None:
        """One of the candidates has lost its ticket."""
        self.num_candidates -= 1
        if len(self.entries) > 2 * self.num_candidates + _SLACK:
            self.entries = [entry for entry in self.entries if entry[1] == entry[2].ticket]
            heapify(self.entries)

    def first(self) -> Worth | None:
        while self.entries and self.entries[0][1] != self.entries[0][2].ticket:
            heappop(self.entries)
        return self.entries[0][2] if self.entries else None


class _Exceeded(NamedTuple):
    """The quotas that are exceeded now."""

    account: str | None
    visual: bool
    once: bool

    def by(self, worth: Worth) -> int:
        """How many of the block's."""
        return (
            (worth.account == self.account)
            + (self.visual and worth.has_picture)
            + (self.once and worth.uses == 1)
        )

    def reason(self, worth: Worth) -> Reason:
        if worth.account == self.account:
            return "tenant"
        if self.visual and worth.has_picture:
            return "visual"
        return "once" if self.once and worth.uses == 1 else "worth"


class EvictionOrder:
    def __init__(self, pool: BlockPool, quotas: Quotas) -> None:
        self.quotas = quotas
        self.num_reused = 0  # published blocks that were used more than once
        self.evictions: Counter[Reason] = Counter(dict.fromkeys(get_args(Reason), 0))
        self._pool = pool
        self._age = 0.0
        self._num_tickets = 0
        self._all = {kind: _Shelf() for kind in product((False, True), repeat=2)}  # by picture, reused
        self._by_account: dict[str, dict[tuple[bool, bool], _Shelf]] = {}

    @property
    def num_candidates(self) -> int:
        return sum(shelf.num_candidates for shelf in self._all.values())

    def use(self, worth: Worth) -> None:
        """One more request has it. It must be no candidate."""
        assert not worth.ticket, f"block {worth.block} is in the order while it is used"
        self.num_reused += worth.uses == 1
        worth.uses = min(worth.uses + 1, MAX_USES)

    def place(self, worth: Worth) -> None:
        """Say where a block stands that has just been let go."""
        worth.level = self._age + worth.uses * worth.cost_s

    def add(self, worth: Worth) -> None:
        """It may go: it is cached, and a leaf."""
        self._num_tickets += 1
        worth.ticket = self._num_tickets
        for shelf in self._shelves(worth):
            shelf.push(worth)

    def discard(self, worth: Worth) -> None:
        """It may not, if it might."""
        if not worth.ticket:
            return
        worth.ticket = 0
        for shelf in self._shelves(worth):
            shelf.drop()
        shelves = self._by_account[worth.account]
        if not any(shelf.num_candidates for shelf in shelves.values()):
            del self._by_account[worth.account]

    def first(self) -> Worth:
        """Who goes next. There must be a candidate."""
        exceeded = self._exceeded()
        return min(self._tops(), key=lambda worth: _rank(worth, exceeded))

    def prefers(self, worth: Worth) -> bool:
        """Whether the next to go should make room for a block that is not there yet. There must be a candidate."""
        self.place(worth)
        exceeded = self._exceeded()
        return _rank(self.first(), exceeded) <= _rank(worth, exceeded)

    def evict(self, worth: Worth) -> None:
        """It goes."""
        self.evictions[self._exceeded().reason(worth)] += 1
        self.discard(worth)
        self._age = max(self._age, worth.level)
        self.num_reused -= worth.is_reused

    @property
    def num_visual_budget(self) -> int:
        """Blocks with tokens of pictures up to which they are within their quota."""
        return int(self.quotas.visual * self._pool.num_blocks)

    @property
    def num_once(self) -> int:
        """Blocks that are not free and were used once, or not at all so far."""
        return self._pool.num_blocks - self._pool.num_free - self.num_reused

    def _exceeded(self) -> _Exceeded:
        pool, quotas, limit = self._pool, self.quotas, self._pool.num_blocks
        majority = pool.majority if pool.num_accounts > 1 else None
        return _Exceeded(
            account=majority[0] if majority and majority[1] > quotas.tenant * limit else None,
            visual=pool.num_visual > self.num_visual_budget,
            once=self.num_once > quotas.once * limit,
        )

    def _tops(self) -> Iterator[Worth]:
        """The first of each kind, and of each kind of the account that may be above its quota."""
        majority = self._pool.majority
        own = self._by_account.get(majority[0], {}) if majority else {}
        for shelf in (*self._all.values(), *own.values()):
            if (worth := shelf.first()) is not None:
                yield worth

    def _shelves(self, worth: Worth) -> tuple[_Shelf, _Shelf]:
        kind = (worth.has_picture, worth.is_reused)
        own = self._by_account.setdefault(worth.account, {})
        return self._all[kind], own.setdefault(kind, _Shelf())


def _rank(worth: Worth, exceeded: _Exceeded) -> tuple[int, float, int]:
    """The lowest goes first; what has no ticket yet goes before others of its level."""
    return -exceeded.by(worth), worth.level, worth.ticket
