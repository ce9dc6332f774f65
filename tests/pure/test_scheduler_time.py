"""How long a step may take: nobody's tokens wait longer than the target for what others prefill or encode."""

from __future__ import annotations

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
    patches = sum(job.share * job.item.geometry.num_patches for job in plan.encodes)
    return BASE_S + TOKEN_S * chunk + PATCH_S * patches


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
    [("balanced", [40, 40, 40, 40, 40]), ("interactive", [15] * 5), ("throughput", [200])],
)
def test_chunks_fill_the_target_beside_decodes(schedule: str, chunks: list[int]) -> None:
    """Under `interactive` half of it, for a prompt that would be late else."""
    found = _prefill(_decoding(_stage(schedule=schedule)), "long", range(200))
    assert found[:5] == pytest.approx(chunks, abs=1)
    assert sum(found) == 200


def test_without_decodes_the_target_is_no_limit() -> None:
    stage = _stage(itl_target_ms=1.0)
    assert _prefill(stage, "long", [*range(200), make_item("p", 20), 5]) == [200 + 20 + 1]


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("balanced", [500, 300]), ("interactive", [250, 250, 250, 50]), ("throughput", [800])],
)
def test_without_decodes_a_step_ends_soon_enough_for_who_comes_meanwhile(
    schedule: str, chunks: list[int]
) -> None:
    """What a step costs anyhow is a tenth of it at most, so that the cuts stay cheap."""
    stage = _stage(schedule=schedule)
    stage.add(make_request("book", range(800), max_tokens=1))
    stage.drain()
    found = [row.length for plan in stage.plans for row in plan.rows]
    assert sum(found) == 800
    assert found == pytest.approx(chunks, abs=3)


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
    whole = [sum(job.is_whole for job in stage.step().encodes) for _ in range(3)]
    assert whole[0] == 1  # 16 ms each and the rows of all beside them, of 40 ms; of the second a slice
    stage.drain()
    assert sum(job.share for plan in stage.plans for job in plan.encodes) == pytest.approx(4)
    assert all(_seconds(plan) <= 0.050 + 1e-4 for plan in stage.plans)


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


def test_a_short_prompt_passes_a_long_one_which_keeps_half_of_the_time() -> None:
    stage = _decoding(_stage())
    stage.add(make_request("long", range(1000, 1400), max_tokens=1))
    stage.step()
    stage.add(make_request("short", range(300, 320), max_tokens=1))
    plan = stage.step()
    assert [row.length for row in plan.rows if row.request_id == "long"] == pytest.approx([20], abs=1)
    while "short" not in stage.ends:
        stage.step()
    assert "long" not in stage.ends
    assert [row.length for row in stage.step().rows][-1] == pytest.approx(40, abs=1)


def test_prompts_alike_go_one_after_the_other() -> None:
    stage = _decoding(_stage())
    stage.add(
        *(
            make_request(name, range(base, base + 150), max_tokens=1)
            for base, name in ((300, "a"), (600, "b"))
        )
    )
    assert [row.request_id for row in stage.step().rows] == ["talker", "a"]
