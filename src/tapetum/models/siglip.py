"""SigLIP as config.json describes it: the tower of Idefics3, SmolVLM and Gemma 3."""

from __future__ import annotations

from pathlib import Path

from tapetum.core.files import ConfigReader
from tapetum.models.config_keys import IGNORED_KEYS
from tapetum.models.tiled import TowerConfig
from tapetum.models.vit import BlockConfig, read_activation
from tapetum.processing.settings import read_normalisation, read_settings
from tapetum.processing.tiles import TileShape

HALVES = ((0.5,) * 3, (0.5,) * 3)  # pixels between -1 and 1


def read_siglip(
    vision: ConfigReader, shape: TileShape, directory: Path, *, width: int, num_heads: int
) -> TowerConfig:
    """The tower from vision_config, whose class has these defaults, and the colours from the processor's file.

    Reports keys of vision_config that say nothing to it.
    """
    mean, std = read_normalisation(read_settings(directory), HALVES)
    vision.only("num_channels", len(mean))
    vision.only("vision_use_head", False)
    block = BlockConfig(
        width=vision.integer("hidden_size", width),
        num_heads=vision.integer("num_attention_heads", num_heads),
        mlp_width=vision.integer("intermediate_size", 3072),
        activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        eps=vision.number("layer_norm_eps", 1e-6),
    )
    depth = vision.integer("num_hidden_layers", 12)
    vision.finish((*IGNORED_KEYS, "image_size", "patch_size"))
    return TowerConfig(
        block=block,
        depth=depth,
        patch_size=shape.patch_size,
        side=shape.side,
        image_mean=mean,
        image_std=std,
        has_post_norm=True,
    )
