"""Transformer blocks of vision towers, over the patches of many pictures packed one behind the other.

Owns what Qwen2-VL to Qwen3-VL, CLIP, SigLIP and InternViT share: a layer in three resumable stages, the values it works
on, its slots in a name table, and the patch kernel that takes raw bytes. A tower of equal tiles is in tiled.py.

P packed rows (patches, and class tokens where a tower has them), H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from tapetum.core.errors import CheckpointError
from tapetum.core.files import ConfigReader
from tapetum.models.encoding import Stage
from tapetum.models.weights import Slot, Weights
from tapetum.ops.layout import Segments
from tapetum.ops.parts import has_gate
from tapetum.ops.table import Activation, Linear, OpTable

Norm = Callable[[Tensor], Tensor]
FLOAT32_WORK = 2.0  # of a multiply-add in float32, by one in bf16
ATTENTION_WORK = (
    1.5  # of a multiply-add in attention, with its share of the softmax, by one in a linear layer
)
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """`x + out(attention(norm1(x)))`, then `x + down(activation(in(norm2(x))))`."""

    width: int
    num_heads: int
    mlp_width: int
    activation: Activation  # of a gated one the gate and the values stand side by side in `in`
    eps: float
    norm: Literal["layer", "rms"] = "layer"
    has_qkv_bias: bool = True
    has_mlp_bias: bool = True
    has_qk_norm: bool = False  # InternViT 6B: RMSNorm over all heads of the queries, and of the keys

    @property
    def in_width(self) -> int:
        """Outputs of the first linear layer of the MLP."""
        return 2 * self.mlp_width if has_gate(self.activation) else self.mlp_width


def read_activation(reader: ConfigReader, key: str, default: str) -> Activation:
    """Of an MLP without a gate, by its name in transformers."""
    name = reader.word(key, default)
    if name not in _ACTIVATIONS:
        raise CheckpointError(
            f"{reader.name}: {key} is {name!r}, supported are {', '.join(_ACTIVATIONS)}; use another checkpoint"
        )
    return _ACTIVATIONS[name]


@dataclass(slots=True, eq=False)
class Batch:
    """Patches packed for one encode, and how far their values are."""

    x: Tensor  # [P, width], the residual stream
    qkv: Tensor  # [P, 3 H, D] of the layer at hand; what a query has attended to takes the query's place
    turns: tuple[Tensor, Tensor] | None = None  # rotary cos and sin, [P, 1, D] each
    keys: tuple[Tensor, ...] = ()

    @classmethod
    def empty(
        cls,
        config: BlockConfig,
        num_rows: int,
        dtype: torch.dtype,
        device: torch.device,
        turns: tuple[Tensor, Tensor] | None = None,
    ) -> Batch:
        heads, width = config.num_heads, config.width
        x = torch.empty(num_rows, width, dtype=dtype, device=device)
        qkv = torch.empty(num_rows, 3 * heads, width // heads, dtype=dtype, device=device)
        return cls(x, qkv, turns)

    def part(self, rows: slice) -> Batch:
        """A run of rows, in the same memory."""
        turns = None if self.turns is None else (self.turns[0][rows], self.turns[1][rows])
        return Batch(self.x[rows], self.qkv[rows], turns)


class Block:
    """One layer in three stages: all keys must be there before the first query attends, all else goes row by row."""

    def __init__(self, config: BlockConfig, weights: Weights, name: str, ops: OpTable) -> None:
        self._config, self._ops = config, ops
        self._norm1 = make_norm(config, weights, name + "norm1", ops)
        self._norm2 = make_norm(config, weights, name + "norm2", ops)
        self._qkv = make_linear(weights, name + "qkv", has_bias=config.has_qkv_bias)
        self._out = make_linear(weights, name + "out")
        self._in = make_linear(weights, name + "in", config.activation, has_bias=config.has_mlp_bias)
        self._down = make_linear(weights, name + "down", has_bias=config.has_mlp_bias)
        self._look_norms = tuple(
            weights.take(f"{name}{part}_norm.weight") for part in "qk" if config.has_qk_norm
        )

    def stages(self, batch: Batch, segments: Segments) -> Iterator[Stage]:
        """The layer over all rows, each of which sees its segment."""
        config, rows, width = self._config, len(batch.x), self._config.width
        scores = sum((end - start) ** 2 for start, end in segments.pairs()) / rows
        mlp = width * (config.in_width + config.mlp_width)
        yield Stage(rows, 3 * width**2, partial(self._project, batch))
        yield Stage(rows, ATTENTION_WORK * 2 * width * scores, partial(self._attend, batch, segments))
        yield Stage(rows, width**2 + mlp, partial(self._finish, batch))

    def _project(self, batch: Batch, start: int, end: int) -> None:
        rows, looking = slice(start, end), 2 * self._config.num_heads
        parts = self._qkv(self._norm1(batch.x[rows])).view(end - start, *batch.qkv.shape[1:])
        looks = parts[:, :looking]  # the queries, then the keys
        if self._look_norms:
            looks = self._normalised(looks)
        if batch.turns is not None:
            cos, sin = batch.turns
            looks = self._ops.rotate(looks, cos[rows], sin[rows])
        batch.qkv[rows, :looking] = looks
        batch.qkv[rows, looking:] = parts[:, looking:]

    def _normalised(self, looks: Tensor) -> Tensor:
        eps = self._config.eps
        sides = [
            self._ops.rms_norm(side.flatten(1), weight, eps)
            for side, weight in zip(looks.chunk(2, 1), self._look_norms, strict=True)
        ]
        return torch.cat(sides, 1).view(looks.shape)

    def _attend(self, batch: Batch, segments: Segments, start: int, end: int) -> None:
        q, k, v = batch.qkv.chunk(3, 1)
        if start == 0:
            batch.keys = self._ops.segment_keys(k, v, segments)
        q[start:end] = self._ops.segment_attention(q[start:end], start, batch.keys, segments)

    def _finish(self, batch: Batch, start: int, end: int) -> None:
        rows = slice(start, end)
        mixed = batch.qkv[rows, : self._config.num_heads].flatten(1)
        x = self._out(mixed, batch.x[rows])
        batch.x[rows] = self._down(self._in(self._norm2(x)), x)


def make_linear(
    weights: Weights, name: str, activation: Activation = "none", *, has_bias: bool = True
) -> Linear:
    return weights.linear(name + ".weight", name + ".bias" if has_bias else None, activation)


def make_norm(config: BlockConfig, weights: Weights, name: str, ops: OpTable) -> Norm:
    """The norm that the blocks of a tower have, with weights of its own."""
    weight, eps = weights.take(name + ".weight"), config.eps
    if config.norm == "rms":
        return lambda x: ops.rms_norm(x, weight, eps)
    bias = weights.take(name + ".bias")
    return lambda x: ops.layer_norm(x, weight, bias, eps)


def fold_normalisation(patch: Tensor, mean: Sequence[float], std: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Patch kernel [width, C, ...] for normalised pixels -> (weight [width, values], bias) for raw bytes.

    `W' = W / (255 σ_c)` and `b' = -Σ W μ_c / σ_c`, with b' taken from the rounded W' so that the mean cancels.
    """
    shape = (1, -1) + (1,) * (patch.dim() - 2)
    means = torch.tensor(mean, device=patch.device).view(shape)
    weight = patch / (255 * torch.tensor(std, device=patch.device).view(shape))
    bias = -(weight.double() * (255 * means)).flatten(1).sum(1).float()
    return weight.flatten(1).contiguous(), bias


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNames:
    """What a checkpoint calls the parts of a block; `scales` are layer scales, which are folded into the weights."""

    norm1: str
    qkv: tuple[str, ...]  # one matrix, or three that are put together
    out: str
    norm2: str
    mlp_in: tuple[str, ...]  # of a gated one the gate, then the values
    mlp_out: str
    qk_norms: tuple[str, str] | None = None
    scales: tuple[str, str] | None = None  # of the attention, of the MLP


def block_slots(config: BlockConfig, names: BlockNames, ours: str, theirs: str) -> tuple[Slot, ...]:
    """The slots of one block; `ours` and `theirs` are what its names begin with."""
    width, inner = config.width, config.mlp_width
    has_bias, has_norm_bias = config.has_mlp_bias, config.norm == "layer"
    scales = (None, None) if names.scales is None else tuple(theirs + scale for scale in names.scales)
    qkv, mlp_in = (tuple(theirs + part for part in parts) for parts in (names.qkv, names.mlp_in))
    slots = (
        *norm_slots(ours + "norm1", theirs + names.norm1, width, has_bias=has_norm_bias),
        *linear_slots(ours + "qkv", qkv, (3 * width, width), has_bias=config.has_qkv_bias),
        *linear_slots(ours + "out", (theirs + names.out,), (width, width), scale=scales[0]),
        *norm_slots(ours + "norm2", theirs + names.norm2, width, has_bias=has_norm_bias),
        *linear_slots(ours + "in", mlp_in, (config.in_width, width), has_bias=has_bias),
        *linear_slots(
            ours + "down", (theirs + names.mlp_out,), (width, inner), has_bias=has_bias, scale=scales[1]
        ),
    )
    if not config.has_qk_norm:
        return slots
    assert names.qk_norms is not None
    q_norm, k_norm = (theirs + name for name in names.qk_norms)
    return (
        *slots,
        *norm_slots(ours + "q_norm", q_norm, width, has_bias=False),
        *norm_slots(ours + "k_norm", k_norm, width, has_bias=False),
    )


def linear_slots(
    ours: str,
    theirs: tuple[str, ...],
    shape: tuple[int, ...],
    *,
    has_bias: bool = True,
    scale: str | None = None,
) -> tuple[Slot, ...]:
    """Weight and bias of linear layers put together; `scale` names a vector that multiplies the outputs."""
    shapes = {"weight": shape, "bias": shape[:1]} if has_bias else {"weight": shape}
    scales, convert = ((), None) if scale is None else ((scale,), _scaled)
    return tuple(
        Slot(f"{ours}.{kind}", (*(f"{part}.{kind}" for part in theirs), *scales), size, convert)
        for kind, size in shapes.items()
    )


def norm_slots(ours: str, theirs: str, width: int, *, has_bias: bool = True) -> tuple[Slot, ...]:
    kinds = ("weight", "bias") if has_bias else ("weight",)
    return tuple(Slot(f"{ours}.{kind}", (f"{theirs}.{kind}",), (width,)) for kind in kinds)


def _scaled(parts: list[Tensor]) -> Tensor:
    """A weight or bias [outputs, ...] times the scale of each output."""
    values, scale = parts
    return values.float() * scale.float().view(-1, *[1] * (values.dim() - 1))
