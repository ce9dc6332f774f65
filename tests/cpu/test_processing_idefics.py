"""Idefics3 and SmolVLM: sizes, pixels, words and positions as transformers has them; budgets; files that do not fit."""

from __future__ import annotations

import json
import tempfile
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import SmolVLMConfig
from transformers.image_utils import SizeDict
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
    get_resize_output_image_size,
)
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor
from transformers.video_utils import VideoMetadata

from tapetum.core.errors import ConfigError, InvalidParameter, MediaError
from tapetum.core.media import Geometry
from tapetum.models.idefics.names import nearest_positions
from tapetum.processing import load_processor
from tapetum.processing.idefics import IdeficsProcessor, edge_size, whole_tiles
from tapetum.processing.idefics_clips import ClipSampling
from tapetum.processing.layout import Piece, Placement, Special
from tapetum.processing.number_words import in_words
from tapetum.processing.options import ProcessorOptions
from tests.families.kit import picture

DEFAULT = ProcessorOptions()
TOKEN = 9


def write_files(
    directory: Path, model_type: str = "smolvlm", joint: dict[str, object] | None = None, **image: object
) -> Path:
    """SmolVLM's numbers, but for those that are given."""
    config = {
        "model_type": model_type,
        "image_token_id": TOKEN,
        "scale_factor": 4,
        "vision_config": {"patch_size": 16},
    }
    sampling = {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}}
    image = {
        "size": {"longest_edge": 2048},
        "max_image_size": {"longest_edge": 512},
        "video_sampling": sampling,
        **image,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "preprocessor_config.json").write_text(json.dumps(image))
    if joint is not None:
        (directory / "processor_config.json").write_text(json.dumps(joint))
    return directory


def load(directory: Path, **files: object) -> IdeficsProcessor:
    loaded = load_processor(write_files(directory, **files))
    assert isinstance(loaded, IdeficsProcessor)
    return loaded


with tempfile.TemporaryDirectory() as folder:
    SMOLVLM = load(Path(folder))


def image_geometry(processor: IdeficsProcessor, width: int, height: int, **options: object) -> Geometry:
    return processor.geometry("image", width, height, options=ProcessorOptions(**options))


def written(pieces: tuple[Piece, ...]) -> str:
    texts = {Special: lambda piece: piece.text, Placement: lambda piece: "<image>" * piece.num_tokens}
    return "".join(texts.get(type(piece), str)(piece) for piece in pieces)


class OnlySizes(Idefics3ImageProcessorPil):
    """The processor of transformers over sizes in place of pictures."""

    def resize(self, image: object, size: SizeDict, **_: object) -> tuple[int, int]:
        return size.width, size.height


SIZES_ONLY = OnlySizes()


@settings(max_examples=400, deadline=None)
@example((1000, 1000), 1455, 364)  # the side that is rounded to even gets the longer one
@example((4000, 1), 5000, 512)
@given(
    st.tuples(st.integers(1, 6000), st.integers(1, 6000)),
    st.sampled_from([97, 364, 1455, 1456, 1536, 2048, 4096, 4097, 5000]),
    st.sampled_from([28, 33, 364, 384, 512]),
)
def test_sizes_equal_transformers(size: tuple[int, int], edge: int, tile: int) -> None:
    width, height = size
    ours = edge_size(size, edge)
    assert ours[::-1] == get_resize_output_image_size(SimpleNamespace(shape=(3, height, width)), edge)
    scaled = SimpleNamespace(shape=(3, *ours[::-1]))
    assert whole_tiles(ours, tile) == SIZES_ONLY.resize_for_vision_encoder(scaled, tile)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60))
def test_positions_equal_transformers(side: int, table_side: int) -> None:
    """Not always a patch's own place, even where tile and table are of one size."""
    config = SmolVLMConfig(vision_config={"hidden_size": 1, "image_size": 2 * table_side, "patch_size": 2})
    embeddings = SmolVLMVisionEmbeddings(config.vision_config)
    with torch.no_grad():
        embeddings.patch_embedding.weight.zero_()
        embeddings.patch_embedding.bias.zero_()
        embeddings.position_embedding.weight.copy_(torch.arange(table_side**2)[:, None])
    mask = torch.ones(1, side, side, dtype=torch.bool)
    found = embeddings(torch.zeros(1, 3, 2 * side, 2 * side), mask).flatten().long()
    line = nearest_positions(side, table_side)
    assert torch.equal((line[:, None] * table_side + line).flatten(), found)


@pytest.mark.parametrize("size", [(330, 330), (500, 140), (33, 90), (1, 700), (331, 330)])
@pytest.mark.parametrize("is_split", [True, False])
def test_pixels_equal_transformers(tmp_path: Path, size: tuple[int, int], is_split: bool) -> None:
    """Tiles of 20 whole patches and ten pixels more."""
    numbers = {"size": {"longest_edge": 660}, "max_image_size": {"longest_edge": 330}}
    ours = load(tmp_path, do_image_splitting=is_split, **numbers)
    theirs = Idefics3ImageProcessorPil(do_image_splitting=is_split, do_normalize=False, **numbers)
    image = picture(5, *size)
    output = theirs(images=[image], return_row_col_info=True, return_tensors="pt")
    geometry = image_geometry(ours, *size)
    tiles = output["pixel_values"][0]
    assert geometry.grid_thw == (len(tiles), 20, 20)
    assert geometry.tiles == ((output["cols"][0][0], output["rows"][0][0]) if len(tiles) > 1 else None)
    assert largest_difference(ours.patches([image], geometry), tiles, 20) < 1e-6


def largest_difference(patches: np.ndarray, tiles: torch.Tensor, side: int) -> float:
    ours = patches.reshape(len(tiles), side, side, 3, 16, 16).transpose(0, 3, 1, 4, 2, 5)
    theirs = tiles[..., : side * 16, : side * 16].numpy()
    return float(np.abs(ours.reshape(theirs.shape) / 255 - theirs).max())


@pytest.mark.parametrize(("columns", "rows"), [(0, 0), (1, 2), (4, 3)])
def test_the_prompt_of_a_picture_equals_transformers(columns: int, rows: int) -> None:
    geometry = image_geometry(SMOLVLM, 512, 512, max_pixels=512 * 512)
    if columns:
        size = (columns * 512, rows * 512)
        edge = max(size)
        geometry = image_geometry(SMOLVLM, *size, max_pixels=edge * edge)
        assert (geometry.tiles, geometry.used) == ((columns, rows), size)
    this = SimpleNamespace(
        image_seq_len=64,
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        global_image_tag="<global-img>",
    )
    theirs = Idefics3Processor.replace_image_token(this, {"rows": [[rows]], "cols": [[columns]]}, 0)
    assert written(SMOLVLM.expand(geometry)) == theirs
    assert geometry.num_tokens == theirs.count("<image>")


@pytest.mark.parametrize(("frames", "rate"), [(1, None), (8, None), (64, 1.0), (121, 0.5), (3, 0.0009)])
def test_the_prompt_of_a_clip_equals_transformers(frames: int, rate: float | None) -> None:
    """Frames without a rate are taken to have that of the checkpoint; transformers takes 24, and warns."""
    fps = rate or 1
    clip = SimpleNamespace(
        fps=fps, duration=frames / fps, timestamps=[index / fps for index in range(frames)]
    )
    this = SimpleNamespace(
        image_seq_len=64,
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
    )
    inputs = {"pixel_values": np.empty((1, frames)), "video_metadata": [clip]}
    with mock.patch.object(processing_smolvlm, "num2words", in_words):
        theirs = processing_smolvlm.SmolVLMProcessor.replace_video_token(this, inputs, 0)
    geometry = SMOLVLM.geometry("video", 90, 60, frames=frames, frame_rate=rate, options=DEFAULT)
    assert written(SMOLVLM.expand(geometry)) == theirs
    assert geometry.num_tokens == frames * 64


def test_the_times_of_frames_are_those_of_the_file() -> None:
    geometry = SMOLVLM.geometry(
        "video", 90, 60, frames=3, frame_rate=0.1, frame_times=(0.0, 12.9, 65.0), options=DEFAULT
    )
    text = written(SMOLVLM.expand(geometry))
    assert f"three frames from a {timedelta(seconds=30)} [H:MM:SS] video.\n" in text
    assert [line[11:16] for line in text.split("\n") if line.startswith("Frame")] == [
        "00:00",
        "00:12",
        "01:05",
    ]


def test_a_frame_is_one_tile() -> None:
    frames = [picture(seed, 120, 80) for seed in range(3)]
    geometry = SMOLVLM.geometry("video", 120, 80, frames=3, options=DEFAULT)
    theirs = Idefics3ImageProcessorPil(
        do_image_splitting=False,
        do_normalize=False,
        size={"longest_edge": 2048},
        max_image_size={"longest_edge": 512},
    )(images=frames, return_tensors="pt")["pixel_values"][0]
    assert largest_difference(SMOLVLM.patches(iter(frames), geometry), theirs, 32) < 1e-6


@settings(max_examples=300, deadline=None)
@example(1800, 30.0, 1.0, None)  # a minute: not long enough to leave out its ends
@example(3000, 30.0, 1.0, None)
@given(
    st.integers(1, 20_000),
    st.integers(1000, 60_000).map(lambda thousandth: thousandth / 1000),
    st.floats(0.1, 3.0),
    st.one_of(st.none(), st.integers(1, 90)),
)
def test_frames_are_chosen_as_transformers_does(
    total: int, rate: float, fps: float, max_frames: int | None
) -> None:
    seconds = total / rate
    clip = VideoMetadata(total_num_frames=total, fps=rate, duration=seconds)
    sampling = ClipSampling(fps=fps, max_frames=max_frames or 64)
    theirs = SmolVLMVideoProcessor.sample_frames(None, clip, num_frames=max_frames or 64, fps=fps)
    count = sampling.count(total, seconds, DEFAULT)
    assert sampling.spread(total, count, seconds) == theirs.tolist()


@settings(max_examples=100, deadline=None)
@given(
    size=st.tuples(st.integers(1, 3000), st.integers(1, 3000)),
    tokens=st.one_of(st.none(), st.integers(64, 2000)),
    pixels=st.one_of(st.none(), st.integers(1, 6_000_000)),
    detail=st.sampled_from([None, "low", "high"]),
)
def test_a_request_gets_at_most_what_it_asks_for(
    size: tuple[int, int], tokens: int | None, pixels: int | None, detail: str | None
) -> None:
    usual = image_geometry(SMOLVLM, *size)
    geometry = image_geometry(SMOLVLM, *size, max_visual_tokens=tokens, max_pixels=pixels, detail=detail)
    assert geometry.num_tokens <= min(usual.num_tokens, tokens or usual.num_tokens)
    assert geometry.num_tokens == sum(
        part.num_tokens for part in SMOLVLM.expand(geometry) if type(part) is Placement
    )
    assert geometry.num_patches == sum(geometry.segments)
    area = geometry.used[0] * geometry.used[1]
    assert geometry.tiles is None or area <= (pixels or area)
    if detail == "low":
        assert geometry.tiles is None or (
            geometry.num_tokens <= 256 and area * 4 <= usual.used[0] * usual.used[1]
        )
    elif tokens is None and pixels is None:
        assert geometry == usual


def test_a_shorter_edge_is_seen_in_fewer_tiles() -> None:
    counts = [
        image_geometry(SMOLVLM, 800, 800, max_visual_tokens=tokens).num_tokens // 64
        for tokens in (17 * 64, 17 * 64 - 1, 10 * 64 - 1, 5 * 64 - 1)
    ]
    assert counts == [17, 10, 5, 1]


@pytest.mark.parametrize(("kind", "frames", "least"), [("image", 1, 64), ("video", 3, 192)])
def test_a_budget_below_one_tile_is_refused(kind: str, frames: int, least: int) -> None:
    with pytest.raises(InvalidParameter, match=f"max_visual_tokens is {least - 1}, .* at least {least}"):
        options = ProcessorOptions(max_visual_tokens=least - 1)
        SMOLVLM.geometry(kind, 90, 90, frames=frames, options=options)


def test_idefics3_takes_no_clips(tmp_path: Path) -> None:
    processor = load(tmp_path, model_type="idefics3")
    assert processor.slots == {TOKEN: "image"}
    with pytest.raises(MediaError, match="video was sent, the model takes image only"):
        processor.geometry("video", 90, 90, frames=2, options=DEFAULT)


def test_a_picture_without_pixels_is_refused() -> None:
    with pytest.raises(MediaError, match="0x5 pixels"):
        image_geometry(SMOLVLM, 0, 5)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    cases = {
        "no whole visual tokens": {"max_image_size": {"longest_edge": 500}},
        "image_seq_len is 169, only 64": {"joint": {"image_seq_len": 169}},
        "do_resize is False": {"do_resize": False},
        "resample is 77": {"resample": 77},
        "has no 'longest_edge'": {"size": {"height": 5, "width": 5}},
    }
    for message, files in cases.items():
        with pytest.raises(ConfigError, match=message):
            load(tmp_path, **files)
        (tmp_path / "processor_config.json").unlink(missing_ok=True)


def test_reads_what_transformers_writes(tmp_path: Path) -> None:
    write_files(tmp_path)
    Idefics3ImageProcessorPil(
        size={"longest_edge": 900}, max_image_size={"longest_edge": 128}
    ).save_pretrained(tmp_path)
    SmolVLMConfig(image_token_id=77, scale_factor=2).save_pretrained(tmp_path)
    processor = load_processor(tmp_path)
    assert isinstance(processor, IdeficsProcessor)
    assert (processor.shape.tile_size, processor.shape.side, processor.merge_size) == (128, 4, 2)
    assert processor.edges == {"image": 900, "video": 900}
    assert processor.slots == {77: "image", "<video>": "video"}
