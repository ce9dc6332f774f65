"""Patches, sizes, windows and positions against transformers.

The image processor of transformers (its PIL backend) is the oracle for pixels. Its video processor needs torchvision,
so a clip is checked frame by frame: the repeated frame of a picture's patch is what a clip has a second frame in.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel, Qwen2VLConfig, Qwen2VLModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as reference_resize
from transformers.vision_utils import get_vision_window_index

from tapetum.core.errors import MediaError
from tapetum.core.media import Geometry, MediaItem
from tapetum.processing import load_processor
from tapetum.processing.base import PixelBounds, smart_resize
from tapetum.processing.options import ProcessorOptions
from tests.processors import MEAN, STD, laid_out, make_processor, write_files

DEFAULT = ProcessorOptions()
SIZES = [
    (1, 1),
    (200, 1),
    (1, 200),
    (3, 500),
    (28, 28),
    (56, 56),
    (64, 64),
    (97, 241),
    (336, 100),
    (640, 480),
]


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Coarse and fine structure, so that a wrong filter or a shifted patch shows."""
    rng = np.random.default_rng((width, height, seed))
    y, x = np.mgrid[:height, :width]
    waves = 127 + 80 * np.sin(x / 7 + seed)[..., None] * np.cos(y / 5)[..., None] * np.array([1, -1, 0.5])
    return Image.fromarray(np.clip(waves + rng.normal(0, 25, waves.shape), 0, 255).astype(np.uint8))


def reference(picture: Image.Image, min_pixels: int, max_pixels: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Values [P, 3, 2, p*p] of 0..1 with the normalisation undone, and the grid."""
    oracle = Qwen2VLImageProcessorPil(size={"shortest_edge": min_pixels, "longest_edge": max_pixels})
    out = oracle(images=[picture], return_tensors="np")
    values = out["pixel_values"].reshape(-1, 3, 2, 14 * 14).astype(np.float64)
    pixels = values * np.array(STD)[:, None, None] + np.array(MEAN)[:, None, None]
    return pixels, tuple(int(n) for n in out["image_grid_thw"][0])


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("size", SIZES)
def test_picture_equals_transformers(size, model_type):
    picture = noise(*size)
    expected, grid = reference(picture, 3136, 200_000)
    processor = make_processor(model_type, image={"min_pixels": 3136, "max_pixels": 200_000})
    geometry = processor.geometry("image", *size, options=DEFAULT)
    patches = processor.patches([picture], geometry)
    assert geometry.grid_thw == grid
    assert patches.dtype == np.uint8
    assert patches.shape == (geometry.num_patches, 3 * 14 * 14)
    ours = patches.reshape(-1, 3, 14 * 14) / 255
    for frame in range(2):  # the reference repeats the frame, we do not
        assert np.abs(expected[:, :, frame] - ours).max() < 1e-5


def test_grey_picture_and_arrays():
    grey = noise(120, 90).convert("L")
    expected, _ = reference(grey, 3136, 200_000)
    processor = make_processor(image={"min_pixels": 3136, "max_pixels": 200_000})
    geometry = processor.geometry("image", 120, 90, options=DEFAULT)
    patches = processor.patches([np.asarray(grey.convert("RGB"))], geometry)
    assert np.abs(expected[:, :, 0] - patches.reshape(-1, 3, 196) / 255).max() < 1e-5


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5])
def test_clip_equals_transformers_frame_by_frame(frames):
    pictures = [noise(150, 100, seed) for seed in range(frames)]
    processor = make_processor(video={"size": {"shortest_edge": 20_000, "longest_edge": 50_000}})
    geometry = processor.geometry("video", 150, 100, frames=frames, options=DEFAULT)
    patches = processor.patches(iter(pictures), geometry)
    per_frame = geometry.num_patches // geometry.grid_thw[0]
    assert patches.shape == (geometry.num_patches, 3 * 2 * 14 * 14)
    ours = patches.reshape(-1, per_frame, 3, 2, 14 * 14) / 255
    padded = pictures + pictures[-1:] * (frames % 2)
    for number, picture in enumerate(padded):
        expected, grid = reference(picture, 20_000, 50_000)
        assert geometry.grid_thw[1:] == grid[1:]
        assert np.abs(expected[:, :, 0] - ours[number // 2, :, :, number % 2]).max() < 1e-5


@pytest.mark.parametrize("given_frames", [2, 4])
def test_number_of_frames_must_match(given_frames):
    processor = make_processor()
    geometry = processor.geometry("video", 64, 64, frames=3, options=DEFAULT)
    with pytest.raises(MediaError, match=f"{given_frames} frames"):
        processor.patches([noise(64, 64)] * given_frames, geometry)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 6000),
    st.integers(1, 6000),
    st.sampled_from([28, 32]),
    st.integers(1, 100_000),
    st.integers(0, 3_000_000),
)
def test_resize_rule_equals_transformers(width, height, factor, min_pixels, more):
    assume(max(width, height) <= 200 * min(width, height))
    bounds = PixelBounds(min_pixels, min_pixels + more)
    height_used, width_used = reference_resize(
        height, width, factor=factor, min_pixels=bounds.min_pixels, max_pixels=bounds.max_pixels
    )
    assert smart_resize(width, height, factor=factor, bounds=bounds) == (width_used, height_used)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1200), st.integers(1, 1200), st.integers(1, 6))
def test_windows_equal_transformers(width, height, frames):
    assume(max(width, height) <= 200 * min(width, height))
    geometry = QWEN2_5.geometry("video", width, height, frames=frames, options=DEFAULT)
    _, boundaries = get_vision_window_index(torch.tensor([geometry.grid_thw]), 2, 112, 14)
    assert list(geometry.segments) == boundaries.diff().tolist()


QWEN2 = make_processor("qwen2_vl")
QWEN2_5 = make_processor("qwen2_5_vl", vision={"tokens_per_second": 3})


def make_oracle(model_type: str) -> Qwen2VLModel | Qwen2_5_VLModel:
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    text |= {"vocab_size": 32, "intermediate_size": 16}
    vision = {"depth": 1, "num_heads": 1, "hidden_size": 16}
    if model_type == "qwen2_vl":
        config = Qwen2VLConfig(text_config=text, vision_config={**vision, "embed_dim": 16})
        return Qwen2VLModel(config)
    vision |= {"out_hidden_size": 16, "intermediate_size": 16, "tokens_per_second": 3}
    return Qwen2_5_VLModel(Qwen2_5_VLConfig(text_config=text, vision_config=vision))


FAMILIES = {"qwen2_vl": (QWEN2, make_oracle("qwen2_vl")), "qwen2_5_vl": (QWEN2_5, make_oracle("qwen2_5_vl"))}


def item(geometry: Geometry) -> MediaItem:
    return MediaItem(key=bytes(32), geometry=geometry, patches=None)


def rope_index(model_type: str, prompt) -> tuple[np.ndarray, int]:
    """transformers' positions of a prompt of ours."""
    geometries = [span.item.geometry for span in prompt.spans]
    grids = {kind: [g.grid_thw for g in geometries if g.kind == kind] for kind in ("image", "video")}
    ids = torch.tensor([prompt.token_ids])
    arguments = {"second_per_grid_ts": None}
    if model_type == "qwen2_5_vl":
        seconds = [g.seconds_per_grid for g in geometries if g.kind == "video"]
        arguments["second_per_grid_ts"] = torch.tensor(seconds)
    positions, delta = FAMILIES[model_type][1].get_rope_index(
        ids,
        (ids == 7).int() + 2 * (ids == 8).int(),
        image_grid_thw=torch.tensor(grids["image"]) if grids["image"] else None,
        video_grid_thw=torch.tensor(grids["video"]) if grids["video"] else None,
        **arguments,
    )
    return positions[:, 0].numpy(), int(delta[0, 0])


text_runs = st.lists(st.integers(10, 30), min_size=1, max_size=6).map(tuple)
sizes = st.tuples(st.integers(20, 400), st.integers(20, 400))


def mixes(media: st.SearchStrategy) -> st.SearchStrategy:
    """Text, item, text, item, ..., text: an item always stands between text, as in every template."""
    pairs = st.lists(st.tuples(text_runs, media), max_size=4)
    return st.tuples(pairs, text_runs).map(lambda mix: [*itertools.chain.from_iterable(mix[0]), mix[1]])


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_positions_equal_transformers(model_type, data):
    processor, _ = FAMILIES[model_type]
    pictures = sizes.map(lambda size: item(processor.geometry("image", *size, options=DEFAULT)))
    clips = st.builds(
        lambda size, frames, fps: item(
            processor.geometry("video", *size, frames=frames, options=ProcessorOptions(fps=fps))
        ),
        sizes,
        st.integers(1, 8),
        st.floats(2.0, 30.0),
    ).filter(lambda clip: has_one_rule(processor, clip))
    prompt = laid_out(processor, data.draw(mixes(st.one_of(pictures, clips))))
    positions, delta = rope_index(model_type, prompt)
    assert np.array_equal(prompt.position_ids, positions)
    assert prompt.position_delta == delta


def has_one_rule(processor, clip: MediaItem) -> bool:
    """Whether the time axis of a clip is not its longest: only then does transformers go on at max + 1."""
    times, rows, columns = laid_out(processor, [clip]).position_ids.max(axis=1)
    return times <= max(rows, columns)


@settings(max_examples=200, deadline=None)
@example(60, 1.3)  # times that float64 would truncate to another number than float32
@example(60, 3.7)
@given(st.integers(1, 60), st.floats(0.05, 60.0))
def test_clock_equals_transformers(frames, fps):
    """The rounding of times, also where the time axis is the longest: the clip itself is placed alike."""
    geometry = QWEN2_5.geometry("video", 56, 56, frames=frames, options=ProcessorOptions(fps=fps))
    prompt = laid_out(QWEN2_5, [(10, 11), item(geometry)])
    positions, delta = rope_index("qwen2_5_vl", prompt)
    assert np.array_equal(prompt.position_ids, positions)
    assert prompt.position_delta == delta


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_text_after_a_long_clip_differs_on_purpose(model_type):
    """docs/decisions/002: transformers puts the text that follows inside the clip's time span, we put it behind."""
    processor, _ = FAMILIES[model_type]
    clip = item(processor.geometry("video", 56, 56, frames=40, options=DEFAULT))
    prompt = laid_out(processor, [(10,), clip, (11, 12)])
    positions, _ = rope_index(model_type, prompt)
    start, end = prompt.spans[0].start, prompt.spans[0].end
    assert np.array_equal(prompt.position_ids[:, :end], positions[:, :end])
    _, rows, columns = clip.geometry.grid_thw
    assert positions[:, end].tolist() == [start + max(rows, columns) // 2] * 3
    assert positions[0, end] <= positions[0, :end].max()  # taken already
    assert prompt.position_ids[:, end].tolist() == [prompt.position_ids[:, :end].max() + 1] * 3


def test_reads_what_transformers_writes(tmp_path):
    write_files(tmp_path)
    Qwen2_5_VLConfig(image_token_id=91, video_token_id=92).save_pretrained(tmp_path)
    Qwen2VLImageProcessorPil(size={"shortest_edge": 5000, "longest_edge": 60000}).save_pretrained(tmp_path)
    processor = load_processor(tmp_path)
    assert processor.media_tokens == {"image": 91, "video": 92}
    assert processor.bounds["image"] == PixelBounds(5000, 60000)
    assert (processor.window, processor.tokens_per_second) == (4, 4)
