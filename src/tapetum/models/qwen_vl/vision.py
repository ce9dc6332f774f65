"""The vision tower of Qwen2-VL and Qwen2.5-VL over packed patches of many pictures and clips, with its merger.

P packed patches in merge order (the merge_size² patches of a visual token are neighbours), H heads, D head width.
Raw bytes come in: rescale and normalisation are folded into the patch embedding, and a still picture, whose frame the
reference model repeats, meets the sum of both temporal kernel slices. The embedding stays in float32: it sees
values up to 255, costs about one percent of the tower, and so loses nothing to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tapetum.core.media import Geometry
from tapetum.models.encoding import Encoding, Stage
from tapetum.models.weights import Weights
from tapetum.ops.layout import Segments, plan_segments
from tapetum.ops.table import Activation, Linear, OpTable

Grid = tuple[int, int, int]
ROPE_THETA = 10000.0
NORM_EPS = 1e-6
FLOAT32_WORK = 2.0  # of a multiply-add in float32, by one in bf16
ATTENTION_WORK = (
    1.5  # of a multiply-add in attention, with its share of the softmax, by one in a linear layer
)


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


@dataclass(slots=True, eq=False)
class Batch:
    """Pictures and clips packed for one encode, and how far their values are."""

    x: Tensor  # [P, width], the residual stream
    qkv: Tensor  # [P, 3 H, D] of the layer at hand; what a query has attended to takes the query's place
    merged: Tensor  # [visual tokens, out width]
    cos: Tensor  # [P, 1, D]
    sin: Tensor
    whole: Segments  # one segment a frame
    windows: Segments  # one segment a window; same as `whole` without windows
    order: Tensor | None  # [visual tokens] window order -> merge order, None if they are the same
    places: Tensor | None  # [P] the same for patches, the other way round
    keys: tuple[Tensor, ...] = ()


class VisionTower:
    def __init__(self, config: VisionConfig, weights: Weights, ops: OpTable) -> None:
        self._config, self._ops = config, ops
        patch = weights.take("visual.patch").float()  # [width, C, t, y, x]
        self._embeddings = {
            kernel[0].numel(): ops.linear(*fold_normalisation(kernel, config), "none")
            for kernel in (patch.sum(2), patch)
        }  # by the number of values in a patch
        self._dtype, self._device = weights.dtype, patch.device
        self._blocks = [Block(config, weights, f"visual.{i}.", ops) for i in range(config.depth)]
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
        batch = self._pack(grids)
        sizes = [t * h * w // self._config.merge_size**2 for t, h, w in grids]
        return Encoding(self._stages(batch, patches), collect=lambda: list(torch.split(batch.merged, sizes)))

    def _stages(self, batch: Batch, patches: Sequence[Tensor]) -> Iterator[Stage]:
        config, num_patches, width = self._config, len(batch.x), self._config.width
        first = 0
        for item in patches:
            work = FLOAT32_WORK * item.shape[1] * width
            yield Stage(len(item), work, partial(self._embed, batch, item, first))
            first += len(item)
        mlp = (3 if config.has_gated_mlp else 2) * width * config.mlp_width
        for index, block in enumerate(self._blocks):
            segments = batch.whole if index in config.full_attention_layers else batch.windows
            scores = sum((end - start) ** 2 for start, end in segments.pairs()) / num_patches
            yield Stage(num_patches, 3 * width**2, partial(block.project, batch))
            yield Stage(
                num_patches, ATTENTION_WORK * 2 * width * scores, partial(block.attend, batch, segments)
            )
            yield Stage(num_patches, width**2 + mlp, partial(block.finish, batch))
        wide = width * config.merge_size**2
        yield Stage(len(batch.merged), wide * (wide + config.out_width), partial(self._merge, batch))

    def _embed(self, batch: Batch, patches: Tensor, first: int, start: int, end: int) -> None:
        """Patches [start, end) of an item that is packed from `first` on."""
        embedded = self._embeddings[patches.shape[1]](patches[start:end].float()).to(self._dtype)
        part = slice(first + start, first + end)
        if batch.places is None:
            batch.x[part] = embedded
        else:
            batch.x.index_copy_(0, batch.places[part], embedded)

    def _merge(self, batch: Batch, start: int, end: int) -> None:
        unit = self._config.merge_size**2
        merged = self._merger(batch.x[start * unit : end * unit])
        if batch.order is None:
            batch.merged[start:end] = merged
        else:
            batch.merged.index_copy_(0, batch.order[start:end], merged)

    def _pack(self, grids: Sequence[Grid]) -> Batch:
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
        cos, sin = self._ops.turns(
            coordinates.t().to(self._device), self._axes, self._frequencies, self._dtype
        )
        num_patches, heads = len(coordinates), config.num_heads
        return Batch(
            x=self._empty(num_patches, config.width),
            qkv=self._empty(num_patches, 3 * heads, config.width // heads),
            merged=self._empty(num_patches // config.merge_size**2, config.out_width),
            cos=cos,
            sin=sin,
            whole=plan_segments(whole),
            windows=plan_segments(windows),
            order=order,
            places=places,
        )

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)


class Block:
    """One layer in three stages: all keys must be there before the first query attends, all else goes row by row."""

    def __init__(self, config: VisionConfig, weights: Weights, name: str, ops: OpTable) -> None:
        self._num_heads, self._ops = config.num_heads, ops
        self._norm1 = make_norm(config, weights, name + "norm1", ops)
        self._norm2 = make_norm(config, weights, name + "norm2", ops)
        self._qkv = make_linear(weights, name + "qkv")
        self._out = make_linear(weights, name + "out")
        self._in = make_linear(weights, name + "in", "silu_mul" if config.has_gated_mlp else "quick_gelu")
        self._down = make_linear(weights, name + "down")

    def project(self, batch: Batch, start: int, end: int) -> None:
        rows, turning = slice(start, end), 2 * self._num_heads
        parts = self._qkv(self._norm1(batch.x[rows])).view(end - start, 3 * self._num_heads, -1)
        batch.qkv[rows, :turning] = self._ops.rotate(parts[:, :turning], batch.cos[rows], batch.sin[rows])
        batch.qkv[rows, turning:] = parts[:, turning:]

    def attend(self, batch: Batch, segments: Segments, start: int, end: int) -> None:
        q, k, v = batch.qkv.chunk(3, 1)
        if start == 0:
            batch.keys = self._ops.segment_keys(k, v, segments)
        q[start:end] = self._ops.segment_attention(q[start:end], start, batch.keys, segments)

    def finish(self, batch: Batch, start: int, end: int) -> None:
        rows = slice(start, end)
        mixed = batch.qkv[rows, : self._num_heads].flatten(1)
        x = self._out(mixed, batch.x[rows])
        batch.x[rows] = self._down(self._in(self._norm2(x)), x)


class Merger:
    """The projector: normalise, put merge_size² neighbours side by side, two linears with GELU between."""

    def __init__(self, config: VisionConfig, weights: Weights, ops: OpTable) -> None:
        self._norm = make_norm(config, weights, "visual.merger.norm", ops)
        self._in = make_linear(weights, "visual.merger.in", "gelu")
        self._out = make_linear(weights, "visual.merger.out")
        self._width = config.width * config.merge_size**2

    def __call__(self, x: Tensor) -> Tensor:
        return self._out(self._in(self._norm(x).view(-1, self._width)))


def make_linear(weights: Weights, name: str, activation: Activation = "none") -> Linear:
    return weights.linear(name + ".weight", name + ".bias", activation)


def make_norm(config: VisionConfig, weights: Weights, name: str, ops: OpTable) -> Callable[[Tensor], Tensor]:
    weight = weights.take(name + ".weight")
    if config.has_layer_norm:
        bias = weights.take(name + ".bias")
        return lambda x: ops.layer_norm(x, weight, bias, NORM_EPS)
    return lambda x: ops.rms_norm(x, weight, NORM_EPS)


def fold_normalisation(patch: Tensor, config: VisionConfig) -> tuple[Tensor, Tensor]:
    """Patch kernel [width, C, ...] for normalised pixels -> (weight [width, values], bias) for raw bytes.

    `W' = W / (255 σ_c)` and `b' = -Σ W μ_c / σ_c`, with b' taken from the rounded W' so that the mean cancels.
    """
    shape = (1, -1) + (1,) * (patch.dim() - 2)
    mean = torch.tensor(config.image_mean, device=patch.device).view(shape)
    std = torch.tensor(config.image_std, device=patch.device).view(shape)
    weight = patch / (255 * std)
    bias = -(weight.double() * (255 * mean)).flatten(1).sum(1).float()
    return weight.flatten(1).contiguous(), bias


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
