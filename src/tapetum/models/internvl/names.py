"""Names of published InternVL checkpoints for each of our tensors, in both layouts."""

from __future__ import annotations

from dataclasses import dataclass

from tapetum.models.decoder_config import DecoderConfig
from tapetum.models.decoder_slots import decoder_slots, ignored_slots
from tapetum.models.internlm2 import internlm2_name, internlm2_slots
from tapetum.models.projectors import mlp_slots
from tapetum.models.tiled import TowerConfig, TowerNames, tower_slots
from tapetum.models.vit import BlockNames, norm_slots
from tapetum.models.weights import NameTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a layout calls tower and projector."""

    tower: TowerNames
    tower_prefix: str
    projector_prefix: str
    projector: tuple[str, str, str]  # norm, first and second linear layer

    @property
    def prefixes(self) -> tuple[str, str]:
        return self.tower_prefix, self.projector_prefix


CURRENT = Names(
    tower=TowerNames(
        patch="embeddings.patch_embeddings.projection",
        positions="embeddings.position_embeddings",
        class_token="embeddings.cls_token",
        blocks="encoder.layer.",
        block=BlockNames(
            norm1="layernorm_before",
            qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
            out="attention.projection_layer",
            norm2="layernorm_after",
            mlp_in=("mlp.fc1",),
            mlp_out="mlp.fc2",
            qk_norms=("attention.q_norm", "attention.k_norm"),
            scales=("lambda_1", "lambda_2"),
        ),
    ),
    tower_prefix="vision_tower.",
    projector_prefix="multi_modal_projector.",
    projector=("layer_norm", "linear_1", "linear_2"),
)
ORIGINAL = Names(
    tower=TowerNames(
        patch="embeddings.patch_embedding",
        positions="embeddings.position_embedding",
        class_token="embeddings.class_embedding",
        blocks="encoder.layers.",
        block=BlockNames(
            norm1="norm1",
            qkv=("attn.qkv",),
            out="attn.proj",
            norm2="norm2",
            mlp_in=("mlp.fc1",),
            mlp_out="mlp.fc2",
            qk_norms=("attn.q_norm", "attn.k_norm"),
            scales=("ls1", "ls2"),
        ),
    ),
    tower_prefix="vision_model.",
    projector_prefix="mlp1.",
    projector=("0", "1", "3"),
)
# Both layouts put the decoder behind a name, transformers 5 some more.
PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.", ""),
    ("model.vision_tower.", CURRENT.tower_prefix),
    ("model.multi_modal_projector.", CURRENT.projector_prefix),
)


def name_table(
    names: Names, decoder: DecoderConfig, tower: TowerConfig, merge_size: int, *, is_internlm2: bool
) -> NameTable:
    width, merged = decoder.hidden_size, tower.block.width * merge_size**2
    norm, first, second = (names.projector_prefix + part for part in names.projector)
    text, ignored = decoder_slots(decoder), ignored_slots(decoder)
    if is_internlm2:
        text, ignored = internlm2_slots(text, decoder), tuple(map(internlm2_name, ignored))
    slots = (
        *text,
        *tower_slots(tower, names.tower, names.tower_prefix),
        *norm_slots("projector.norm", norm, merged),
        *mlp_slots("projector.", (first, second), (merged, width, width)),
    )
    return NameTable(slots, ignored=ignored, prefixes=PREFIXES)
