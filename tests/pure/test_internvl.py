"""InternVL's tiles: golden counts, bounds and budgets of a request, what stands in the prompt, bad files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tapetum.core.errors import CheckpointError, ConfigError, InvalidParameter, MediaError
from tapetum.core.media import Geometry
from tapetum.processing import load_processor
from tapetum.processing.base import Processor
from tapetum.processing.layout import Placement, Special
from tapetum.processing.options import ProcessorOptions

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
ORIGINAL, CURRENT = CONFIGS / "internvl2_5-8b", CONFIGS / "internvl3-8b-hf"


@pytest.fixture(scope="module", params=[ORIGINAL, CURRENT], ids=lambda path: path.name)
def processor(request: pytest.FixtureRequest) -> Processor:
    return load_processor(request.param)


def picture(processor: Processor, width: int, height: int, **options: object) -> Geometry:
    return processor.geometry("image", width, height, options=ProcessorOptions.from_mapping(options))


@pytest.mark.parametrize(
    ("size", "grid", "num_tokens"),
    [
        ((448, 448), (1, 1), 256),
        ((800, 600), (4, 3), 3328),
        ((1280, 720), (4, 2), 2304),
        ((1920, 1080), (4, 2), 2304),
        ((3840, 2160), (4, 2), 2304),
        ((2480, 3508), (2, 3), 1792),
        ((300, 3000), (1, 10), 2816),
        ((5000, 1), (12, 1), 3328),
    ],
)
def test_tokens_of_a_size(
    processor: Processor, size: tuple[int, int], grid: tuple[int, int], num_tokens: int
) -> None:
    geometry = picture(processor, *size)
    assert geometry.used == (grid[0] * 448, grid[1] * 448)
    assert geometry.num_tokens == num_tokens
    assert geometry.grid_thw == (num_tokens // 256, 32, 32)
    assert geometry.tiles == (grid if grid != (1, 1) else None)
    assert sum(geometry.segments) == geometry.num_patches


def test_a_request_bounds_the_tiles(processor: Processor) -> None:
    area = 448 * 448
    assert picture(processor, 800, 600, max_pixels=6 * area).num_tokens <= 7 * 256
    assert picture(processor, 800, 600, max_pixels=area - 1).num_tokens == 256
    assert picture(processor, 800, 600, detail="low").num_tokens == 256
    assert picture(processor, 448, 448, min_pixels=4 * area).num_tokens == 5 * 256
    assert picture(processor, 448, 448, min_pixels=15 * area).num_tokens == 16 * 256  # 3 x 5 and the overview
    for budget in range(256, 4000, 100):
        assert picture(processor, 800, 600, max_visual_tokens=budget).num_tokens <= budget
    assert processor.least_pixels("image", ProcessorOptions()) == area


def test_a_budget_that_nothing_fits_is_refused(processor: Processor) -> None:
    with pytest.raises(InvalidParameter, match="max_visual_tokens is 255, the image has at least 256"):
        picture(processor, 800, 600, max_visual_tokens=255)
    with pytest.raises(InvalidParameter, match=r"is 1000, the video has at least 1024; .* take fewer frames"):
        processor.geometry(
            "video", 80, 60, frames=4, options=ProcessorOptions.from_mapping({"max_visual_tokens": 1000})
        )
    with pytest.raises(MediaError, match="image has 2 frames"):
        processor.geometry("image", 80, 60, frames=2, options=ProcessorOptions())
    with pytest.raises(MediaError, match="image is 0x60 pixels"):
        picture(processor, 0, 60)


def test_what_stands_in_the_prompt(processor: Processor) -> None:
    start, end = Special("<img>"), Special("</img>")
    assert processor.expand(picture(processor, 448, 448)) == (start, Placement(1, 1, 256), end)
    clip = processor.geometry("video", 640, 480, frames=2, options=ProcessorOptions())
    frame = (start, Placement(1, 1, 256), end)
    assert processor.expand(clip) == ("Frame1: ", *frame, "\nFrame2: ", *frame)
    assert (clip.used, clip.grid_thw, clip.num_tokens) == ((448, 448), (2, 32, 32), 512)


def test_frames_of_a_file_are_the_middles_of_its_parts(processor: Processor) -> None:
    sampling = processor.sampling
    assert sampling.count(100, 50.0, ProcessorOptions()) == 8
    assert sampling.count(5, 50.0, ProcessorOptions()) == 5
    assert sampling.spread(100, 8, 50.0) == [6, 18, 31, 43, 56, 68, 81, 93]
    assert sampling.spread(5, 5) == [0, 1, 2, 3, 4]
    assert sampling.shown_at(range(0, 1000, 10), 1000, 8) == [6, 18, 31, 43, 56, 68, 81, 93]


def test_the_overview_comes_last(processor: Processor) -> None:
    pixels = np.zeros((448, 896, 3), np.uint8)
    pixels[:, 448:] = 255
    geometry = picture(processor, 896, 448)
    left, right, overview = processor.patches([pixels], geometry).reshape(3, -1)
    assert left[0] == 0 and right[-1] == 255
    assert 0.4 < overview.mean() / 255 < 0.6


def test_a_checkpoint_that_is_not_tiled(tmp_path: Path) -> None:
    edit(ORIGINAL, tmp_path, "config.json", dynamic_image_size=False)
    assert picture(load_processor(tmp_path), 800, 600).num_tokens == 256
    edit(ORIGINAL, tmp_path, "config.json", use_thumbnail=False)
    geometry = picture(load_processor(tmp_path), 800, 600)
    assert geometry.num_tokens == 12 * 256


def test_bad_files(tmp_path: Path) -> None:
    edit(ORIGINAL, tmp_path, "tokenizer_config.json", added_tokens_decoder=None)
    with pytest.raises(
        CheckpointError, match=r"neither tokenizer_config.json nor .* has the token <IMG_CONTEXT>"
    ):
        load_processor(tmp_path)
    tokens = [{"id": 7, "content": "<IMG_CONTEXT>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    assert load_processor(tmp_path).media_tokens == {"image": 7, "video": 7}
    edit(ORIGINAL, tmp_path, "config.json", downsample_ratio=0.3)
    with pytest.raises(ConfigError, match=r"downsample_ratio 0.3 give no whole visual tokens"):
        load_processor(tmp_path)
    edit(ORIGINAL, tmp_path, "config.json", force_image_size=336)
    with pytest.raises(CheckpointError, match="force_image_size is 336, only 448 is supported"):
        load_processor(tmp_path)
    edit(CURRENT, tmp_path, "preprocessor_config.json", size={"height": 336, "width": 336})
    with pytest.raises(CheckpointError, match=r"preprocessor_config.json, size: height is 336"):
        load_processor(tmp_path)


def edit(source: Path, directory: Path, name: str, **values: object) -> None:
    """The files of a checkpoint, with some values of one of them changed."""
    shutil.copytree(source, directory, dirs_exist_ok=True)
    content = json.loads((source / name).read_text())
    (directory / name).write_text(json.dumps(content | values))
