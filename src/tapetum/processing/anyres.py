"""The any-resolution rules of LLaVA-NeXT and LLaVA-OneVision: which field of tiles, how scaled, what of it counts.

A picture is scaled into the field that shows most of it, in its own aspect and centred; what is left is black. Of the
features of the field only those of the picture stay, but at least all of one axis. The rules are those of transformers
with its roundings.

Sizes are (width, height), in pixels or in patches (columns, rows).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf, sqrt

Size = tuple[int, int]
SHRINK_FROM = 1.1  # times as many patches along a side as are allowed


def best_field(size: Size, fields: Iterable[Size]) -> Size | None:
    """The field in which a picture keeps most of its pixels, of several that which wastes least, then the first."""
    best, most, least_waste = None, 0, inf
    for field in fields:
        scale = min(field[0] / size[0], field[1] / size[1])
        kept = min(int(size[0] * scale) * int(size[1] * scale), size[0] * size[1])
        waste = field[0] * field[1] - kept
        if kept > most or (kept == most and waste < least_waste):
            best, most, least_waste = field, kept, waste
    return best


def scaled_into(size: Size, field: Size) -> Size:
    """The size of a picture that touches two sides of the field."""
    across, down = field[0] / size[0], field[1] / size[1]
    if across < down:
        return field[0], min(ceil(size[1] * across), field[1])
    return min(ceil(size[0] * down), field[0]), field[1]


def unpadded(cells: Size, size: Size) -> Size:
    """The patches of a field that a picture of `size` lies on; as many are cut away at either end of an axis."""
    columns, rows = cells
    if size[0] / size[1] > columns / rows:
        used = int(round(size[1] * (columns / size[0]), 7))
        return columns, rows - 2 * ((rows - used) // 2)
    used = int(round(size[0] * (rows / size[1]), 7))
    return columns - 2 * ((columns - used) // 2), rows


def shrunk(cells: Size, most: int) -> Size:
    """The grid that features are averaged down to where there are many more than `most`."""
    ratio = sqrt(cells[1] * cells[0] / most)
    return (int(cells[0] // ratio), int(cells[1] // ratio)) if ratio > SHRINK_FROM else cells
