"""The vision tower of Qwen2-VL and Qwen2.5-VL over packed patches of many pictures and clips, with its merger.

P packed patches in merge order (the merge_size² patches of a visual token are neighbours), H heads, D head width.
Raw bytes come in: rescale and normalisation are folded into the patch embedding, and a still picture, whose frame the
reference model repeats, meets the sum of both temporal kernel slices. The embedding stays in float32: it sees
values up to 255, costs about one percent of the tower, and so loses nothing to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tapetum.ops.layout import Segments, plan_segments
from tapetum.ops.table import Activation, Linear, OpTable

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


@dataclass(frozen=True, slots=True)
class Packing:
    """Attention segments and rotary angles of one packed batch."""

    whole: Segments  # one segment a frame
    windows: Segments  # one segment a window; same as `whole` without windows
    order: Tensor | None  # [visual tokens] window order -> merge order, None if they are the same
    cos: Tensor  # [P, 1, D]
    sin: Tensor


class VisionTower:
    def __init__(self, config: VisionConfig, weights: MutableMapping[str, Tensor], ops: OpTable) -> None:
        self._config, self._ops = config, ops
        patch = weights.pop("visual.patch").float()  # [width, C, t, y, x]
        self._still = fold_normalisation(patch.sum(2), config)
        self._moving = fold_normalisation(patch, config)
        self.dtype = weights["visual.0.norm1.weight"].dtype
        self._blocks = [Block(config, weights, f"visual.{i}.", ops) for i in range(config.depth)]
        self._merger = Merger(config, weights, ops)
        width = config.width // config.num_heads // 2
        step = torch.arange(0, width, 2, device=patch.device, dtype=torch.float32) / width
        self._frequencies = ROPE_THETA**-step  # [D / 4]

    def __call__(self, patches: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """uint8 patches [P_i, values] with grids (t, h, w) -> features [tokens_i, out width] each."""
        unit = self._config.merge_size**2
        x = torch.cat([self._embed(item) for item in patches])  # [P, width]
        packing = self._pack(grids)
        if packing.order is not None:
            x = x.view(-1, unit, x.shape[-1])[packing.order].flatten(0, 1)
        for index, block in enumerate(self._blocks):
            is_whole = index in self._config.full_attention_layers
            x = block(x, packing.cos, packing.sin, packing.whole if is_whole else packing.windows)
        merged = self._merger(x)
        if packing.order is not None:
            merged = torch.empty_like(merged).index_copy_(0, packing.order, merged)
        return list(torch.split(merged, [t * h * w // unit for t, h, w in grids]))

    def _embed(self, patches: Tensor) -> Tensor:
        weight, bias = self._still if patches.shape[1] == self._still[0].shape[1] else self._moving
        return F.linear(patches.float(), weight, bias).to(self.dtype)

    def _pack(self, grids: Sequence[Grid]) -> Packing:
        config = self._config
        coordinates = torch.cat(
            [merge_order_coordinates(grid, config.merge_size) for grid in grids]
        )  # [P, 2]
        whole = [h * w for t, h, w in grids for _ in range(t)]
        order, windows = None, whole
        if config.window_size:
            order, windows = window_order(grids, config)
            unit = config.merge_size**2
            coordinates = coordinates.view(-1, unit, 2)[order].flatten(0, 1)
            order = order.to(self._frequencies.device)
        angles = (
            coordinates.to(self._frequencies.device).float()[..., None] * self._frequencies
        )  # [P, 2, D / 4]
        angles = angles.flatten(1)
        cos, sin = angles.cos(), angles.sin()
        return Packing(
            whole=plan_segments(whole),
            windows=plan_segments(windows),
            order=order,
            cos=torch.cat((cos, cos), -1)[:, None].to(self.dtype),
            sin=torch.cat((-sin, sin), -1)[:, None].to(self.dtype),
        )


class Block:
    def __init__(
        self, config: VisionConfig, weights: MutableMapping[str, Tensor], name: str, ops: OpTable
    ) -> None:
        self._num_heads, self._ops = config.num_heads, ops
        self._norm1 = make_norm(config, weights, name + "norm1", ops)
        self._norm2 = make_norm(config, weights, name + "norm2", ops)
        self._qkv = make_linear(weights, name + "qkv", ops)
        self._out = make_linear(weights, name + "out", ops)
        self._in = make_linear(
            weights, name + "in", ops, "silu_mul" if config.has_gated_mlp else "quick_gelu"
        )
        self._down = make_linear(weights, name + "down", ops)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, segments: Segments) -> Tensor:
        heads = self._num_heads
        parts = self._qkv(self._norm1(x)).view(len(x), 3 * heads, -1)  # [P, 3 H, D]
        turned = self._ops.rotate(parts[:, : 2 * heads], cos, sin)
        keys = self._ops.segment_keys(turned[:, heads:], parts[:, 2 * heads :], segments)
        mixed = self._ops.segment_attention(turned[:, :heads], 0, keys, segments)
        x = self._out(mixed.flatten(1), x)
        return self._down(self._in(self._norm2(x)), x)


class Merger:
    """The projector: normalise, put merge_size² neighbours side by side, two linears with GELU between."""

    def __init__(self, config: VisionConfig, weights: MutableMapping[str, Tensor], ops: OpTable) -> None:
        self._norm = make_norm(config, weights, "visual.merger.norm", ops)
        self._in = make_linear(weights, "visual.merger.in", ops, "gelu")
        self._out = make_linear(weights, "visual.merger.out", ops)
        self._width = config.width * config.merge_size**2

    def __call__(self, x: Tensor) -> Tensor:
        return self._out(self._in(self._norm(x).view(-1, self._width)))


def make_linear(
    weights: MutableMapping[str, Tensor], name: str, ops: OpTable, activation: Activation = "none"
) -> Linear:
    return ops.linear(weights.pop(name + ".weight"), weights.pop(name + ".bias"), activation)


def make_norm(
    config: VisionConfig, weights: MutableMapping[str, Tensor], name: str, ops: OpTable
) -> Callable[[Tensor], Tensor]:
    weight = weights.pop(name + ".weight")
    if config.has_layer_norm:
        bias = weights.pop(name + ".bias")
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
