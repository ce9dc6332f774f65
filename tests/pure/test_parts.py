"""Parts of pictures: they cover an item exactly once, and their keys tell apart all that the encoder could."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.media import Geometry, Part
from tapetum.media.parts import keyed_parts
from tapetum.processing import load_processor
from tapetum.processing.options import ProcessorOptions
from tapetum.processing.parts import PartPlace
from tests.processors import make_processor

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
TILED = (
    "llava-v1.6-mistral-7b-hf",
    "llava-onevision-qwen2-0.5b-ov-hf",
    "internvl3-8b-hf",
    "smolvlm2-500m-video-instruct",
    "gemma-3-4b-it",
)
PROCESSORS = {
    **{name: load_processor(CONFIGS / name) for name in TILED},
    "windows": make_processor("qwen2_5_vl"),
}
SIZES = st.tuples(st.integers(40, 3000), st.integers(40, 3000))
CLIPS = tuple(name for name, processor in PROCESSORS.items() if "video" in processor.media_tokens)
PARAMETERS = {"tile_size": 28, "patch_size": 14}
PATCHES = np.random.default_rng(0).integers(0, 256, (8, 588), np.uint8)
PLACE = PartPlace(patches=((2, 4), (6, 8)), runs=((0, 1),))


def check(places: tuple[PartPlace, ...], geometry: Geometry) -> None:
    """Every patch belongs to one part, no visual token to two."""
    assert len(places) == len(geometry.segments)
    patches = [number for place in places for start, end in place.patches for number in range(start, end)]
    assert sorted(patches) == list(range(geometry.num_patches))
    for place, size in zip(places, geometry.segments, strict=True):
        assert sum(end - start for start, end in place.patches) == size
    tokens = [number for place in places for start, end in place.runs for number in range(start, end)]
    assert len(tokens) == len(set(tokens)) and all(0 <= number < geometry.num_tokens for number in tokens)


@given(name=st.sampled_from(sorted(PROCESSORS)), size=SIZES)
def test_parts_cover_a_picture_once(name: str, size: tuple[int, int]) -> None:
    processor = PROCESSORS[name]
    geometry = processor.geometry("image", *size, options=ProcessorOptions())
    check(processor.parts(geometry), geometry)


@given(name=st.sampled_from(CLIPS), size=SIZES, frames=st.integers(1, 9))
def test_parts_cover_a_clip_once(name: str, size: tuple[int, int], frames: int) -> None:
    processor = PROCESSORS[name]
    geometry = processor.geometry("video", *size, frames=frames, options=ProcessorOptions())
    check(processor.parts(geometry), geometry)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_what_is_seen_at_once_has_no_parts(family: str) -> None:
    processor = make_processor(family)
    geometry = processor.geometry("image", 300, 200, options=ProcessorOptions())
    assert processor.parts(geometry) == ()


def test_a_field_that_is_averaged_has_nothing_of_a_tile_alone() -> None:
    processor = PROCESSORS["llava-onevision-qwen2-0.5b-ov-hf"]
    places = processor.parts(processor.geometry("image", 2480, 3508, options=ProcessorOptions()))
    assert [bool(place.runs) for place in places] == [True] + [False] * 30


def test_a_tile_at_the_edge_is_told_from_a_whole_one() -> None:
    """28 of 48 lines of patches show the picture, those in the middle."""
    processor = PROCESSORS["llava-v1.6-mistral-7b-hf"]
    overview, *field = processor.parts(processor.geometry("image", 1280, 720, options=ProcessorOptions()))
    assert overview.form == () and len(field) == 4
    assert [place.form for place in field] == [
        (0, 10, 24, 24),
        (0, 10, 24, 24),
        (0, 0, 24, 14),
        (0, 0, 24, 14),
    ]
    assert [len(place.runs) for place in field] == [14] * 4


def key(patches=PATCHES, place=PLACE, parameters=PARAMETERS, tenant="t", processor="exact") -> Part:
    (part,) = keyed_parts(patches, (place,), parameters=parameters, tenant=tenant, processor=processor)
    assert len(part.key) == 32 and part.runs == place.runs
    return part


def brighter(row: int) -> np.ndarray:
    """One value differs by one."""
    patches = PATCHES.copy()
    patches[row, 300] ^= 1
    return patches


MUTATIONS = {
    "first pixel run": {"patches": brighter(2)},
    "last pixel run": {"patches": brighter(7)},
    "turned runs": {"place": replace(PLACE, patches=((6, 8), (2, 4)))},
    "one run": {"place": replace(PLACE, patches=((2, 6),))},
    "form": {"place": replace(PLACE, form=(0, 0, 4, 4))},
    "parameter": {"parameters": {**PARAMETERS, "patch_size": 7}},
    "other parameter": {"parameters": {**PARAMETERS, "merge_size": 2}},
    "width of a patch": {
        "patches": PATCHES.reshape(16, 294),
        "place": replace(PLACE, patches=((4, 8), (12, 16))),
    },
    "tenant": {"tenant": "u"},
    "processor": {"processor": "fast"},
}


def test_equal_parts_have_equal_keys() -> None:
    assert key() == key(patches=PATCHES.copy()) == key(patches=np.asfortranarray(PATCHES))
    assert key(patches=brighter(0)) == key(), "a patch of another part"
    assert key(place=replace(PLACE, runs=((5, 6),))).key == key().key, "wherever its features lie"


@pytest.mark.parametrize("name", MUTATIONS)
def test_any_change_changes_the_key(name: str) -> None:
    assert key(**MUTATIONS[name]).key != key().key


def test_no_two_changes_give_one_key() -> None:
    assert len({key(**mutation).key for mutation in MUTATIONS.values()}) == len(MUTATIONS)
