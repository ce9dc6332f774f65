"""Every operation in its plainest form, computed in float32: the oracle for the fast paths.

T packed tokens, H query heads, K key-value heads, D head width, P patches, N cache blocks, S block size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tapetum.ops.layout import AttentionLayout, Segments


class Linear:
    """`activation(x @ weight.T + bias) + residual`; weight [out, in], with a gate [2 out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> None:
        self.weight, self.bias, self._activate = weight, bias, ACTIVATIONS[activation]

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        wide = F.linear(x.float(), self.weight.float(), None if self.bias is None else self.bias.float())
        wide = self._activate(wide)
        return (wide if residual is None else wide + residual.float()).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square normalisation over the last axis (Zhang and Sennrich, 2019).

    Rounded before a weight of the dtype of x; a float32 weight is one that the value is not rounded before.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight * (wide * scale).to(weight.dtype)).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [T, H, D]; cos, sin [T, 1, D] with the sign of the rotation already in sin."""
    first, second = x.float().chunk(2, -1)
    return (x.float() * cos.float() + torch.cat((second, first), -1) * sin.float()).to(x.dtype)


def turns(positions: Tensor, axes: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What `rotate` takes, cos and signed sin [T, 1, D]: positions [A, T] on A axes, the axis and the frequency
    (float32, angle a step) of each pair of values [D / 2]."""
    angles = positions[axes].t().float() * frequencies  # [T, D / 2]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1)[:, None].to(dtype), torch.cat((-sin, sin), -1)[:, None].to(dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer normalisation over the last axis (Ba et al., 2016)."""
    return F.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def segment_keys(k: Tensor, v: Tensor, segments: Segments) -> tuple[Tensor, ...]:
    """Packed keys and values [P, H, D] in the form that `segment_attention` reads."""
    return k, v


def segment_attention(q: Tensor, first: int, keys: tuple[Tensor, ...], segments: Segments) -> Tensor:
    """Bidirectional attention inside each segment for the packed queries [first, first + Q): q [Q, H, D] -> same."""
    k, v = keys
    out = torch.empty_like(q)
    for start, end in segments.pairs():
        low, high = max(start, first), min(end, first + len(q))
        if low < high:
            part = slice(low - first, high - first)
            out[part] = _attend(q[part], k[start:end], v[start:end], None)
    return out


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def gelu_tanh(x: Tensor) -> Tensor:
    """The approximation of Hendrycks and Gimpel (2016)."""
    return F.gelu(x, approximate="tanh")


def silu_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU gate: [T, 2 I] -> [T, I]."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """GeGLU gate: [T, 2 I] -> [T, I]."""
    gate, up = gate_up.chunk(2, -1)
    return gelu_tanh(gate) * up


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "silu_mul": silu_mul,
    "gelu_tanh": gelu_tanh,
    "gelu_tanh_mul": gelu_tanh_mul,
}


def write_kv(cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Put k, v [T, K, D] at `slots` of cache [2 K, N, S, D], keys first."""
    flat = cache.flatten(1, 2)
    heads = k.shape[1]
    for token, slot in enumerate(slots.tolist()):
        flat[:heads, slot] = k[token]
        flat[heads:, slot] = v[token]


def read_kv(cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """What lies at `slots` of cache [2 K, N, S, D]: keys and values, [T, K, D] each."""
    found = cache.flatten(1, 2).index_select(1, slots).transpose(0, 1)  # [T, 2 K, D]
    keys, values = found.chunk(2, 1)
    return keys, values


def paged_attention(q: Tensor, cache: Tensor, layout: AttentionLayout, window: int = 0) -> Tensor:
    """Attention of packed q [T, H, D] over each row's blocks -> [T, H, D].

    The token at position p sees the keys [max(0, p - window + 1), reach), where reach is p + 1 unless the layout says
    more, and without a window (0) those from 0 on. So a window cuts off what lies too far before a token, also of its
    own picture, and never what lies behind it in its picture: as transformers composes the masks of Gemma 3's local
    layers, window AND (causal OR same picture).
    """
    out = torch.empty_like(q)
    for start, length, context, first in layout.rows.tolist():
        count = -(-(context + length) // layout.block_size)
        part = slice(start, start + length)
        own = torch.arange(context + 1, context + length + 1)
        reach = own if layout.reach is None else layout.reach[part]
        hidden = hidden_keys(own, reach, context + length, window).to(q.device)
        out[part] = _attend_cache(q[part], cache, layout.blocks[first : first + count], hidden)
    return out


def hidden_keys(own: Tensor, reach: Tensor, total: int, window: int) -> Tensor:
    """Which of `total` keys each query does not see, bool [queries, total]; `own` is its position + 1."""
    position = torch.arange(total, device=own.device)
    hidden = position >= reach[:, None]
    return hidden | (position < own[:, None] - window) if window else hidden


def _attend_cache(q: Tensor, cache: Tensor, blocks: Tensor, hidden: Tensor) -> Tensor:
    total = hidden.shape[1]
    flat = cache[:, blocks.to(cache.device)].flatten(1, 2)[:, :total]  # [2 K, total, D]
    k, v = flat.chunk(2, 0)
    groups = q.shape[1] // k.shape[0]
    return _attend(
        q,
        k.repeat_interleave(groups, 0).transpose(0, 1),
        v.repeat_interleave(groups, 0).transpose(0, 1),
        hidden,
    )


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * q.shape[-1] ** -0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.float()).to(q.dtype)
