"""Attention with one softmax over all keys, written for short sequences on a CPU. S positions, D head width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_LONG = 512  # keys from which on the fused kernel is quicker than products of whole matrices


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split form of Qwen2; cos and sin have half the width of x."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """[N, S, D] each, bias [N, S, S] added to the scores. Returns the outputs and the probabilities [N, S, S]."""
    queries = queries * queries.shape[-1] ** -0.5
    if bias is None:
        scores = torch.bmm(queries, keys.transpose(1, 2))
    else:
        scores = torch.baddbmm(bias, queries, keys.transpose(1, 2))
    probabilities = scores.softmax(-1)
    return torch.bmm(probabilities, values), probabilities


def attend_without_bias(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[N, S, D] each; the probabilities are not kept."""
    if keys.shape[1] < _LONG:
        return attend(queries, keys, values)[0]
    return F.scaled_dot_product_attention(queries[None], keys[None], values[None])[0]
