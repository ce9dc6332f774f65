"""Whether a picture is there to be read: told from how much of it is thin strokes, without any model.

Letters, digits and fine lines of drawings are strokes a few pixels wide that stand out from both of their sides; the
outlines of objects are steps, and grain of photographs is faint. So a stroke is a pixel that is brighter, or darker,
than what lies as far to its left as to its right, or above and below, by half of the deviation of the whole picture.
A picture is dense where many of its cells have many strokes. Meant to err on the side of text: a hedge may pass
for a page, a page not for a hedge. A single word in a large picture does not make it dense.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 1024  # pixels of the longer one; a larger picture is scaled down to it
_REACH = 3  # half of the widest stroke
_CONTRAST = 0.5  # in deviations of the picture
_MIN_CONTRAST = 24  # of 255
_CELL = 32  # pixels, squared
_STROKES = 0.12  # share of a cell
_CELLS = 0.01  # share of the picture


def is_dense(picture: Image.Image) -> bool:
    """`picture` is upright and decoded, of any size and mode."""
    grey = _grey(picture)
    contrast = max(_MIN_CONTRAST, _CONTRAST * float(grey.std()))
    strokes = _strokes(grey, contrast) | _strokes(grey.T, contrast).T
    return float((_cells(strokes) > _STROKES).mean()) > _CELLS


def _grey(picture: Image.Image) -> NDArray[np.int16]:
    """Brightness, [height, width]."""
    shrink = SIDE / max(picture.size)
    if shrink < 1:
        width, height = (max(1, round(side * shrink)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BOX)
    return np.asarray(picture.convert("L")).astype(np.int16)


def _strokes(grey: NDArray[np.int16], contrast: float) -> NDArray[np.bool_]:
    """Where columns stand out from those to their left and right."""
    found = np.zeros(grey.shape, bool)
    for reach in range(1, min(_REACH, (grey.shape[1] - 1) // 2) + 1):
        middle = grey[:, reach:-reach]
        over_left, over_right = middle - grey[:, : -2 * reach], middle - grey[:, 2 * reach :]
        found[:, reach:-reach] |= np.minimum(over_left, over_right) > contrast
        found[:, reach:-reach] |= np.maximum(over_left, over_right) < -contrast
    return found


def _cells(strokes: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The share of strokes in each whole cell; of a picture too small for one, in all of it."""
    rows, columns = (side // _CELL for side in strokes.shape)
    if not rows or not columns:
        return np.array([strokes.mean()])
    whole = strokes[: rows * _CELL, : columns * _CELL]
    shares: NDArray[np.float64] = whole.reshape(rows, _CELL, columns, _CELL).mean((1, 3)).ravel()
    return shares
