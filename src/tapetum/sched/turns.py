"""Whose turn it is among requests: fairness between tenants, ranks within one, seats of those that run.

Owns who waits, by tenant. What a step cost each of them is told by charges.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from tapetum.sched.fairness import Fairness
from tapetum.sched.progress import Progress
from tapetum.sched.queue import Rank, RankedQueue

_BY_RANK: Callable[[Progress], Rank] = attrgetter("rank")


class Turns:
    def __init__(self) -> None:
        self._fairness = Fairness()
        self._lines: dict[str, RankedQueue[Progress]] = {}
        self._undecided: tuple[Iterable[Progress], float] | None = None

    def push(self, progress: Progress) -> None:
        """It waits."""
        self._lines.setdefault(progress.account, RankedQueue(_BY_RANK)).push(progress)

    def remove(self, progress: Progress) -> None:
        """It waits no more."""
        line = self._lines[progress.account]
        line.remove(progress)
        if not line:
            del self._lines[progress.account]

    def begin(self, prefills: Iterable[Progress], now: float) -> None:
        """The turns of a step are decided by what was charged until now, once they are asked for."""
        self._undecided = (prefills, now)

    def waiting(self) -> Iterator[Progress]:
        """In the order in which to let them in, which may be done meanwhile; nobody may come."""
        self._decide()
        return self._fairness.in_turn({account: tuple(line) for account, line in self._lines.items()})

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

    def charge(self, account: str, seconds: float) -> None:
        self._fairness.charge(account, seconds)

    def _decide(self) -> None:
        if self._undecided is None:
            return
        prefills, now = self._undecided
        self._undecided = None
        heads = {account: line.first.rank for account, line in self._lines.items()}
        for progress in prefills:
            account, rank = progress.account, progress.rank
            heads[account] = min(rank, heads.get(account, rank))
        self._fairness.begin(heads, now)
