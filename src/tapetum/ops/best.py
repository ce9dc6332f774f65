"""The best token of a row of scores."""

from __future__ import annotations

import torch
from torch import Tensor

from tapetum.ops.parts import Linear

BROKEN = -1  # in place of a token id: the scores of the row are not finite
_BLOCK = 512  # neighbouring tokens: on a CPU the maximum of each block is much cheaper than `argmax` over all


def head(linear: Linear, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """hidden [R, hidden] -> scores [R, V] and the best token of each row [R], BROKEN where its score is not finite."""
    scores = linear(hidden)
    return scores, argmax(scores)


def argmax(scores: Tensor) -> Tensor:
    """The lowest id of the highest score of each row [R]; BROKEN where that score is not finite.

    NaN counts as the highest value, so one look at the winner finds every broken row.
    """
    width = min(_BLOCK, scores.shape[1])
    whole = scores.shape[1] - scores.shape[1] % width
    highest = scores[:, :whole].reshape(len(scores), -1, width).amax(-1)  # [R, blocks]
    if whole < scores.shape[1]:
        highest = torch.cat((highest, scores[:, whole:].amax(-1, keepdim=True)), 1)
    start = (highest.argmax(-1, keepdim=True) * width).clamp_max(scores.shape[1] - width)
    block = scores.gather(1, start + torch.arange(width, device=scores.device))
    place = block.argmax(-1, keepdim=True)
    is_sound = block.gather(1, place).isfinite()
    return torch.where(is_sound, start + place, BROKEN).squeeze(1)
