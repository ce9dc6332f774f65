"""What a batch is trained on, and how well it does.

Vision: characters, shapes and colours of every cell. Guidance: where to look and what to know there. Language: the
answers. Every part adds to one loss and leaves its figures in `Report`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from training.generator.figures import SHAPES
from training.generator.labels import IGNORED, NUM_CHARACTERS, NUM_TRAITS
from training.network import MAX_SIDE, Network, Trace, Watch
from training.network.decoder import EARLY, LATE
from training.train.batch import Batch, Conversation, Shown

VISION_WEIGHT = 1.2
TRAITS_WEIGHT = 6.0
QUESTION_LAYER, ANSWER_LAYER = EARLY, LATE  # whose attention is guided


@dataclass(slots=True)
class Report:
    """Figures by name, and (task/kind, right throughout) of every answer."""

    figures: dict[str, float] = field(default_factory=dict)
    answers: list[tuple[str, bool]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Figures:
    """The cells that hold the middle of exactly one shape."""

    cells: Tensor  # in N * C
    shapes: Tensor
    colors: Tensor


def loss_of(network: Network, batch: Batch, guidance: float) -> tuple[Tensor, Report]:
    report = Report()
    features, states = network.visual(batch.patches, batch.grid)
    loss = torch.zeros(())
    if batch.shown is not None:
        loss = loss + VISION_WEIGHT * _vision_loss(network, features, states, batch.shown, report)
    if batch.conversation is not None:
        loss = loss + _conversation_loss(network, features, batch, batch.conversation, guidance, report)
    return loss, report


def _vision_loss(network: Network, features: Tensor, states: Tensor, shown: Shown, report: Report) -> Tensor:
    heads = network.heads
    wanted = shown.characters.view(-1)
    kept = _thin_out(wanted, 0.125)
    wanted = wanted[kept]
    # A cell's 2 x 6 slots are its four patches' 1 x 3 in the same order.
    of_cell = heads.characters(features).view(-1, NUM_CHARACTERS)[kept].float()
    traits = _traits_loss(heads.traits(features), shown.traits)
    of_patch = heads.patch_characters(states).view(-1, NUM_CHARACTERS)[kept].float()
    losses = {
        "characters": F.cross_entropy(of_cell, wanted),
        "traits": traits * TRAITS_WEIGHT,
        "patch_characters": F.cross_entropy(of_patch, wanted),
    }
    report.figures |= {name: loss.item() for name, loss in losses.items()}
    report.figures["characters_right"] = _share_right(of_cell, wanted, wanted > 0)
    report.figures["patch_characters_right"] = _share_right(of_patch, wanted, wanted > 0)
    total = sum(losses.values(), torch.zeros(()))

    figures = _figures(shown)
    if len(figures.cells):
        scores = heads.traits(features.flatten(0, 1)[figures.cells]).float()
        scores = scores[:, NUM_TRAITS : NUM_TRAITS + len(SHAPES)]
        total = total + F.cross_entropy(scores, figures.shapes)
        report.figures["shapes_right"] = _share_right(scores, figures.shapes, figures.shapes >= 0)
    return total


def _thin_out(wanted: Tensor, share: float) -> Tensor:
    """Numbers of all characters and of a random share of the blanks, which are many."""
    return ((wanted > 0) | ((wanted == 0) & (torch.rand(wanted.shape) < share))).nonzero().squeeze(1)


def _traits_loss(scores: Tensor, traits: Tensor) -> Tensor:
    weight = torch.tensor(2.0)
    return F.binary_cross_entropy_with_logits(
        scores.float().flatten(0, 1), traits.flatten(0, 1), pos_weight=weight
    )


def _share_right(scores: Tensor, wanted: Tensor, counts: Tensor) -> float:
    if not counts.any():
        return 1.0
    return (scores.detach().argmax(-1) == wanted)[counts].float().mean().item()


def _figures(shown: Shown) -> _Figures:
    middles = shown.traits.flatten(0, 1)[:, NUM_TRAITS:]
    cells = (middles[:, : len(SHAPES)].sum(1) == 1).nonzero().squeeze(1)
    middles = middles[cells]
    return _Figures(cells, middles[:, : len(SHAPES)].argmax(1), middles[:, len(SHAPES) :].argmax(1))


def _conversation_loss(
    network: Network,
    features: Tensor,
    batch: Batch,
    conversation: Conversation,
    guidance: float,
    report: Report,
) -> Tensor:
    watch = {QUESTION_LAYER: conversation.question_watch, ANSWER_LAYER: conversation.answer_watch}
    watched = {layer: one for layer, one in watch.items() if one is not None and guidance > 0}
    x = network.embed(conversation.token_ids, features.flatten(0, 1), conversation.is_visual)
    x, trace = network.model(x, conversation.position_ids, conversation.bias, watched, conversation.rows)
    loss = torch.zeros(())
    if guidance > 0:
        loss = guidance * _guidance_loss(network, batch, conversation, trace, report)
    return loss + _answer_loss(network.model.logits(x).float(), conversation, report)


def _guidance_loss(
    network: Network, batch: Batch, conversation: Conversation, trace: Trace, report: Report
) -> Tensor:
    losses = {}
    for layer, name in ((QUESTION_LAYER, "question_looks"), (ANSWER_LAYER, "answer_looks")):
        if layer in trace.watched:
            losses[name] = -trace.watched[layer].float().clamp_min(1e-6).log().mean()
    early, late = trace.early[conversation.is_visual], trace.late[conversation.is_visual]
    losses["position"] = 0.5 * _position_loss(network.heads.position(early).float(), batch.grid)
    if batch.shown is not None:
        values = network.model.values(ANSWER_LAYER, late)
        losses["values"] = _values_loss(network, values, batch.shown)
    watch, ranks = conversation.answer_watch, conversation.ranks
    if watch is not None and ranks is not None and (ranks >= 0).any():
        losses["rank"] = 0.5 * _rank_loss(network, trace.late, watch, ranks)
    report.figures |= {name: loss.item() for name, loss in losses.items()}
    return sum(losses.values(), torch.zeros(()))


def _position_loss(scores: Tensor, grid: tuple[int, int]) -> Tensor:
    """Row and column of each visual token."""
    width, height = grid
    cell = torch.arange(scores.shape[0]) % (width * height)
    rows = F.cross_entropy(scores[:, :MAX_SIDE], cell // width)
    return rows + F.cross_entropy(scores[:, MAX_SIDE:], cell % width)


def _values_loss(network: Network, values: Tensor, shown: Shown) -> Tensor:
    """What the values say of a cell: its characters in reading order, its shape and colour."""
    loss = torch.zeros(())
    figures = _figures(shown)
    if len(figures.cells):
        scores = network.heads.value_traits(values[figures.cells]).float()
        shapes = F.cross_entropy(scores[:, : len(SHAPES)], figures.shapes)
        loss = 0.5 * (shapes + F.cross_entropy(scores[:, len(SHAPES) :], figures.colors))
    wanted = shown.order.view(-1)
    kept = _thin_out(wanted, 0.08)
    scores = network.heads.value_order(values).view(-1, NUM_CHARACTERS)[kept].float()
    return loss + F.cross_entropy(scores, wanted[kept])


def _rank_loss(network: Network, late: Tensor, watch: Watch, ranks: Tensor) -> Tensor:
    """Which character of the cell comes next, by the state that predicts it."""
    scores = network.heads.rank(late[watch.b, watch.query]).float()
    return F.cross_entropy(scores, ranks, ignore_index=IGNORED)


def _answer_loss(logits: Tensor, conversation: Conversation, report: Report) -> Tensor:
    losses = F.cross_entropy(logits, conversation.targets, reduction="none")
    report.figures["language"] = losses.mean().item()
    is_right = logits.detach().argmax(-1) == conversation.targets
    sizes = [count for _, count in conversation.answers]
    for (name, _), part in zip(conversation.answers, is_right.split(sizes), strict=True):
        report.answers.append((name, bool(part.all())))
    return (losses * conversation.weights).sum() / conversation.weights.sum()
