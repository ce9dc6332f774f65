"""The best of each tenant's pending requests, in order of rank."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from math import inf

from tapetum.sched.queue import Rank

Head = tuple[Rank, str]  # and whose it is


class Heads:
    def __init__(self) -> None:
        self.ranks: dict[str, Rank] = {}  # by tenant; for reading
        self._order: list[Head] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def first(self) -> Rank:
        return self._order[0][0]

    def add(self, tenant: str, rank: Rank) -> None:
        self.ranks[tenant] = rank
        insort(self._order, (rank, tenant))

    def discard(self, tenant: str) -> None:
        rank = self.ranks.pop(tenant, None)
        if rank is not None:
            del self._order[bisect_left(self._order, (rank, tenant))]

    def num_up_to(self, limit: float) -> int:
        """How many have a score within the limit."""
        return bisect_right(self._order, (Rank(limit, inf, 0, 0), ""))

    def places(self, start: int, stop: int | None = None) -> Iterator[Head]:
        """From one place in the order up to another; nothing may change meanwhile."""
        return islice(self._order, start, stop)
