"""CostModel: finds the coefficients that made the times, and inverts itself."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.cost import MAX_CHUNK, MAX_SECONDS, CostModel, chunk_context

STEP = (8e-3, 4e-4, 3e-7, 9e-5, 6e-9)
ENCODE = (4e-3, 8e-5, 5e-9)


def _step(a: float, b: float, c: float, d: float, e: float):
    return lambda decodes, context, chunk, pairs: a + b * decodes + c * context + d * chunk + e * pairs


def _steps(rng: Random):
    """A mixed load: (decodes, Σcontext, chunk, Σchunk·context)."""
    decodes, chunk, start = rng.randint(0, 32), rng.choice([0, 0, 16, 100, 700]), rng.randint(0, 4000)
    context = sum(rng.randint(10, 4000) for _ in range(decodes))
    return decodes, context, chunk, chunk_context(start, chunk)


def _trained(
    coefficients: tuple[float, ...] = STEP, *, noise: float = 0.0, count: int = 400, seed: int = 1
) -> CostModel:
    rng, cost, seconds = Random(seed), CostModel(), _step(*coefficients)
    for _ in range(count):
        work = _steps(rng)
        cost.observe_step(*work, seconds(*work) * rng.uniform(1 - noise, 1 + noise))
    return cost


def test_fit_recovers_the_step() -> None:
    cost, rng, seconds = _trained(), Random(2), _step(*STEP)
    for _ in range(50):
        work = _steps(rng)
        assert cost.step_seconds(*work) == pytest.approx(seconds(*work), rel=1e-3)
    assert cost.step_error_ratio == pytest.approx(1.0, abs=1e-2)


def test_fit_stands_noise_and_outliers() -> None:
    cost, seconds = _trained(noise=0.3, count=600), _step(*STEP)
    for work in (
        (8, 8000, 0, 0.0),
        (0, 0, 512, chunk_context(0, 512)),
        (4, 9000, 128, chunk_context(3000, 128)),
    ):
        assert cost.step_seconds(*work) == pytest.approx(seconds(*work), rel=0.15)
    before = cost.step_seconds(8, 8000)
    cost.observe_step(8, 8000, 0, 0.0, 30.0)  # the machine slept
    assert cost.step_seconds(8, 8000) == pytest.approx(before, rel=0.1)


def test_fit_recovers_the_encode() -> None:
    rng, cost = Random(3), CostModel()
    sizes = [rng.choice([64, 256, 1024, 4784, 10764]) for _ in range(200)]
    for patches in sizes:
        cost.observe_encode(patches, patches**2, ENCODE[0] + ENCODE[1] * patches + ENCODE[2] * patches**2)
    for patches in (100, 2000, 42_196):
        wanted = ENCODE[0] + ENCODE[1] * patches + ENCODE[2] * patches**2
        assert cost.encode_seconds(patches, patches**2) == pytest.approx(wanted, rel=1e-3)
    # The same patches in windows cost less: the square is over segments.
    assert cost.encode_seconds(4096, 64 * 64**2) < cost.encode_seconds(4096, 4096**2)
    assert cost.encode_seconds(0, 0) == 0.0


def test_fit_follows_a_machine_that_changes() -> None:
    cost, rng = _trained(count=600), Random(5)
    slower = _step(*(3 * value for value in STEP))
    for _ in range(1500):
        work = _steps(rng)
        cost.observe_step(*work, slower(*work))
    assert cost.step_seconds(8, 8000, 100, 5e4) == pytest.approx(slower(8, 8000, 100, 5e4), rel=0.05)


def test_times_that_fall_with_the_work_are_read_as_constant() -> None:
    """The best line through them slopes down; clipping its slope would leave it far too high."""
    cost = CostModel()
    for _ in range(50):
        cost.observe_step(1, 0, 0, 0.0, 0.020)
        cost.observe_step(10, 0, 0, 0.0, 0.010)
    assert 0.010 < cost.step_seconds(1, 0) <= cost.step_seconds(10, 0) < 0.015


def test_error_ratio_tells_wrong_predictions() -> None:
    cost = CostModel()
    assert cost.step_error_ratio == cost.encode_error_ratio == 1.0
    predicted = cost.encode_seconds(1000, 1000**2)
    cost.observe_encode(1000, 1000**2, 4 * predicted)
    assert cost.encode_error_ratio == pytest.approx(0.25)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9000), st.integers(0, 600), st.floats(1e-5, 9.0)),
        max_size=30,
    )
)
def test_predictions_are_never_negative_and_grow_with_the_work(observed: list) -> None:
    """Whatever nonsense was observed."""
    cost = CostModel()
    for decodes, context, chunk, seconds in observed:
        cost.observe_step(decodes, context, chunk, chunk_context(context, chunk), seconds)
    works = [(0, 0, 0, 0.0), (1, 100, 0, 0.0), (4, 100, 64, 6400.0), (4, 5000, 64, 9e5), (30, 9e4, 700, 2e6)]
    predicted = [cost.step_seconds(*work) for work in works]
    assert predicted == sorted(predicted) and predicted[0] >= 0


@given(
    st.floats(0, 5.0),
    st.floats(0, 5.0),
    st.integers(0, 64),
    st.integers(0, 10**5),
    st.integers(0, 10**5),
    st.booleans(),
)
def test_max_chunk_is_the_largest_that_fits(
    seconds: float, more: float, decodes: int, context: int, start: int, is_trained: bool
) -> None:
    cost = _TRAINED if is_trained else CostModel()
    chunk = cost.max_chunk(seconds, decodes, context, start)
    assert cost.max_chunk(seconds + more, decodes, context, start) >= chunk
    if chunk:
        assert cost.step_seconds(decodes, context, chunk, chunk_context(start, chunk)) <= seconds * (1 + 1e-9)
    longer = cost.step_seconds(decodes, context, chunk + 1, chunk_context(start, chunk + 1))
    assert longer > seconds * (1 - 1e-9)


_TRAINED = _trained()


def test_free_tokens_have_no_longest_chunk() -> None:
    cost = CostModel()
    for chunk in range(1, 3000):
        cost.observe_step(0, 0, chunk, chunk_context(0, chunk), 0.01)
    assert cost.max_chunk(1.0, 0, 0, 0) > 100_000
    assert cost.max_chunk(1.0, 0, 0, 0) <= MAX_CHUNK


@pytest.mark.parametrize("seconds", [math.inf, 1e308, math.nan, -math.inf])
def test_any_time_has_a_chunk(seconds: float) -> None:
    for cost in (CostModel(), _trained()):
        chunk = cost.max_chunk(seconds, 3, 100, 50)
        assert chunk == (cost.max_chunk(MAX_SECONDS, 3, 100, 50) if seconds > 0 else 0)


def test_tokens_that_cost_next_to_nothing_come_in_any_number() -> None:
    cost = CostModel()
    for chunk in (16, 256, 4096) * 50:
        cost.observe_step(0, 0, chunk, chunk_context(0, chunk), 1e-3)
    assert cost.max_chunk(math.inf, 0, 0, 0) == MAX_CHUNK


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.0, 1e-300, 1e300])
def test_a_time_that_no_clock_tells_teaches_nothing(seconds: float) -> None:
    cost, same = _trained(), _trained()
    cost.observe_step(4, 1000, 64, 100.0, seconds)
    cost.observe_encode(64, 4096, seconds)
    assert cost.step_seconds(4, 1000, 64) == same.step_seconds(4, 1000, 64)
    assert cost.encode_seconds(64, 4096) == same.encode_seconds(64, 4096)
    assert (cost.step_error_ratio, cost.encode_error_ratio) == (
        same.step_error_ratio,
        same.encode_error_ratio,
    )
