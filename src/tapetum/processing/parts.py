"""The parts of an item that its encoder sees by themselves: tiles, or the windows of all layers before the first
that looks beyond them.

Which patches are a part's, what else decides what comes of them, and where in the item's features that lies. A part
for each attention segment, in the order of `Geometry.segments`. Owns no keys (media/parts.py).

Runs are (start, end).
"""

from __future__ import annotations

from dataclasses import dataclass

from tapetum.core.media import Geometry

Run = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlace:
    """`form` sets parts apart that would give something else though their pixels are equal."""

    patches: tuple[Run, ...]
    form: tuple[int, ...] = ()
    runs: tuple[Run, ...] = ()  # of visual tokens; none = the features hold nothing that is this part's alone


def tile_parts(geometry: Geometry) -> tuple[PartPlace, ...]:
    """Of tiles whose tokens lie one behind the other."""
    count = geometry.grid_thw[0]
    patches, tokens = geometry.num_patches // count, geometry.num_tokens // count
    return tuple(
        PartPlace(
            patches=((number * patches, (number + 1) * patches),),
            runs=((number * tokens, (number + 1) * tokens),),
        )
        for number in range(count)
    )


def window_parts(geometry: Geometry, merge_size: int, side: int) -> tuple[PartPlace, ...]:
    """Of windows of `side` visual tokens a side, cut off at the right and lower edge, frame by frame.

    Patches come in merge order. What becomes of a window depends on where in which grid it lies.
    """
    time, height, width = geometry.grid_thw
    rows, columns, unit = height // merge_size, width // merge_size, merge_size**2

    def place(step: int, top: int, left: int) -> PartPlace:
        right = min(left + side, columns)
        lines = [(step * rows + row) * columns for row in range(top, min(top + side, rows))]
        return PartPlace(
            patches=tuple(((line + left) * unit, (line + right) * unit) for line in lines),
            form=(top, left, rows, columns),
        )

    return tuple(
        place(step, top, left)
        for step in range(time)
        for top in range(0, rows, side)
        for left in range(0, columns, side)
    )
