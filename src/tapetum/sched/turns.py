"""Whose turn it is among requests: fairness between tenants, ranks within one.

Owns who waits, by tenant. What a step cost each of them is told by charges.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from operator import attrgetter

from tapetum.sched.fairness import Fairness, Turn
from tapetum.sched.progress import Progress
from tapetum.sched.queue import Rank, RankedQueue

_BY_RANK: Callable[[Progress], Rank] = attrgetter("rank")


class Turns:
    def __init__(self) -> None:
        self._fairness = Fairness()
        self._lines: dict[str, RankedQueue[Progress]] = {}
        self._changed: set[str] = set()  # accounts whose lines are others than at the last decision
        self._prefilling: dict[str, Rank] = {}  # the best of each account, as of that
        self._undecided: tuple[Iterable[Progress], float] | None = None

    def push(self, progress: Progress) -> None:
        """It waits."""
        self._lines.setdefault(progress.account, RankedQueue(_BY_RANK)).push(progress)
        self._changed.add(progress.account)

    def remove(self, progress: Progress) -> None:
        """It waits no more."""
        line = self._lines[progress.account]
        line.remove(progress)
        if not line:
            del self._lines[progress.account]
        self._changed.add(progress.account)

    def begin(self, prefills: Iterable[Progress], now: float) -> None:
        """The turns of a step are decided by what was charged until now, once they are asked for."""
        self._undecided = (prefills, now)

    def waiting(self) -> Iterator[Progress]:
        """In the order in which to let them in: each must be let in before the next is asked for; nobody may come."""
        self._decide()
        apart = [account for account in self._prefilling if account in self._lines]
        ready = [(self._turn(account, 0.0), account) for account in apart]
        heapify(ready)
        others = (found for found in self._fairness.tenants() if found[1] not in self._prefilling)
        ahead_s: defaultdict[str, float] = defaultdict(float)
        following = next(others, None)
        while ready or following is not None:
            if following is None or (ready and ready[0] < following):
                _, account = heappop(ready)
            else:
                _, account = following
                following = next(others, None)
            progress = self._lines[account].first
            yield progress
            ahead_s[account] += progress.work_s
            if account in self._lines:
                heappush(ready, (self._turn(account, ahead_s[account]), account))

    def prefills(
        self, prefills: Iterable[Progress], key: Callable[[Progress], Rank | float] = _BY_RANK
    ) -> list[Progress]:
        """In the order in which to go on; `key` decides within a tenant."""
        lines: defaultdict[str, list[Progress]] = defaultdict(list)
        for progress in prefills:
            lines[progress.account].append(progress)
        if not lines:
            return []
        self._decide()
        groups = {account: sorted(line, key=key) for account, line in lines.items()}
        return list(self._fairness.in_turn(groups))

    def charge(self, seconds: Mapping[str, float]) -> None:
        """So much was done for each of these accounts."""
        self._fairness.charge(seconds)

    def _turn(self, account: str, ahead_s: float) -> Turn:
        """Of the first that waits."""
        return self._fairness.turn(account, self._lines[account].first.rank, ahead_s)

    def _decide(self) -> None:
        if self._undecided is None:
            return
        prefills, now = self._undecided
        self._undecided = None
        before, self._prefilling = self._prefilling, {}
        for progress in prefills:
            account, rank = progress.account, progress.rank
            self._prefilling[account] = min(rank, self._prefilling.get(account, rank))
        changed = self._changed.union(before, self._prefilling)
        self._changed.clear()
        self._fairness.decide({account: self._head(account) for account in changed}, now)

    def _head(self, account: str) -> Rank | None:
        """The best rank of what has not had its first token."""
        line, prefilling = self._lines.get(account), self._prefilling.get(account)
        if line is None:
            return prefilling
        return line.first.rank if prefilling is None else min(line.first.rank, prefilling)
