"""Clips of Qwen3-VL against transformers: sizes, times in words, frames of a file; learned positions of patches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as reference_resize
from transformers.video_utils import VideoMetadata
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from tapetum.core.chat import MediaPart
from tapetum.core.config import MediaConfig
from tapetum.core.errors import InvalidParameter
from tapetum.core.media import Geometry
from tapetum.media.ingest import Ingest
from tapetum.models.qwen_vl.grids import merge_order_coordinates, neighbours
from tapetum.processing.layout import Placement, Special
from tapetum.processing.options import ProcessorOptions
from tests.processors import make_processor
from tests.pure.clips import encoded

DEFAULT = ProcessorOptions()
LOW, HIGH = 4096, 600_000
PROCESSOR = make_processor(
    "qwen3_vl", vision={"patch_size": 16}, video={"size": {"shortest_edge": LOW, "longest_edge": HIGH}}
)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(2, 300))
def test_sizes_of_clips_equal_transformers(width, height, frames):
    try:
        rows, columns = reference_resize(
            frames, height, width, temporal_factor=2, factor=32, min_pixels=LOW, max_pixels=HIGH
        )
    except ValueError:  # the aspect, once a short side has grown
        assume(False)
    geometry = PROCESSOR.geometry("video", width, height, frames=frames, options=DEFAULT)
    assert geometry.used == (columns, rows)
    assert geometry.grid_thw == ((frames + 1) // 2, rows // 16, columns // 16)


def test_a_clip_of_one_frame_is_one_of_two_that_are_alike():
    one, two = (PROCESSOR.geometry("video", 640, 480, frames=frames, options=DEFAULT) for frames in (1, 2))
    assert (one.used, one.grid_thw, one.num_tokens) == (two.used, two.grid_thw, two.num_tokens)


def written(geometry: Geometry) -> str:
    """What stands in the prompt for a clip."""
    parts = []
    for piece in PROCESSOR.expand(geometry):
        if isinstance(piece, Placement):
            parts.append("<|video_pad|>" * piece.num_tokens)
        else:
            parts.append(piece.text if isinstance(piece, Special) else piece)
    return "".join(parts)


def reference_text(geometry: Geometry, indices: list[int], rate: float) -> str:
    rule = object.__new__(Qwen3VLProcessor)
    rule.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    rule.video_token = "<|video_pad|>"
    rule.vision_start_token, rule.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    metadata = VideoMetadata(total_num_frames=len(indices), fps=rate, frames_indices=indices)
    clips = {"video_grid_thw": torch.tensor([geometry.grid_thw]), "video_metadata": [metadata]}
    return rule.replace_video_token(clips, 0)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=30).map(sorted),
    st.sampled_from([2.0, 23.976, 25.0, 29.97, 30.0]) | st.floats(0.1, 60),
)
def test_times_of_a_clip_equal_transformers(indices, rate):
    times = [index / rate for index in indices]
    geometry = PROCESSOR.geometry("video", 64, 64, frames=len(indices), frame_times=times, options=DEFAULT)
    assert written(geometry) == reference_text(geometry, indices, rate)


@pytest.mark.parametrize(("options", "rate"), [({}, 2.0), ({"fps": 5.0}, 5.0)])
def test_a_list_of_frames_has_the_rate_it_is_given(options, rate):
    geometry = PROCESSOR.geometry("video", 64, 64, frames=5, options=ProcessorOptions(**options))
    assert written(geometry) == reference_text(geometry, list(range(5)), rate)


def test_times_of_a_file():
    """Forty frames, ten a second: eight are taken, the last among them."""
    ingest = Ingest(PROCESSOR, MediaConfig(), workers=1)
    item = ingest.load(MediaPart(kind="video", source=encoded(40)), tenant="")
    ingest.close()
    chosen = [0, 6, 11, 17, 22, 28, 33, 39]
    assert item.geometry.frame_times == pytest.approx([number / 10 for number in chosen])
    assert written(item.geometry) == reference_text(item.geometry, chosen, 10.0)
    assert item.patches.shape == (item.geometry.num_patches, 3 * 2 * 16 * 16)


@pytest.mark.parametrize("frames", [1, 2, 7, 40])
def test_what_a_request_asks_for_counts_for_each_frame(frames):
    def tokens(**options: object) -> int:
        """Of a frame."""
        geometry = PROCESSOR.geometry("video", 1000, 800, frames=frames, options=ProcessorOptions(**options))
        return geometry.num_tokens // geometry.grid_thw[0]

    assert tokens(max_pixels=20 * 1024) <= 20
    assert tokens(min_pixels=400 * 1024, max_pixels=500 * 1024) in range(380, 501)
    assert tokens(detail="low") <= min(256, tokens())
    steps = (frames + 1) // 2
    assert tokens(max_visual_tokens=3 * steps + 1) <= 3
    if steps > 1:
        with pytest.raises(InvalidParameter, match="max_visual_tokens"):
            tokens(max_visual_tokens=steps - 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 3), st.sampled_from([7, 48]))
def test_learned_positions_equal_transformers(rows, columns, time, side):
    grid = (time, 2 * rows, 2 * columns)
    indices, shares = get_vision_interpolation_indices_and_weights(
        torch.tensor([grid]), side, mode="bilinear", align_corners=True, spatial_merge_size=2
    )
    ours = neighbours(grid, merge_order_coordinates(grid, 2), side)
    is_used = shares > 0  # of a neighbour that counts for nothing the place does not matter
    assert torch.equal(ours[0][is_used], indices[is_used])
    torch.testing.assert_close(ours[1], shares, atol=1e-6, rtol=0)
