"""KV of preempted requests on the host: who is saved, what comes back, and what happens when a step with it fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.cache.host import HostSlots
from tapetum.core.cost import CostModel
from tapetum.core.errors import EngineError
from tapetum.core.plan import BatchPlan, StepResult
from tapetum.engine.execution import carry_out
from tests.pure.stage import SIZE, Stage
from tests.scripted import ScriptedExecutor, hashed_token, make_item, make_request

STEP, ENCODE = (1e-3, 1e-4, 0.0, 1e-4, 0.0), (1e-3, 1e-3, 0.0)
FREE, DEAR = (0.0, 1e-12), (10.0, 1.0)  # moves


def _stage(move: tuple[float, float] = FREE, num_host_slots: int = 100, **options: object) -> Stage:
    options = {"num_blocks": 7, "speculate": "off", "is_caching": False, **options}
    return Stage(cost=CostModel(STEP, ENCODE, move), num_host_slots=num_host_slots, **options)


def _add_three(stage: Stage) -> None:
    for name in "abc":
        prompt = [ord(name) + place for place in range(8)]
        stage.add(make_request(name, prompt, max_tokens=12))


def _expected(name: str) -> list[int]:
    return [hashed_token(name, 8 + place) for place in range(12)]


def _until_saved(stage: Stage) -> BatchPlan:
    while True:
        plan = stage.scheduler.schedule(stage.now)
        if plan.saves:
            return plan
        stage.finish_step(plan)


def _finish(stage: Stage) -> None:
    stage.drain()
    assert stage.tokens == {name: _expected(name) for name in "abc"}
    stage.assert_clean()


@pytest.mark.parametrize("is_caching", [False, True])
def test_a_request_that_was_saved_goes_on_where_it_was(is_caching: bool) -> None:
    stage = _stage(is_caching=is_caching)
    _add_three(stage)
    _finish(stage)
    stats = stage.scheduler.stats()
    assert stats.num_preemptions > 0 < stats.num_loaded_blocks <= stats.num_saved_blocks
    assert stage.executor.computed == dict.fromkeys("abc", 8 + 11)  # no token twice


def test_what_is_left_of_a_request_that_was_saved_is_to_load_it() -> None:
    stage = _stage(move=(1e-5, 1e-12))
    _add_three(stage)
    plan = _until_saved(stage)
    num_bytes = len(plan.saves[0].block_ids) * stage.scheduler._swap._block_bytes
    loading_s = 1e-5 + 1e-12 * num_bytes
    others_s = STEP[0] + 8 * STEP[3]  # of one that has not run yet
    assert stage.scheduler.backlog.seconds == pytest.approx(loading_s + STEP[0] + STEP[3] + others_s)
    stage.finish_step(plan)
    _finish(stage)


@pytest.mark.parametrize(("move", "num_host_slots"), [(DEAR, 100), (FREE, 0), (FREE, 1)])
def test_what_does_not_pay_or_fit_is_computed_again(move: tuple[float, float], num_host_slots: int) -> None:
    stage = _stage(move, num_host_slots)
    _add_three(stage)
    _finish(stage)
    assert stage.scheduler.stats().num_preemptions > 0 == stage.scheduler.stats().num_saved_blocks
    assert max(stage.executor.computed.values()) > 8 + 11


def test_blocks_that_others_hold_too_are_not_copied() -> None:
    stage = _stage(is_caching=True, num_blocks=9)
    stage.add(make_request("a", list(range(17)), max_tokens=12))
    while not stage.tokens["a"]:
        stage.step()
    stage.add(make_request("b", [*range(16), 99], max_tokens=12))
    plan = _until_saved(stage)
    (move,) = plan.saves
    assert move.request_id == "b" and len(move.block_ids) < 5
    stage.finish_step(plan)
    stage.drain()
    stage.assert_clean()
    assert stage.executor.computed["b"] == 1 + 11


def test_pictures_that_must_be_encoded_again_are_a_reason_to_save() -> None:
    """The move takes longer than the tokens alone, and less than with their picture."""
    for is_there in (True, False):
        stage = _stage((6e-3, 0.0), num_blocks=8, feature_tokens=8)
        stage.add(make_request("a", list(range(8)), max_tokens=16))
        stage.add(make_request("b", [make_item("p", 8), 9], max_tokens=12))
        while not stage.tokens["b"]:
            stage.step()
        if not is_there:
            stage.scheduler.visual.clear()
        while not stage.scheduler.stats().num_preemptions:
            stage.step()
        assert (stage.scheduler.stats().num_saved_blocks > 0) == (not is_there)


def test_who_ends_on_the_host_leaves_it() -> None:
    stage = _stage()
    _add_three(stage)
    plan = _until_saved(stage)
    name = plan.saves[0].request_id
    stage.finish_step(plan)
    assert stage.scheduler.stats().num_host_blocks == len(plan.saves[0].slots)
    event = stage.scheduler.abort(name, stage.now)
    assert event is not None
    stage.tell([event])
    stage.drain()
    stage.assert_clean()


@pytest.mark.parametrize("kind", ["saves", "loads"])
def test_a_step_that_was_broken_off_leaves_nothing_to_rely_on(kind: str) -> None:
    """Rows of it end; who had none is computed again, and so is who was saved."""
    stage = _stage(max_num_batched_tokens=3)
    _add_three(stage)
    while True:
        plan = stage.scheduler.schedule(stage.now)
        if getattr(plan, kind):
            break
        stage.finish_step(plan)
    stage.tell(stage.scheduler.abandon(plan, EngineError("broken"), stage.now))
    stage.drain()
    stage.assert_clean()
    assert {name for name, end in stage.ends.items() if end.finish_reason == "error"} == {
        row.request_id for row in plan.rows
    }
    assert all(
        stage.tokens[name] == _expected(name) for name, reason in stage.reasons().items() if reason != "error"
    )


class _Fails(ScriptedExecutor):
    """Its device stops, once, in a step with moves of a kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(SIZE)
        self._kind = kind
        self.num_failures = 0

    def execute(self, plan: BatchPlan) -> StepResult:
        if getattr(plan, self._kind) and not self.num_failures:
            self.num_failures += 1
            raise RuntimeError("the device stopped")
        return super().execute(plan)


@pytest.mark.parametrize("kind", ["saves", "loads"])
def test_a_step_carried_out_in_pieces_loads_again_and_relies_on_no_save(kind: str) -> None:
    executor = _Fails(kind)
    stage = _stage(executor=executor)
    _add_three(stage)
    while stage.scheduler.has_work:
        plan = stage.scheduler.schedule(stage.now)
        outcome = carry_out(executor, plan)
        stage.now += 1
        stage.tell(stage.scheduler.commit(plan, outcome.result, stage.now))
    assert executor.num_failures == 1
    assert stage.tokens == {name: _expected(name) for name in "abc"}
    stage.assert_clean()
    is_again = max(executor.computed.values()) > 8 + 11
    assert is_again == (kind == "saves")


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(0, 8))
def test_slots_are_free_or_taken(counts: list[int], num_slots: int) -> None:
    host, held = HostSlots(num_slots), list[tuple[int, ...]]()
    for count in counts:
        taken = host.try_take(count)
        assert (taken is None) == (count > num_slots - sum(map(len, held)))
        if taken is None and held:
            host.give_back(held.pop(0))
        elif taken is not None:
            held.append(taken)
        slots = [slot for group in held for slot in group]
        assert len(set(slots)) == len(slots) == host.num_taken
        assert set(slots) <= set(range(num_slots))
