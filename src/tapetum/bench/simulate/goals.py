"""What scheduling promises, as figures of the simulator: each goal plays a preset and compares.

Sizes are requests of a preset: a few dozen show whether a rule works at all, hundreds what it is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tapetum.bench.simulate.bound import passed
from tapetum.bench.simulate.coefficients import Coefficients
from tapetum.bench.simulate.presets import PICTURE, PRESETS, TEXT
from tapetum.bench.simulate.prompts import Prompts
from tapetum.bench.simulate.simulation import Setup, Simulation, tapetum
from tapetum.bench.simulate.study import Study, draw, keeping, study
from tapetum.bench.simulate.summary import Kind, Summary
from tapetum.core.config import Schedule, ScheduleConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    name: str
    what: str
    figure: Callable[[Coefficients, int, int], float]  # of coefficients, requests, seed
    must: float
    aim: float
    is_more_better: bool = True

    def is_reached(self, value: float) -> bool:
        return value >= self.must if self.is_more_better else value <= self.must


def studied(
    name: str, coefficients: Coefficients, count: int, seed: int, schedule: Schedule = "balanced"
) -> Study:
    """A preset at its own load, through Tapetum and the plain engine."""
    setup = Setup(coefficients=coefficients, schedule=ScheduleConfig(schedule=schedule), seed=seed)
    trace, capacity = draw(PRESETS[name], setup, count)
    return study(name, trace, keeping(setup, trace), capacity=capacity)


def goodput_ratio(coefficients: Coefficients, count: int, seed: int) -> float:
    found = studied("mixed", coefficients, count, seed)
    assert found.baseline is not None, "a study has a baseline unless told otherwise"
    return found.ours.num_good / max(found.baseline.num_good, 1)


def ttft_left(coefficients: Coefficients, count: int, seed: int) -> float:
    """TTFT of interactive questions, 95th percentile, over that of first come, first served."""
    found = studied("pictures", coefficients, count, seed)
    assert found.baseline is not None, "a study has a baseline unless told otherwise"
    ours, theirs = (kind_of(run, "question").ttft_p95_s for run in (found.ours, found.baseline))
    assert ours is not None and theirs is not None, "questions are answered"
    return ours / theirs


def gap_ratio(coefficients: Coefficients, count: int, seed: int) -> float:
    """The 99th percentile of gaps of text under `interactive`, over that of the same text without pictures."""
    setup = Setup(coefficients=coefficients, schedule=ScheduleConfig(schedule="interactive"), seed=seed)
    trace, _ = draw(PRESETS["streams"], setup, count)
    gaps = []
    for part in (trace, [arrival for arrival in trace if not arrival.shape.media]):
        simulation = Simulation(setup, tapetum)
        simulation.run(part)
        gaps.append(simulation.watch.gaps["text"].quantile(0.99))
    with_pictures, without = gaps
    assert with_pictures is not None and without is not None, "there are streams of text"
    return with_pictures / without


def num_passed(coefficients: Coefficients, count: int, seed: int) -> float:
    """Requests of the same load that were passed by some that came after they were due."""
    setup = Setup(coefficients=coefficients, schedule=ScheduleConfig(), seed=seed)
    trace, _ = draw(PRESETS["pictures"], setup, count)
    simulation = Simulation(keeping(setup, trace), tapetum)
    simulation.run(trace)
    return len({early.number for early, _ in passed(simulation.outcomes, Prompts(coefficients))})


def kept_of_accepted(coefficients: Coefficients, count: int, seed: int) -> float:
    """The share of requests that were let in and got what they were promised, at three times what can be done."""
    return studied("overload", coefficients, count, seed).ours.good_of_accepted or 0.0


def ladder_ratio(coefficients: Coefficients, count: int, seed: int) -> float:
    """Goodput at three times what can be done, with the ladder of picture sizes over without."""
    with_ladder, without = _with_and_without_ladder(coefficients, count, seed)
    return with_ladder.ours.num_good / max(without.ours.num_good, 1)


def ladder_ratio_of_pictures(coefficients: Coefficients, count: int, seed: int) -> float:
    """The same of requests with pictures or clips: text passes them, and is good either way."""
    with_ladder, without = (
        sum(kind.num_good for kind in found.ours.kinds if kind.name != TEXT.name)
        for found in _with_and_without_ladder(coefficients, count, seed)
    )
    return with_ladder / max(without, 1)


def _with_and_without_ladder(coefficients: Coefficients, count: int, seed: int) -> tuple[Study, Study]:
    """The target is what a picture takes on an idle device, a quarter of what is promised."""
    setup = Setup(coefficients=coefficients, schedule=ScheduleConfig(), seed=seed)
    trace, _ = draw(PRESETS["overload"], setup, count)
    setup = keeping(setup, trace)
    target_s = Prompts(coefficients).unloaded(PICTURE).ttft_s
    laddered = replace(setup, schedule=replace(setup.schedule, quality_ladder_s=target_s))
    with_ladder = study("overload", trace, laddered, has_baseline=False)
    return with_ladder, study("overload", trace, setup, has_baseline=False)


def small_share(coefficients: Coefficients, count: int, seed: int) -> float:
    """The share of work of the tenant that sends a tenth of the other."""
    found = studied("tenants", coefficients, count, seed)
    return next(tenant.share for tenant in found.ours.tenants if tenant.name == "small")


def kind_of(run: Summary, name: str) -> Kind:
    return next(kind for kind in run.kinds if kind.name == name)


GOALS: Mapping[str, Goal] = {
    goal.name: goal
    for goal in (
        Goal(
            name="mixed",
            what="goodput over first come, first served",
            figure=goodput_ratio,
            must=3.0,
            aim=5.0,
        ),
        Goal(
            name="pictures",
            what="TTFT p95 of interactive questions beside pictures, over first come, first served",
            figure=ttft_left,
            must=0.15,
            aim=0.05,
            is_more_better=False,
        ),
        Goal(
            name="bound",
            what="requests of these that were passed after they were due",
            figure=num_passed,
            must=0.0,
            aim=0.0,
            is_more_better=False,
        ),
        Goal(
            name="streams",
            what="p99 gap of text beside pictures, over that without, interactive",
            figure=gap_ratio,
            must=1.10,
            aim=1.02,
            is_more_better=False,
        ),
        Goal(
            name="overload",
            what="promises kept of accepted requests at three times what can be done",
            figure=kept_of_accepted,
            must=0.99,
            aim=1.0,
        ),
        Goal(
            name="ladder",
            what="goodput at three times what can be done, with the ladder over without",
            figure=ladder_ratio,
            must=1.5,
            aim=2.0,
        ),
        Goal(
            name="ladder-pictures",
            what="the same of requests with pictures or clips",
            figure=ladder_ratio_of_pictures,
            must=1.5,
            aim=2.0,
        ),
        Goal(
            name="tenants",
            what="share of work of a tenant beside one that sends ten times as much",
            figure=small_share,
            must=0.45,
            aim=0.5,
        ),
    )
}
