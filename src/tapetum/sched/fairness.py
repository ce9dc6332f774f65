"""Tenants take turns: who of several goes first, by what each has had.

Owns a virtual counter for each tenant: the predicted seconds of encode, prefill and decode that were done for it. What
is cached is not done again and costs nothing. The tenant with the smallest counter goes first, its own requests in
their rank order. Classes come before that: a request takes part once it has aged up to the best class that waits
anywhere, and until then goes behind all that do. So nothing lies idle while anyone has work.

The level is what a tenant that is always there and gets its share would have had. Who comes, or comes back, begins at
the level: nobody saves up turns while away, or while its class is passed over. A counter that the level has reached
is forgotten, and once nothing waits all are.

The bound: with n tenants at a time and C the most that is charged between two decisions, a request that takes part, and
before which its own tenant has nothing, sees less than (4n + 2)·C seconds done for others before it is chosen, whoever
comes meanwhile. For a request of class p, taking part begins at most (p − q)·AGEING_S after it came, q being the best
class that waits. Of its own tenant only that goes before it which the rank allows (queue.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import Protocol, TypeVar

from tapetum.sched.queue import AGEING_S, Rank


class Pending(Protocol):
    @property
    def rank(self) -> Rank: ...

    @property
    def work_s(self) -> float:
        """Predicted for all of it."""
        ...


T = TypeVar("T", bound=Pending)
Turn = tuple[bool, float, Rank]


class Fairness:
    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._present: set[str] = set()  # who takes part
        self._level = 0.0
        self._last_score = inf  # of requests that take part

    @property
    def num_counters(self) -> int:
        return len(self._counters)

    def begin(self, heads: Mapping[str, Rank], now: float) -> None:
        """A decision is due: `heads` are the best ranks of what has not had its first token, by tenant."""
        if not heads:
            self._counters.clear()
            self._present.clear()
            return
        best = min(rank.priority for rank in heads.values())
        self._last_score = max(best + now / AGEING_S, min(heads.values()).score)
        present = {name for name, rank in heads.items() if rank.score <= self._last_score}
        for name in present - self._present:
            self._counters[name] = max(self._counters.get(name, self._level), self._level)
        self._present = present
        self._level = max(self._level, min(self._counters[name] for name in present))
        if len(self._counters) > len(present):
            self._forget()

    def charge(self, tenant: str, seconds: float) -> None:
        """So much was done for a tenant."""
        self._counters[tenant] = self._counters.get(tenant, self._level) + seconds
        if tenant in self._present:
            self._level += seconds / len(self._present)

    def in_turn(self, groups: Mapping[str, Iterable[T]]) -> Iterator[T]:
        """The items of all tenants, those of each in the order given, as if each item were done before the next."""
        heap: list[tuple[Turn, str, T, Iterator[T], float]] = []
        for tenant, items in groups.items():
            following = iter(items)
            for first in following:
                heap.append((self._turn(tenant, first, 0.0), tenant, first, following, 0.0))
                break
        heapify(heap)
        while heap:
            _, tenant, item, following, ahead_s = heap[0]
            yield item
            ahead_s += item.work_s
            for item in following:
                heapreplace(heap, (self._turn(tenant, item, ahead_s), tenant, item, following, ahead_s))
                break
            else:
                heappop(heap)

    def _turn(self, tenant: str, item: Pending, ahead_s: float) -> Turn:
        rank = item.rank
        if rank.score > self._last_score:
            return True, 0.0, rank
        return False, self._counters.get(tenant, self._level) + ahead_s, rank

    def _forget(self) -> None:
        """A tenant at the level or below it, that takes no part, is as one that was never here."""
        self._counters = {
            name: counter
            for name, counter in self._counters.items()
            if counter > self._level or name in self._present
        }
