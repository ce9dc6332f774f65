"""Whose turn it is among requests: fairness between tenants, ranks within one, seats of those that run.

Owns who waits, by tenant. What a step cost each of them is told by charges.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from tapetum.sched.fairness import Fairness
from tapetum.sched.progress import Progress
from tapetum.sched.queue import Rank, RankedQueue, rank_of

_BY_RANK: Callable[[Progress], Rank] = attrgetter("rank")


def seat_of(progress: Progress) -> Rank:
    """The rank among those that run: as if it had come when it was let in first.

    A tenant with many that wait does not drive out others by having come earlier.
    """
    state = progress.state
    assert state.first_scheduled_s is not None, "was never let in"
    return rank_of(state.request, progress.rank.order, state.first_scheduled_s)


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

    def begin(self, running: Iterable[Progress], now: float) -> None:
        """The turns of a step are decided by what was charged until now, once they are asked for."""
        self._undecided = (running, now)

    def waiting(self) -> Iterator[Progress]:
        """In the order in which to let them in, which may be done meanwhile; nobody may come."""
        self._decide()
        return self._fairness.in_turn({account: tuple(line) for account, line in self._lines.items()})

    def prefills(
        self, running: Iterable[Progress], key: Callable[[Progress], Rank | float] = _BY_RANK
    ) -> list[Progress]:
        """What runs and does not decode, in the order in which to go on; `key` decides within a tenant."""
        lines: defaultdict[str, list[Progress]] = defaultdict(list)
        for progress in running:
            if not progress.is_decoding:
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
        running, now = self._undecided
        self._undecided = None
        heads = {account: line.first.rank for account, line in self._lines.items()}
        for progress in running:
            if not progress.is_decoding:
                account, rank = progress.account, progress.rank
                heads[account] = min(rank, heads.get(account, rank))
        self._fairness.begin(heads, now)
