"""Names of published Idefics3 and SmolVLM checkpoints for each of our tensors."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tapetum.models.decoder_config import DecoderConfig
from tapetum.models.decoder_slots import decoder_slots
from tapetum.models.tiled import CLIP_NAMES, TowerConfig, tower_slots
from tapetum.models.weights import NameTable, Slot

TOWER = "model.vision_model."
CONNECTOR = "model.connector."


def name_table(decoder: DecoderConfig, tower: TowerConfig, table_side: int, merge_size: int) -> NameTable:
    """`table_side`: positions along a side of the table that the tower was trained with."""
    width = tower.block.width
    positions = Slot(
        "vision.positions",
        (f"{TOWER}{CLIP_NAMES.positions}",),
        (tower.num_patches, width),
        partial(_chosen, tower.side, table_side),
    )
    vision = [slot for slot in tower_slots(tower, CLIP_NAMES, TOWER) if slot.name != positions.name]
    connector = Slot(
        "connector",
        (CONNECTOR + "modality_projection.proj.weight",),
        (decoder.hidden_size, merge_size**2 * width),
    )
    ignored = ("lm_head.weight",) if decoder.is_tied else ()
    slots = (*decoder_slots(decoder, "model.text_model."), *vision, positions, connector)
    return NameTable(slots, ignored=ignored)


def _chosen(side: int, table_side: int, sources: list[Tensor]) -> Tensor:
    """A row of the table for each patch of a tile."""
    (table,) = sources
    if len(table) != table_side**2:
        return table  # whose shape is refused
    line = nearest_positions(side, table_side)
    return table[(line[:, None] * table_side + line).flatten()]


def nearest_positions(side: int, table_side: int) -> Tensor:
    """For each of `side` patches of a line its place among `table_side`, by how far along the line it begins.

    In float32 as transformers counts, whose rounding gives some patches the place before their own.
    """
    step = 1.0 / torch.tensor(side)
    fractions = (torch.arange(side, dtype=torch.float32) * step).clamp(max=1.0 - 1e-6)
    bounds = torch.arange(1 / table_side, 1.0, 1 / table_side)
    return torch.bucketize(fractions, bounds, right=True)
