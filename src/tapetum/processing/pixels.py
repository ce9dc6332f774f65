"""The pixels of a decoded picture, read where they lie.

Pillow keeps RGB as four bytes a pixel, the last of which means nothing. Its `tobytes` and numpy's `asarray` pack all
of them anew, which takes as long as decoding a JPEG does; here they are read through the Arrow C data interface. That
needs the rows of a picture in one piece of memory. Those of a large one are not, so it is read in bands, each a copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Picture = Image.Image | NDArray[np.uint8]  # upright RGB; an array is [height, width, 3]
_BAND_BYTES = 2**20  # still in the cache when it is read
_ROW_STEP = 4  # every band but the last has a multiple of so many rows


def size_of(picture: Picture) -> tuple[int, int]:
    """Width and height."""
    return picture.size if isinstance(picture, Image.Image) else (picture.shape[1], picture.shape[0])


def bands(picture: Picture) -> Iterator[NDArray[np.uint8]]:
    """The rows from above, [rows, width, 3 or 4] a band; of four values the last is to be ignored."""
    width, height = size_of(picture)
    step = max(_ROW_STEP, _BAND_BYTES // (4 * width) // _ROW_STEP * _ROW_STEP)
    whole = exported(picture) if isinstance(picture, Image.Image) else picture
    for start in range(0, height, step):
        end = min(start + step, height)
        if whole is not None:
            yield whole[start:end]
        else:
            yield _copied(picture, (0, start, width, end))


def _copied(picture: Picture, box: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    assert isinstance(picture, Image.Image), "an array is always whole"
    band = picture.crop(box)
    memory = exported(band)
    return np.asarray(band) if memory is None else memory


def exported(picture: Image.Image) -> NDArray[np.uint8] | None:
    """[height, width, 4] of Pillow's own memory, read-only; None where it cannot be had in one piece."""
    try:
        _, capsule = picture.__arrow_c_array__()
    except (AttributeError, ValueError):  # a Pillow older than that, or rows in several pieces
        return None
    pixels = _ArrowArray.from_address(_pointer(capsule, b"arrow_array"))
    if pixels.n_children != 1 or pixels.length != picture.width * picture.height:
        return None
    values = pixels.children[0].contents
    if values.length != 4 * pixels.length or values.offset or pixels.offset:
        return None
    return np.asarray(_Memory(capsule, values.buffers[1], (picture.height, picture.width, 4)))


class _Memory:
    """What numpy reads an address from; the capsule keeps alive what is there."""

    def __init__(self, capsule: object, address: int, shape: tuple[int, ...]) -> None:
        self._capsule = capsule
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": shape, "data": (address, True)}


class _ArrowArray(ctypes.Structure):
    """`struct ArrowArray` of the Arrow C data interface, which is fixed."""


_ArrowArray._fields_ = [
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
    *((name, ctypes.c_void_p) for name in ("dictionary", "release", "private_data")),
]
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
