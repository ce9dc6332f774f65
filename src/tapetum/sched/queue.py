"""The order in which requests are served: priority class with ageing.

Effective priority at time `now` is `priority − (now − arrival) / AGEING_S`; the smallest is first. All requests age at
the same rate, so the order of two of them never changes and one fixed number, `priority + arrival / AGEING_S`, ranks
them for good. That is the bound against starvation: a request is passed only by better classes, and only by
those that arrive within AGEING_S seconds after it for each class between them. Tenants take turns within it
(fairness.py).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from tapetum.core.request import Request

AGEING_S = 10.0  # waiting so long counts as much as one priority class


class Rank(NamedTuple):
    """Smaller is earlier. No two requests have the same `order`."""

    score: float
    since_s: float
    order: int
    priority: int


def rank_of(request: Request, order: int, since_s: float) -> Rank:
    """Of a request that ages since then."""
    return Rank(request.priority + since_s / AGEING_S, since_s, order, request.priority)


T = TypeVar("T")


class RankedQueue(Generic[T]):
    """Items in the order of their ranks: the first is served first, the last gives way first."""

    def __init__(self, rank: Callable[[T], Rank]) -> None:
        self._items: list[T] = []
        self._rank = rank

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    @property
    def first(self) -> T:
        return self._items[0]

    @property
    def last(self) -> T:
        return self._items[-1]

    def push(self, item: T) -> None:
        insort(self._items, item, key=self._rank)

    def remove(self, item: T) -> None:
        index = bisect_left(self._items, self._rank(item), key=self._rank)
        assert self._items[index] is item, "not in the queue"
        del self._items[index]
