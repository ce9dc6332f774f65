"""Tokens, options and files of the LLaVA families, by the numbers of published checkpoints."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.errors import CheckpointError, ConfigError, InvalidParameter, MediaError, TapetumError
from tapetum.core.media import Geometry, MediaItem
from tapetum.processing import load_processor
from tapetum.processing.layout import Insert
from tapetum.processing.llava import LlavaProcessor
from tapetum.processing.options import ProcessorOptions

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
ONE, NEXT, VISION = "llava-1.5-7b-hf", "llava-v1.6-mistral-7b-hf", "llava-onevision-qwen2-0.5b-ov-hf"
PROCESSORS = {name: load_processor(CONFIGS / name) for name in (ONE, NEXT, VISION)}
SIZES = st.tuples(st.integers(1, 4000), st.integers(1, 4000))


def geometry(name: str, *size: int, kind: str = "image", frames: int = 1, **options) -> Geometry:
    processor = PROCESSORS[name]
    return processor.geometry(kind, *size, frames=frames, options=ProcessorOptions(**options))


@pytest.mark.parametrize(
    ("name", "size", "tokens", "tiles"),
    [
        (ONE, (336, 336), 576, None),
        (ONE, (2480, 3508), 576, None),
        (NEXT, (336, 336), 1176, (2, 1)),
        (NEXT, (672, 672), 2928, (2, 2)),
        (NEXT, (1280, 720), 1948, (2, 2)),
        (NEXT, (2480, 3508), 2256, (2, 2)),
        (NEXT, (3000, 10), 576, (3, 1)),  # no line of patches is left of the field
        (VISION, (384, 384), 1485, (1, 1)),
        (VISION, (1280, 720), 5967, (4, 2)),
        (VISION, (2480, 3508), 7353, (5, 6)),
    ],
)
def test_tokens_of_known_sizes(
    name: str, size: tuple[int, int], tokens: int, tiles: tuple[int, int] | None
) -> None:
    found = geometry(name, *size)
    assert (found.num_tokens, found.tiles) == (tokens, tiles)


@pytest.mark.parametrize("frames", [1, 7, 32])
def test_tokens_of_a_clip(frames: int) -> None:
    """14 x 14 of 27 x 27 patches a frame, and one newline."""
    found = geometry(VISION, 640, 480, kind="video", frames=frames)
    assert found.num_tokens == 196 * frames + 1
    assert found.grid_thw == (frames, 27, 27)


@given(name=st.sampled_from((NEXT, VISION)), size=SIZES, budget=st.integers(730, 8000))
def test_a_budget_of_tokens_is_kept(name: str, size: tuple[int, int], budget: int) -> None:
    found, usual = geometry(name, *size, max_visual_tokens=budget), geometry(name, *size)
    assert found.num_tokens <= budget
    if usual.num_tokens <= budget:
        assert found == usual


@given(name=st.sampled_from((NEXT, VISION)), size=SIZES, tiles=st.integers(1, 40))
def test_a_bound_of_pixels_holds_for_all_tiles(name: str, size: tuple[int, int], tiles: int) -> None:
    area = PROCESSORS[name].shape.tile_size ** 2 * tiles
    assert geometry(name, *size, max_pixels=area).grid_thw[0] <= tiles


@pytest.mark.parametrize(("name", "tokens"), [(ONE, 576), (NEXT, 577), (VISION, 730)])
def test_low_detail_is_the_overview(name: str, tokens: int) -> None:
    found = geometry(name, 2000, 1000, detail="low")
    assert (found.num_tokens, found.tiles) == (tokens, None)
    least = PROCESSORS[name].least_pixels("image", ProcessorOptions())
    assert geometry(name, 2000, 1000, max_pixels=least) == found


@pytest.mark.parametrize(
    ("kind", "frames", "message"),
    [
        ("image", 1, "the image has at least 730; raise it"),
        ("video", 4, "at least 785; raise it or take fewer"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(kind: str, frames: int, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        geometry(VISION, 300, 200, kind=kind, frames=frames, max_visual_tokens=500)


@pytest.mark.parametrize(
    ("name", "size", "kind", "frames", "message"),
    [
        (ONE, (300, 200), "video", 2, "video was sent, the model takes image only"),
        (NEXT, (300, 200), "video", 2, "video was sent, the model takes image only"),
        (VISION, (300, 200), "image", 2, "image has 2 frames"),
        (VISION, (0, 200), "image", 1, "both sides must be at least 1"),
        (ONE, (60_000, 2), "image", 1, "aspect ratio of 30000, limit 200"),
    ],
)
def test_what_is_not_taken(name: str, size: tuple[int, int], kind: str, frames: int, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        geometry(name, *size, kind=kind, frames=frames)


def test_a_picture_of_one_tile_is_its_middle() -> None:
    """Left and right of a wide picture are not seen."""
    picture = np.full((336, 1008, 3), 200, np.uint8)
    picture[:, :300] = picture[:, 720:] = 10
    processor = PROCESSORS[ONE]
    assert np.all(processor.patches([picture], geometry(ONE, 1008, 336)) == 200)


def test_a_field_is_black_around_the_picture() -> None:
    processor, found = PROCESSORS[NEXT], geometry(NEXT, 1280, 640)
    patches = processor.patches([np.full((640, 1280, 3), 200, np.uint8)], found)
    overview, field = np.split(patches, [576])
    assert np.all(overview == 200)
    assert found.tiles == (2, 1)
    assert np.all(field == 200)
    tall = geometry(NEXT, 640, 700)
    field = processor.patches([np.full((700, 640, 3), 200, np.uint8)], tall)[576:]
    assert {0, 200} == set(np.unique(field))


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_picture_is_one_run_of_placeholders(name: str) -> None:
    processor, found = PROCESSORS[name], geometry(name, 500, 400)
    (placement,) = processor.expand(found)
    item = MediaItem(key=b"k", geometry=found, patches=np.zeros((1, 1), np.uint8))
    prompt = processor.layout([(5, 6), Insert(item, (placement,)), (7,)])
    token = processor.media_tokens["image"]
    assert prompt.token_ids == (5, 6, *[token] * found.num_tokens, 7)
    assert np.array_equal(prompt.position_ids, [range(found.num_tokens + 3)] * 3)
    assert [(span.start, span.end, span.runs) for span in prompt.spans] == [(2, 2 + found.num_tokens, ())]
    assert processor.slots == {number: kind for kind, number in processor.media_tokens.items()}


@pytest.mark.parametrize("name", PROCESSORS)
def test_published_files_leave_nothing_unread(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert isinstance(load_processor(CONFIGS / name), LlavaProcessor)
    assert not caplog.records


Edit = Callable[[dict], object]


def edited(directory: Path, name: str, file: str, edit: Edit) -> Path:
    shutil.copytree(CONFIGS / name, directory, dirs_exist_ok=True)
    values = json.loads((directory / file).read_text())
    edit(values)
    (directory / file).write_text(json.dumps(values))
    return directory


@pytest.mark.parametrize(
    ("name", "file", "edit", "error", "message"),
    [
        (
            ONE,
            "preprocessor_config.json",
            lambda file: file.pop("size"),
            CheckpointError,
            "no 'shortest_edge'",
        ),
        (
            ONE,
            "preprocessor_config.json",
            lambda file: file["crop_size"].update(width=224),
            ConfigError,
            "crop_size: pictures are 224x336, but those of config.json 336x336",
        ),
        (
            ONE,
            "preprocessor_config.json",
            lambda file: file.update(do_pad=True),
            CheckpointError,
            "do_pad is True",
        ),
        (ONE, "preprocessor_config.json", lambda file: file.update(resample=9), ConfigError, "resample is 9"),
        (
            NEXT,
            "preprocessor_config.json",
            lambda file: file.update(image_grid_pinpoints=[[336, 700]]),
            ConfigError,
            r"image_grid_pinpoints has \[336, 700\], which are no whole tiles of 336 pixels",
        ),
        (
            NEXT,
            "preprocessor_config.json",
            lambda file: file.update(image_grid_pinpoints=[336, 700]),
            CheckpointError,
            "must be a list of pairs of integers",
        ),
        (
            VISION,
            "config.json",
            lambda file: file.update(vision_aspect_ratio="pad"),
            ConfigError,
            "'pad', must be",
        ),
        (
            VISION,
            "config.json",
            lambda file: file["vision_config"].pop("patch_size"),
            CheckpointError,
            "config.json, vision_config has no 'patch_size'",
        ),
    ],
)
def test_files_that_do_not_fit(
    name: str, file: str, edit: Edit, error: type[TapetumError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        load_processor(edited(tmp_path, name, file, edit))


def test_clips_are_read_from_their_own_file(tmp_path: Path) -> None:
    shutil.copytree(CONFIGS / VISION, tmp_path, dirs_exist_ok=True)
    values = json.loads((tmp_path / "preprocessor_config.json").read_text())
    file = tmp_path / "video_preprocessor_config.json"
    file.write_text(json.dumps(values | {"num_frames": 8}))
    assert load_processor(tmp_path).sampling.num_frames == 8
    file.write_text(json.dumps(values | {"image_mean": [0.4, 0.4, 0.4]}))
    with pytest.raises(ConfigError, match=r"are not those of preprocessor_config\.json"):
        load_processor(tmp_path)


def test_a_list_of_fields_in_config_json_alone_counts(tmp_path: Path) -> None:
    edited(tmp_path, NEXT, "config.json", lambda file: file.update(image_grid_pinpoints=[[336, 336]]))
    assert len(load_processor(tmp_path).fields) == 5
    file = tmp_path / "preprocessor_config.json"
    values = json.loads(file.read_text())
    del values["image_grid_pinpoints"]
    file.write_text(json.dumps(values))
    assert load_processor(tmp_path).fields == ((336, 336),)
