"""Rotary positions: what config.json says of them, resolved to an angle and an axis for each pair of values.

D head width. Frequencies are computed in float32 in the order of transformers, so that they are its bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tapetum.core.errors import CheckpointError
from tapetum.core.files import ConfigReader

# `mrope` says that there are sections; `dynamic` changes nothing up to the length that a model was made for, which the
# engine does not go beyond.
_KINDS = ("default", "mrope", "dynamic", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """How the layers of one kind turn queries and keys by their positions."""

    frequencies: tuple[float, ...]  # [D / 2] angle a step
    axes: tuple[int, ...]  # [D / 2] of the positions that turn the pair: time, height, width
    scale: float = 1.0  # of cosines and sines


@dataclass(frozen=True, slots=True)
class Sections:
    """M-RoPE: how many pairs of values each of three axes turns."""

    counts: tuple[int, int, int]
    is_interleaved: bool  # t h w t h w ... t t, not t ... t h ... h w ... w


def read_rope(
    rope: ConfigReader, theta: float, head_dim: int, max_positions: int, sections: Sections | None = None
) -> Rope:
    """One rope section of config.json; `theta` and `sections` are those of a section that names none."""
    kind = rope.word("rope_type", rope.word("type", "default"))
    if kind not in _KINDS:
        raise CheckpointError(
            f"{rope.name}: rope_type is {kind!r}, supported are {', '.join(_KINDS)}; use a checkpoint of one of them"
        )
    if head_dim % 2:
        raise CheckpointError(f"config.json: head_dim is {head_dim}, must be even to turn values in pairs")
    rope.only("partial_rotary_factor", 1.0)
    theta = rope.number("rope_theta", theta, above=1)
    powers = theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    plain, scale = 1.0 / powers, 1.0
    if kind == "linear":
        plain /= rope.number("factor", above=0)
    elif kind == "llama3":
        plain = _stretch_low(rope, plain, max_positions)
    elif kind == "yarn":
        plain, scale = _stretch_between(rope, powers, theta, max_positions)
    else:
        rope.ignore("factor", "original_max_position_embeddings")
    axes = _read_axes(rope, head_dim // 2, sections)
    rope.finish()
    return Rope(tuple(plain.tolist()), axes, scale)


def _stretch_low(rope: ConfigReader, plain: Tensor, max_positions: int) -> Tensor:
    """Llama 3.1: frequencies with few turns in the original context are divided, those between in part."""
    factor = rope.number("factor", above=0)
    low, high = rope.number("low_freq_factor", above=0), rope.number("high_freq_factor", above=0)
    original = rope.number("original_max_position_embeddings", float(max_positions), above=0)
    length = 2 * math.pi / plain
    smooth = (original / length - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    stretched = torch.where(length > original / low, plain / factor, plain)
    is_between = (length >= original / high) & (length <= original / low)
    return torch.where(is_between, between, stretched)


def _stretch_between(
    rope: ConfigReader, powers: Tensor, theta: float, max_positions: int
) -> tuple[Tensor, float]:
    """YaRN (Peng et al., 2023): a ramp from frequencies that stay to those that are divided, and a scale."""
    factor, half = rope.number("factor", above=0), len(powers)
    original = rope.number("original_max_position_embeddings", float(max_positions), above=0)

    def place_of(turns: float) -> float:  # of the pair that turns so often in the original context
        return 2 * half * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = (
        place_of(rope.number("beta_fast", 32.0, above=0)),
        place_of(rope.number("beta_slow", 1.0, above=0)),
    )
    if rope.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    ramp = (torch.arange(half, dtype=torch.float32) - low) / (max(high - low, 0.001))
    kept = 1 - ramp.clamp(0, 1)
    return 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept, _yarn_scale(rope, factor)


def _yarn_scale(rope: ConfigReader, factor: float) -> float:
    def scale_of(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    one, other = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    inferred = scale_of(one) / scale_of(other) if one and other else scale_of(1.0)
    return rope.number("attention_factor", inferred)


def _read_axes(rope: ConfigReader, half: int, sections: Sections | None) -> tuple[int, ...]:
    if sections is None:
        return (0,) * half
    counts = rope.integers("mrope_section", sections.counts)
    rope.only("mrope_interleaved", sections.is_interleaved)
    if len(counts) != 3 or sum(counts) != half:
        raise CheckpointError(
            f"config.json: mrope_section is {counts}, must be three numbers that add to {half}"
        )
    if not sections.is_interleaved:
        return tuple(axis for axis, count in enumerate(counts) for _ in range(count))
    axes = [0] * half
    for axis in (1, 2):
        for place in range(axis, min(3 * counts[axis], half), 3):
            axes[place] = axis
    return tuple(axes)
