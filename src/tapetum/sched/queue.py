"""The order in which requests are served: priority class with ageing.

Effective priority at time `now` is `priority − (now − arrival) / AGEING_S`; the smallest is first. All requests age at
the same rate, so the order of two of them never changes and one fixed number, `priority + arrival / AGEING_S`, ranks
them for good. That is the bound against starvation: a request is passed only by better classes, and only by
those that arrive within AGEING_S seconds after it for each class between them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from tapetum.core.request import Request

AGEING_S = 10.0  # waiting so long counts as much as one priority class


class Rank(NamedTuple):
    """Smaller is earlier. No two requests have the same `order`."""

    score: float
    arrival_s: float
    order: int


def rank_of(request: Request, order: int) -> Rank:
    return Rank(request.priority + request.arrival_s / AGEING_S, request.arrival_s, order)


class Ranked(Protocol):
    @property
    def rank(self) -> Rank: ...


T = TypeVar("T", bound=Ranked)


def _rank(item: Ranked) -> Rank:
    return item.rank


class RankedQueue(Generic[T]):
    """Items in rank order: the first is served first, the last gives way first."""

    def __init__(self) -> None:
        self._items: list[T] = []

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
        insort(self._items, item, key=_rank)

    def remove(self, item: T) -> None:
        index = bisect_left(self._items, item.rank, key=_rank)
        assert self._items[index] is item, "not in the queue"
        del self._items[index]
