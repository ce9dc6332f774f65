"""GreedyDual: which of many things is given up first, by what it costs to have it again.

Worth = age + cost × uses ÷ bytes (GreedyDual-Size-Frequency: Cao and Irani 1997, Cherkasova 1998). The age is the worth
of what was given up last: whoever was not used since then falls behind those that are used now, however dear it was.
Of equal worth the one that came first goes first. Every call takes O(log n), asking none.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
_LEAST_REBUILT = 64


class GreedyDual(Generic[K]):
    """A use of something is its `remove` and `add` with one use more."""

    def __init__(self) -> None:
        self._age = 0.0
        self._order = 0
        self._places: dict[K, tuple[float, int]] = {}  # worth, order
        self._heap: list[tuple[float, int, K]] = []  # with some that were removed

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: K) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[K]:
        return iter(self._places)

    def add(self, key: K, cost_s: float, num_bytes: int, uses: int = 1) -> None:
        assert key not in self._places, "it is here already"
        self._order += 1
        place = (self._age + cost_s * uses / max(1, num_bytes), self._order)
        self._places[key] = place
        heappush(self._heap, (*place, key))

    def remove(self, key: K) -> None:
        """Nothing happens to the age."""
        del self._places[key]
        if len(self._heap) > 2 * len(self._places) + _LEAST_REBUILT:
            self._heap = [(*place, key) for key, place in self._places.items()]
            heapify(self._heap)

    def pop(self) -> K:
        """Give up the least worth; there must be one."""
        while True:
            worth, order, key = heappop(self._heap)
            if self._places.get(key) == (worth, order):
                del self._places[key]
                self._age = worth
                return key
