"""Arithmetic of sampling: a token at random under temperature, top-k, top-p and min-p.

Pure functions of scores and numbers; what a request chose or put out so far is the sampler's. No result of a row
depends on the other rows.

R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_NUCLEUS_WIDTH = 1024  # best scores looked at for top-p before the whole vocabulary is sorted
_COLDEST = 1e-6  # below this temperature every draw is a best token, and 0 / 0 stays out


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the distribution of one row is bent before the draw; filters that are off are 0, 1 and 0."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


def draw(scores: Tensor, shapes: Sequence[Shape], numbers: Sequence[float]) -> Tensor:
    """Tokens [R] at random from float32 `scores` [R, V]; `numbers`, one a row from [0, 1), decide.

    A number picks the token at which the running sum of the weights, in the order of the vocabulary, passes that
    share of their total.
    """
    passed = _running_sum(weigh(scores, shapes))
    point = _column(numbers, scores, torch.float64) * passed[:, -1:]
    return torch.searchsorted(passed, point, right=True).squeeze(1)


def weigh(scores: Tensor, shapes: Sequence[Shape]) -> Tensor:
    """Probabilities up to a factor, of float32 `scores` [R, V]; 0 for tokens that a filter removes."""
    temperature = _column([max(shape.temperature, _COLDEST) for shape in shapes], scores)
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature  # the best score is 0
    floor = _lowest_kept(scores, shapes)
    return scores.exp() if floor is None else _exp_from(scores, floor)


def _lowest_kept(scores: Tensor, shapes: Sequence[Shape]) -> Tensor | None:
    """The score [R, 1] at and above which tokens stay, None for all of them; the best score is 0.

    Top-k, top-p and min-p each keep the tokens from some score upwards, equal scores included.
    """
    floor: Tensor | None = None
    limits = [shape.top_k if shape.top_k < scores.shape[1] else 0 for shape in shapes]
    if any(limits):
        floor = _top_k(scores, limits)
    if any(shape.top_p < 1.0 for shape in shapes):
        floor = _top_p(scores, floor, [shape.top_p for shape in shapes])
    if any(shape.min_p for shape in shapes):
        least = _column([shape.min_p for shape in shapes], scores).log()
        floor = least if floor is None else floor.maximum(least)
    return floor


def _top_k(scores: Tensor, limits: Sequence[int]) -> Tensor:
    """The k-th best score of each row [R, 1]; -inf where the limit is 0."""
    k = _column(limits, scores, torch.long)
    best = scores.topk(max(limits)).values
    return best.gather(1, (k - 1).clamp_min(0)).where(k > 0, -torch.inf)


def _top_p(scores: Tensor, floor: Tensor | None, shares: Sequence[float]) -> Tensor:
    """`floor` raised to the lowest score [R, 1] of the fewest best tokens that hold a share of the weight above it.

    The vocabulary is sorted only if its best part does not hold enough.
    """
    if floor is None:
        floor = _column([-torch.inf] * len(shares), scores)
    top_p = _column(shares, scores, torch.float64)
    is_limited = top_p < 1.0
    wanted = top_p * _running_sum(_exp_from(scores, floor))[:, -1:]
    best = scores.topk(min(_NUCLEUS_WIDTH, scores.shape[1])).values
    held = _running_sum(best.exp())
    if ((held[:, -1:] < wanted) & is_limited).any():
        best = scores.sort(-1, descending=True).values
        held = _running_sum(best.exp())
    last = (held < wanted).sum(-1, keepdim=True).clamp_max(best.shape[1] - 1)  # its token reaches the share
    return torch.where(is_limited, floor.maximum(best.gather(1, last)), floor)


def _exp_from(scores: Tensor, floor: Tensor) -> Tensor:
    """Exponentials of the scores [R, V] at and above `floor` [R, 1], 0 below."""
    return scores.exp() * (scores >= floor).float()


def _running_sum(weights: Tensor) -> Tensor:
    """[R, V] in float64 and, unlike the end of `sum`, the same bits for any number of rows."""
    return weights.cumsum(-1, dtype=torch.float64)


def _column(values: Sequence[float], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device).unsqueeze(1)  # [R, 1]
