"""Gemma 3: the square, crops and words of transformers; budgets; files that do not fit."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import Gemma3Config
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor as TheirProcessor

from tapetum.core.errors import ConfigError, InvalidParameter, MediaError
from tapetum.core.media import Geometry, MediaItem
from tapetum.processing import load_processor
from tapetum.processing.gemma3 import Gemma3Processor, PanAndScan
from tapetum.processing.layout import Insert, Piece, Placement, Special
from tapetum.processing.options import ProcessorOptions
from tests.families.kit import picture

CROPS = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 40}
SIDE = 112


def load(directory: Path, side: int = SIDE, tokens: int = 16, **image: object) -> Gemma3Processor:
    """A square of 112 pixels, 8 patches and 4 visual tokens a side, but for what is given."""
    config = {
        "model_type": "gemma3",
        "mm_tokens_per_image": tokens,
        "image_token_index": 8,
        "boi_token_index": 9,
        "vision_config": {"image_size": SIDE, "patch_size": 14},
    }
    (directory / "config.json").write_text(json.dumps(config))
    image = {"size": {"height": side, "width": side}, **image}
    (directory / "preprocessor_config.json").write_text(json.dumps(image))
    processor = load_processor(directory)
    assert isinstance(processor, Gemma3Processor)
    return processor


with tempfile.TemporaryDirectory() as folder:
    PLAIN = load(Path(folder))
    CROPPING = load(Path(folder), **CROPS)


def geometry_of(processor: Gemma3Processor, width: int, height: int, **options: object) -> Geometry:
    return processor.geometry("image", width, height, options=ProcessorOptions(**options))


def written(pieces: tuple[Piece, ...]) -> str:
    texts = {Special: lambda piece: piece.text, Placement: lambda piece: "*" * piece.num_tokens}
    return "".join(texts.get(type(piece), str)(piece) for piece in pieces)


@settings(max_examples=300, deadline=None)
@example((100, 80), 40, 4, 1.25)
@given(
    st.tuples(st.integers(1, 900), st.integers(1, 900)),
    st.integers(2, 300),
    st.integers(2, 6),
    st.floats(1.0, 4.0),
)
def test_crops_equal_transformers(size: tuple[int, int], least: int, most: int, ratio: float) -> None:
    width, height = size
    theirs = Gemma3ImageProcessorPil().pan_and_scan(
        np.empty((3, height, width), np.uint8), least, most, ratio
    )
    ours = PanAndScan(min_crop_size=least, max_num_crops=most, min_ratio=ratio).crops(size)
    assert (0 if ours is None else ours[0] * ours[1]) == len(theirs)
    assert ours is None or (ours[1] if width >= height else ours[0]) == 1


@pytest.mark.parametrize("size", [(112, 112), (300, 120), (121, 301), (1, 1), (700, 3), (101, 99)])
@pytest.mark.parametrize("processor", [PLAIN, CROPPING])
def test_pixels_equal_transformers(processor: Gemma3Processor, size: tuple[int, int]) -> None:
    image = picture(2, *size)
    theirs = Gemma3ImageProcessorPil(
        size={"height": SIDE, "width": SIDE},
        do_normalize=False,
        do_pan_and_scan=processor is CROPPING,
        pan_and_scan_min_crop_size=40,
        pan_and_scan_max_num_crops=4,
        pan_and_scan_min_ratio_to_activate=1.2,
    )(images=[image], return_tensors="np")
    geometry = geometry_of(processor, *size)
    squares = theirs["pixel_values"]
    ours = processor.patches([image], geometry).reshape(len(squares), 8, 8, 3, 14, 14)
    ours = ours.transpose(0, 3, 1, 4, 2, 5).reshape(squares.shape)
    assert np.abs(ours / 255 - squares).max() < 1e-6
    assert geometry.num_tokens == 16 * len(squares)


@pytest.mark.parametrize(("size", "count"), [((112, 112), 0), ((300, 120), 3), ((100, 400), 4)])
def test_the_prompt_of_a_picture_equals_transformers(size: tuple[int, int], count: int) -> None:
    this = SimpleNamespace(full_image_sequence=f"\n\n<start_of_image>{'*' * 16}<end_of_image>\n\n")
    theirs = TheirProcessor.replace_image_token(this, {"num_crops": [count]}, 0)
    assert written(CROPPING.expand(geometry_of(CROPPING, *size))) == theirs


def test_the_tokens_of_each_square_see_each_other() -> None:
    """Not those of other squares, nor the words between."""
    item = MediaItem(key=bytes(32), geometry=geometry_of(CROPPING, 90, 200), patches=None)
    parts = tuple(
        part if isinstance(part, Placement) else (1,) for part in CROPPING.expand(item.geometry)[2:-2]
    )
    prompt = CROPPING.layout([(5, 5), Insert(item, parts), (6,)])
    (span,) = prompt.spans
    assert span.is_atomic
    assert [end - start for start, end in span.placeholders] == [16] * 3
    assert all(set(prompt.token_ids[start:end]) == {8} for start, end in span.placeholders)
    assert prompt.token_ids.count(8) == 48


@pytest.mark.parametrize(
    ("options", "squares"),
    [({}, 4), ({"max_visual_tokens": 64}, 4), ({"max_visual_tokens": 63}, 1), ({"detail": "low"}, 1)],
)
def test_crops_are_left_out_for_a_budget(options: dict[str, object], squares: int) -> None:
    assert geometry_of(CROPPING, 300, 100, **options).num_tokens == 16 * squares


def test_a_budget_below_a_square_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="max_visual_tokens is 15, the image has at least 16"):
        geometry_of(PLAIN, 300, 100, max_visual_tokens=15)


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(MediaError, match="video was sent, the model takes image only"):
        PLAIN.geometry("video", 90, 90, frames=2, options=ProcessorOptions())
    with pytest.raises(MediaError, match="0x4 pixels"):
        geometry_of(PLAIN, 0, 4)


@pytest.mark.parametrize(
    ("message", "files"),
    [
        ("is not the image_size of config.json, 112x112", {"side": 224}),
        ("no whole visual tokens", {"tokens": 9}),
        ("do_normalize is False", {"do_normalize": False}),
        ("resample is 77", {"resample": 77}),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, message: str, files: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **files)


def test_reads_what_transformers_writes(tmp_path: Path) -> None:
    vision = {"image_size": 896, "patch_size": 14}
    Gemma3Config(vision_config=vision).save_pretrained(tmp_path)
    Gemma3ImageProcessorPil(size={"height": 896, "width": 896}).save_pretrained(tmp_path)
    processor = load_processor(tmp_path)
    assert isinstance(processor, Gemma3Processor)
    assert (processor.side, processor.shape.side, processor.pan_and_scan) == (16, 64, None)
    assert processor.slots == {255999: "image"}
    assert processor.media_tokens == {"image": 262144}
