"""Frames cut into patches: Pillow's resize and a cut by hand are the oracle, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tapetum.core.errors import MediaError
from tapetum.core.media import Geometry
from tapetum.native.library import load
from tapetum.processing import patches, pixels
from tapetum.processing.patches import PatchShape, cut
from tapetum.processing.pixels import Picture, bands, exported

SETS = ("portable", "avx2", "avx512")
TINY = PatchShape(
    patch_size=1, merge_size=1, fold=1
)  # patches are the pixels, so every size is one that is used
SIDE = st.one_of(st.integers(1, 40), st.integers(41, 260))


@pytest.fixture(params=(*SETS, "Pillow"))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each instruction set of the library, and the way without it."""
    library = load()
    if request.param == "Pillow":
        monkeypatch.setattr(patches, "load", lambda: None)
        yield request.param
        return
    if library is None:
        pytest.skip("the native library is not built")
    before = library.tpt_isa()
    if library.tpt_use_isa(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    library.tpt_use_isa(before)


def noise(width: int, height: int, kind: str = "levels") -> NDArray[np.uint8]:
    """Levels of all kinds, or black and white alone, which the filter drives over both ends."""
    rng = np.random.default_rng((width, height))
    if kind == "extremes":
        return (rng.integers(0, 2, (height, width, 3)) * 255).astype(np.uint8)
    return rng.integers(0, 256, (height, width, 3), np.uint8)


def geometry_of(used: tuple[int, int], shape: PatchShape, frames: int = 1) -> Geometry:
    width, height = used
    grid = (-(-frames // shape.fold), height // shape.patch_size, width // shape.patch_size)
    tokens = grid[0] * grid[1] * grid[2] // shape.merge_size**2
    kind = "image" if frames == 1 else "video"
    return Geometry(
        kind=kind, original=used, used=used, frames=frames, grid_thw=grid, num_tokens=tokens, segments=()
    )


def resized(frame: NDArray[np.uint8], used: tuple[int, int]) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(frame).resize(used, Image.Resampling.BICUBIC))


def check_resize(frame: Picture, source: NDArray[np.uint8], used: tuple[int, int]) -> None:
    ours = cut([frame], geometry_of(used, TINY), TINY).reshape(used[1], used[0], 3)
    np.testing.assert_array_equal(ours, resized(source, used))


@given(width=SIDE, height=SIDE, used=st.tuples(SIDE, SIDE), kind=st.sampled_from(["levels", "extremes"]))
@example(width=1, height=1, used=(1, 1), kind="levels")
@example(width=1, height=1, used=(56, 56), kind="levels")
@example(width=1, height=200, used=(28, 5600), kind="levels")
@example(width=200, height=1, used=(3, 84), kind="extremes")
@example(width=253, height=251, used=(1, 1), kind="extremes")
@example(width=90, height=90, used=(90, 30), kind="levels")  # rows alone
@example(width=90, height=90, used=(30, 90), kind="levels")  # columns alone
@example(width=90, height=300, used=(60, 90), kind="extremes")  # Pillow goes down first
@example(width=70, height=301, used=(90, 7), kind="extremes")
def test_resize_is_pillows(width: int, height: int, used: tuple[int, int], kind: str) -> None:
    library = load()
    if library is None:
        pytest.skip("the native library is not built")
    source = noise(width, height, kind)
    before = library.tpt_isa()
    try:
        for name in SETS:
            if library.tpt_use_isa(name.encode()) == 0:
                check_resize(source, source, used)
                check_resize(Image.fromarray(source), source, used)
    finally:
        library.tpt_use_isa(before)


@pytest.mark.parametrize("size", [(2100, 2101), (700, 3001), (4001, 90)])
def test_large_pictures_that_pillow_keeps_in_pieces(
    size: tuple[int, int], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixels, "_BAND_BYTES", 2**16)
    source = noise(*size)
    check_resize(Image.fromarray(source), source, (252, 196))


def test_arrays_however_they_lie_in_memory(way: str) -> None:
    large = noise(151, 142)
    with_alpha = np.dstack([large, large[..., :1]])
    for view in (
        large[::2],
        large[:, ::3],
        large[::-1],
        large[:, ::-1],
        np.rot90(large),
        with_alpha[..., :3],
        np.asfortranarray(large),
    ):
        check_resize(view, np.ascontiguousarray(view), (84, 56))


@pytest.mark.parametrize(("patch_size", "merge_size"), [(14, 2), (16, 2), (14, 1), (3, 3)])
@pytest.mark.parametrize("frames", [1, 2, 5])
def test_every_pixel_goes_to_its_place(patch_size: int, merge_size: int, frames: int, way: str) -> None:
    shape = PatchShape(patch_size=patch_size, merge_size=merge_size, fold=1 if frames == 1 else 2)
    side = patch_size * merge_size
    used = (3 * side, 2 * side)
    clip = [noise(used[0] + 5 * (number % 2), 77) for number in range(frames)]  # sizes may change on the way
    geometry = geometry_of(used, shape, frames)
    ours = cut(clip, geometry, shape)
    canvases = [resized(frame, used) for frame in clip]
    expected = []
    for step in range(geometry.grid_thw[0]):
        pair = [canvases[min(step * shape.fold + slot, frames - 1)] for slot in range(shape.fold)]
        for top, left in merge_order(used, patch_size, merge_size):
            pieces = [canvas[top : top + patch_size, left : left + patch_size] for canvas in pair]
            expected.append([piece[..., colour] for colour in range(3) for piece in pieces])
    np.testing.assert_array_equal(ours, np.array(expected).reshape(ours.shape))


def merge_order(used: tuple[int, int], p: int, m: int) -> Iterator[tuple[int, int]]:
    """Where each patch begins, block by block."""
    for block_top in range(0, used[1], p * m):
        for block_left in range(0, used[0], p * m):
            for index in range(m * m):
                yield block_top + index // m * p, block_left + index % m * p


@pytest.mark.parametrize("given_frames", [1, 3])
def test_a_clip_of_another_length_is_refused(given_frames: int, way: str) -> None:
    shape = PatchShape(patch_size=14, merge_size=2, fold=2)
    with pytest.raises(MediaError, match=f"clip has {given_frames} frames, its header announced 2"):
        cut([noise(28, 28)] * given_frames, geometry_of((28, 28), shape, 2), shape)


def test_pixels_are_read_where_pillow_keeps_them() -> None:
    source = noise(37, 23)
    picture = Image.fromarray(source)
    memory = exported(picture)
    if memory is None:
        pytest.skip("this Pillow does not export its memory")
    np.testing.assert_array_equal(memory[..., :3], source)
    assert not memory.flags.writeable
    again = exported(picture)
    assert again is not None
    assert again.ctypes.data == memory.ctypes.data  # no copy
    del picture, again
    np.testing.assert_array_equal(memory[..., :3], source)  # alive as long as the array is


def test_bands_are_the_rows_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    source = noise(300, 1001)
    for picture in (source, Image.fromarray(source)):
        monkeypatch.setattr(pixels, "_BAND_BYTES", 4 * 300 * 10)
        parts = list(bands(picture))
        assert {len(part) for part in parts} == {8, 1}
        np.testing.assert_array_equal(np.concatenate(parts)[..., :3], source)
    monkeypatch.setattr(pixels, "exported", lambda picture: None)  # as with a Pillow that cannot
    np.testing.assert_array_equal(np.concatenate(list(bands(Image.fromarray(source)))), source)


def test_feeding_a_resizer_wrongly_is_noticed() -> None:
    library = load()
    if library is None:
        pytest.skip("the native library is not built")
    assert not library.tpt_resizer_new(0, 1, 28, 28, 0, 14, 2, 1)
    assert not library.tpt_resizer_new(9, 9, 28, 27, 0, 14, 2, 1)
    source, out = noise(9, 9), np.zeros((4, 588), np.uint8)
    resizer = library.tpt_resizer_new(9, 9, 28, 28, 0, 14, 2, 1)
    feed = [resizer, source.ctypes.data, 27, 3]
    assert library.tpt_resizer_feed(*feed, 3, out.ctypes.data) == -1  # no whole group of rows, nor the end
    assert library.tpt_resizer_feed(*feed, 10, out.ctypes.data) == -1
    assert library.tpt_resizer_feed(*feed, 9, out.ctypes.data) == 28
    library.tpt_resizer_free(resizer)
