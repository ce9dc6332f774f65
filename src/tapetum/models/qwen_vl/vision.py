"""The vision tower of Qwen2-VL and Qwen2.5-VL over packed patches of many pictures and clips, with its merger.

P packed patches in merge order (the merge_size² patches of a visual token are neighbours), H heads, D head width.
Raw bytes come in: rescale and normalisation are folded into the patch embedding, and a still picture, whose frame the
reference model repeats, meets the sum of both temporal kernel slices. The embedding stays in float32: it sees
values up to 255, costs about one percent of the tower, and so loses nothing to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tapetum.core.media import Geometry
from tapetum.models.encoding import Encoding, Stage
from tapetum.models.vit import (
    FLOAT32_WORK,
    Batch,
    Block,
    BlockConfig,
    fold_normalisation,
    make_linear,
    make_norm,
)
from tapetum.models.weights import Weights
from tapetum.ops.layout import Segments, plan_segments
from tapetum.ops.table import OpTable

Grid = tuple[int, int, int]
ROPE_THETA = 10000.0
NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    depth: int
    width: int
    num_heads: int
    mlp_width: int
    out_width: int
    in_channels: int
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    has_layer_norm: bool  # Qwen2-VL: LayerNorm and a plain MLP; Qwen2.5-VL: RMSNorm and a gated one
    has_gated_mlp: bool
    window_size: int  # pixels; 0 = every layer sees the whole picture
    full_attention_layers: frozenset[int]
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]

    @property
    def block(self) -> BlockConfig:
        return BlockConfig(
            width=self.width,
            num_heads=self.num_heads,
            mlp_width=self.mlp_width,
            activation="silu_mul" if self.has_gated_mlp else "quick_gelu",
            eps=NORM_EPS,
            norm="layer" if self.has_layer_norm else "rms",
        )


@dataclass(slots=True, eq=False)
class Work:
    """Pictures and clips packed for one encode, and what has come of them."""

    batch: Batch
    merged: Tensor  # [visual tokens, out width]
    whole: Segments  # one segment a frame
    windows: Segments  # one segment a window; same as `whole` without windows
    order: Tensor | None  # [visual tokens] window order -> merge order, None if they are the same
    places: Tensor | None  # [P] the same for patches, the other way round


class VisionTower:
    def __init__(self, config: VisionConfig, weights: Weights, ops: OpTable) -> None:
        self._config, self._ops = config, ops
        patch = weights.take("visual.patch").float()  # [width, C, t, y, x]
        self._embeddings = {
            kernel[0].numel(): ops.linear(
                *fold_normalisation(kernel, config.image_mean, config.image_std), "none"
            )
            for kernel in (patch.sum(2), patch)
        }  # by the number of values in a patch
        self._dtype, self._device = weights.dtype, patch.device
        self._blocks = [Block(config.block, weights, f"visual.{i}.", ops) for i in range(config.depth)]
        self._merger = Merger(config, weights, ops)
        width = config.width // config.num_heads // 2
        step = torch.arange(0, width, 2, device=self._device, dtype=torch.float32) / width
        self._frequencies = (ROPE_THETA**-step).repeat(2)  # [D / 2]: of the row, then of the column
        self._axes = torch.arange(2, device=self._device).repeat_interleave(len(step))

    def begin(self, patches: Sequence[Tensor], geometries: Sequence[Geometry]) -> Encoding:
        """uint8 patches [P_i, values] -> an encode of [tokens_i, out width] each."""
        grids = [geometry.grid_thw for geometry in geometries]
        for item, (t, h, w) in zip(patches, grids, strict=True):
            if item.shape[0] != t * h * w or item.shape[1] not in self._embeddings:
                raise ValueError(
                    f"patches have shape {tuple(item.shape)}, grid {t} x {h} x {w} wants another"
                )
        work = self._pack(grids)
        sizes = [t * h * w // self._config.merge_size**2 for t, h, w in grids]
        return Encoding(self._stages(work, patches), collect=lambda: list(torch.split(work.merged, sizes)))

    def _stages(self, work: Work, patches: Sequence[Tensor]) -> Iterator[Stage]:
        config, width = self._config, self._config.width
        first = 0
        for item in patches:
            yield Stage(
                len(item), FLOAT32_WORK * item.shape[1] * width, partial(self._embed, work, item, first)
            )
            first += len(item)
        for index, block in enumerate(self._blocks):
            is_whole = index in config.full_attention_layers
            yield from block.stages(work.batch, work.whole if is_whole else work.windows)
        wide = width * config.merge_size**2
        yield Stage(len(work.merged), wide * (wide + config.out_width), partial(self._merge, work))

    def _embed(self, work: Work, patches: Tensor, first: int, start: int, end: int) -> None:
        """Patches [start, end) of an item that is packed from `first` on."""
        embedded = self._embeddings[patches.shape[1]](patches[start:end].float()).to(self._dtype)
        part = slice(first + start, first + end)
        if work.places is None:
            work.batch.x[part] = embedded
        else:
            work.batch.x.index_copy_(0, work.places[part], embedded)

    def _merge(self, work: Work, start: int, end: int) -> None:
        unit = self._config.merge_size**2
        merged = self._merger(work.batch.x[start * unit : end * unit])
        if work.order is None:
            work.merged[start:end] = merged
        else:
            work.merged.index_copy_(0, work.order[start:end], merged)

    def _pack(self, grids: Sequence[Grid]) -> Work:
        config = self._config
        coordinates = torch.cat(
            [merge_order_coordinates(grid, config.merge_size) for grid in grids]
        )  # [P, 2]
        whole = [h * w for t, h, w in grids for _ in range(t)]
        order, places, windows = None, None, whole
        if config.window_size:
            order, windows = window_order(grids, config)
            patches = torch.arange(len(coordinates)).view(len(order), -1)[order].flatten()
            coordinates, places = coordinates[patches], patches.argsort().to(self._device)
            order = order.to(self._device)
        turns = self._ops.turns(coordinates.t().to(self._device), self._axes, self._frequencies, self._dtype)
        num_patches = len(coordinates)
        return Work(
            batch=Batch.empty(config.block, num_patches, self._dtype, self._device, turns),
            merged=torch.empty(
                num_patches // config.merge_size**2, config.out_width, dtype=self._dtype, device=self._device
            ),
            whole=plan_segments(whole),
            windows=plan_segments(windows),
            order=order,
            places=places,
        )


class Merger:
    """The projector: normalise, put merge_size² neighbours side by side, two linears with GELU between."""

    def __init__(self, config: VisionConfig, weights: Weights, ops: OpTable) -> None:
        self._norm = make_norm(config.block, weights, "visual.merger.norm", ops)
        self._in = make_linear(weights, "visual.merger.in", "gelu")
        self._out = make_linear(weights, "visual.merger.out")
        self._width = config.width * config.merge_size**2

    def __call__(self, x: Tensor) -> Tensor:
        return self._out(self._in(self._norm(x).view(-1, self._width)))


def merge_order_coordinates(grid: Grid, merge: int) -> Tensor:
    """(row, column) of each patch of a grid, in merge order: [t h w, 2]."""
    t, h, w = grid
    rows = torch.arange(h).view(h, 1).expand(h, w)
    columns = torch.arange(w).view(1, w).expand(h, w)
    both = torch.stack((rows, columns), -1).view(h // merge, merge, w // merge, merge, 2)
    return both.transpose(1, 2).reshape(h * w, 2).repeat(t, 1)


def window_order(grids: Sequence[Grid], config: VisionConfig) -> tuple[Tensor, list[int]]:
    """Visual tokens sorted by window, and the patches of each window.

    Windows are squares of window_size pixels, cut off at the right and bottom edge. Within each frame the full
    ones come first and equal sizes stay together, so that attention runs over few groups; the order is undone after
    the merger and no value depends on it.
    """
    side = config.window_size // config.patch_size // config.merge_size
    unit = config.merge_size**2
    order: list[Tensor] = []
    sizes: list[int] = []
    start = 0
    for t, height, width in grids:
        h, w = height // config.merge_size, width // config.merge_size
        index = torch.arange(h * w).view(h, w)
        windows = [
            index[y : y + side, x : x + side].flatten() for y in range(0, h, side) for x in range(0, w, side)
        ]
        windows.sort(key=len, reverse=True)
        for _ in range(t):
            order += [window + start for window in windows]
            sizes += [len(window) * unit for window in windows]
            start += h * w
    return torch.cat(order), sizes
