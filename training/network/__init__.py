"""tapetum-mini in plain torch, as it is trained. The engine never sees it: it reads the export.

Parameters below `visual` and `model` carry the names of published Qwen2-VL checkpoints, so that the export copies
them; those below `heads` teach the network while it trains and are dropped.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.generator.canvas import FLAGS
from training.generator.labels import (
    MAX_LINES,
    MAX_ORDER,
    MAX_ORDINAL,
    MAX_PLACES,
    NUM_CHARACTERS,
    NUM_REGIONS,
    NUM_SHARES,
    NUM_TRAITS,
    SLOTS,
    SLOTS_X,
)
from training.network.config import NetworkConfig
from training.network.decoder import Decoder, Trace, Watch
from training.network.initial import initialise
from training.network.vision import VisionTower

__all__ = ["MAX_SIDE", "PLACES", "Heads", "Network", "NetworkConfig", "Trace", "Watch"]

MAX_SIDE = 32  # rows or columns of cells that the position head can tell apart
PLACES = {
    "ordinal": MAX_ORDINAL,
    "line": MAX_LINES,
    "place": MAX_PLACES,
    "region": NUM_REGIONS,
    "share": NUM_SHARES,
}


class Heads(nn.Module):
    """Linear readings of the network's states, each with its own loss."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        hidden, values = config.hidden_size, config.value_size
        # Of a feature:
        self.characters = nn.Linear(hidden, SLOTS * NUM_CHARACTERS)  # the characters of a cell
        self.order = nn.Linear(hidden, MAX_ORDER * NUM_CHARACTERS)  # the same in reading order
        self.traits = nn.Linear(hidden, 2 * NUM_TRAITS)  # shapes and colours
        self.flags = nn.Linear(hidden, len(FLAGS))
        self.places = nn.Linear(hidden, sum(PLACES.values()))
        self.words = nn.Linear(hidden, hidden)  # its word, as the embedding of a token
        self.no_word = nn.Parameter(torch.zeros(1, hidden))  # the embedding that means: none
        # Of a patch state: its three slots of a line, the same head for each patch.
        self.patch_characters = nn.Linear(config.vision_size, SLOTS_X // 2 * NUM_CHARACTERS)
        # Of states of the decoder:
        self.position = nn.Linear(hidden, 2 * MAX_SIDE)  # row and column
        self.known_flags = nn.Linear(hidden, len(FLAGS))
        self.known_share = nn.Linear(hidden, NUM_SHARES)  # length of the bar that a word names
        self.labels = nn.Linear(hidden, 2 * hidden)  # labels of its row and column, as embeddings of tokens
        self.value_order = nn.Linear(values, MAX_ORDER * NUM_CHARACTERS)  # of values: characters in order
        self.value_traits = nn.Linear(values, NUM_TRAITS)  # of values: the shape and its colour
        self.value_word = nn.Linear(values, hidden)  # of values: the word, as the embedding of its token
        self.rank = nn.Linear(hidden, MAX_ORDER + 1)  # which character of a cell comes next


class Network(nn.Module):
    def __init__(self, config: NetworkConfig | None = None) -> None:
        super().__init__()
        self.config = config or NetworkConfig()
        self.visual = VisionTower(self.config)
        self.model = Decoder(self.config)
        self.heads = Heads(self.config)
        initialise(self, self.config)

    def embed(self, token_ids: Tensor, features: Tensor, is_visual: Tensor) -> Tensor:
        """[B, S] -> [B, S, hidden], with features [cells, hidden] at the positions marked visual."""
        return self.model.embed_tokens(token_ids).masked_scatter(is_visual[..., None], features)
