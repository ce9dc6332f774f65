"""Pictures cut into tiles: Pillow's resize and a cut by hand are the oracle, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tapetum.core.errors import MediaError
from tapetum.core.media import Geometry
from tapetum.processing import patches
from tapetum.processing.tiles import Canvas, TileShape, cut_tiles

FILTERS = (Image.Resampling.BICUBIC, Image.Resampling.BILINEAR, Image.Resampling.LANCZOS)


@pytest.fixture(params=["native", "Pillow"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Pillow":
        monkeypatch.setattr(patches, "load", lambda: None)


def noise(width: int, height: int) -> NDArray[np.uint8]:
    return np.random.default_rng((width, height)).integers(0, 256, (height, width, 3), np.uint8)


def geometry_of(canvases: list[Canvas], shape: TileShape, frames: int = 1) -> Geometry:
    areas = [canvas.size[0] * canvas.size[1] // shape.tile_size**2 for canvas in canvases]
    return Geometry(
        kind="image" if frames == 1 else "video",
        original=(1, 1),
        used=canvases[0].size,
        frames=frames,
        grid_thw=(sum(areas) * frames, shape.side, shape.side),
        num_tokens=1,
        segments=(),
    )


def by_hand(picture: NDArray[np.uint8], canvas: Canvas, shape: TileShape) -> list[NDArray[np.uint8]]:
    """Every patch of one picture, sliced out of its canvas one by one."""
    scaled = np.asarray(Image.fromarray(picture).resize(canvas.scaled, shape.resample))
    width, height = canvas.size
    field = np.full((height, width, 3), canvas.fill, np.uint8)
    for y in range(height):
        for x in range(width):
            from_x, from_y = x - canvas.corner[0], y - canvas.corner[1]
            if 0 <= from_x < canvas.scaled[0] and 0 <= from_y < canvas.scaled[1]:
                field[y, x] = scaled[from_y, from_x]
    found, size = [], shape.patch_size
    for top in range(0, height, shape.tile_size):
        for left in range(0, width, shape.tile_size):
            for row in range(shape.side):
                for column in range(shape.side):
                    y, x = top + row * size, left + column * size
                    found.append(field[y : y + size, x : x + size].transpose(2, 0, 1).ravel())
    return found


@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    tiles=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    shape=st.builds(
        TileShape,
        tile_size=st.integers(4, 11),
        patch_size=st.integers(1, 4),
        resample=st.sampled_from(FILTERS),
    ),
    slack=st.tuples(st.integers(-5, 5), st.integers(-5, 5)),
    corner=st.tuples(st.integers(-4, 4), st.integers(-4, 4)),
)
@example(
    size=(20, 15),
    tiles=(2, 2),
    shape=TileShape(tile_size=8, patch_size=4),
    slack=(0, 0),
    corner=(0, 0),
)
def test_tiles_are_the_canvas_cut_by_hand(
    size: tuple[int, int],
    tiles: tuple[int, int],
    shape: TileShape,
    slack: tuple[int, int],
    corner: tuple[int, int],
) -> None:
    field = tiles[0] * shape.tile_size, tiles[1] * shape.tile_size
    scaled = max(1, field[0] + slack[0]), max(1, field[1] + slack[1])
    picture = noise(*size)
    canvases = [
        Canvas(size=field, scaled=scaled, corner=corner, fill=(9, 80, 200)),
        Canvas.filled(*field),
        Canvas.filled(shape.tile_size, shape.tile_size),
    ]
    ours = cut_tiles([picture], geometry_of(canvases, shape), canvases, shape)
    wanted = [patch for canvas in canvases for patch in by_hand(picture, canvas, shape)]
    np.testing.assert_array_equal(ours, np.stack(wanted))


@pytest.mark.parametrize("resample", FILTERS)
def test_frames_of_a_clip_are_one_tile_each_and_read_one_at_a_time(resample: Image.Resampling) -> None:
    shape = TileShape(tile_size=12, patch_size=4, resample=resample)
    canvas = Canvas.filled(12, 12)
    clip = [noise(20, 10), noise(8, 30), noise(12, 12)]
    ours = cut_tiles(iter(clip), geometry_of([canvas], shape, frames=3), [canvas], shape)
    wanted = [patch for frame in clip for patch in by_hand(frame, canvas, shape)]
    np.testing.assert_array_equal(ours, np.stack(wanted))
    with pytest.raises(MediaError, match="clip has 3 frames, its header announced 4"):
        cut_tiles(iter(clip), geometry_of([canvas], shape, frames=4), [canvas], shape)
