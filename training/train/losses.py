"""What a batch is trained on, and how well it does.

Vision: characters, shapes and colours of every cell. Guidance: where to look and what to know there. Language: the
answers. Every part adds to one loss and leaves its figures in `Report`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from training.network import Network
from training.network.decoder import ANSWER_LAYER, FIELD_LAYER, MATCH_LAYER
from training.train.batch import Batch, Conversation
from training.train.cell_losses import Report
from training.train.guidance_losses import guidance_loss
from training.train.vision_losses import vision_loss

__all__ = ["Report", "loss_of"]

VISION_WEIGHT = 1.2


def loss_of(
    network: Network, batch: Batch, words: Tensor, guidance: float, relations: float = 1.0
) -> tuple[Tensor, Report]:
    """`words`: the token of every known word, in the order of their numbers. `relations` weighs what vision is
    taught of words, labels and places."""
    report = Report()
    features, states = network.visual(batch.patches, batch.grid)
    loss = torch.zeros(())
    if batch.shown is not None:
        vision = vision_loss(network, features, states, batch.shown, words, report, relations)
        loss = loss + VISION_WEIGHT * vision
    if batch.conversation is not None:
        loss = loss + _conversation_loss(network, features, batch, words, guidance, report)
    return loss, report


def _conversation_loss(
    network: Network, features: Tensor, batch: Batch, words: Tensor, guidance: float, report: Report
) -> Tensor:
    conversation = batch.conversation
    assert conversation is not None
    watch = {
        MATCH_LAYER: conversation.match_watch,
        FIELD_LAYER: conversation.field_watch,
        ANSWER_LAYER: conversation.place_watch,
    }
    watched = {layer: one for layer, one in watch.items() if one is not None and guidance > 0}
    x = network.embed(conversation.token_ids, features.flatten(0, 1), conversation.is_visual)
    x, trace = network.model(x, conversation.position_ids, conversation.bias, watched, conversation.rows)
    loss = torch.zeros(())
    if guidance > 0:
        loss = guidance * guidance_loss(network, batch, conversation, words, trace, report)
    return loss + _answer_loss(network.model.logits(x).float(), conversation, report)


def _answer_loss(logits: Tensor, conversation: Conversation, report: Report) -> Tensor:
    losses = F.cross_entropy(logits, conversation.targets, reduction="none")
    report.figures["language"] = losses.mean().item()
    is_right = logits.detach().argmax(-1) == conversation.targets
    sizes = [count for _, count in conversation.answers]
    for (name, _), part in zip(conversation.answers, is_right.split(sizes), strict=True):
        report.answers.append((name, bool(part.all())))
    return (losses * conversation.weights).sum() / conversation.weights.sum()
