"""Prompt layout: placeholders, spans and M-RoPE positions."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.media import Geometry, MediaItem
from tests.processors import laid_out, make_processor

PROCESSORS = {
    name: make_processor(name, vision={"tokens_per_second": 2}) for name in ("qwen2_vl", "qwen2_5_vl")
}


def item(time: int, rows: int, columns: int, kind: str = "image", seconds: float = 0.0) -> MediaItem:
    """An item with a merged grid of time x rows x columns."""
    geometry = Geometry(
        kind=kind,
        original=(1, 1),
        used=(columns * 28, rows * 28),
        frames=time * 2 if kind == "video" else 1,
        grid_thw=(time, rows * 2, columns * 2),
        num_tokens=time * rows * columns,
        segments=(time * rows * columns * 4,),
        seconds_per_grid=seconds,
    )
    return MediaItem(key=bytes(32), geometry=geometry, patches=None)


def test_golden_positions():
    picture = item(1, 2, 3)
    prompt = laid_out(PROCESSORS["qwen2_vl"], [(11, 12, 13), picture, (14, 15)])
    assert prompt.token_ids == (11, 12, 13, 7, 7, 7, 7, 7, 7, 14, 15)
    assert prompt.position_ids.tolist() == [
        [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7],
        [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7],
        [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7],
    ]
    assert prompt.position_delta == -3
    (span,) = prompt.spans
    assert (span.start, span.end, span.item) == (3, 9, picture)
    assert span.placement == (1, 2, 3, 1.0)


def test_text_alone_counts_up():
    prompt = laid_out(PROCESSORS["qwen2_vl"], [(5, 6), (7,)])
    assert prompt.position_ids.tolist() == [[0, 1, 2]] * 3
    assert (prompt.spans, prompt.position_delta) == ((), 0)


def test_nothing_at_all():
    prompt = laid_out(PROCESSORS["qwen2_vl"], [])
    assert (prompt.token_ids, prompt.position_ids.shape, prompt.position_delta) == ((), (3, 0), 0)


def test_clip_counts_steps_or_seconds():
    clip = item(3, 1, 1, "video", seconds=1.3)
    steps = laid_out(PROCESSORS["qwen2_vl"], [(1,), clip, (2,)])
    assert steps.token_ids == (1, 8, 8, 8, 2)
    assert steps.position_ids[0].tolist() == [0, 1, 2, 3, 4]
    clock = laid_out(PROCESSORS["qwen2_5_vl"], [(1,), clip, (2,)])
    # 1.3 s x 2 tokens per second = 2.6: truncated to 0, 2, 5 behind the start; text goes on behind the largest.
    assert clock.position_ids.tolist() == [[0, 1, 3, 6, 7], [0, 1, 1, 1, 7], [0, 1, 1, 1, 7]]
    assert clock.position_delta == 3
    assert clock.spans[0].placement == (3, 1, 1, pytest.approx(2.6))
    assert steps.spans[0].placement == (3, 1, 1, 1.0)


segments = st.lists(
    st.one_of(
        st.lists(st.integers(10, 99), min_size=1, max_size=5).map(tuple),
        st.builds(item, st.just(1), st.integers(1, 5), st.integers(1, 5)),
        st.builds(
            item,
            st.integers(1, 4),
            st.integers(1, 4),
            st.integers(1, 4),
            st.just("video"),
            st.floats(0.01, 3.0),
        ),
    ),
    max_size=6,
)


@given(segments, st.sampled_from(sorted(PROCESSORS)))
def test_layout_is_consistent(parts, model_type):
    prompt = laid_out(PROCESSORS[model_type], parts)
    num_tokens = len(prompt.token_ids)
    assert prompt.position_ids.shape == (3, num_tokens)
    assert [span.item for span in prompt.spans] == [part for part in parts if isinstance(part, MediaItem)]
    for span in prompt.spans:
        assert span.end - span.start == span.item.geometry.num_tokens
        assert set(prompt.token_ids[span.start : span.end]) == {
            7 if span.item.geometry.kind == "image" else 8
        }
        box = prompt.position_ids[:, span.start : span.end]
        before = prompt.position_ids[:, : span.start].max(initial=-1)
        assert (box.min(axis=1) == before + 1).all()
    assert prompt.position_delta == prompt.position_ids.max(initial=-1) + 1 - num_tokens


@given(segments, segments, st.sampled_from(sorted(PROCESSORS)))
def test_what_comes_later_moves_as_a_whole(front, back, model_type):
    """Relocation is an equal shift on all axes: the base of reuse at another place."""
    layout = partial(laid_out, PROCESSORS[model_type])
    alone, joined = layout(back), layout([*front, *back])
    num_front = len(layout(front).token_ids)
    shift = layout(front).position_ids.max(initial=-1) + 1
    assert np.array_equal(joined.position_ids[:, :num_front], layout(front).position_ids)
    assert np.array_equal(joined.position_ids[:, num_front:], alone.position_ids + shift)
    assert [span.placement for span in joined.spans[-len(alone.spans) :]] == [
        span.placement for span in alone.spans
    ] or not alone.spans
