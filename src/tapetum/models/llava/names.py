"""Names of published LLaVA checkpoints for each of our tensors."""

from __future__ import annotations

from tapetum.models.decoder_config import DecoderConfig
from tapetum.models.decoder_slots import decoder_slots
from tapetum.models.llava.vision import VisionConfig
from tapetum.models.projectors import mlp_slots
from tapetum.models.tiled import CLIP_NAMES, tower_slots
from tapetum.models.weights import NameTable, Slot

TOWER, PROJECTOR, NEWLINE = "vision_tower.", "multi_modal_projector.", "image_newline"
VISION = (TOWER, PROJECTOR, NEWLINE)
# Whole models inside a model at first, parts of one model later; then the tower lost a level too.
PREFIXES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("vision_tower.vision_model.", TOWER),
    ("model.language_model.", "model."),
    ("model.vision_tower.vision_model.", TOWER),
    *((f"model.{part}", part) for part in VISION),
)


def name_table(decoder: DecoderConfig, vision: VisionConfig) -> NameTable:
    tower, width, hidden = vision.tower, vision.tower.block.width, decoder.hidden_size
    slots = (
        *decoder_slots(decoder),
        *tower_slots(tower, CLIP_NAMES, TOWER),
        *mlp_slots(
            "projector.",
            (PROJECTOR + "linear_1", PROJECTOR + "linear_2"),
            (width, hidden, hidden),
            has_bias=vision.has_projector_bias,
        ),
    )
    if vision.has_newline:
        slots = (*slots, Slot("newline", (NEWLINE,), (hidden,)))
    ignored = [f"{TOWER}{part}" for part in ("post_layernorm.", "head.", "embeddings.position_ids")]
    ignored += [f"{TOWER}encoder.layers.{index}." for index in range(tower.depth, vision.num_layers)]
    return NameTable(
        slots, ignored=(*ignored, *(("lm_head.weight",) if decoder.is_tied else ())), prefixes=PREFIXES
    )
