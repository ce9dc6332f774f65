"""Tokens that a request forbids or favours, whatever the model makes of them.

Pure functions that change float32 scores [R, V] in place, row by row; what a request asks for is the sampler's. Order
as in vLLM: what a grammar forbids, ends that come too early, biases; penalties and the draw come after. `V` may be
wider than the vocabulary of the tokenizer: the rows beyond it are no tokens, and a mask forbids them.

R rows, V vocabulary, M rows concerned, N pairs of a row and a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor


def keep_allowed(scores: Tensor, masks: Mapping[int, bytes]) -> None:
    """Forbid all tokens but those of the mask of a row, whose bits begin with the lowest of the first byte."""
    if not masks:
        return
    width = scores.shape[1]
    num_bytes = -(-width // 8)
    packed = b"".join(mask[:num_bytes].ljust(num_bytes, b"\0") for mask in masks.values())
    bits = np.unpackbits(~np.frombuffer(packed, np.uint8), bitorder="little")
    forbidden = (
        torch.from_numpy(bits.view(np.bool_)).view(len(masks), -1)[:, :width].to(scores.device)
    )  # [M, V]
    for place, row in enumerate(masks):
        scores[row].masked_fill_(forbidden[place], -torch.inf)


def hold_back(scores: Tensor, ends: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Forbid the ends of a row, unless nothing else is left to it."""
    if not ends:
        return
    rows = torch.tensor([row for row, _ in ends], device=scores.device)
    held = scores[rows]  # [M, V], a copy
    pairs = [(place, end) for place, (_, ids) in enumerate(ends) for end in ids if end < scores.shape[1]]
    held[_columns(pairs, scores)] = -torch.inf
    is_left = held.amax(-1, keepdim=True) > -torch.inf
    scores[rows] = held.where(is_left, scores[rows])


def add_bias(scores: Tensor, biases: Sequence[tuple[int, Mapping[int, float]]]) -> None:
    """Add to the scores of single tokens."""
    if not biases:
        return
    pairs = [(row, token_id) for row, bias in biases for token_id in bias]
    values = [value for _, bias in biases for value in bias.values()]
    scores[_columns(pairs, scores)] += torch.tensor(values, dtype=scores.dtype, device=scores.device)


def _columns(pairs: Sequence[tuple[int, int]], scores: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and tokens of distinct pairs, each [N]."""
    places = torch.tensor(pairs, dtype=torch.long, device=scores.device).view(-1, 2)
    return places[:, 0], places[:, 1]
