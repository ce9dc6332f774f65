"""Header -> geometry: golden sizes, properties of the resize rule, options, attention segments."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tapetum.core.errors import InvalidParameter, MediaError
from tapetum.processing.base import PixelBounds, smart_resize
from tapetum.processing.options import ProcessorOptions
from tests.processors import make_processor

DEFAULT = ProcessorOptions()
# height, width of the input; then height, width and tokens at either limit
GOLDEN = [
    ((64, 64), (56, 56, 4), (56, 56, 4)),
    ((224, 224), (224, 224, 64), (224, 224, 64)),
    ((336, 336), (336, 336, 144), (336, 336, 144)),
    ((512, 512), (504, 504, 324), (504, 504, 324)),
    ((720, 1280), (728, 1288, 1196), (728, 1288, 1196)),
    ((1080, 1920), (728, 1316, 1222), (1092, 1932, 2691)),
    ((1344, 1344), (980, 980, 1225), (1344, 1344, 2304)),
    ((2160, 3840), (728, 1316, 1222), (2156, 3836, 10549)),
]


@pytest.mark.parametrize(("size", "small", "large"), GOLDEN)
def test_golden_sizes(size, small, large):
    for max_pixels, expected in ((1_003_520, small), (12_845_056, large)):
        processor = make_processor(image={"min_pixels": 3136, "max_pixels": max_pixels})
        geometry = processor.geometry("image", size[1], size[0], options=DEFAULT)
        assert (geometry.used[1], geometry.used[0], geometry.num_tokens) == expected
        assert geometry.original == (size[1], size[0])
        assert geometry.grid_thw == (1, expected[0] // 14, expected[1] // 14)
        assert geometry.num_patches == 4 * geometry.num_tokens
        assert geometry.seconds_per_grid == 0.0


sides = st.integers(1, 5000)


@given(sides, sides, st.sampled_from([28, 32]), st.sampled_from([3136, 12544]))
def test_resize_keeps_its_promises(width, height, factor, min_pixels):
    assume(max(width, height) <= 200 * min(width, height))
    bounds = PixelBounds(min_pixels, 1_003_520)
    used = smart_resize(width, height, factor=factor, bounds=bounds)
    assert used[0] % factor == used[1] % factor == 0
    assert min(used) >= factor
    assert used[0] * used[1] <= bounds.max_pixels
    # Rounding down after a shrink may lose less than one row and one column of factors.
    assert (used[0] + factor) * (used[1] + factor) > bounds.min_pixels
    assert smart_resize(*used, factor=factor, bounds=bounds) == used
    # Some one scale explains both sides within a factor.
    low = max((used[0] - factor) / width, (used[1] - factor) / height)
    high = min((used[0] + factor) / width, (used[1] + factor) / height)
    assert low <= high


@given(st.integers(30, 3000), st.integers(30, 3000))
def test_turning_the_picture_turns_the_size(width, height):
    bounds = PixelBounds(3136, 1_003_520)
    assert smart_resize(width, height, factor=28, bounds=bounds) == tuple(
        reversed(smart_resize(height, width, factor=28, bounds=bounds))
    )


def test_round_half_goes_to_even():
    bounds = PixelBounds(1, 10**9)
    assert smart_resize(28 * 2 + 14, 28 * 3 + 14, factor=28, bounds=bounds) == (56, 112)


def test_a_side_never_shrinks_to_nothing():
    assert smart_resize(5600, 28, factor=28, bounds=PixelBounds(1, 784)) == (392, 28)


def test_one_pixel_is_a_picture():
    geometry = make_processor().geometry("image", 1, 1, options=DEFAULT)
    assert geometry.used == (56, 56)


@pytest.mark.parametrize(("width", "height"), [(201, 1), (1, 201), (2001, 10), (0, 5), (5, 0), (-3, 4)])
def test_impossible_shapes(width, height):
    with pytest.raises(MediaError, match=f"{width}x{height}"):
        make_processor().geometry("image", width, height, options=DEFAULT)


def test_aspect_of_exactly_200_is_fine():
    assert make_processor().geometry("image", 200, 1, options=DEFAULT).used[1] == 28


@pytest.mark.parametrize(("kind", "frames"), [("image", 2), ("image", 0), ("video", 0)])
def test_frame_counts_that_make_no_sense(kind, frames):
    with pytest.raises(MediaError, match=f"{frames} frames"):
        make_processor().geometry(kind, 64, 64, frames=frames, options=DEFAULT)


@pytest.mark.parametrize(("frames", "time"), [(1, 1), (2, 1), (3, 2), (8, 4), (9, 5)])
def test_clip_grid(frames, time):
    geometry = make_processor().geometry("video", 64, 128, frames=frames, options=DEFAULT)
    assert geometry.frames == frames
    assert geometry.grid_thw == (time, 10, 4)  # 64x128 rounds to 56x140
    assert geometry.num_tokens == time * 10
    assert geometry.segments == (40,) * time


def test_clip_uses_its_own_bounds():
    processor = make_processor(video={"size": {"shortest_edge": 100352, "longest_edge": 602112}})
    assert processor.geometry("image", 224, 224, options=DEFAULT).used == (224, 224)
    assert processor.geometry("video", 224, 224, options=DEFAULT).used == (336, 336)


def test_seconds_per_grid_only_where_there_is_a_clock():
    fast = ProcessorOptions(fps=8)
    with_clock, without = make_processor("qwen2_5_vl"), make_processor("qwen2_vl")
    assert with_clock.geometry("video", 64, 64, frames=4, options=DEFAULT).seconds_per_grid == 1.0
    assert with_clock.geometry("video", 64, 64, frames=4, options=fast).seconds_per_grid == 0.25
    assert with_clock.geometry("image", 64, 64, options=fast).seconds_per_grid == 0.0
    assert without.geometry("video", 64, 64, frames=4, options=fast).seconds_per_grid == 0.0


def test_windows_of_qwen2_5():
    # 10 x 6 merged cells: windows of 4x4, 4x4, 2x4 cells, then their lower, 2-row halves.
    geometry = make_processor("qwen2_5_vl").geometry("image", 280, 168, options=DEFAULT)
    assert geometry.segments == (64, 64, 32, 32, 32, 16)
    whole = make_processor("qwen2_vl").geometry("image", 280, 168, options=DEFAULT)
    assert whole.segments == (240,)


@given(
    st.integers(1, 1500), st.integers(1, 1500), st.integers(1, 9), st.sampled_from(["qwen2_vl", "qwen2_5_vl"])
)
def test_segments_cover_all_patches(width, height, frames, model_type):
    assume(max(width, height) <= 200 * min(width, height))
    geometry = PROCESSORS[model_type].geometry("video", width, height, frames=frames, options=DEFAULT)
    assert sum(geometry.segments) == geometry.num_patches
    assert min(geometry.segments) > 0
    if model_type == "qwen2_5_vl":
        assert max(geometry.segments) <= 64


PROCESSORS = {name: make_processor(name) for name in ("qwen2_vl", "qwen2_5_vl")}


def test_options_move_the_bounds():
    processor = make_processor()  # 3136 to 1003520
    small = processor.geometry("image", 1280, 720, options=ProcessorOptions(max_pixels=200_000))
    assert small.used[0] * small.used[1] <= 200_000
    large = processor.geometry("image", 64, 64, options=ProcessorOptions(min_pixels=500_000))
    assert large.used[0] * large.used[1] >= 500_000
    # A bound that is not asked for makes way.
    tiny = processor.geometry("image", 28, 28, options=ProcessorOptions(max_pixels=784))
    assert tiny.used == (28, 28)
    huge = processor.geometry("image", 64, 64, options=ProcessorOptions(min_pixels=2_000_000))
    assert huge.used[0] * huge.used[1] >= 2_000_000


def test_options_are_read_strictly():
    assert ProcessorOptions.from_mapping({"max_pixels": 5000, "fps": 1}) == ProcessorOptions(
        max_pixels=5000, fps=1
    )
    assert ProcessorOptions.from_mapping({}) == DEFAULT


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"max_pixel": 3}, "max_pixel"),
        ({"max_pixels": 0}, "max_pixels"),
        ({"max_pixels": 10**12}, "max_pixels"),
        ({"min_pixels": 3.5}, "min_pixels"),
        ({"min_pixels": True}, "min_pixels"),
        ({"min_pixels": "3136"}, "min_pixels"),
        ({"min_pixels": 5000, "max_pixels": 4000}, "min_pixels"),
        ({"fps": 0}, "fps"),
        ({"fps": float("nan")}, "fps"),
        ({"fps": "2"}, "fps"),
        ({"fps": [2, 2]}, "fps"),
    ],
)
def test_bad_options(options, param):
    with pytest.raises(InvalidParameter, match=param) as caught:
        ProcessorOptions.from_mapping(options)
    assert caught.value.param == param
