"""The same requests under any schedule say the same: chunks, cache, memory, neighbours and limits change only when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.request import Request
from tests.pure.stage import Stage
from tests.scripted import hashed_token, make_item, make_request

PICTURES = [make_item(name, size) for name, size in (("p", 7), ("q", 16), ("r", 30))]


def _requests() -> list[Request]:
    """Shared prefixes, shared pictures at several places, text alone, and one that repeats another."""
    p, q, r = PICTURES
    segments = [
        [1, 2, p, 3, 4, 5],
        [1, 2, p, 3, 4, 6],
        [1, 2, q, 3],
        [*range(50, 90)],
        [1, p, q, r, 9],
        [r, r, 1],
        [1, 2, p, 3, 4, 5],
        [*range(50, 90), p],
    ]
    return [
        make_request(f"r{index}", parts, max_tokens=8 + 4 * index) for index, parts in enumerate(segments)
    ]


def _answers(stage: Stage) -> dict[str, list[int]]:
    stage.add(*_requests())
    stage.drain()
    assert set(stage.reasons().values()) == {"length"}
    stage.assert_clean()
    return stage.tokens


WANTED = {
    request.request_id: [
        hashed_token(request.request_id, request.num_prompt_tokens + index)
        for index in range(request.max_tokens)
    ]
    for request in _requests()
}
LONGEST = max(request.num_prompt_tokens + request.max_tokens for request in _requests())


@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 10_000])
@pytest.mark.parametrize("is_caching", [True, False])
def test_chunks_and_cache(chunk: int, is_caching: bool) -> None:
    assert _answers(Stage(max_num_batched_tokens=chunk, is_caching=is_caching)) == WANTED


def test_alone_and_among_neighbours() -> None:
    alone = {}
    for request in _requests():
        stage = Stage()
        stage.add(request)
        stage.drain()
        alone.update(stage.tokens)
    assert alone == _answers(Stage()) == WANTED


def test_preempted_and_not() -> None:
    tight = Stage(num_blocks=-(-(LONGEST - 1) // 4), feature_tokens=30)
    assert _answers(tight) == WANTED
    assert tight.scheduler.stats().num_preemptions > 0
    wide = Stage(num_blocks=1000, feature_tokens=1000)
    assert _answers(wide) == WANTED
    assert wide.scheduler.stats().num_preemptions == wide.scheduler.stats().prefix_evictions == 0
    assert wide.executor.encoded == {item.key: 1 for item in PICTURES}


@given(
    num_blocks=st.integers(-(-(LONGEST - 1) // 4), 60),
    feature_tokens=st.integers(30, 60),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(1, 80),
    encoder_budget_tokens=st.integers(1, 60),
    itl_target_ms=st.sampled_from([0.5, 8.0, 100.0]),
    schedule=st.sampled_from(["balanced", "interactive", "throughput"]),
    is_caching=st.booleans(),
)
def test_any_limits(**limits: object) -> None:
    assert _answers(Stage(**limits)) == WANTED  # type: ignore[arg-type]


def test_the_same_calls_give_the_same_plans() -> None:
    first, second = (Stage(num_blocks=30, feature_tokens=35, max_num_batched_tokens=9) for _ in range(2))
    for stage in (first, second):
        _answers(stage)
    described = [
        [
            (plan.rows, plan.released, plan.dropped_features, [job.item.key for job in plan.encodes])
            for plan in stage.plans
        ]
        for stage in (first, second)
    ]
    assert described[0] == described[1]
