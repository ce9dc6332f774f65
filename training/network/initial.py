"""The weights that training starts from.

The vision tower starts knowing what every picture asks for: its patch embedding is a cosine transform with the high
frequencies raised, and its attention heads prefer neighbours, rows or columns. In a trial of 200 steps that was worth a
little (9.4 against 8.7 % of the characters).
"""

from __future__ import annotations

from math import pi, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from training.network.config import NetworkConfig

_LUMA = torch.tensor([0.3, 0.59, 0.11])
_CHROMA = torch.tensor([[0.5, -0.5, 0.0], [0.25, 0.25, -0.5]])
_CHROMA_VALUES = 20  # frequencies that each chroma gets of the embedding; luma has the rest


class _Preference(NamedTuple):
    """What a head looks at: a patch so far down and right of its own; None = anywhere on that axis."""

    down: int | None
    right: int | None


_NEAR = [_Preference(0, -1), _Preference(0, 1)]
_PREFERENCES = [
    [*_NEAR, _Preference(1, 0)],
    [*_NEAR, _Preference(-1, 0)],
    [_Preference(0, -2), _Preference(0, 2), _Preference(0, 0)],
    [_Preference(0, 0), _Preference(0, None), _Preference(None, 0)],
    [_Preference(0, 0), _Preference(0, None), _Preference(None, 0)],
    [_Preference(0, 0), _Preference(0, None), _Preference(None, None)],
]
_STRENGTH = 4.0  # by how much the preferred place's score stands out


@torch.no_grad()
def initialise(network: nn.Module, config: NetworkConfig) -> None:
    for name, parameter in network.named_parameters():
        fan_in = parameter[0].numel()
        if "norm" in name or "ln_q" in name:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        elif name.endswith("bias"):
            parameter.zero_()
        elif "embed_tokens" in name or "no_word" in name:
            parameter.normal_(0, 0.08)
        elif "patch_embed" in name:
            parameter.copy_(_cosines(config))
        elif any(part in name for part in ("o_proj", "down_proj", "attn.proj", "fc2")):
            parameter.normal_(0, 0.1 / fan_in**0.5)  # small: a block begins as almost the identity
        else:
            parameter.normal_(0, 0.7 / fan_in**0.5)
        if ".attn.qkv.bias" in name:
            _prefer(parameter, int(name.split("blocks.")[1].split(".")[0]), config)


def _cosines(config: NetworkConfig) -> Tensor:
    """[width, 3, times, size, size]: the lowest frequencies of light, then of the two colour differences."""
    size = config.patch_size
    waves, heights = _waves(size)
    count = min(_CHROMA_VALUES, config.vision_size // 8)
    rows = []
    for channels, number in (
        (_LUMA, config.vision_size - 2 * count),
        (_CHROMA[0], count),
        (_CHROMA[1], count),
    ):
        chosen = waves[:number] * heights[:number, None, None]
        filler = torch.randn(max(0, number - len(chosen)), size, size) * 0.5 / size
        rows.append(torch.cat((chosen, filler))[:, None] * channels[:, None, None])
    weight = torch.cat(rows)
    times = config.temporal_patch_size
    return (weight / times)[:, :, None].expand(-1, -1, times, -1, -1)


def _waves(size: int) -> tuple[Tensor, Tensor]:
    """All two-dimensional cosines, the lowest frequencies first, and how high each is raised."""
    steps = torch.arange(size)
    basis = torch.cos(pi / size * (steps[None] + 0.5) * steps[:, None]) * sqrt(2 / size)
    basis[0] /= sqrt(2)
    waves = torch.einsum("ax,by->abxy", basis, basis).reshape(-1, size, size)
    order = (steps[:, None] ** 2 + steps[None] ** 2).flatten().float()
    index = order.argsort(stable=True)
    heights = 0.15 * (0.2 + order.sqrt()).clamp(max=5.0)  # printed edges fall off about like 1 / frequency
    return waves[index], heights[index]


def _prefer(bias: Tensor, block: int, config: NetworkConfig) -> None:
    """Biases of queries and keys whose product is largest for the preferred place, through the rotary angles."""
    if block >= len(_PREFERENCES):
        return
    heads, width = config.vision_heads, config.vision_size
    size = width // heads
    count = size // 4  # frequencies of each axis
    frequencies = 10000.0 ** (-torch.arange(count).float() / count)
    used = frequencies > 0.15
    amplitude = sqrt(_STRENGTH * sqrt(size) / (2 * int(used.sum())))
    queries, keys = bias[:width].view(heads, size), bias[width : 2 * width].view(heads, size)
    for head, preference in enumerate(_PREFERENCES[block][:heads]):
        for axis, offset in enumerate(preference):
            if offset is None:
                continue
            first = slice(axis * count, (axis + 1) * count)  # the rotated halves: rows, then columns, twice
            second = slice(size // 2 + axis * count, size // 2 + (axis + 1) * count)
            queries[head, first] = amplitude * used
            keys[head, first] = amplitude * used * torch.cos(frequencies * offset)
            keys[head, second] = -amplitude * used * torch.sin(frequencies * offset)
