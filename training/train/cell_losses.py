"""Losses on readings of cells, wherever they are taken, and the report that losses leave their figures in."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from training.generator.figures import SHAPES
from training.generator.labels import CHARACTER_ID, NUM_CHARACTERS, NUM_TRAITS
from training.train.batch import Shown

DIGIT_WEIGHT = 2.0  # a number is wrong with any of its digits, a word seldom hangs on one letter


@dataclass(slots=True)
class Report:
    """Figures by name, and (task/kind, right throughout) of every answer."""

    figures: dict[str, float] = field(default_factory=dict)
    answers: list[tuple[str, bool]] = field(default_factory=list)


def order_loss(scores: Tensor, shown: Shown, report: Report | None = None) -> Tensor:
    """The characters of each cell in reading order, as they will be said."""
    wanted = shown.order.view(-1)
    kept = thin_out(wanted, 0.08)
    wanted, scores = wanted[kept], scores.view(-1, NUM_CHARACTERS)[kept].float()
    if report:
        report.figures["order_right"] = share_right(scores, wanted, wanted > 0)
    return F.cross_entropy(scores, wanted, character_weights())


def flags_loss(scores: Tensor, shown: Shown, num_pictures: int, name: str, report: Report) -> Tensor:
    """Which cells of a picture are the highest, the largest and so on, as attention would have to find them.

    A bar, its label and its value are asked for alike, as any of them may be what a question is after.
    """
    scores = scores.float().view(num_pictures, -1, scores.shape[-1]).log_softmax(1)
    is_flagged = shown.flags.view(scores.shape) > 0
    is_asked = is_flagged.any(1)
    if not is_asked.any():
        return torch.zeros(())
    best = is_flagged.gather(1, scores.detach().argmax(1, keepdim=True)).squeeze(1)
    report.figures[f"{name}_right"] = best[is_asked].float().mean().item()
    shares = is_flagged.float()
    shares = shares / shares.sum(1, keepdim=True).clamp(1)
    return -(scores * shares).sum(1)[is_asked].mean()


def traits_loss(scores: Tensor, traits: Tensor) -> Tensor:
    weight = torch.tensor(2.0)
    return F.binary_cross_entropy_with_logits(scores.float(), traits, pos_weight=weight)


def share_right(scores: Tensor, wanted: Tensor, counts: Tensor) -> float:
    if not counts.any():
        return 1.0
    return (scores.detach().argmax(-1) == wanted)[counts].float().mean().item()


def thin_out(wanted: Tensor, share: float, blank: int = 0) -> Tensor:
    """Numbers of all that count and of a random share of the blanks, which are many."""
    is_blank = wanted == blank
    return ((wanted > 0) & ~is_blank | (is_blank & (torch.rand(wanted.shape) < share))).nonzero().squeeze(1)


def figures_of(shown: Shown) -> tuple[Tensor, Tensor, Tensor]:
    """The cells that hold the middle of exactly one shape, the shapes, their colours."""
    middles = shown.traits[:, NUM_TRAITS:]
    cells = (middles[:, : len(SHAPES)].sum(1) == 1).nonzero().squeeze(1)
    middles = middles[cells]
    return cells, middles[:, : len(SHAPES)].argmax(1), middles[:, len(SHAPES) :].argmax(1)


def character_weights() -> Tensor:
    weights = torch.ones(NUM_CHARACTERS)
    weights[[CHARACTER_ID[digit] for digit in "0123456789"]] = DIGIT_WEIGHT
    return weights
