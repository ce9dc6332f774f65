"""Processor files of a checkpoint: both ways of writing bounds, where they are looked for, what is refused."""

from __future__ import annotations

import json
import logging

import pytest

from tapetum.core.errors import CheckpointError, ConfigError
from tapetum.processing import load_processor
from tapetum.processing.base import PixelBounds
from tests.processors import make_processor, write_files


def bounds(**files):
    processor = make_processor(**files)
    return {kind: (b.min_pixels, b.max_pixels) for kind, b in processor.bounds.items()}


def test_two_ways_to_write_bounds():
    old = {"min_pixels": 4000, "max_pixels": 50000}
    new = {"size": {"shortest_edge": 4000, "longest_edge": 50000}}
    named = {"size": {"min_pixels": 4000, "max_pixels": 50000}}
    for image in (old, new, named):
        assert bounds(image=image)["image"] == (4000, 50000)
    # As in transformers, the old names win over `size`.
    assert bounds(image={**old, "size": {"shortest_edge": 1, "longest_edge": 2}})["image"] == (4000, 50000)


def test_defaults_of_the_family():
    assert bounds(image={}, video={}) == {"image": (3136, 1003520), "video": (100352, 602112)}


def test_clips_fall_back_to_the_settings_of_pictures():
    assert bounds(image={"min_pixels": 4000, "max_pixels": 50000})["video"] == (4000, 50000)


def test_joint_file_wins(tmp_path):
    write_files(tmp_path, video={})
    joint = {
        "image_processor": {"min_pixels": 100, "max_pixels": 5000},
        "processor_class": "Qwen2VLProcessor",
    }
    (tmp_path / "processor_config.json").write_text(json.dumps(joint))
    processor = load_processor(tmp_path)
    assert processor.bounds["image"] == PixelBounds(100, 5000)
    assert processor.bounds["video"] == PixelBounds(100352, 602112)
    (tmp_path / "preprocessor_config.json").unlink()
    assert load_processor(tmp_path).bounds["image"] == PixelBounds(100, 5000)


def test_numbers_of_the_model():
    processor = make_processor(
        "qwen2_5_vl",
        vision={"patch_size": 16, "window_size": 128, "tokens_per_second": 2},
        image={"patch_size": 16, "min_pixels": 1, "max_pixels": 10**6},
    )
    assert processor.parameters == {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    assert (processor.window, processor.tokens_per_second) == (4, 2)
    assert processor.media_tokens == {"image": 7, "video": 8}
    assert make_processor("qwen2_vl").window is None


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ({"do_resize": False}, "do_resize"),
        ({"resample": 2}, "resample"),
        ({"do_center_crop": True}, "do_center_crop"),
        ({"rescale_factor": 1.0}, "rescale_factor"),
        ({"patch_size": 16}, "config.json says 14"),
        ({"merge_size": "2"}, "merge_size"),
        ({"min_pixels": 0}, "min_pixels"),
        ({"max_pixels": 2.5}, "max_pixels"),
        ({"min_pixels": 10, "max_pixels": 5}, "10 to 5"),
        ({"size": {"shortest_edge": 5}}, "longest_edge is missing"),
        ({"size": 448}, "size is 448"),
    ],
)
def test_values_that_are_refused(image, words):
    with pytest.raises(ConfigError, match=words) as caught:
        make_processor(image=image)
    assert "preprocessor_config.json" in str(caught.value) or "bounds" in str(caught.value)


def test_one_normalisation_for_pictures_and_clips():
    other = {"image_mean": [0.5, 0.5, 0.5]}
    make_processor(image=other, video=other)
    with pytest.raises(ConfigError, match="image_mean"):
        make_processor(image={}, video=other)


@pytest.mark.parametrize(
    ("vision", "words"),
    [({"window_size": 20}, "window_size"), ({"tokens_per_second": 0}, "tokens_per_second")],
)
def test_vision_values_that_are_refused(vision, words):
    with pytest.raises(ConfigError, match=words):
        make_processor("qwen2_5_vl", vision=vision)


def test_unknown_keys_are_reported(caplog):
    with caplog.at_level(logging.WARNING):
        make_processor(image={"fancy_crop": 3, "do_resize": True, "processor_class": "x"})
    assert "fancy_crop" in caplog.text
    assert "processor_class" not in caplog.text


def test_files_that_are_missing_or_broken(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_processor(tmp_path)
    write_files(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no preprocessor_config\.json"):
        load_processor(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        load_processor(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="must hold an object"):
        load_processor(tmp_path)
    write_files(tmp_path, model_type="mystery")
    with pytest.raises(CheckpointError, match="model_type 'mystery'; supported are"):
        load_processor(tmp_path)
