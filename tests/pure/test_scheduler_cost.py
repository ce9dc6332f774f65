"""What a step costs the scheduler, counted in calls: neither what waits nor who has sent it makes it dearer.

Calls are counted, of built-in functions too, because they are the same in every run; seconds are measured by
benchmarks/scheduler.py.
"""

from __future__ import annotations

import statistics
import sys
from types import FrameType

import pytest

from tapetum.core.plan import BatchPlan, SampledToken, StepResult
from tests.pure.stage import Stage
from tests.scripted import make_item, make_request

RUNNING = 64
NUM_STEPS = 40


def _result(plan: BatchPlan) -> StepResult:
    return StepResult(
        step=plan.step,
        tokens={row.request_id: (SampledToken(token_id=5),) for row in plan.rows if row.has_sample},
    )


class Calls:
    """How many there were within `with`."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        sys.setprofile(self._note)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")


def _load(num_waiting: int, num_tenants: int, answer: int) -> list[int]:
    """Calls of each of some steps with all seats taken; who ends is replaced."""
    stage = Stage(num_blocks=4000, max_num_seqs=RUNNING, max_num_batched_tokens=2048, speculate="off")
    scheduler = stage.scheduler
    number, now, counts = 0, 0.0, []
    while len(counts) < NUM_STEPS:
        while scheduler.num_running + scheduler.num_waiting < RUNNING + num_waiting:
            number += 1
            request = make_request(
                f"r{number}",
                range(number, number + 8),
                max_tokens=answer if number > RUNNING else answer + number % answer,
                tenant=f"t{number % num_tenants}",
                priority=number % 4 - 1,
                arrival_s=now,
            )
            scheduler.add(request, now)
        calls = Calls()
        with calls:
            plan = scheduler.schedule(now)
        result = _result(plan)
        now += 0.02
        with calls:
            scheduler.commit(plan, result, now)
        if number > 2 * RUNNING + num_waiting or (answer > 100 and len(plan.rows) == RUNNING):
            counts.append(calls.count)
    return counts


@pytest.mark.parametrize("answer", [150, 12], ids=["full", "turnover"])
def test_a_step_costs_the_same_whoever_waits(answer: int) -> None:
    few = statistics.median(_load(100, 1, answer))
    for num_waiting, num_tenants in ((1500, 1), (1500, 16), (1500, 5000)):
        many = statistics.median(_load(num_waiting, num_tenants, answer))
        assert many <= 2 * few, (num_waiting, num_tenants, few, many)


def _calls_of_who_comes(num_pictures: int) -> int:
    """While documents with so many pictures each are prefilled; of the second in a step."""
    stage = Stage(num_blocks=8000, feature_tokens=8000, max_num_seqs=8, max_num_batched_tokens=16)
    for name in "abcd":
        items = [make_item(f"{name}{index}", 4) for index in range(num_pictures)]
        stage.add(make_request(name, [1, *items, 2], max_tokens=1))
    stage.step()
    assert stage.scheduler._roster.prefills()
    stage.add(make_request("first", [1, 2, 3], max_tokens=1))
    calls = Calls()
    with calls:
        stage.add(make_request("second", [1, 2, 3], max_tokens=1, deadline_s=1e6))
    return calls.count


def test_what_somebody_is_promised_costs_the_same_however_many_pictures_are_under_way() -> None:
    assert _calls_of_who_comes(100) <= _calls_of_who_comes(2) + 20


def test_a_decode_that_goes_on_costs_few_calls() -> None:
    """Those of a whole step, by its rows, of which one in six fills a block of four tokens."""
    assert min(_load(200, 1, 150)) / RUNNING < 20
