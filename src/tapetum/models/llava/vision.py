"""From the tokens of tiles to the features of a picture or clip: cut out, averaged, with the ends of lines marked.

A picture in a field of tiles gives its overview, then the lines of patches that it lies on, across all tiles, each with
the newline vector behind it. Many more lines than the checkpoint allows are averaged down to fewer. A frame of a clip
is averaged to half its patches a side, and a clip ends with one newline.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

from tapetum.core.media import Geometry
from tapetum.models.tiled import TowerConfig
from tapetum.ops.table import Activation
from tapetum.processing.anyres import Size, shrunk


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    tower: TowerConfig
    num_layers: int  # that the checkpoint has of the tower
    activation: Activation  # of the projector
    has_projector_bias: bool
    has_newline: bool
    most_cells: int | None  # patches of a field that are not averaged to fewer; None = all stay


class Arrangement:
    """The features of an item, [num_tokens, hidden], from the tokens of its tiles, [tiles * patches, hidden]."""

    def __init__(self, config: VisionConfig, newline: Tensor | None) -> None:
        self._config, self._newline = config, newline

    def __call__(self, tokens: Tensor, geometry: Geometry) -> Tensor:
        side = self._config.tower.side
        tiles = tokens.view(-1, side, side, tokens.shape[-1])
        if geometry.kind == "video":
            half = ceil(side / 2)
            return self._ended(_averaged(tiles, (half, half)).flatten(0, 2))
        if geometry.tiles is None:
            return self._ended(tokens)
        lines = self._lines(tiles[1:], geometry.tiles, geometry.used)
        return torch.cat((tiles[0].flatten(0, 1), lines))

    def _ended(self, features: Tensor) -> Tensor:
        return features if self._newline is None else torch.cat((features, self._newline[None]))

    def _lines(self, tiles: Tensor, grid: Size, used: Size) -> Tensor:
        """The picture's part of a field of tiles [tiles, side, side, hidden], line by line."""
        side, patch, most = self._config.tower.side, self._config.tower.patch_size, self._config.most_cells
        columns, rows = used[0] // patch, used[1] // patch
        left, top = (grid[0] * side - columns) // 2, (grid[1] * side - rows) // 2
        field = tiles.view(grid[1], grid[0], side, side, -1).transpose(1, 2)
        field = field.reshape(grid[1] * side, grid[0] * side, -1)
        shown = field[top : top + rows, left : left + columns]
        size = (columns, rows) if most is None else shrunk((columns, rows), most)
        if size != (columns, rows):
            shown = _averaged(shown[None], size)[0]
        if self._newline is not None:
            shown = torch.cat((shown, self._newline.expand(len(shown), 1, -1)), 1)
        return shown.flatten(0, 1)


def _averaged(maps: Tensor, size: Size) -> Tensor:
    """Maps [N, rows, columns, hidden] in bilinear interpolation at another size."""
    by_channel = maps.permute(0, 3, 1, 2).contiguous()
    return F.interpolate(by_channel, size[::-1], mode="bilinear").permute(0, 2, 3, 1)
