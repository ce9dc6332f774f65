"""What the vision tower is taught of every cell: characters, shapes and colours; then words, places and relations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from training.generator.figures import SHAPES
from training.generator.labels import IGNORED, NUM_CHARACTERS, NUM_TRAITS
from training.network import PLACES, Network
from training.train.batch import Shown
from training.train.cell_losses import (
    Report,
    character_weights,
    figures_of,
    flags_loss,
    order_loss,
    share_right,
    thin_out,
    traits_loss,
)

TRAITS_WEIGHT, FLAGS_WEIGHT = 6.0, 1.0
PLACE_WEIGHTS = {"ordinal": 0.4, "line": 0.3, "place": 0.3, "region": 0.4, "share": 0.4}


def vision_loss(
    network: Network,
    features: Tensor,
    states: Tensor,
    shown: Shown,
    words: Tensor,
    report: Report,
    relations: float,
) -> Tensor:
    heads, num_pictures = network.heads, len(features)
    features = features.flatten(0, 1)
    wanted = shown.characters.view(-1)
    kept = thin_out(wanted, 0.125)
    wanted = wanted[kept]
    # A cell's 2 x 6 slots are its four patches' 1 x 3 in the same order.
    of_cell = heads.characters(features).view(-1, NUM_CHARACTERS)[kept].float()
    of_patch = heads.patch_characters(states).view(-1, NUM_CHARACTERS)[kept].float()
    losses = {
        "characters": F.cross_entropy(of_cell, wanted, character_weights()),
        "patch_characters": F.cross_entropy(of_patch, wanted, character_weights()),
        "order": order_loss(heads.order(features), shown, report),
        "traits": TRAITS_WEIGHT * traits_loss(heads.traits(features), shown.traits),
    }
    report.figures["characters_right"] = share_right(of_cell, wanted, wanted > 0)
    report.figures["patch_characters_right"] = share_right(of_patch, wanted, wanted > 0)
    if relations > 0:
        flags = flags_loss(heads.flags(features), shown, num_pictures, "flags", report)
        related = {"flags": FLAGS_WEIGHT * flags}
        related["word"] = _word_loss(network, features, shown, words, report)
        related |= _place_losses(network, features, shown, report)
        losses |= {name: relations * loss for name, loss in related.items()}
    report.figures |= {name: loss.item() for name, loss in losses.items()}
    total = sum(losses.values(), torch.zeros(()))

    cells, shapes, colors = figures_of(shown)
    if len(cells):
        scores = heads.traits(features[cells]).float()[:, NUM_TRAITS:]
        for name, part, wanted in (
            ("shapes", scores[:, : len(SHAPES)], shapes),
            ("colors", scores[:, len(SHAPES) :], colors),
        ):
            total = total + F.cross_entropy(part, wanted)
            report.figures[f"{name}_right"] = share_right(part, wanted, wanted >= 0)
    is_named = shown.ground_colors >= 0
    if is_named.any():
        scores = heads.traits(features[shown.ground_cells[is_named]]).float()[:, NUM_TRAITS + len(SHAPES) :]
        wanted = shown.ground_colors[is_named]
        total = total + 0.5 * F.cross_entropy(scores, wanted)
        report.figures["ground_right"] = share_right(scores, wanted, wanted >= 0)
    return total


def _word_loss(network: Network, features: Tensor, shown: Shown, words: Tensor, report: Report) -> Tensor:
    """The word that a cell shows, as the embedding of its token."""
    wanted = shown.words[:, 0]
    kept = (wanted >= 0).nonzero().squeeze(1)
    if not len(kept):
        return torch.zeros(())
    wanted = wanted[kept]
    scores = (network.heads.words(features[kept]) @ network.model.embed_tokens(words).T).float()
    report.figures["word_right"] = share_right(scores, wanted, wanted >= 0)
    return F.cross_entropy(scores, wanted)


def _place_losses(network: Network, features: Tensor, shown: Shown, report: Report) -> dict[str, Tensor]:
    losses = {}
    parts = network.heads.places(features).float().split(list(PLACES.values()), -1)
    for (name, factor), scores in zip(PLACE_WEIGHTS.items(), parts, strict=True):
        wanted = shown.places[name]
        if (wanted >= 0).any():
            losses[name] = factor * F.cross_entropy(scores, wanted, ignore_index=IGNORED)
            report.figures[f"{name}_right"] = share_right(scores, wanted, wanted >= 0)
    return losses
