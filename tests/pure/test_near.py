"""Near-duplicates: noise and slow light pass for the same picture, everything else does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFilter

from tapetum.core.media import MediaItem
from tapetum.media.keys import media_key
from tapetum.media.near import MAX_PEAK, NearIndex, looks_same, signature
from tapetum.processing.options import ProcessorOptions
from tests.processors import make_processor

PROCESSOR = make_processor("qwen2_vl")
SIZE = (224, 168)
MIB = 1024**2


def scene(seed: int = 0) -> Image.Image:
    """Soft blobs, as a room that is a little out of focus."""
    rng = np.random.default_rng(seed)
    picture = Image.new("RGB", SIZE, tuple(int(level) for level in rng.integers(60, 200, 3)))
    draw = ImageDraw.Draw(picture)
    for _ in range(6):
        x, y = rng.integers(0, SIZE[0]), rng.integers(0, SIZE[1])
        color = tuple(int(level) for level in rng.integers(20, 235, 3))
        draw.ellipse((x, y, x + 60, y + 40), fill=color)
    return picture.filter(ImageFilter.GaussianBlur(3))


def noisy(picture: Image.Image, seed: int, deviation: float = 3.0) -> Image.Image:
    pixels = np.asarray(picture, np.float32)
    grain = np.random.default_rng(seed).normal(0, deviation, pixels.shape)
    return Image.fromarray(np.clip(pixels + grain, 0, 255).round().astype(np.uint8))


def brighter(picture: Image.Image, levels: float) -> Image.Image:
    return Image.fromarray(np.clip(np.asarray(picture, np.float32) + levels, 0, 255).astype(np.uint8))


def with_mark(picture: Image.Image, text: str = "7", fill: int = 0) -> Image.Image:
    marked = picture.copy()
    ImageDraw.Draw(marked).text((100, 80), text, fill=(fill,) * 3)
    return marked


def item_of(picture: Image.Image, tenant: str = "a") -> MediaItem:
    geometry = PROCESSOR.geometry("image", *picture.size, frames=1, options=ProcessorOptions())
    patches = PROCESSOR.patches([picture], geometry)
    key = media_key(patches, geometry, parameters=PROCESSOR.parameters, tenant=tenant)
    return MediaItem(key=key, geometry=geometry, patches=patches)


def settle(index: NearIndex, picture: Image.Image, tenant: str = "a", *, is_dense: bool = False) -> MediaItem:
    return index.settle(item_of(picture, tenant), tenant, lambda: is_dense)


def test_frames_of_a_static_camera_are_encoded_once():
    index = NearIndex(64 * MIB)
    first = settle(index, noisy(scene(), 0))
    assert first.degraded is None
    items = [settle(index, noisy(scene(), seed)) for seed in range(1, 100)]
    assert {item.key for item in items} == {first.key}
    assert all(item.degraded.reason == "near_duplicate" for item in items)


def test_a_hit_has_the_pixels_of_its_key_and_times_of_its_own():
    index = NearIndex(64 * MIB)
    first = settle(index, scene())
    item = replace(item_of(noisy(scene(), 5)), decode_s=0.5, fetch_s=0.25, resize_s=0.125)
    found = index.settle(item, "a", lambda: False)
    assert found.patches is first.patches
    assert (found.decode_s, found.fetch_s, found.resize_s) == (0.5, 0.25, 0.125)


def test_an_equal_picture_is_no_near_duplicate():
    index = NearIndex(64 * MIB)
    settle(index, scene())
    assert settle(index, scene()).degraded is None


@pytest.mark.parametrize("fill", [0, 90, 255])
def test_one_digit_is_another_picture(fill):
    index = NearIndex(64 * MIB)
    blank = Image.new("RGB", SIZE, (140, 140, 140))
    settle(index, with_mark(blank, "7", fill))
    assert settle(index, with_mark(blank, "1", fill)).degraded is None


@given(st.integers(0, SIZE[0] - 1), st.integers(0, SIZE[1] - 1), st.integers(MAX_PEAK + 1, 100))
def test_one_pixel_beyond_the_noise_is_another_picture(x, y, step):
    one = np.full((SIZE[1], SIZE[0], 3), 120, np.uint8)
    other = one.copy()
    other[y, x, 1] += step
    index = NearIndex(64 * MIB)
    settle(index, Image.fromarray(one))
    assert settle(index, Image.fromarray(other)).degraded is None


def test_light_that_changes_slowly_is_measured_against_what_was_encoded():
    index = NearIndex(64 * MIB)
    keys = [settle(index, brighter(scene(), step)).key for step in range(20)]
    assert len(set(keys)) >= 4, "each is near its neighbour, but not all are near the first"
    assert len(set(keys[:3])) == 1


def test_a_weak_change_of_one_patch_does_not_hide_in_the_mean_of_the_picture():
    one = np.full((SIZE[1], SIZE[0], 3), 120, np.uint8)
    other = one.copy()
    other[:14, :14] += 8
    index = NearIndex(64 * MIB)
    settle(index, Image.fromarray(one))
    assert settle(index, Image.fromarray(other)).degraded is None


def test_never_across_tenants():
    index = NearIndex(64 * MIB)
    settle(index, scene(), "a")
    assert settle(index, noisy(scene(), 1), "b").degraded is None
    assert settle(index, noisy(scene(), 2), "b").degraded is not None


def test_what_is_there_to_be_read_is_never_a_candidate():
    index = NearIndex(64 * MIB)
    settle(index, scene(), is_dense=True)
    assert index.num_bytes == 0
    assert settle(index, noisy(scene(), 1), is_dense=True).degraded is None


def test_other_sizes_and_clips_are_left_alone():
    index = NearIndex(64 * MIB)
    settle(index, scene())
    assert settle(index, noisy(scene(), 1).resize((168, 224))).degraded is None
    frames = [scene(), noisy(scene(), 1)]
    geometry = PROCESSOR.geometry("video", *SIZE, frames=2, options=ProcessorOptions())
    clip = MediaItem(key=bytes(32), geometry=geometry, patches=PROCESSOR.patches(frames, geometry))
    assert index.settle(clip, "a", lambda: False) is clip


def test_one_hit_of_a_hundred_is_encoded_and_compared():
    index = NearIndex(64 * MIB)
    first = settle(index, scene())
    items = [settle(index, noisy(scene(), seed)) for seed in range(1, 301)]
    sampled = [item for item in items if item.compared_with is not None]
    assert len(sampled) == 3
    assert all(item.compared_with == first.key and item.degraded is None for item in sampled)
    assert len({item.key for item in sampled} | {first.key}) == 4, "they are themselves"


def test_bytes_are_bounded_and_the_least_recent_goes_first():
    size = item_of(scene()).patches.nbytes
    index = NearIndex(2 * size)
    settle(index, scene(1))
    settle(index, scene(2))
    assert settle(index, noisy(scene(1), 1)).degraded is not None, "used again"
    settle(index, scene(3))
    assert index.num_bytes == 2 * size
    assert settle(index, noisy(scene(1), 2)).degraded is not None
    assert settle(index, noisy(scene(2), 2)).degraded is None
    index.clear()
    assert index.num_bytes == 0


def test_levels_hardly_move_with_noise():
    one = np.asarray(item_of(scene()).patches)
    other = np.asarray(item_of(noisy(scene(), 3)).patches)
    assert np.abs(signature(one) - signature(other)).max() < 1
    assert looks_same(one, other)
    assert not looks_same(one, np.asarray(item_of(scene(9)).patches))
