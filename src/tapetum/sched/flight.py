"""Flight: plans that were given out and have not come back.

Owns their numbers and whose rows they hold, and what is told to the executor once, with the next plan: requests that
it does not know yet, requests and features to forget, moves between tiers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tapetum.cache.traffic import Traffic
from tapetum.cache.visual import VisualCache
from tapetum.core.plan import BatchPlan, EncodeJob, Link, Row
from tapetum.sched.progress import Progress
from tapetum.sched.roster import Roster
from tapetum.sched.swap import Swap


class Flight:
    def __init__(self, roster: Roster, visual: VisualCache, swap: Swap, traffic: Traffic) -> None:
        self._roster = roster
        self._traffic = traffic
        self._visual = visual
        self._swap = swap
        self._owners: dict[int, tuple[Progress, ...]] = {}  # of the rows, by step
        self._step = 0

    def __len__(self) -> int:
        return len(self._owners)

    def has_only(self, plan: BatchPlan) -> bool:
        return self._owners.keys() == {plan.step}

    def owners(self, plan: BatchPlan) -> tuple[Progress, ...]:
        """Whose rows a plan in flight holds."""
        return self._owners[plan.step]

    def begin(
        self,
        rows: Sequence[Row],
        owners: Sequence[Progress],
        encodes: Sequence[EncodeJob] = (),
        links: Sequence[Link] = (),
    ) -> BatchPlan:
        """The next plan."""
        self._step += 1
        self._owners[self._step] = tuple(owners)
        admitted = [progress for progress in owners if not progress.is_known]
        for progress in admitted:
            progress.is_known = True
        saves, loads = self._swap.take_moves()
        return BatchPlan(
            step=self._step,
            rows=tuple(rows),
            encodes=tuple(encodes),
            links=tuple(links),
            saves=saves,
            loads=loads,
            admitted=tuple(progress.state.request for progress in admitted),
            released=self._roster.take_released(),
            dropped_features=self._visual.take_dropped(),
            drops_windows=self._visual.take_windows(),
            exports=self._visual.take_exports(),
            arrivals=self._visual.take_arrivals(),
            block_exports=self._traffic.take_exports(is_alone=not rows),
            block_arrivals=self._traffic.take_arrivals(),
        )

    def end(self, plan: BatchPlan) -> tuple[Progress, ...]:
        """A plan has come back -> whose rows it held."""
        return self._owners.pop(plan.step)

    def tell_again(self, plan: BatchPlan) -> None:
        """What a plan that never ran, or not to its end, was to tell the executor goes into the next one."""
        self._roster.return_released(plan.released)
        self._visual.return_exports(plan.exports)
        self._visual.return_arrivals(plan.arrivals)
        self._visual.return_dropped(plan.dropped_features)
        if plan.drops_windows:
            self._visual.clear_windows()
        self._traffic.tell_again(plan)
