"""From decoded pictures to the uint8 patches of square tiles: scaled, laid on a canvas, cut tile by tile.

A family says which canvases a picture is seen on, usually a large one of many tiles and an overview of one. A frame of
a clip is seen on one. Resizing and cutting are those of patches.py: its blocks of patches are the tiles here. What it
does not do by itself is done to the frame first: other filters than bicubic, a canvas larger or smaller than the
scaled picture, tiles whose last pixels make no whole patch.

Sizes are (width, height).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tapetum.core.media import Geometry
from tapetum.processing.patches import PatchShape, cut
from tapetum.processing.pixels import Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class TileShape:
    """Pixels of a tile's side and of a patch's side, and the filter that scales pictures."""

    tile_size: int
    patch_size: int
    resample: Image.Resampling = Image.Resampling.BICUBIC

    @property
    def side(self) -> int:
        """Patches of a tile's side; pixels beyond the last whole one are left out, as a convolution does."""
        return self.tile_size // self.patch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """A field of whole tiles, and on it the picture scaled to `scaled` with its upper left corner at `corner`.

    A corner left of or above the field crops the picture; what it does not cover has the colour `fill`.
    """

    size: tuple[int, int]
    scaled: tuple[int, int]
    corner: tuple[int, int] = (0, 0)
    fill: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def filled(cls, width: int, height: int) -> Canvas:
        """The picture stretched over the whole field."""
        return cls(size=(width, height), scaled=(width, height))


def cut_tiles(
    frames: Iterable[Picture], geometry: Geometry, canvases: Sequence[Canvas], shape: TileShape
) -> NDArray[np.uint8]:
    """[tiles * side², 3 * patch_size²], a value per (colour, y, x).

    Canvas by canvas, the tiles of each from left to right and down, and so the patches of each tile. A clip has one
    canvas, and as many tiles as frames if that is one tile.
    """
    if len(canvases) == 1:
        return _cut(frames, geometry, canvases[0], shape)
    pictures = list(frames)
    assert len(pictures) == 1, "a clip has one canvas"
    return np.concatenate([_cut(pictures, geometry, canvas, shape) for canvas in canvases])


def _cut(
    frames: Iterable[Picture], geometry: Geometry, canvas: Canvas, shape: TileShape
) -> NDArray[np.uint8]:
    columns, rows = (pixels // shape.tile_size * shape.side for pixels in canvas.size)
    used = columns * shape.patch_size, rows * shape.patch_size
    if shape.resample != Image.Resampling.BICUBIC or canvas != Canvas.filled(*used):
        frames = (_laid(frame, canvas, shape) for frame in frames)
    return cut(
        frames,
        replace(geometry, used=used, grid_thw=(geometry.frames, rows, columns)),
        PatchShape(patch_size=shape.patch_size, merge_size=shape.side, fold=1),
    )


def _laid(frame: Picture, canvas: Canvas, shape: TileShape) -> Picture:
    """The canvas with the picture on it, without what is left out of its tiles."""
    image = frame if isinstance(frame, Image.Image) else Image.fromarray(frame)
    if image.size != canvas.scaled:
        image = image.resize(canvas.scaled, shape.resample)
    if canvas.scaled != canvas.size or canvas.corner != (0, 0):
        field = Image.new("RGB", canvas.size, canvas.fill)
        field.paste(image, canvas.corner)
        image = field
    kept = shape.side * shape.patch_size
    if kept == shape.tile_size:
        return image
    columns, rows = (pixels // shape.tile_size for pixels in canvas.size)
    tiles = np.asarray(image).reshape(rows, shape.tile_size, columns, shape.tile_size, 3)
    return tiles[:, :kept, :, :kept].reshape(rows * kept, columns * kept, 3)
