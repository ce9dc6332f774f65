"""SigLIP as config.json describes it: the tower of Idefics3, SmolVLM and Gemma 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tapetum.core.files import ConfigReader
from tapetum.models.config_keys import IGNORED_KEYS
from tapetum.models.tiled import TowerConfig
from tapetum.models.vit import BlockConfig, read_activation

NUM_COLOURS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SiglipDefaults:
    """What a config.json need not say."""

    width: int
    num_heads: int


def read_siglip(
    vision: ConfigReader,
    defaults: SiglipDefaults,
    *,
    side: int,
    patch_size: int,
    normalisation: tuple[Sequence[float], Sequence[float]],
) -> TowerConfig:
    """The tower over tiles of `side` patches, from vision_config; reports keys that say nothing to it."""
    vision.only("num_channels", NUM_COLOURS)
    vision.only("vision_use_head", False)
    block = BlockConfig(
        width=vision.integer("hidden_size", defaults.width),
        num_heads=vision.integer("num_attention_heads", defaults.num_heads),
        mlp_width=vision.integer("intermediate_size", 3072),
        activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        eps=vision.number("layer_norm_eps", 1e-6),
    )
    depth = vision.integer("num_hidden_layers", 12)
    vision.ignore("image_size", "patch_size")
    vision.finish(IGNORED_KEYS)
    mean, std = normalisation
    return TowerConfig(
        block=block,
        depth=depth,
        patch_size=patch_size,
        side=side,
        image_mean=tuple(mean),
        image_std=tuple(std),
        has_post_norm=True,
    )
