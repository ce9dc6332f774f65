"""Pictures whose tokens see each other both ways are never cut, whatever a step may spend."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.cost import CostModel
from tapetum.core.request import Request
from tests.pure.stage import Stage
from tests.scripted import ScriptedExecutor, hashed_token, make_item, make_request

P, Q = make_item("p", 7), make_item("q", 16)


def _request(name: str, *segments: object, max_tokens: int = 6, **options: object) -> Request:
    return make_request(name, segments, max_tokens=max_tokens, is_atomic=True, **options)  # type: ignore[arg-type]


def _requests() -> list[Request]:
    return [
        _request("a", 1, 2, P, 3, 4, 5),
        _request("b", 1, 2, P, 3, 4, 6, max_tokens=20),
        _request("c", Q, P, 9, max_tokens=12),
        _request("d", *range(50, 70), max_tokens=9),
        _request("e", *range(50, 70), Q),
        _request("f", 1, P, P, 1, Q, 2, max_tokens=14),
    ]


WANTED = {
    request.request_id: [
        hashed_token(request.request_id, request.num_prompt_tokens + index)
        for index in range(request.max_tokens)
    ]
    for request in _requests()
}


def _chunks(stage: Stage) -> list[tuple[int, int]]:
    return [(row.start, row.end) for plan in stage.plans for row in plan.rows if row.length > 1]


def test_a_chunk_ends_before_a_picture_that_does_not_fit() -> None:
    stage = Stage(max_num_batched_tokens=8)
    stage.add(_request("a", 1, 2, 3, P, 4, 5))
    stage.drain()
    assert _chunks(stage) == [(0, 3), (3, 11)]


def test_a_picture_longer_than_a_step_is_one_chunk() -> None:
    stage = Stage(max_num_batched_tokens=4)
    stage.add(_request("a", 1, 2, Q, 3, 4))
    stage.drain()
    assert _chunks(stage)[:2] == [(0, 2), (2, 18)]


def test_two_pictures_beside_each_other_are_two() -> None:
    stage = Stage(max_num_batched_tokens=10)
    stage.add(_request("a", Q, P, 1))
    stage.drain()
    assert _chunks(stage) == [(0, 16), (16, 24)]


def test_only_the_first_chunk_of_a_step_may_be_too_long() -> None:
    stage = Stage(max_num_batched_tokens=12)
    stage.add(_request("a", *range(20, 29)), _request("b", Q, 1))
    first, second = stage.step(), stage.step()
    assert [(row.request_id, row.start, row.end) for row in first.rows] == [("a", 0, 9)]
    assert ("b", 0, 16) in [(row.request_id, row.start, row.end) for row in second.rows]
    stage.drain()
    stage.assert_clean()


def test_a_chunk_may_begin_within_a_picture_whose_first_part_is_cached() -> None:
    stage = Stage(max_num_batched_tokens=5)
    stage.add(_request("a", 1, 2, Q, 3))
    stage.drain()
    count = len(stage.plans)
    stage.add(
        _request("b", 1, 2, Q)
    )  # ends with the picture, so the block of its last token is computed again
    stage.drain()
    rows = [row for plan in stage.plans[count:] for row in plan.rows]
    assert (rows[0].start, rows[0].end) == (16, 18)


def test_runs_of_a_picture_are_kept_whole_one_by_one() -> None:
    """A picture of several crops with text between them: each crop is one run."""
    request = _request("a", 1, Q, 2)
    (span,) = request.prompt.spans
    span = replace(span, runs=((0, 6), (7, 12), (13, 16)))
    stage = Stage(max_num_batched_tokens=8)
    stage.add(replace(request, prompt=replace(request.prompt, spans=(span,))))
    stage.drain()
    assert _chunks(stage) == [(0, 8), (8, 14), (14, 18)]


def test_a_decode_goes_on_beside_a_picture_that_takes_the_whole_step() -> None:
    stage = Stage(max_num_batched_tokens=4)
    stage.add(_request("a", 30, 31, max_tokens=40))
    stage.step()
    stage.add(_request("b", 1, 2, Q))
    while "b" not in stage.firsts:
        assert "a" in {row.request_id for row in stage.step().rows}
    stage.drain()
    stage.assert_clean()


@pytest.mark.parametrize("chunk", [*range(1, 25), 1000])
@pytest.mark.parametrize("is_caching", [True, False])
def test_any_chunk(chunk: int, is_caching: bool) -> None:
    stage = Stage(max_num_batched_tokens=chunk, is_caching=is_caching)
    stage.add(*_requests())
    stage.drain()
    assert stage.tokens == WANTED
    stage.assert_clean()


def test_preempted() -> None:
    stage = Stage(num_blocks=14, feature_tokens=24, max_num_batched_tokens=9)
    stage.add(*_requests())
    stage.drain()
    assert stage.tokens == WANTED
    assert stage.scheduler.stats().num_preemptions > 0


@pytest.mark.parametrize("chunk", [1, 9, 60])
def test_with_guesses(chunk: int) -> None:
    def script(name: str, position: int) -> int:
        return position % 3  # which repeats itself, so guesses come true

    cost = CostModel()
    stage = Stage(max_num_batched_tokens=chunk, cost=cost, executor=ScriptedExecutor(4, script=script))
    stage.add(*(replace(request, max_tokens=40, prediction=(0, 1, 2) * 20) for request in _requests()))
    stage.drain()
    for request in _requests():
        count = request.num_prompt_tokens
        assert stage.tokens[request.request_id] == [(count + index) % 3 for index in range(40)]
    assert chunk == 1 or stage.scheduler.stats().num_guessed_tokens > 0


@given(
    num_blocks=st.integers(14, 60),
    feature_tokens=st.integers(24, 60),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(1, 60),
    encoder_budget_tokens=st.integers(1, 40),
    itl_target_ms=st.sampled_from([0.5, 8.0, 100.0]),
    schedule=st.sampled_from(["balanced", "interactive", "throughput"]),
    is_caching=st.booleans(),
)
def test_any_limits(**limits: object) -> None:
    stage = Stage(**limits)  # type: ignore[arg-type]
    stage.add(*_requests())
    stage.drain()
    assert stage.tokens == WANTED
    stage.assert_clean()
