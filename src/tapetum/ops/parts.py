"""What a decoder is made of, for operations that run all of it at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from tapetum.ops.layout import AttentionLayout

Activation = Literal["none", "quick_gelu", "gelu", "silu_mul", "gelu_tanh", "gelu_tanh_mul"]


def has_gate(activation: Activation) -> bool:
    """Whether a weight holds the rows of a gate, then as many of the values it is multiplied with."""
    return activation in ("silu_mul", "gelu_tanh_mul")


class Linear(Protocol):
    """activation(x @ weight.T + bias) + residual."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class GatedMlp:
    gate_up: Linear
    down: Linear

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.down(self.gate_up(x), residual)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    norm1: Tensor  # [hidden]
    qkv: Linear
    q_norm: Tensor | None = None  # [D], of each query head
    k_norm: Tensor | None = None
    turns: int = 0  # which of the tables turns queries and keys
    window: int = 0  # tokens that it looks back on, its own included; 0 = all
    out: Linear
    post1: Tensor | None = None  # [hidden], of what attention adds
    norm2: Tensor
    mlp: Linear
    post2: Tensor | None = None  # of what the MLP adds


@dataclass(frozen=True, slots=True)
class TurnTable:
    """How positions turn pairs of values."""

    axes: Tensor  # [D / 2] int64, the axis of the positions
    frequencies: Tensor  # [D / 2] float32, angle a step
    scale: float = 1.0  # of cosines and sines


@dataclass(frozen=True, slots=True)
class DeepFeatures:
    """Values [end - start, levels x hidden] for packed tokens [start, end): level i is added behind layer i."""

    start: int
    end: int
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParts:
    layers: tuple[LayerParts, ...]
    norm: Tensor  # after the last layer
    turns: tuple[TurnTable, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    dtype: torch.dtype  # of all but the weights of norms, which may be float32


# (x [T, hidden], which is used up, positions [axes, T], caches, layout, deep) -> normalised hidden states [R, hidden]
RunDecoder = Callable[[Tensor, Tensor, Sequence[Tensor], AttentionLayout, Sequence[DeepFeatures]], Tensor]


def num_levels(deep: Sequence[DeepFeatures], hidden: int) -> int:
    """How many layers add something."""
    return max((run.values.shape[1] // hidden for run in deep), default=0)
