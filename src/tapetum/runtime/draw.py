"""Arithmetic of sampling: the best token of a row, or one at random under temperature, top-k, top-p and min-p.

Pure functions of scores and numbers; what a request chose or put out so far is the sampler's. The vocabulary is
looked at in blocks: on a CPU the maximum or sum of each block is many times cheaper than `argmax` or a running
sum over all of it. No result of a row depends on the other rows.

R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BROKEN = -1  # in place of a token id: the scores of the row are not finite
_BLOCK = 512  # neighbouring tokens that are looked at together
_NUCLEUS_WIDTH = 1024  # best scores looked at for top-p before the whole vocabulary is sorted
_COLDEST = 1e-6  # below this temperature every draw is a best token, and 0 / 0 stays out


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the distribution of one row is bent before the draw; filters that are off are 0, 1 and 0."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


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


def draw(scores: Tensor, shapes: Sequence[Shape], numbers: Sequence[float]) -> Tensor:
    """Tokens [R] at random from float32 `scores` [R, V]; `numbers`, one a row from [0, 1), decide.

    A number picks the token at which the running sum of the weights, in the order of the vocabulary, passes that
    share of their total. Running sums are in float64 and, unlike `sum`, the same bits for any number of rows.
    """
    weights = weigh(scores, shapes)
    sums = _block_sums(weights)
    block, rest = _locate(sums, _column(numbers, scores, torch.float64) * _total(sums))
    within = block * _BLOCK + torch.arange(_BLOCK, device=weights.device)  # [R, _BLOCK]
    place, _ = _locate(weights.gather(1, within), rest)
    return (block * _BLOCK + place).squeeze(1)


def weigh(scores: Tensor, shapes: Sequence[Shape]) -> Tensor:
    """Probabilities up to a factor of float32 `scores` [R, V]; 0 for tokens that a filter removes.

    V of the result is filled up to whole blocks with zeros.
    """
    scores = torch.nn.functional.pad(scores, (0, -scores.shape[1] % _BLOCK), value=-torch.inf)
    temperature = _column([max(shape.temperature, _COLDEST) for shape in shapes], scores)
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature  # the best score is 0
    return _weights(scores, _lowest_kept(scores, shapes))


def _locate(weights: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Where the running sum of `weights` [R, W] passes `point` [R, 1]: the index, and how far into it."""
    passed = weights.cumsum(-1, dtype=torch.float64)
    end = passed[:, -1:]
    point = point.minimum(end.nextafter(torch.zeros_like(end)))  # below the end: never on a weight of zero
    index = torch.searchsorted(passed, point, right=True).clamp_max(weights.shape[1] - 1)  # clamped if NaN
    start = passed.gather(1, (index - 1).clamp_min(0)).where(index > 0, 0.0)
    return index, point - start


def _lowest_kept(scores: Tensor, shapes: Sequence[Shape]) -> Tensor:
    """The score [R, 1] at and above which tokens stay; the best score is 0.

    Top-k, top-p and min-p each keep the tokens from some score upwards, equal scores included.
    """
    floor = _column([-torch.inf] * len(shapes), scores)
    limits = [shape.top_k if shape.top_k < scores.shape[1] else 0 for shape in shapes]
    if any(limits):
        floor = _top_k(scores, limits)
    if any(shape.top_p < 1.0 for shape in shapes):
        floor = floor.maximum(_top_p(scores, floor, [shape.top_p for shape in shapes]))
    return floor.maximum(_column([shape.min_p for shape in shapes], scores).log())


def _top_k(scores: Tensor, limits: Sequence[int]) -> Tensor:
    """The k-th best score of each row [R, 1]; -inf where the limit is 0."""
    k = _column(limits, scores, torch.long)
    best = scores.topk(max(limits)).values
    return best.gather(1, (k - 1).clamp_min(0)).where(k > 0, -torch.inf)


def _top_p(scores: Tensor, floor: Tensor, shares: Sequence[float]) -> Tensor:
    """The lowest score [R, 1] of the fewest best tokens that hold a share of the weight above `floor`.

    -inf where the share is 1. The vocabulary is sorted only if its best part does not hold enough.
    """
    top_p = _column(shares, scores, torch.float64)
    is_limited = top_p < 1.0
    wanted = top_p * _total(_block_sums(_weights(scores, floor)))
    best = scores.topk(min(_NUCLEUS_WIDTH, scores.shape[1])).values
    held = best.exp().cumsum(-1, dtype=torch.float64)
    if ((held[:, -1:] < wanted) & is_limited).any():
        best = scores.sort(-1, descending=True).values
        held = best.exp().cumsum(-1, dtype=torch.float64)
    last = (held < wanted).sum(-1, keepdim=True).clamp_max(best.shape[1] - 1)  # its token reaches the share
    return best.gather(1, last).where(is_limited, -torch.inf)


def _weights(scores: Tensor, floor: Tensor) -> Tensor:
    """Exponentials [R, V] of the scores at and above `floor` [R, 1], 0 below."""
    return scores.exp() * (scores >= floor).float()


def _block_sums(weights: Tensor) -> Tensor:
    return weights.reshape(len(weights), -1, _BLOCK).sum(-1)  # [R, blocks]


def _total(sums: Tensor) -> Tensor:
    return sums.cumsum(-1, dtype=torch.float64)[:, -1:]  # [R, 1]


def _column(values: Sequence[float], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device).unsqueeze(1)  # [R, 1]
