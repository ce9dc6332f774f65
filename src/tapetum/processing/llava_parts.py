"""The tiles of LLaVA-NeXT and LLaVA-OneVision as parts: what of each is in the features, and where.

Of a field of tiles the features hold the lines of patches that the picture lies on. A tile at the edge may be there in
part, and one equal to it that shows another part gives something else. Where a field is averaged to fewer lines, no
token is one tile's alone.

Sizes are (width, height), in patches.
"""

from __future__ import annotations

from math import ceil

from tapetum.core.media import Geometry
from tapetum.processing.anyres import Size, shrunk
from tapetum.processing.parts import PartPlace, Run
from tapetum.processing.tiles import TileShape


def llava_parts(
    geometry: Geometry, shape: TileShape, *, has_newline: bool, most_cells: int | None
) -> tuple[PartPlace, ...]:
    """`has_newline`, `most_cells`: as LlavaProcessor has them."""
    count, side = geometry.grid_thw[0], shape.side
    patches = [((number * side**2, (number + 1) * side**2),) for number in range(count)]
    if geometry.kind == "video":
        tokens = ceil(side / 2) ** 2
        runs = [(number * tokens, (number + 1) * tokens) for number in range(count)]
        return tuple(
            PartPlace(patches=each, form=(tokens,), runs=(run,))
            for each, run in zip(patches, runs, strict=True)
        )
    overview = PartPlace(patches=patches[0], runs=((0, side**2),))
    if geometry.tiles is None:
        return (overview,)
    shown = geometry.used[0] // shape.patch_size, geometry.used[1] // shape.patch_size
    if most_cells is not None and shrunk(shown, most_cells) != shown:
        return (overview, *(PartPlace(patches=each) for each in patches[1:]))
    lines = _Lines(geometry.tiles, shown, side, has_newline=has_newline)
    return (overview, *(lines.part(number, each) for number, each in enumerate(patches[1:])))


class _Lines:
    """The lines of a field of tiles that a picture lies on, in its middle, behind the overview."""

    def __init__(self, grid: Size, shown: Size, side: int, *, has_newline: bool) -> None:
        self._grid, self._shown, self._side = grid, shown, side
        self._corner = (grid[0] * side - shown[0]) // 2, (grid[1] * side - shown[1]) // 2
        self._length = shown[0] + has_newline

    def part(self, number: int, patches: tuple[Run, ...]) -> PartPlace:
        """The tile of this number, line by line."""
        row, column = divmod(number, self._grid[0])
        left, right = self._seen(0, column)
        top, bottom = self._seen(1, row)
        if left >= right or top >= bottom:
            return PartPlace(patches=patches)
        behind = self._side**2 + column * self._side - self._corner[0]
        starts = [
            behind + (row * self._side + line - self._corner[1]) * self._length for line in range(top, bottom)
        ]
        is_all = (left, top, right, bottom) == (0, 0, self._side, self._side)
        return PartPlace(
            patches=patches,
            form=() if is_all else (left, top, right, bottom),
            runs=tuple((start + left, start + right) for start in starts),
        )

    def _seen(self, axis: int, place: int) -> Run:
        """Of the tile's side, what the picture lies on."""
        first = self._corner[axis] - place * self._side
        return max(first, 0), min(first + self._shown[axis], self._side)
