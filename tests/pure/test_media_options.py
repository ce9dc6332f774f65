"""What requests may choose about media: token budgets, detail, frames, the bounds of a server, shares of a prompt."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tapetum.core.config import MediaConfig
from tapetum.core.errors import ConfigError, InvalidParameter, MediaError
from tapetum.processing.base import fit_tokens
from tapetum.processing.options import ProcessorOptions, ServerOptions
from tapetum.processing.sampling import FrameSampling
from tapetum.processing.share import Claim, share_out
from tests.processors import make_processor

PROCESSOR = make_processor(image={"min_pixels": 12_544, "max_pixels": 1_003_520})
SIDES = st.integers(1, 5000)


def tokens(width: int, height: int, kind="image", frames: int = 1, **options: object) -> int:
    chosen = ProcessorOptions(**options)
    return PROCESSOR.geometry(kind, width, height, frames=frames, options=chosen).num_tokens


# --- max_visual_tokens and detail


@given(SIDES, SIDES, st.integers(1, 2000))
def test_an_item_never_has_more_tokens_than_it_may(width, height, budget):
    assume(max(width, height) <= 200 * min(width, height))
    found = tokens(width, height, max_visual_tokens=budget)
    assert 1 <= found <= budget
    usual = tokens(width, height)
    if usual <= budget:
        assert found == usual, "a budget that is not used changes nothing"
    else:
        aspect = max(width, height) / min(width, height)
        assert found >= budget / 4 or found >= budget / 2 - math.sqrt(budget * aspect) - 1, (
            "and it is made use of"
        )


@given(SIDES, SIDES, st.integers(1, 500), st.integers(1, 500))
def test_a_larger_budget_gives_no_fewer_tokens(width, height, budget, more):
    assume(max(width, height) <= 200 * min(width, height))
    assert tokens(width, height, max_visual_tokens=budget) <= tokens(
        width, height, max_visual_tokens=budget + more
    )


@given(SIDES, SIDES, st.integers(1, 40), st.integers(1, 3000))
def test_a_budget_of_a_clip_is_that_of_all_its_frames(width, height, frames, budget):
    assume(max(width, height) <= 200 * min(width, height))
    steps = -(-frames // 2)
    if budget < steps:
        with pytest.raises(InvalidParameter, match=f"max_visual_tokens is {budget}, .* at least {steps}"):
            tokens(width, height, "video", frames, max_visual_tokens=budget)
    else:
        assert tokens(width, height, "video", frames, max_visual_tokens=budget) <= budget


@given(SIDES, SIDES)
def test_low_detail_is_a_quarter_and_at_most_256_tokens(width, height):
    assume(max(width, height) <= 200 * min(width, height))
    low = tokens(width, height, detail="low")
    assert low <= min(256, 1_003_520 // 4 // 784)
    assert (
        tokens(width, height, detail="high") == tokens(width, height, detail="auto") == tokens(width, height)
    )
    assert low <= tokens(width, height)


def test_low_detail_of_what_a_request_allows():
    assert tokens(2000, 2000, detail="low") == 256
    assert tokens(2000, 2000, detail="low", max_pixels=78_400) == 25
    assert tokens(2000, 2000, detail="low", max_visual_tokens=9) == 9
    assert tokens(2000, 2000, detail="low", max_pixels=784) == 1


def test_a_budget_goes_before_the_least_that_is_asked_for():
    assert tokens(2000, 2000, min_pixels=500_000, max_visual_tokens=16) == 16


@given(SIDES, SIDES, st.integers(1, 1000))
def test_fitted_sizes(width, height, most):
    columns, rows = (side // 28 for side in fit_tokens(width, height, factor=28, most=most))
    assert 1 <= columns * rows <= most


@pytest.mark.parametrize(
    "options",
    [
        {"max_visual_tokens": 0},
        {"max_visual_tokens": 2.5},
        {"detail": "medium"},
        {"detail": 1},
        {"num_frames": 0},
        {"num_frames": -2},
        {"num_frames": -1.0},
        {"num_frames": True},
        {"max_frames": 0},
        {"min_frames": 5, "max_frames": 4},
        {"min_pixels": 5, "max_pixels": 4},
    ],
)
def test_options_that_make_no_sense(options):
    with pytest.raises(InvalidParameter) as caught:
        ProcessorOptions.from_mapping(options)
    assert caught.value.param in options


# --- bounds of a server


def server(**config) -> ServerOptions:
    return ServerOptions.from_config(MediaConfig(**config))


def merged(bounds: ServerOptions, kind="image", is_file: bool = True, **wanted) -> ProcessorOptions:
    return bounds.merged(kind, ProcessorOptions(**wanted), is_file=is_file)


def test_a_server_sets_what_requests_leave_open():
    bounds = server(mm_processor_kwargs={"max_pixels": 5000, "min_pixels": 1000, "fps": 2})
    assert merged(bounds) == ProcessorOptions(max_pixels=5000, min_pixels=1000, fps=2)
    assert merged(bounds, max_pixels=4000, fps=1) == ProcessorOptions(max_pixels=4000, min_pixels=1000, fps=1)
    assert merged(bounds, max_pixels=500).min_pixels is None, "what is asked for goes before the default"
    assert merged(bounds, detail="low", max_visual_tokens=5) == ProcessorOptions(
        max_pixels=5000, min_pixels=1000, fps=2, detail="low", max_visual_tokens=5
    )


def test_a_server_sets_words_and_switches_too():
    bounds = server(
        mm_processor_kwargs={"near_duplicate": True}, media_io_kwargs={"image": {"detail": "low"}}
    )
    assert merged(bounds) == ProcessorOptions(near_duplicate=True, detail="low")
    assert merged(bounds, near_duplicate=False, detail="auto") == ProcessorOptions(
        near_duplicate=False, detail="auto"
    )


def test_kinds_have_bounds_of_their_own():
    bounds = server(
        mm_processor_kwargs={"fps": 4}, media_io_kwargs={"video": {"fps": 2, "num_frames": 40}, "image": {}}
    )
    assert merged(bounds, "video") == ProcessorOptions(fps=2, num_frames=40)
    assert merged(bounds, "image") == ProcessorOptions(fps=4)
    assert merged(bounds, "video", is_file=False) == ProcessorOptions(num_frames=40)


@pytest.mark.parametrize(
    ("wanted", "limit"),
    [
        ({"max_pixels": 5001}, 5000),
        ({"min_pixels": 5001}, 5000),
        ({"max_visual_tokens": 11}, 10),
        ({"fps": 2.5}, 2),
        ({"num_frames": 41}, 40),
        ({"num_frames": -1}, 40),
        ({"max_frames": 41}, 40),
        ({"min_frames": 41}, 40),
    ],
)
def test_no_request_gets_more_than_a_server_allows(wanted, limit):
    bounds = server(
        mm_processor_kwargs={"max_pixels": 5000, "max_visual_tokens": 10},
        media_io_kwargs={"video": {"fps": 2, "num_frames": 40}},
    )
    ((name, value),) = wanted.items()
    with pytest.raises(
        InvalidParameter, match=f"{name} is {value}, .*limit.* {limit} on this server"
    ) as caught:
        merged(bounds, "video", **wanted)
    assert caught.value.param == name
    assert merged(bounds, "video", **{name: limit}) and merged(server(), "video", **wanted)


@pytest.mark.parametrize(
    "config",
    [
        {"mm_processor_kwargs": {"max_pixel": 5}},
        {"mm_processor_kwargs": {"max_pixels": "5"}},
        {"mm_processor_kwargs": {"max_pixels": 5.5}},
        {"media_io_kwargs": {"video": {"fps": 0}}},
        {"media_io_kwargs": {"audio": {}}},
        {"media_io_kwargs": {"video": 5}},
    ],
)
def test_bounds_that_are_none(config):
    with pytest.raises(ConfigError, match="kwargs"):
        server(**config)


# --- frames


def count(total: int, seconds: float, sampling: FrameSampling | None = None, **options) -> int:
    return (sampling or FrameSampling()).count(total, seconds, ProcessorOptions(**options))


@given(st.integers(1, 2000), st.floats(0.01, 2000), st.integers(1, 50), st.floats(0.01, 60))
def test_counts_are_within_their_bounds(total, seconds, num_frames, fps):
    for options in ({}, {"fps": fps}, {"num_frames": num_frames}, {"fps": fps, "num_frames": num_frames}):
        found = count(total, seconds, **options)
        assert 1 <= found <= min(total, 768)
        assert found % 2 == 0 or found == total or found == 1
        if "num_frames" in options:
            assert found <= num_frames + 1


def test_counts():
    assert count(300, 10.0) == 20
    assert count(300, 10.0, fps=0.1) == 4, "at least min_frames"
    assert count(3, 1.5) == 3 and count(7, 3.5) == 7, "a short clip is seen whole"
    assert count(7, 3.5, fps=1.9) == 6
    assert count(100_000, 10_000.0) == 768
    assert count(100, 10.0, num_frames=-1) == 100
    assert count(100, 10.0, num_frames=1) == count(100, 10.0, max_frames=1) == 1
    assert count(100, 10.0, FrameSampling(num_frames=8)) == 8
    assert count(100, 10.0, FrameSampling(num_frames=8), fps=3) == 30
    assert count(100, 10.0, FrameSampling(num_frames=8), num_frames=6) == 6
    assert (
        count(100, 10.0, FrameSampling(multiple=4)) == 20 and count(100, 9.0, FrameSampling(multiple=4)) == 16
    )


@given(st.integers(1, 3000), st.booleans(), st.data())
def test_frames_are_spread_evenly(total, has_last, data):
    wanted = data.draw(st.integers(1, total))
    chosen = FrameSampling(has_last=has_last).spread(total, wanted)
    assert len(chosen) == wanted and chosen[0] == 0
    assert chosen[-1] == total - 1 if has_last and wanted > 1 else chosen[-1] < total
    gaps = [after - before for before, after in pairwise(chosen)]
    mean = (total - 1) / (wanted - 1) if has_last and wanted > 1 else total / wanted
    assert all(int(mean) <= gap <= mean + 2 for gap in gaps)


@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=50, unique=True).map(sorted),
    st.integers(2, 60),
    st.booleans(),
)
def test_frames_shown_at_even_times(times, wanted, has_last):
    end = times[-1] + 10
    chosen = FrameSampling(has_last=has_last).shown_at(times, end, wanted)
    assert len(chosen) == wanted and chosen[0] == 0 and chosen == sorted(chosen)
    assert chosen[-1] == len(times) - 1 or not has_last
    step = (times[-1] - times[0]) / (wanted - 1) if has_last else (end - times[0]) / wanted
    for index, frame in enumerate(chosen):
        at = times[0] + index * step
        assert times[frame] <= at + 1e-6, "already shown"
        assert frame + 1 == len(times) or times[frame + 1] > at - 1, "and still shown"


# --- shares


CLAIMS = st.lists(
    st.builds(
        lambda size, least, more: Claim(size, least, least + more),
        st.floats(1, 1e8),
        st.integers(1, 50),
        st.integers(0, 500),
    ),
    min_size=1,
    max_size=8,
)


@given(CLAIMS, st.integers(0, 2000))
def test_shares_keep_to_the_budget_and_to_every_claim(claims, extra):
    budget = sum(claim.least for claim in claims) + extra
    shares = share_out(budget, claims)
    assert sum(shares) <= budget
    assert all(claim.least <= share <= claim.most for share, claim in zip(shares, claims, strict=True))
    if sum(claim.most for claim in claims) <= budget:
        assert shares == [claim.most for claim in claims]
    else:
        assert sum(shares) > budget - len(claims) - 1, "but for roundings it is spent"


@given(CLAIMS, st.integers(0, 2000))
def test_between_their_bounds_shares_are_in_proportion(claims, extra):
    shares = share_out(sum(claim.least for claim in claims) + extra, claims)
    free = [(s, c.size) for s, c in zip(shares, claims, strict=True) if c.least < s < c.most - 1]
    for share, size in free:
        for other, other_size in free:
            assert share / size <= (other + 1.001) / other_size * 1.000001


def test_shares_by_example():
    assert share_out(400, [Claim(1, 1, 999), Claim(3, 1, 999)]) == [100, 300]
    assert share_out(400, [Claim(1, 1, 50), Claim(3, 1, 999)]) == [50, 350], "the rest goes to the others"
    assert share_out(400, [Claim(1, 150, 999), Claim(3, 1, 999)]) == [150, 250]
    assert share_out(10, [Claim(1, 5, 9), Claim(1, 5, 9)]) == [5, 5]


def test_an_aspect_that_no_family_takes_is_refused_with_any_budget():
    with pytest.raises(MediaError, match="aspect"):
        tokens(5000, 5, max_visual_tokens=5)
