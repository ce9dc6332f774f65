"""From what a vision tower says of patches to visual tokens of the decoder's width.

Owns the last stage of an encode of equal tiles, which towers and projectors of many families share, and the
rearrangements before the linear layers. A projector is a function of a run of visual tokens, counted over all tiles of
all items, and of the tower's rows; so it is cut like any other stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from tapetum.core.media import Geometry
from tapetum.models.encoding import Encoding, Stage
from tapetum.models.tiled import TiledTower
from tapetum.models.vit import Batch

Rows = Callable[[int, int], Tensor]  # patches [start, end) of all tiles -> [patches, width]
Project = Callable[[Rows, int, int], Tensor]  # visual tokens [start, end) of all tiles -> [tokens, out width]


class TileEncoder:
    """A tower and a projector that makes equally many tokens of each tile: a `composed.PictureEncoder`.

    `work` are the multiply-adds of a token in the projector.
    """

    def __init__(
        self, tower: TiledTower, project: Project, *, tile_tokens: int, out_width: int, work: float
    ) -> None:
        self._tower, self._project = tower, project
        self._tile_tokens, self._out_width, self._work = tile_tokens, out_width, work

    def begin(self, patches: Sequence[Tensor], geometries: Sequence[Geometry]) -> Encoding:
        tower = self._tower
        batch = tower.pack(patches, geometries)
        sizes = [geometry.grid_thw[0] * self._tile_tokens for geometry in geometries]
        tokens = torch.empty(sum(sizes), self._out_width, dtype=tower.dtype, device=tower.device)
        last = Stage(len(tokens), self._work, partial(self._fill, tokens, batch))
        stages = chain(tower.stages(batch, patches), [last])
        return Encoding(stages, collect=lambda: list(torch.split(tokens, sizes)))

    def _fill(self, tokens: Tensor, batch: Batch, start: int, end: int) -> None:
        tokens[start:end] = self._project(partial(self._tower.rows, batch), start, end)


def pixel_shuffle(rows: Rows, start: int, end: int, *, side: int, merge_size: int) -> Tensor:
    """Squares of merge_size² patches side by side, row by row: [end - start, merge_size² * width].

    `side` are the patches of a tile's side. InternVL, Idefics3 and SmolVLM permute whole tiles to this order; here as
    many whole lines of squares are looked at as the run of tokens touches.
    """
    columns = side // merge_size  # squares of a line
    first, last = start // columns, -(-end // columns)
    line = side * merge_size  # patches
    squares = rows(first * line, last * line).view(last - first, merge_size, columns, merge_size, -1)
    lined = squares.transpose(1, 2).reshape((last - first) * columns, -1)
    return lined[start - first * columns : end - first * columns]
