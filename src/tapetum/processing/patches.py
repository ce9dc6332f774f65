"""From decoded frames to uint8 patches in merge order: Pillow's bicubic resize, then the cut.

The native library does both in one pass over the rows, with the same result bit for bit; without it Pillow resizes and
numpy cuts. Nothing is normalised: mean and deviation are folded into the weights of the patch embedding.

`P` patches, `C` values of a patch; sizes are (width, height).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from tapetum.core.errors import MediaError
from tapetum.core.media import Geometry
from tapetum.native.library import load
from tapetum.processing.pixels import Picture, bands, size_of

Step = NDArray[
    np.uint8
]  # patches of one step of time, [rows, columns, merge, merge, colour, fold, patch, patch]
Put = Callable[[Picture, Step, int], None]  # one frame into its place among the `fold` of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchShape:
    """How frames are cut: pixels of a patch's side, patches of a block's side, frames that share a patch."""

    patch_size: int
    merge_size: int
    fold: int


def cut(frames: Iterable[Picture], geometry: Geometry, shape: PatchShape) -> NDArray[np.uint8]:
    """Frames, resized to the used size, as [P, 3 * fold * patch_size²]: a value per (colour, frame, y, x).

    `fold` consecutive frames share a patch; missing ones at the end repeat the last. Patches come in merge order:
    frame group, block row, block column, then the merge_size² neighbours of a block, so that merging is a reshape.
    """
    library = load()
    if library is None:
        return _laid_out(frames, geometry, shape, lambda frame, step, slot: _put(frame, geometry, step, slot))
    with _resizers(library, geometry, shape) as put:
        return _laid_out(frames, geometry, shape, put)


def _laid_out(
    frames: Iterable[Picture], geometry: Geometry, shape: PatchShape, put: Put
) -> NDArray[np.uint8]:
    """[P, C], frame by frame; checks that they are as many as announced."""
    time, rows, columns = geometry.grid_thw
    p, m, fold = shape.patch_size, shape.merge_size, shape.fold
    patches = np.empty((time, rows // m, columns // m, m, m, 3, fold, p, p), np.uint8)
    number = 0
    for frame in frames:
        if number < geometry.frames:
            put(frame, patches[number // fold], number % fold)
        number += 1
    if number != geometry.frames:
        raise MediaError(f"clip has {number} frames, its header announced {geometry.frames}")
    for slot in range(number, time * fold):
        patches[-1, ..., slot % fold, :, :] = patches[-1, ..., (number - 1) % fold, :, :]
    return patches.reshape(geometry.num_patches, 3 * fold * p * p)


def _put(frame: Picture, geometry: Geometry, step: Step, slot: int) -> None:
    rows, columns, m, _, _, _, p, _ = step.shape
    image = frame if isinstance(frame, Image.Image) else Image.fromarray(frame)
    if image.size != geometry.used:
        image = image.resize(geometry.used, Image.Resampling.BICUBIC)
    blocks = np.asarray(image).reshape(rows, m, p, columns, m, p, 3)
    step[..., slot, :, :] = blocks.transpose(0, 3, 1, 4, 6, 2, 5)


@contextmanager
def _resizers(library: ctypes.CDLL, geometry: Geometry, shape: PatchShape) -> Iterator[Put]:
    """The native way. The weights of a size are computed once, since all frames of most clips have one."""
    made: dict[tuple[int, int], int] = {}

    def put(frame: Picture, step: Step, slot: int) -> None:
        size = size_of(frame)
        if size not in made:
            made[size] = _new_resizer(library, size, geometry.used, shape)
        place = step[..., slot, :, :].ctypes.data
        for band in bands(frame):
            rows = band if band.strides[1:] == (band.shape[2], 1) else np.ascontiguousarray(band)
            num_rows, _, pixel_bytes = rows.shape
            done = library.tpt_resizer_feed(
                made[size], rows.ctypes.data, rows.strides[0], pixel_bytes, num_rows, place
            )
            assert done >= 0, "bands are of whole groups of rows"

    try:
        yield put
    finally:
        for resizer in made.values():
            library.tpt_resizer_free(resizer)


def _new_resizer(
    library: ctypes.CDLL, size: tuple[int, int], used: tuple[int, int], shape: PatchShape
) -> int:
    resizer: int | None = library.tpt_resizer_new(
        *size, *used, goes_down_first(size, used), shape.patch_size, shape.merge_size, shape.fold
    )
    if resizer is None:
        raise MemoryError(f"no memory for resizing {size[0]}x{size[1]} to {used[0]}x{used[1]} pixels")
    return resizer


_CHOOSES_ORDER = int(PIL.__version__.partition(".")[0]) >= 13


def goes_down_first(size: tuple[int, int], used: tuple[int, int]) -> bool:
    """Whether the installed Pillow resizes the columns before the rows; what is rounded in between differs.

    From 13 on it does where a picture loses more than twice as many rows as columns; before, it never did.
    """
    lost_columns, lost_rows = size[0] - used[0], size[1] - used[1]
    return _CHOOSES_ORDER and lost_rows > 0 and lost_rows > 2 * lost_columns
