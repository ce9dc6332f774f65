"""Pictures and clips that are made smaller while others wait, before their keys are computed.

Owns who may be made smaller, and how far: nothing that a caller has pinned, nothing below the rung that he named, no
text unless he named one, and nothing that is there already: a picture goes no further down than the first rung at
which it is kept. By how much, the ladder decides (sched/quality.py) on what the engine foretells. Each picture that was
made smaller carries what was asked for, which its answer discloses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tapetum.core.chat import MediaPart
from tapetum.core.media import PARTS, Degradation, Rung
from tapetum.engine.forecast import Forecast, Workload
from tapetum.engine.loads import Loads, result_of
from tapetum.engine.visual_budget import MediaLoader
from tapetum.media.plan import MediaPlan
from tapetum.sched.quality import QualityLadder, choose

Plans = tuple[MediaPlan, ...]
RUNGS: tuple[Rung, ...] = tuple(PARTS)
_PINS = ("min_pixels", "max_visual_tokens")


class Quality:
    """`forecast` asks the engine, from any thread; `clock` is that of deadlines. Safe to use from many threads."""

    def __init__(
        self,
        target_s: float,
        forecast: Callable[[Workload], Forecast],
        clock: Callable[[], float],
    ) -> None:
        self._ladder = QualityLadder(target_s)
        self._forecast = forecast
        self._clock = clock
        self._lock = threading.Lock()  # guards the ladder and what is below
        self._underway_s = (
            0.0  # work of prompts that are chosen and not built yet, which the engine does not see
        )

    @contextmanager
    def fitted(self, descent: Descent, priority: int, tenant: str) -> Iterator[Plans]:
        """The media as large as the load allows. Their work counts as queued until the context is left."""
        plans, work_s = self._chosen(descent, priority, tenant, is_asked=True)
        with self._lock:
            self._underway_s += work_s
        try:
            yield plans
        finally:
            with self._lock:
                self._underway_s -= work_s

    def foretold(self, descent: Descent, priority: int, tenant: str) -> Plans:
        """What `fitted` would give now; nobody is counted for having asked."""
        return self._chosen(descent, priority, tenant, is_asked=False)[0]

    def _chosen(self, descent: Descent, priority: int, tenant: str, *, is_asked: bool) -> tuple[Plans, float]:
        works = descent.works(self._forecast)
        full_s = next(works)
        with self._lock:
            now = self._clock()
            self._ladder.observe(descent.queue_s + self._underway_s, now)
            if is_asked:
                self._ladder.charge(tenant, full_s, now)
            allowance_s = self._ladder.allowance(priority, tenant, now)
        index = choose(allowance_s, _again(full_s, works))
        return descent.steps[index]


class Descent:
    """One prompt's media on their way down the ladder, rung by rung, only as far as somebody asks.

    `count` tells the tokens of the prompt with such media.
    """

    def __init__(
        self,
        plans: Plans,
        parts: Sequence[MediaPart],
        loader: MediaLoader,
        count: Callable[[Plans], int],
        loads: Loads,
    ) -> None:
        self._parts = parts
        self._loader = loader
        self._count = count
        self._loads = loads
        self._full = plans
        self._is_still = [_is_pinned(part.options) for part in parts]  # what goes no further down
        self.steps: list[tuple[Plans, float]] = []  # media and work at each rung so far
        self.queue_s = 0.0  # as the engine foretold it first

    def works(self, forecast_of: Callable[[Workload], Forecast]) -> Iterator[float]:
        """Seconds of encodes and prefill at each rung, from the highest, until nothing goes further down."""
        plans = self._full
        for rung in RUNGS:
            if rung != "high":
                self._keep_text(rung)
                plans = tuple(self._lowered(index, plan, rung) for index, plan in enumerate(plans))
            forecast = forecast_of(Workload.of(self._count(plans), plans))
            if not self.steps:
                self.queue_s = forecast.queue_s
            for index, (plan, is_held) in enumerate(zip(plans, forecast.is_held, strict=True)):
                self._is_still[index] |= is_held or plan.item is not None
            work_s = sum(forecast.encode_s) + forecast.prefill_s
            self.steps.append((plans, work_s))
            yield work_s
            if all(self._is_still):
                return

    def _lowered(self, index: int, plan: MediaPlan, rung: Rung) -> MediaPlan:
        least = self._full[index].options.least_rung
        if self._is_still[index] or (least and RUNGS.index(rung) > RUNGS.index(least)):
            return plan
        full = self._full[index]
        lowered = self._loader.shrunk(full, PARTS[rung])
        if lowered.geometry.num_patches >= plan.geometry.num_patches:
            return plan
        return replace(lowered, degraded=Degradation(reason="load", requested=full.geometry.used, rung=rung))

    def _keep_text(self, rung: Rung) -> None:
        """Before the first step down, look which of the media are there to be read."""
        if rung != RUNGS[1]:
            return
        places = [
            index
            for index, plan in enumerate(self._full)
            if not self._is_still[index] and plan.options.least_rung is None
        ]
        looks = [self._loader.is_dense(self._full[index]) for index in places]
        self._loads.begin(looks)
        try:
            for index, look in zip(places, looks, strict=True):
                self._is_still[index] = result_of(
                    look, self._parts[index], index, len(self._parts), self._loads.left_s
                )
        finally:
            self._loads.end()


def _is_pinned(options: Mapping[str, object]) -> bool:
    """By the caller: what an operator sets for all is a default."""
    return options.get("detail") == "high" or any(options.get(name) is not None for name in _PINS)


def _again(first: float, rest: Iterator[float]) -> Iterator[float]:
    yield first
    yield from rest
