"""How long a step may take: nobody's tokens wait longer than the target for what others prefill or encode."""

from __future__ import annotations

from math import ceil

import pytest

from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.plan import BatchPlan
from tests.pure.stage import SIZE, Stage
from tests.scripted import make_item, make_request

BASE_S, TOKEN_S, PATCH_S = 0.010, 0.001, 0.001  # a step, a prefill token, a patch


def _cost() -> CostModel:
    """A device on which everything but the above is free."""
    cost = CostModel()
    for size in range(1, 60):
        cost.observe_step(size % 5, 100 * size, 0, 0.0, BASE_S)
        cost.observe_step(size % 3, 40 * size, size, chunk_context(7 * size, size), BASE_S + TOKEN_S * size)
        cost.observe_encode(4 * size, 16 * size * size, PATCH_S * 4 * size)
    return cost


def _seconds(plan: BatchPlan) -> float:
    chunk = sum(row.length for row in plan.rows if row.length > 1)
    return BASE_S + TOKEN_S * chunk + PATCH_S * sum(job.item.geometry.num_patches for job in plan.encodes)


def _stage(**options: object) -> Stage:
    return Stage(num_blocks=500, feature_tokens=1000, cost=_cost(), **options)


def _decoding(stage: Stage, max_tokens: int = 400) -> Stage:
    stage.add(make_request("talker", [1, 2, 3], max_tokens=max_tokens, priority=-9))
    stage.step()
    return stage


def _chunks(stage: Stage, request_id: str) -> list[int]:
    return [
        row.length
        for plan in stage.plans
        for row in plan.rows
        if row.request_id == request_id and row.start < 200
    ]


def _prefill(stage: Stage, request_id: str, segments: object) -> list[int]:
    stage.add(make_request(request_id, segments, max_tokens=1))
    while request_id not in stage.ends:
        stage.step()
    return _chunks(stage, request_id)


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("balanced", [40, 40, 40, 40, 40]), ("interactive", [15] * 13 + [5]), ("throughput", [200])],
)
def test_chunks_fill_the_target_beside_decodes(schedule: str, chunks: list[int]) -> None:
    found = _prefill(_decoding(_stage(schedule=schedule)), "long", range(200))
    assert found == pytest.approx(chunks, abs=1)
    assert sum(found) == 200


def test_without_decodes_there_is_no_limit_of_time() -> None:
    stage = _stage(itl_target_ms=1.0)
    assert _prefill(stage, "long", [*range(200), make_item("p", 90), 5]) == [200 + 90 + 1]


def test_prefill_never_stops_whatever_the_target() -> None:
    """The bound: one block a step for the first in line."""
    stage = _decoding(_stage(itl_target_ms=1.0))
    stage.add(
        make_request("first", range(100, 140), max_tokens=1),
        make_request("second", range(200, 240), max_tokens=1),
    )
    while "second" not in stage.ends:
        stage.step()
    assert _chunks(stage, "first") == _chunks(stage, "second") == [SIZE] * 10


def test_pictures_that_fit_the_slack_are_encoded_at_once() -> None:
    stage = _decoding(_stage())
    stage.add(*(make_request(name, [1, make_item(name, 4), 2], max_tokens=1) for name in "abcd"))
    encodes = [len(stage.step().encodes) for _ in range(3)]
    assert sum(encodes) == 4 and encodes[0] == 2  # 16 ms each and the rows beside them, of 40 ms
    assert all(_seconds(plan) <= 0.050 + 1e-6 for plan in stage.plans)


@pytest.mark.parametrize("target_ms", [50.0, 11.0, 1.0])
def test_a_slow_picture_waits_within_its_bound_and_keeps_the_mean_gap(target_ms: float) -> None:
    """0.4 s of encode beside a stream whose target leaves 40, 1 or no ms of slack."""
    stage = _decoding(_stage(itl_target_ms=target_ms), max_tokens=900)
    begin = len(stage.plans)
    stage.add(make_request("picture", [1, make_item("large", 100), 2], max_tokens=1))
    while not (plan := stage.step()).encodes:
        assert any(row.request_id == "talker" for row in plan.rows)
    waited = len(stage.plans) - begin - 1
    step_s = max(target_ms / 1e3, BASE_S)
    assert 1 < waited <= ceil(1.05 * 10 * 0.4 / step_s)  # the fit is off by a little
    assert "talker" not in stage.ends
    if target_ms == 50.0:
        mean = sum(_seconds(plan) for plan in stage.plans[begin:]) / (waited + 1)
        assert mean == pytest.approx(0.050, rel=0.15)


def test_slow_pictures_in_line_wait_one_after_the_other() -> None:
    stage = _decoding(_stage(itl_target_ms=50.0))
    begin = len(stage.plans)
    stage.add(*(make_request(name, [1, make_item(name, 100), 2], max_tokens=1) for name in "abc"))
    while len(stage.ends) < 3:
        stage.step()
    encodes = [index for index, plan in enumerate(stage.plans[begin:]) if plan.encodes]
    assert len(encodes) == 3
    gaps = [later - earlier for earlier, later in zip([-1, *encodes], encodes, strict=False)]
    assert gaps == pytest.approx([gaps[0]] * 3, abs=3)  # the prefill of the one before takes time too
    mean = sum(_seconds(plan) for plan in stage.plans[begin : begin + encodes[-1] + 1]) / (encodes[-1] + 1)
    assert mean == pytest.approx(0.050, rel=0.15)


def test_a_step_without_time_left_admits_nobody() -> None:
    """Blocks reserved for who cannot run yet would be missing elsewhere."""
    stage = _decoding(_stage(itl_target_ms=50.0))
    stage.add(*(make_request(name, [*range(300, 360), index]) for index, name in enumerate("abcd")))
    stage.step()
    assert stage.scheduler.num_running == 2 and stage.scheduler.num_waiting == 3


def test_a_slow_picture_holds_up_neither_text_nor_small_pictures() -> None:
    stage = _decoding(_stage(itl_target_ms=50.0))
    stage.add(
        make_request("slow", [1, make_item("large", 200), 2], max_tokens=1),
        make_request("text", range(300, 308), max_tokens=1),
        make_request("small", [9, make_item("small", 2), 2], max_tokens=1),
    )
    stage.drain()
    assert list(stage.ends)[:2] == ["text", "small"]
    assert stage.reasons()["slow"] == "length"
