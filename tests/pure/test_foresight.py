"""A step that is planned before the tokens of the one before it: the same answers, and no row for who has ended."""

from __future__ import annotations

import random

import pytest

from tapetum.core.errors import EngineError
from tapetum.core.plan import BatchPlan, SampledToken, StepResult
from tapetum.core.request import Grammar, Request, SamplingParams
from tapetum.sched.foresight import Foresight
from tests.pure.stage import SIZE, Stage
from tests.scripted import ScriptedExecutor, hashed_token, make_item, make_request


class Ahead:
    """Steps a stage as an engine does that plans ahead; counts the plans that were made so."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.plan: BatchPlan | None = None
        self.foreseen: Foresight | None = None
        self.executed: BatchPlan | None = None
        self.num_foreseen = 0

    def begin(self) -> BatchPlan:
        """The plan in flight from here on, and what is foreseen behind it."""
        if self.plan is None:
            self.plan = self.executed = self.stage.scheduler.schedule(self.stage.now)
        self.foreseen = self.stage.scheduler.foresee(self.plan, self.stage.now)
        self.num_foreseen += self.foreseen is not None
        return self.plan

    def end(self) -> None:
        result = self.stage.finish_step(self.plan, self.executed)
        self.plan = self.executed = None
        if self.foreseen is not None:
            self.plan, self.executed = self.foreseen.plan, self.foreseen.given(result)

    def withdraw(self) -> None:
        if self.foreseen is not None:
            self.stage.scheduler.withdraw(self.foreseen.plan)
            self.foreseen = None

    def step(self) -> BatchPlan:
        plan = self.begin()
        self.end()
        return plan

    def drain(self) -> None:
        for _ in range(1000):
            if self.plan is None and not self.stage.scheduler.has_work:
                self.stage.assert_clean()
                return
            self.step()
        raise AssertionError("it does not end")


def running(*requests: Request, **options: object) -> Ahead:
    """All of them decode, and nothing is foreseen yet."""
    stage = Stage(speculate="off", **options)
    stage.add(*requests)
    stage.step()
    return Ahead(stage)


@pytest.mark.parametrize("seed", range(60))
def test_answers_are_those_of_one_step_after_the_other(seed: int) -> None:
    rng = random.Random(seed)
    requests = [_random_request(rng, f"r{index}") for index in range(rng.randint(1, 8))]
    limits = {
        "num_blocks": rng.choice([20, 40, 80]),
        "max_num_seqs": rng.choice([2, 8]),
        "is_caching": rng.random() < 0.5,
        "speculate": rng.choice(["auto", "off"]),
        "step_seconds": lambda plan: 1.0,
    }
    plain, ahead = Stage(**limits), Ahead(Stage(**limits))
    for request in requests:
        plain.add(request)
        plain.step()
        ahead.stage.add(request)
        ahead.begin()
        if rng.random() < 0.5:
            ahead.withdraw()
        ahead.end()
    plain.drain()
    ahead.drain()
    assert ahead.stage.tokens == plain.tokens
    assert ahead.stage.reasons() == plain.reasons()


def _random_request(rng: random.Random, name: str) -> Request:
    return make_request(
        name,
        [rng.randrange(10) for _ in range(rng.randint(1, 9))],
        max_tokens=rng.randint(1, 40),
        stop_token_ids=range(0, 1000, 50) if rng.random() < 0.5 else (),
    )


def test_where_all_decode_every_step_but_the_last_is_foreseen() -> None:
    ahead = running(*(make_request(name, [1, 2, 3], max_tokens=20) for name in "abc"))
    ahead.drain()
    assert ahead.num_foreseen == 19 - 1
    assert all(plan.rows for plan in ahead.stage.plans[:-1])


def test_a_row_whose_request_has_ended_is_not_executed() -> None:
    end = hashed_token("a", 3 + 6)
    requests = [make_request("a", [1, 2, 3], max_tokens=20, stop_token_ids=[end])]
    requests.append(make_request("b", [4, 5, 6], max_tokens=20))
    ahead = running(*requests)
    ahead.drain()
    assert ahead.stage.executor.computed["a"] == 3 + 6
    assert len(ahead.stage.tokens["a"]) == 7 and len(ahead.stage.tokens["b"]) == 20


def test_a_row_whose_request_has_failed_is_not_executed() -> None:
    ahead = running(*(make_request(name, [1, 2, 3], max_tokens=20) for name in "ab"))
    ahead.begin()
    ahead.stage.executor.fail_requests["a"] = EngineError("broken")
    ahead.end()
    assert [row.request_id for row in ahead.executed.rows] == ["b"]
    ahead.drain()
    assert ahead.stage.reasons() == {"a": "error", "b": "length"}


def test_what_is_aborted_meanwhile_is_dropped() -> None:
    ahead = running(*(make_request(name, [1, 2, 3], max_tokens=20) for name in "ab"))
    ahead.begin()
    ahead.stage.tell([ahead.stage.scheduler.abort("a", ahead.stage.now)])
    ahead.end()
    assert [row.request_id for row in ahead.plan.rows] == ["a", "b"]
    ahead.drain()
    assert ahead.stage.reasons() == {"a": "abort", "b": "length"}
    assert [plan.released for plan in ahead.stage.plans if plan.released] == [("a",), ("b",)]


def test_a_plan_that_is_withdrawn_leaves_nothing() -> None:
    ahead = running(make_request("a", [1] * SIZE, max_tokens=30), make_request("b", [2] * 3, max_tokens=30))
    for _ in range(12):
        ahead.begin()
        ahead.withdraw()
        ahead.end()
    assert ahead.num_foreseen == 12
    ahead.drain()


def test_what_is_released_by_a_plan_that_is_withdrawn_is_released_by_the_next() -> None:
    ahead = running(*(make_request(name, [1, 2, 3], max_tokens=20) for name in "ab"))
    ahead.begin()
    ahead.withdraw()
    ahead.stage.tell([ahead.stage.scheduler.abort("a", ahead.stage.now)])
    ahead.begin()
    assert ahead.foreseen.plan.released == ("a",)
    ahead.withdraw()
    ahead.end()
    assert ahead.step().released == ("a",)


@pytest.mark.parametrize(
    "hindrance", ["waits", "prefills", "grammar", "stop string", "limit", "picture", "deadline", "memory"]
)
def test_what_the_result_decides_is_not_foreseen(hindrance: str) -> None:
    sampling = {
        "grammar": SamplingParams(grammar=Grammar(kind="json_object")),
        "stop string": SamplingParams(stop="x"),
    }
    first = make_request("a", [1, 2, 3], max_tokens=2 if hindrance == "limit" else 20)
    second = make_request(
        "b",
        [1, 2, 3],
        max_tokens=20,
        deadline_s=50.0,
        sampling=sampling.get(hindrance, SamplingParams()).resolved(SamplingParams()),
    )
    ahead = running(first, second, num_blocks=6 if hindrance == "memory" else 64, max_model_len=30)
    stage = ahead.stage
    if hindrance == "deadline":
        stage.now = 50.0
    if hindrance == "waits":
        ahead.plan = ahead.executed = stage.scheduler.schedule(stage.now)
    if hindrance in ("waits", "prefills"):
        stage.add(make_request("c", [5] * 9, max_tokens=3))
    if hindrance == "picture":
        stage.add(make_request("c", [make_item("p", 2)], max_tokens=3))
    if hindrance == "deadline":
        ahead.plan = ahead.executed = stage.scheduler.schedule(0.0)
    while hindrance == "memory" and len(stage.tokens["a"]) < 9:
        ahead.step()
    ahead.begin()
    assert ahead.foreseen is None
    ahead.drain()


def test_whoever_is_guessed_for_in_vain_is_left_alone_for_a_while() -> None:
    stage = Stage(executor=ScriptedExecutor(SIZE))
    stage.add(make_request("a", [1, 2, 3], max_tokens=60))
    stage.step()
    ahead = Ahead(stage)
    ahead.drain()
    assert 30 < ahead.num_foreseen < 55


@pytest.mark.parametrize("seed", range(40))
def test_steps_of_decodes_may_be_taken_as_one(seed: int) -> None:
    """The executor would have to do them all; here their tokens are put together from single steps."""
    rng = random.Random(seed)
    requests = [
        make_request(f"r{index}", [index, rng.randrange(10)], max_tokens=rng.randint(1, 60))
        for index in range(rng.randint(1, 8))
    ]
    limits = {"num_blocks": rng.choice([20, 40, 200]), "is_caching": rng.random() < 0.5, "speculate": "off"}
    plain, stretched = Stage(**limits), Stage(**limits)
    plain.add(*requests)
    stretched.add(*requests)
    plain.drain()
    counts = []
    while stretched.scheduler.has_work:
        plan = stretched.scheduler.schedule(stretched.now)
        counts.append(stretched.scheduler.stretch(plan, rng.choice([1, 5, 1000]), stretched.now))
        tokens = {row.request_id: row.end for row in plan.rows if row.has_sample}
        result = StepResult(
            step=plan.step,
            tokens={
                name: tuple(
                    SampledToken(token_id=hashed_token(name, end + ahead)) for ahead in range(counts[-1])
                )
                for name, end in tokens.items()
            },
        )
        stretched.now += counts[-1]
        stretched.tell(stretched.scheduler.commit(plan, result, stretched.now))
    assert stretched.tokens == plain.tokens and stretched.reasons() == plain.reasons()
    assert stretched.now == plain.now == sum(counts)
    stats, wanted = stretched.scheduler.stats(), plain.scheduler.stats()
    assert (stats.num_free_blocks, stats.num_cached_blocks) == (
        wanted.num_free_blocks,
        wanted.num_cached_blocks,
    )
    assert stats.num_preemptions == wanted.num_preemptions
