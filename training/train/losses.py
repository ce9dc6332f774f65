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
from training.generator.labels import CHARACTER_ID, IGNORED, NO_WORD, NUM_CHARACTERS, NUM_TRAITS
from training.network import MAX_SIDE, PLACES, Network, Trace, Watch
from training.network.decoder import ANSWER_LAYER, FIELD_LAYER, MATCH_LAYER
from training.train.batch import Batch, Conversation, Shown

VISION_WEIGHT = 1.2
TRAITS_WEIGHT, FLAGS_WEIGHT = 6.0, 1.0
LABEL_WEIGHTS = {"row": 0.6, "column": 0.6}
PLACE_WEIGHTS = {"ordinal": 0.4, "line": 0.3, "place": 0.3, "region": 0.4, "share": 0.4}
ASKED_WEIGHT = 0.3
DIGIT_WEIGHT = 2.0  # a number is wrong with any of its digits, a word seldom hangs on one letter


@dataclass(slots=True)
class Report:
    """Figures by name, and (task/kind, right throughout) of every answer."""

    figures: dict[str, float] = field(default_factory=dict)
    answers: list[tuple[str, bool]] = field(default_factory=list)


def loss_of(
    network: Network, batch: Batch, words: Tensor, guidance: float, relations: float = 1.0
) -> tuple[Tensor, Report]:
    """`words`: the token of every known word, in the order of their numbers. `relations` weighs what vision is
    taught of words, labels and places."""
    report = Report()
    features, states = network.visual(batch.patches, batch.grid)
    loss = torch.zeros(())
    if batch.shown is not None:
        vision = _vision_loss(network, features, states, batch.shown, words, report, relations)
        loss = loss + VISION_WEIGHT * vision
    if batch.conversation is not None:
        loss = loss + _conversation_loss(network, features, batch, words, guidance, report)
    return loss, report


def _vision_loss(
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
    kept = _thin_out(wanted, 0.125)
    wanted = wanted[kept]
    # A cell's 2 x 6 slots are its four patches' 1 x 3 in the same order.
    of_cell = heads.characters(features).view(-1, NUM_CHARACTERS)[kept].float()
    of_patch = heads.patch_characters(states).view(-1, NUM_CHARACTERS)[kept].float()
    losses = {
        "characters": F.cross_entropy(of_cell, wanted, _character_weights()),
        "patch_characters": F.cross_entropy(of_patch, wanted, _character_weights()),
        "order": _order_loss(heads.order(features), shown, report),
        "traits": TRAITS_WEIGHT * _traits_loss(heads.traits(features), shown.traits),
    }
    report.figures["characters_right"] = _share_right(of_cell, wanted, wanted > 0)
    report.figures["patch_characters_right"] = _share_right(of_patch, wanted, wanted > 0)
    if relations > 0:
        flags = _flags_loss(heads.flags(features), shown, num_pictures, "flags", report)
        related = {"flags": FLAGS_WEIGHT * flags}
        related["word"] = _word_loss(network, features, shown, words, report)
        related |= _place_losses(network, features, shown, report)
        losses |= {name: relations * loss for name, loss in related.items()}
    report.figures |= {name: loss.item() for name, loss in losses.items()}
    total = sum(losses.values(), torch.zeros(()))

    cells, shapes, colors = _figures(shown)
    if len(cells):
        scores = heads.traits(features[cells]).float()[:, NUM_TRAITS:]
        for name, part, wanted in (
            ("shapes", scores[:, : len(SHAPES)], shapes),
            ("colors", scores[:, len(SHAPES) :], colors),
        ):
            total = total + F.cross_entropy(part, wanted)
            report.figures[f"{name}_right"] = _share_right(part, wanted, wanted >= 0)
    is_named = shown.ground_colors >= 0
    if is_named.any():
        scores = heads.traits(features[shown.ground_cells[is_named]]).float()[:, NUM_TRAITS + len(SHAPES) :]
        wanted = shown.ground_colors[is_named]
        total = total + 0.5 * F.cross_entropy(scores, wanted)
        report.figures["ground_right"] = _share_right(scores, wanted, wanted >= 0)
    return total


def _order_loss(scores: Tensor, shown: Shown, report: Report | None = None) -> Tensor:
    """The characters of each cell in reading order, as they will be said."""
    wanted = shown.order.view(-1)
    kept = _thin_out(wanted, 0.08)
    wanted, scores = wanted[kept], scores.view(-1, NUM_CHARACTERS)[kept].float()
    if report:
        report.figures["order_right"] = _share_right(scores, wanted, wanted > 0)
    return F.cross_entropy(scores, wanted, _character_weights())


def _word_loss(network: Network, features: Tensor, shown: Shown, words: Tensor, report: Report) -> Tensor:
    """The word that a cell shows, as the embedding of its token."""
    wanted = shown.words[:, 0]
    kept = (wanted >= 0).nonzero().squeeze(1)
    if not len(kept):
        return torch.zeros(())
    wanted = wanted[kept]
    scores = (network.heads.words(features[kept]) @ network.model.embed_tokens(words).T).float()
    report.figures["word_right"] = _share_right(scores, wanted, wanted >= 0)
    return F.cross_entropy(scores, wanted)


def _label_losses(
    network: Network, states: Tensor, shown: Shown, words: Tensor, report: Report
) -> dict[str, Tensor]:
    """The labels of a cell's row and column, by a state that has seen the cells before it."""
    losses = {}
    table = torch.cat((network.model.embed_tokens(words), network.heads.no_word))
    heads = network.heads.labels
    weights, biases = heads.weight.chunk(2), heads.bias.chunk(2)
    for i, (name, factor) in enumerate(LABEL_WEIGHTS.items()):
        wanted = shown.words[:, 1 + i]
        kept = _thin_out(wanted + 1, 0.3, blank=NO_WORD + 1)
        if len(kept):
            wanted = wanted[kept]
            scores = (F.linear(states[kept], weights[i], biases[i]) @ table.T).float()
            losses[name] = factor * F.cross_entropy(scores, wanted)
            if (wanted != NO_WORD).any():
                report.figures[f"{name}_right"] = _share_right(scores, wanted, wanted != NO_WORD)
    return losses


def _place_losses(network: Network, features: Tensor, shown: Shown, report: Report) -> dict[str, Tensor]:
    losses = {}
    parts = network.heads.places(features).float().split(list(PLACES.values()), -1)
    for (name, factor), scores in zip(PLACE_WEIGHTS.items(), parts, strict=True):
        wanted = shown.places[name]
        if (wanted >= 0).any():
            losses[name] = factor * F.cross_entropy(scores, wanted, ignore_index=IGNORED)
            report.figures[f"{name}_right"] = _share_right(scores, wanted, wanted >= 0)
    return losses


def _thin_out(wanted: Tensor, share: float, blank: int = 0) -> Tensor:
    """Numbers of all that count and of a random share of the blanks, which are many."""
    is_blank = wanted == blank
    return ((wanted > 0) & ~is_blank | (is_blank & (torch.rand(wanted.shape) < share))).nonzero().squeeze(1)


def _character_weights() -> Tensor:
    weights = torch.ones(NUM_CHARACTERS)
    weights[[CHARACTER_ID[digit] for digit in "0123456789"]] = DIGIT_WEIGHT
    return weights


def _flags_loss(scores: Tensor, shown: Shown, num_pictures: int, name: str, report: Report) -> Tensor:
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


def _traits_loss(scores: Tensor, traits: Tensor) -> Tensor:
    weight = torch.tensor(2.0)
    return F.binary_cross_entropy_with_logits(scores.float(), traits, pos_weight=weight)


def _share_right(scores: Tensor, wanted: Tensor, counts: Tensor) -> float:
    if not counts.any():
        return 1.0
    return (scores.detach().argmax(-1) == wanted)[counts].float().mean().item()


def _figures(shown: Shown) -> tuple[Tensor, Tensor, Tensor]:
    """The cells that hold the middle of exactly one shape, the shapes, their colours."""
    middles = shown.traits[:, NUM_TRAITS:]
    cells = (middles[:, : len(SHAPES)].sum(1) == 1).nonzero().squeeze(1)
    middles = middles[cells]
    return cells, middles[:, : len(SHAPES)].argmax(1), middles[:, len(SHAPES) :].argmax(1)


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
        loss = guidance * _guidance_loss(network, batch, conversation, words, trace, report)
    return loss + _answer_loss(network.model.logits(x).float(), conversation, report)


def _guidance_loss(
    network: Network, batch: Batch, conversation: Conversation, words: Tensor, trace: Trace, report: Report
) -> Tensor:
    losses = {}
    looks = {
        "match": (MATCH_LAYER, conversation.match_watch),
        "field": (FIELD_LAYER, conversation.field_watch),
        "look": (ANSWER_LAYER, conversation.place_watch),
    }
    for name, (layer, watch) in looks.items():
        if watch is not None:
            losses[name] = _look_loss(trace.watched[layer], watch)
    early, late = trace.early[conversation.is_visual], trace.late[conversation.is_visual]
    cells = torch.arange(len(early)) % (batch.grid[0] * batch.grid[1])
    losses["position"] = 0.5 * _position_loss(network.heads.position(early), cells, batch.grid)
    if batch.shown is not None:
        values = network.model.values(ANSWER_LAYER, late)
        losses["values"] = _values_loss(network, values, batch.shown, words)
        middle = trace.middle[conversation.is_visual]
        losses |= _label_losses(network, middle, batch.shown, words, report)
        flags = network.heads.known_flags(middle)
        losses["known_flags"] = 0.6 * _flags_loss(
            flags, batch.shown, len(batch.patches), "known_flags", report
        )
        losses["known_share"] = 0.3 * _share_loss(network, trace.middle, batch, report)
        losses["asked"] = ASKED_WEIGHT * _asked_loss(network, trace.middle, batch, words, report)
    if len(conversation.ranks):
        scores = network.heads.rank(trace.late.flatten(0, 1)[conversation.ranked]).float()
        losses["rank"] = 0.5 * F.cross_entropy(scores, conversation.ranks)
    report.figures |= {name: loss.item() for name, loss in losses.items()}
    return sum(losses.values(), torch.zeros(()))


def _look_loss(probabilities: Tensor, watch: Watch) -> Tensor:
    """[entries, heads] -> minus the logarithm of what each group of places gets, averaged over heads and groups."""
    groups = torch.zeros(len(watch.weights), probabilities.shape[1])
    groups = groups.index_add(0, watch.group, probabilities.float())
    losses = -groups.clamp(1e-6, 1).log().mean(1)
    return (losses * watch.weights).sum() / watch.weights.sum()


def _position_loss(scores: Tensor, cells: Tensor, grid: tuple[int, int]) -> Tensor:
    """Row and column of the cells with these numbers in their pictures."""
    scores = scores.float()
    rows = F.cross_entropy(scores[:, :MAX_SIDE], cells // grid[0])
    return rows + F.cross_entropy(scores[:, MAX_SIDE:], cells % grid[0])


def _asked_loss(network: Network, middle: Tensor, batch: Batch, words: Tensor, report: Report) -> Tensor:
    """Before the layer that looks for the field, its place and labels, told as the states of the cells tell theirs."""
    assert batch.conversation is not None and batch.shown is not None
    queries, cells = _first_looks(batch.conversation.field_watch, batch.conversation)
    if not len(queries):
        return torch.zeros(())
    states = middle.flatten(0, 1)[queries]
    size = batch.grid[0] * batch.grid[1]
    loss = _position_loss(network.heads.position(states), cells % size, batch.grid)
    table = torch.cat((network.model.embed_tokens(words), network.heads.no_word))
    for i, said in enumerate(network.heads.labels(states).chunk(2, -1)):
        wanted = batch.shown.words[cells, 1 + i]
        is_known = (wanted >= 0) & (wanted != NO_WORD)
        if is_known.any():
            scores = (said[is_known] @ table.T).float()
            loss = loss + F.cross_entropy(scores, wanted[is_known])
            name = f"asked_{list(LABEL_WEIGHTS)[i]}_right"
            report.figures[name] = _share_right(scores, wanted[is_known], wanted[is_known] >= 0)
    return loss


def _share_loss(network: Network, middle: Tensor, batch: Batch, report: Report) -> Tensor:
    """The words of a question tell how long the bar is that they name, so that two of them can be compared."""
    assert batch.conversation is not None and batch.shown is not None
    queries, cells = _first_looks(batch.conversation.match_watch, batch.conversation)
    wanted = batch.shown.places["share"][cells]
    if not (wanted >= 0).any():
        return torch.zeros(())
    scores = network.heads.known_share(middle.flatten(0, 1)[queries]).float()
    report.figures["known_share_right"] = _share_right(scores, wanted, wanted >= 0)
    return F.cross_entropy(scores, wanted, ignore_index=IGNORED)


def _first_looks(watch: Watch | None, conversation: Conversation) -> tuple[Tensor, Tensor]:
    """Of each look at the pictures, counting aside: from where in B * S, and the first cell that it should find."""
    if watch is None:
        nothing = torch.zeros(0, dtype=torch.int64)
        return nothing, nothing
    is_visual, length = conversation.is_visual.flatten(), conversation.is_visual.shape[1]
    is_first = torch.ones_like(watch.group, dtype=torch.bool)
    is_first[1:] = watch.group[1:] != watch.group[:-1]
    keys = watch.b * length + watch.key
    kept = is_first & is_visual[keys] & (watch.weights[watch.group] == 1)
    cells = is_visual.cumsum(0) - 1
    return (watch.b * length + watch.query)[kept], cells[keys[kept]]


def _values_loss(network: Network, values: Tensor, shown: Shown, words: Tensor) -> Tensor:
    """What the values say of a cell: its characters in reading order, its word, its shape and colour."""
    loss = torch.zeros(())
    heads = network.heads
    cells, wanted_shapes, colors = _figures(shown)
    if len(cells):
        scores = heads.value_traits(values[cells]).float()
        shapes = F.cross_entropy(scores[:, : len(SHAPES)], wanted_shapes)
        loss = 0.5 * (shapes + F.cross_entropy(scores[:, len(SHAPES) :], colors))
    is_named = shown.ground_colors >= 0
    if is_named.any():
        scores = heads.value_traits(values[shown.ground_cells[is_named]]).float()[:, len(SHAPES) :]
        loss = loss + 0.3 * F.cross_entropy(scores, shown.ground_colors[is_named])
    shown_words = shown.words[:, 0]
    kept = (shown_words >= 0).nonzero().squeeze(1)
    if len(kept):
        scores = (heads.value_word(values[kept]) @ network.model.embed_tokens(words).T).float()
        loss = loss + F.cross_entropy(scores, shown_words[kept])
    return loss + _order_loss(heads.value_order(values), shown)


def _answer_loss(logits: Tensor, conversation: Conversation, report: Report) -> Tensor:
    losses = F.cross_entropy(logits, conversation.targets, reduction="none")
    report.figures["language"] = losses.mean().item()
    is_right = logits.detach().argmax(-1) == conversation.targets
    sizes = [count for _, count in conversation.answers]
    for (name, _), part in zip(conversation.answers, is_right.split(sizes), strict=True):
        report.answers.append((name, bool(part.all())))
    return (losses * conversation.weights).sum() / conversation.weights.sum()
