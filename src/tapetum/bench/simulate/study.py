"""A trace through Tapetum and through the plain engine, and what both say: the record that a simulation leaves.

Owns how a preset becomes a trace (its rate is a multiple of what the plain engine can do of the same requests) and the
time between tokens that Tapetum is told to keep, where nothing else is asked for: a little less than promised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tapetum.bench.simulate.presets import Preset, arrivals
from tapetum.bench.simulate.promises import Promise
from tapetum.bench.simulate.prompts import Prompts
from tapetum.bench.simulate.simulation import Setup, Simulation, first_come, tapetum
from tapetum.bench.simulate.summary import Summarizer, Summary
from tapetum.bench.simulate.trace import Arrival

_BASELINE = "first come"
_MARGIN = 0.93  # of the promised time between tokens is what an engine is told to keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    trace: str
    coefficients: str
    note: str  # where those come from
    seed: int
    num_replicas: int
    schedule: str
    itl_target_ms: float
    rate: float  # requests per second of the trace
    capacity: float | None  # requests per second that the plain engine can do, where it was looked for
    runs: tuple[Summary, ...]

    @property
    def ours(self) -> Summary:
        return self.runs[0]

    @property
    def baseline(self) -> Summary | None:
        return next((run for run in self.runs if run.name == _BASELINE), None)


def capacity_of(preset: Preset, setup: Setup, count: int) -> float:
    """The highest rate at which first come, first served keeps up: when it never runs out of work."""
    trace = [replace(arrival, at_s=0.0) for arrival in arrivals(preset, 1.0, count, setup.seed)]
    simulation = Simulation(setup, first_come)
    simulation.run(trace)
    return count / simulation.end_s


def draw(
    preset: Preset, setup: Setup, count: int, load: float | None = None
) -> tuple[tuple[Arrival, ...], float]:
    """So many requests of a preset, and the capacity that their rate is measured by."""
    capacity = capacity_of(preset, setup, count)
    drawn = arrivals(preset, (load or preset.load) * capacity, count, setup.seed)
    if not preset.is_timed:
        return drawn, capacity
    prompts, promise = Prompts(setup.coefficients), Promise()
    timed = (
        replace(arrival, timeout_s=promise.seconds(prompts.unloaded(arrival.shape))) for arrival in drawn
    )
    return tuple(timed), capacity


def keeping(setup: Setup, trace: Sequence[Arrival]) -> Setup:
    """The setup with a time between tokens somewhat below the least that any request of the trace was promised."""
    prompts, promise = Prompts(setup.coefficients), Promise()
    gaps = [prompts.unloaded(shape).itl_s for shape in {arrival.shape for arrival in trace}]
    least_s = min((gap for gap in gaps if gap), default=setup.schedule.itl_target_ms / 1e3)
    target_ms = round(1e3 * _MARGIN * promise.itl_factor * least_s, 3)
    return replace(setup, schedule=replace(setup.schedule, itl_target_ms=target_ms))


def study(
    name: str,
    trace: Sequence[Arrival],
    setup: Setup,
    *,
    capacity: float | None = None,
    has_baseline: bool = True,
) -> Study:
    summarizer = Summarizer(trace, Prompts(setup.coefficients).unloaded, Promise())
    runs = []
    for run, build in (("Tapetum", tapetum), (_BASELINE, first_come))[: 1 + has_baseline]:
        simulation = Simulation(setup, build)
        simulation.run(trace)
        runs.append(summarizer.summary(run, simulation))
    return Study(
        trace=name,
        coefficients=setup.coefficients.name,
        note=setup.coefficients.note,
        seed=setup.seed,
        num_replicas=setup.num_replicas,
        schedule=setup.schedule.schedule,
        itl_target_ms=setup.schedule.itl_target_ms,
        rate=len(trace) / max(trace[-1].at_s, 1e-9),
        capacity=capacity,
        runs=tuple(runs),
    )


def write_study(study: Study, path: Path) -> None:
    path.write_text(json.dumps(asdict(study), indent=1) + "\n", encoding="utf-8")
