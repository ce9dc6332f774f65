"""Names of published Gemma 3 checkpoints for each of our tensors."""

from __future__ import annotations

from torch import Tensor

from tapetum.models.decoder_config import DecoderConfig
from tapetum.models.decoder_slots import decoder_slots
from tapetum.models.tiled import CLIP_NAMES, TowerConfig, tower_slots
from tapetum.models.weights import NameTable, Slot

TOWER = "vision_tower."
PROJECTOR = "multi_modal_projector."
# transformers 5 writes the tower without its inner name, and some exporters nest the parts one level deeper.
PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.vision_tower.vision_model.", TOWER),
    ("model.vision_tower.", TOWER),
    ("vision_tower.vision_model.", TOWER),
    ("model.multi_modal_projector.", PROJECTOR),
)


def name_table(decoder: DecoderConfig, tower: TowerConfig) -> NameTable:
    width, out_width = tower.block.width, decoder.hidden_size
    slots = (
        *decoder_slots(decoder),
        *tower_slots(tower, CLIP_NAMES, TOWER),
        Slot("projector.norm", (PROJECTOR + "mm_soft_emb_norm.weight",), (width,), _whole_norm, is_wide=True),
        Slot("projector", (PROJECTOR + "mm_input_projection_weight",), (out_width, width), _transposed),
    )
    ignored = ("lm_head.weight",) if decoder.is_tied else ()
    return NameTable(slots, ignored=ignored, prefixes=PREFIXES)


def _whole_norm(sources: list[Tensor]) -> Tensor:
    return sources[0].float() + 1.0


def _transposed(sources: list[Tensor]) -> Tensor:
    return sources[0].t().contiguous()
