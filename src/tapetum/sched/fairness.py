"""Tenants take turns: who of several goes first, by what each has had.

Owns a virtual counter for each tenant: the predicted seconds of encode, prefill and decode that were done for it. What
is cached is not done again and costs nothing. The tenant with the smallest counter goes first, its own requests in
their rank order. Classes come before that: a request takes part once it has aged up to the best class that waits
anywhere, and until then goes behind all that do. So nothing lies idle while anyone has work.

The level is what a tenant that is always there and gets its share would have had. Who comes, or comes back, begins at
the level: nobody saves up turns while away, or while its class is passed over. A counter of one that is away counts no
more once the level has reached it, and once nothing waits all are forgotten.

The bound: with n tenants at a time and C the most that is charged between two decisions, a request that takes part, and
before which its own tenant has nothing, sees less than (4n + 2)·C seconds done for others before it is chosen, whoever
comes meanwhile. For a request of class p, taking part begins at most (p − q)·AGEING_S after it came, q being the best
class that waits. Of its own tenant only that goes before it which the rank allows (queue.py).

No decision looks at all tenants. Those to which nothing has happened since they came in share the level of that time
(levels.py), and are in turn by their ranks. The others with something pending are in a heap by their counters: one in
it may have a larger counter by now, or take no part, which is seen when it comes to the top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from math import inf
from typing import Protocol, TypeVar

from tapetum.sched.heads import Heads
from tapetum.sched.levels import Levels
from tapetum.sched.queue import AGEING_S, Rank


class Pending(Protocol):
    @property
    def rank(self) -> Rank: ...

    @property
    def work_s(self) -> float:
        """Predicted for all of it."""
        ...


T = TypeVar("T", bound=Pending)
Turn = tuple[bool, float, Rank]  # whether it takes no part, the counter, the rank
_FEW = 1024


class Fairness:
    def __init__(self) -> None:
        self._heads = Heads()
        self._classes: Counter[int] = Counter()  # of the heads
        self._untouched = Heads()  # of tenants without a counter
        self._counters: dict[str, tuple[float, int]] = {}  # and as of which decision they are right
        self._heap: list[
            tuple[float, str]
        ] = []  # of tenants with both, each once, by what the counter is at least
        self._in_heap: set[str] = set()
        self._levels = Levels()
        self._level = self._kept_above = (
            0.0  # counters of those away count above the level of the last decision
        )
        self._limit = -inf  # of the scores that take part
        self._num_present = 0  # tenants that take part
        self._decision = 0
        self._enough = _FEW  # so many counters are looked through for those that say nothing

    @property
    def num_counters(self) -> int:
        return len(self._counters)

    def decide(self, heads: Mapping[str, Rank | None], now: float) -> None:
        """A decision is due. `heads`: the best ranks of what has not had its first token, of tenants where they have
        changed; None where nothing is left."""
        self._decision += 1
        came = [tenant for tenant, rank in heads.items() if self._move(tenant, rank)]
        if not self._heads:
            self._clear()
            return
        first_score = self._heads.first.score
        self._set_limit(max(min(self._classes) + now / AGEING_S, first_score))
        self._levels.forget_below(first_score)
        for tenant in came:
            self._let_in(tenant)
        self._num_present = self._heads.num_up_to(self._limit)
        self._level = self._kept_above = max(self._level, self._least())
        if len(self._counters) > self._enough:
            self._forget()

    def charge(self, seconds: Mapping[str, float]) -> None:
        """So much was done for each of these tenants."""
        heads, counters, kept_above = self._heads.ranks, self._counters, self._kept_above
        for tenant, charged_s in seconds.items():
            if tenant in heads:
                self._keep(tenant, self._counter(tenant) + charged_s)
                if self._takes_part(tenant):
                    self._level += charged_s / self._num_present
            else:  # as most of those that decode; what `_counter` and `_keep` would do
                known = counters.get(tenant)
                counter = self._level if known is None or known[0] <= kept_above else known[0]
                counters[tenant] = counter + charged_s, self._decision

    def turn(self, tenant: str, rank: Rank, ahead_s: float = 0.0) -> Turn:
        """Of a request of a tenant that has so much before it."""
        if rank.score > self._limit:
            return True, 0.0, rank
        return False, self._counter(tenant) + ahead_s, rank

    def in_turn(self, groups: Mapping[str, Iterable[T]]) -> Iterator[T]:
        """The items of some tenants, those of each in the order given, as if each were done before the next."""
        heap: list[tuple[Turn, str, T, Iterator[T], float]] = []
        for tenant, items in groups.items():
            following = iter(items)
            for first in following:
                heap.append((self.turn(tenant, first.rank), tenant, first, following, 0.0))
                break
        heapify(heap)
        while heap:
            _, tenant, item, following, ahead_s = heap[0]
            yield item
            ahead_s += item.work_s
            for item in following:
                heapreplace(heap, (self.turn(tenant, item.rank, ahead_s), tenant, item, following, ahead_s))
                break
            else:
                heappop(heap)

    def tenants(self) -> Iterator[tuple[Turn, str]]:
        """All that have something pending, in the order of the turns of their heads. No decision may come between."""
        num_untouched = self._untouched.num_up_to(self._limit)
        untouched = (
            (self.turn(tenant, rank), tenant) for rank, tenant in self._untouched.places(0, num_untouched)
        )
        ready = list(islice(untouched, 1))
        unseen = [(counter, 0) for counter, _ in self._heap[:1]]  # places in the heap, by what lies there
        while ready or unseen:
            while unseen and (not ready or unseen[0][0] <= ready[0][0][1]):
                _, place = heappop(unseen)
                tenant = self._heap[place][1]
                for below in range(2 * place + 1, min(2 * place + 3, len(self._heap))):
                    heappush(unseen, (self._heap[below][0], below))
                if tenant in self._counters and self._takes_part(tenant):
                    heappush(ready, (self.turn(tenant, self._heads.ranks[tenant]), tenant))
            if ready:
                found = heappop(ready)
                yield found
                if found[1] not in self._counters:
                    for following in islice(untouched, 1):
                        heappush(ready, following)
        for rank, tenant in self._heads.places(self._num_present):
            yield self.turn(tenant, rank), tenant

    def _takes_part(self, tenant: str) -> bool:
        rank = self._heads.ranks.get(tenant)
        return rank is not None and rank.score <= self._limit

    def _counter(self, tenant: str) -> float:
        rank, known = self._heads.ranks.get(tenant), self._counters.get(tenant)
        if rank is None or rank.score > self._limit:
            return self._level if known is None or known[0] <= self._kept_above else known[0]
        level, decision = self._levels.at(rank.score)
        if known is None:
            return level
        counter, known_at = known
        return max(counter, level) if decision > known_at else counter

    def _keep(self, tenant: str, counter: float) -> None:
        """Its counter is this from now on."""
        if tenant in self._heads.ranks:
            self._untouched.discard(tenant)
            self._push(tenant, counter)
        self._counters[tenant] = counter, self._decision

    def _push(self, tenant: str, counter: float) -> None:
        if tenant not in self._in_heap:
            self._in_heap.add(tenant)
            heappush(self._heap, (counter, tenant))

    def _drop(self, tenant: str) -> None:
        """It needs no counter of its own any more."""
        del self._counters[tenant]
        if tenant in self._heads.ranks:
            self._untouched.add(tenant, self._heads.ranks[tenant])

    def _move(self, tenant: str, rank: Rank | None) -> bool:
        """It has another head -> whether it may come in by that."""
        before = self._heads.ranks.get(tenant)
        if before == rank:
            return False
        was_present = self._takes_part(tenant)
        if was_present:
            self._keep(tenant, self._counter(tenant))
        if before is not None:
            self._heads.discard(tenant)
            self._untouched.discard(tenant)
            self._classes[before.priority] -= 1
            if not self._classes[before.priority]:
                del self._classes[before.priority]
        if rank is not None:
            self._heads.add(tenant, rank)
            self._classes[rank.priority] += 1
            if tenant in self._counters:
                self._push(tenant, self._counters[tenant][0])
            else:
                self._untouched.add(tenant, rank)
        return rank is not None and not was_present

    def _set_limit(self, limit: float) -> None:
        if limit < self._limit:
            self._levels.cut(limit)
        elif self._heads.num_up_to(limit) > self._heads.num_up_to(self._limit):
            self._levels.add(limit, self._level, self._decision)
        else:
            self._levels.widen(limit)
        self._limit = limit

    def _let_in(self, tenant: str) -> None:
        """It has something pending again: if that takes part, at the level at least."""
        if not self._takes_part(tenant):
            return
        known = self._counters.get(tenant)
        _, decision = self._levels.at(self._heads.ranks[tenant].score)
        if known is not None and known[0] > self._level:
            self._keep(tenant, known[0])
        elif decision < self._decision:  # the others of its range came in earlier
            self._keep(tenant, self._level)
        elif known is not None:
            self._drop(tenant)

    def _least(self) -> float:
        """The smallest counter of those that take part; on the way to it, counters that say nothing are dropped."""
        while self._heap:
            counter, tenant = self._heap[0]
            known = self._counters.get(tenant) if tenant in self._heads.ranks else None
            if known is not None and known[0] > counter:
                heapreplace(self._heap, (known[0], tenant))
                continue
            least = self._least_untouched()
            if known is not None and self._takes_part(tenant) and self._counter(tenant) == counter:
                return min(counter, least)
            if known is not None and counter >= least:
                return least  # nobody behind has a smaller one
            heappop(self._heap)
            self._in_heap.remove(tenant)
            if known is not None:  # it was raised to the level where it came in, or the level has reached it
                self._drop(tenant)
        return self._least_untouched()

    def _least_untouched(self) -> float:
        if not self._untouched or self._untouched.first.score > self._limit:
            return inf
        return self._levels.at(self._untouched.first.score)[0]

    def _forget(self) -> None:
        """Drop the counters of those away that the level has reached; the next time when there are twice as many."""
        self._counters = {
            tenant: known
            for tenant, known in self._counters.items()
            if tenant in self._heads.ranks or known[0] > self._kept_above
        }
        self._enough = max(_FEW, 2 * len(self._counters))

    def _clear(self) -> None:
        self._counters.clear()
        self._heap.clear()
        self._in_heap.clear()
        self._levels.clear()
        self._limit, self._num_present, self._kept_above = -inf, 0, self._level
