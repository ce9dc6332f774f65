"""From what a vision tower says of patches to visual tokens of the decoder's width.

Owns the last stage of an encode of equal tiles, which towers and projectors of many families share, and the
rearrangements before the linear layers. A projector is a function of a run of visual tokens, counted over all tiles of
all items, and of the tower's rows; so it is cut like any other stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain

import torch
from torch import Tensor

from tapetum.core.media import Geometry
from tapetum.models.encoding import Encoding, KnownParts, Stage
from tapetum.models.tiled import TiledTower
from tapetum.models.vit import Batch, linear_slots, make_linear
from tapetum.models.weights import Slot, Weights
from tapetum.ops.table import Activation

Rows = Callable[[int, int], Tensor]  # patches [start, end) of all tiles -> [patches, width]
Project = Callable[[Rows, int, int], Tensor]  # visual tokens [start, end) of all tiles -> [tokens, out width]
Arrange = Callable[[Tensor, Geometry], Tensor]  # the tokens of all tiles of an item -> its features


class TileEncoder:
    """A tower and a projector that makes equally many tokens of each tile: a `composed.PictureEncoder`.

    `work` are the multiply-adds of a token in the projector; `arrange` makes something else of the tokens of an item
    than one behind the other.
    """

    def __init__(
        self,
        tower: TiledTower,
        project: Project,
        *,
        tile_tokens: int,
        out_width: int,
        work: float,
        arrange: Arrange | None = None,
    ) -> None:
        self._tower, self._project, self._arrange = tower, project, arrange
        self._tile_tokens, self._out_width, self._work = tile_tokens, out_width, work

    def begin(
        self, patches: Sequence[Tensor], geometries: Sequence[Geometry], known: Sequence[KnownParts] = ()
    ) -> Encoding:
        tower = self._tower
        counts = [geometry.grid_thw[0] for geometry in geometries]
        tiles = [None] * len(counts) if not known else [each.tiles for each in known]
        wanted = [range(count) if own is None else own for count, own in zip(counts, tiles, strict=True)]
        batch = tower.pack(patches, geometries, [len(own) for own in wanted])
        sizes = [count * self._tile_tokens for count in counts]
        tokens = torch.empty(sum(sizes), self._out_width, dtype=tower.dtype, device=tower.device)
        places = self._places(counts, wanted)
        last = Stage(len(places), self._work, partial(self._fill, tokens, places, batch))
        stages = chain(tower.stages(batch, patches), [last]) if len(places) else ()
        return Encoding(stages, collect=lambda: self._collect(torch.split(tokens, sizes), geometries))

    def _places(self, counts: Sequence[int], wanted: Sequence[Sequence[int]]) -> Tensor:
        """Where the tokens of the wanted tiles lie among those of all."""
        firsts = accumulate(counts, initial=0)
        tiles = [first + tile for first, own in zip(firsts, wanted, strict=False) for tile in own]
        each = torch.arange(self._tile_tokens, device=self._tower.device)
        starts = torch.tensor(tiles, dtype=torch.int64, device=self._tower.device) * self._tile_tokens
        return (starts[:, None] + each).flatten()

    def _collect(self, tokens: Sequence[Tensor], geometries: Sequence[Geometry]) -> list[Tensor]:
        if self._arrange is None:
            return list(tokens)
        return [self._arrange(*pair) for pair in zip(tokens, geometries, strict=True)]

    def _fill(self, tokens: Tensor, places: Tensor, batch: Batch, start: int, end: int) -> None:
        made = self._project(partial(self._tower.rows, batch), start, end)
        tokens.index_copy_(0, places[start:end], made)


class Mlp:
    """Two linear layers with an activation between them."""

    def __init__(
        self, weights: Weights, name: str, activation: Activation = "gelu", *, has_bias: bool = True
    ) -> None:
        self._in = make_linear(weights, name + "in", activation, has_bias=has_bias)
        self._out = make_linear(weights, name + "out", has_bias=has_bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self._out(self._in(x))


def mlp_slots(
    ours: str, theirs: tuple[str, str], widths: tuple[int, int, int], *, has_bias: bool = True
) -> tuple[Slot, ...]:
    """`theirs` names both layers, `widths` what goes in, between and out."""
    width, inner, out = widths
    return (
        *linear_slots(ours + "in", theirs[:1], (inner, width), has_bias=has_bias),
        *linear_slots(ours + "out", theirs[1:], (out, inner), has_bias=has_bias),
    )


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
