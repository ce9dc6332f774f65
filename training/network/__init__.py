"""tapetum-mini in plain torch, as it is trained. The engine never sees it: it reads the export.

Parameters below `visual` and `model` carry the names of published Qwen2-VL checkpoints, so that the export copies
them; those below `heads` teach the network while it trains and are dropped.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.generator.labels import MAX_ORDER, NUM_CHARACTERS, NUM_TRAITS, SLOTS, SLOTS_X
from training.network.config import NetworkConfig
from training.network.decoder import Decoder, Trace, Watch
from training.network.vision import VisionTower

__all__ = ["MAX_SIDE", "Heads", "Network", "NetworkConfig", "Trace", "Watch"]

MAX_SIDE = 32  # rows or columns of cells that the position head can tell apart


class Heads(nn.Module):
    """Linear readings of the network's states, each with its own loss."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        hidden, values = config.hidden_size, config.value_size
        self.characters = nn.Linear(hidden, SLOTS * NUM_CHARACTERS)  # of a feature: the characters of a cell
        self.traits = nn.Linear(hidden, 2 * NUM_TRAITS)  # of a feature: shapes and colours
        self.position = nn.Linear(hidden, 2 * MAX_SIDE)  # of an early state: row and column
        self.value_order = nn.Linear(values, MAX_ORDER * NUM_CHARACTERS)  # of values: characters in order
        self.value_traits = nn.Linear(values, NUM_TRAITS)  # of values: the shape and its colour
        self.rank = nn.Linear(hidden, MAX_ORDER + 1)  # of a late state: which character of a cell comes next
        # Of a patch state: its three slots of a line, the same head for each patch.
        self.patch_characters = nn.Linear(config.vision_size, SLOTS_X // 2 * NUM_CHARACTERS)


class Network(nn.Module):
    def __init__(self, config: NetworkConfig | None = None) -> None:
        super().__init__()
        self.config = config or NetworkConfig()
        self.visual = VisionTower(self.config)
        self.model = Decoder(self.config)
        self.heads = Heads(self.config)
        self._initialise()

    def embed(self, token_ids: Tensor, features: Tensor, is_visual: Tensor) -> Tensor:
        """[B, S] -> [B, S, hidden], with features [cells, hidden] at the positions marked visual."""
        return self.model.embed_tokens(token_ids).masked_scatter(is_visual[..., None], features)

    @torch.no_grad()
    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            fan_in = parameter[0].numel()
            if "norm" in name or "ln_q" in name:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            elif "embed_tokens" in name:
                parameter.normal_(0, 0.08)
            elif "patch_embed" in name:
                parameter.normal_(0, 0.7 / fan_in**0.5)
                parameter.copy_(parameter.mean(2, keepdim=True).expand_as(parameter))
            elif any(part in name for part in ("o_proj", "down_proj", "attn.proj", "fc2")):
                parameter.normal_(0, 0.1 / fan_in**0.5)  # small: a block begins as almost the identity
            else:
                parameter.normal_(0, 0.7 / fan_in**0.5)
