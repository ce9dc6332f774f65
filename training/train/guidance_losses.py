"""What the language model is taught beside its answers: where to look, and what to know there and before it looks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from training.generator.figures import SHAPES
from training.generator.labels import IGNORED, NO_WORD
from training.network import MAX_SIDE, Network, Trace, Watch
from training.network.decoder import ANSWER_LAYER, FIELD_LAYER, MATCH_LAYER
from training.train.batch import Batch, Conversation, Shown
from training.train.cell_losses import Report, figures_of, flags_loss, order_loss, share_right, thin_out

LABEL_WEIGHTS = {"row": 0.6, "column": 0.6}
FLAGS_WEIGHT, SHARE_WEIGHT, ASKED_WEIGHT = 0.6, 0.3, 0.3


def guidance_loss(
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
        losses["known_flags"] = FLAGS_WEIGHT * flags_loss(
            flags, batch.shown, len(batch.patches), "known_flags", report
        )
        losses["known_share"] = SHARE_WEIGHT * _share_loss(network, trace.middle, batch, report)
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
        kept = thin_out(wanted + 1, 0.3, blank=NO_WORD + 1)
        if len(kept):
            wanted = wanted[kept]
            scores = (F.linear(states[kept], weights[i], biases[i]) @ table.T).float()
            losses[name] = factor * F.cross_entropy(scores, wanted)
            if (wanted != NO_WORD).any():
                report.figures[f"{name}_right"] = share_right(scores, wanted, wanted != NO_WORD)
    return losses


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
            report.figures[name] = share_right(scores, wanted[is_known], wanted[is_known] >= 0)
    return loss


def _share_loss(network: Network, middle: Tensor, batch: Batch, report: Report) -> Tensor:
    """The words of a question tell how long the bar is that they name, so that two of them can be compared."""
    assert batch.conversation is not None and batch.shown is not None
    queries, cells = _first_looks(batch.conversation.match_watch, batch.conversation)
    wanted = batch.shown.places["share"][cells]
    if not (wanted >= 0).any():
        return torch.zeros(())
    scores = network.heads.known_share(middle.flatten(0, 1)[queries]).float()
    report.figures["known_share_right"] = share_right(scores, wanted, wanted >= 0)
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
    cells, wanted_shapes, colors = figures_of(shown)
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
    return loss + order_loss(heads.value_order(values), shown)
