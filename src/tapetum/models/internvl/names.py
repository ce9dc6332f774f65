"""Names of published InternVL checkpoints for each of our tensors, in both layouts, and those of InternLM2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tapetum.models.decoder_config import DecoderConfig
from tapetum.models.decoder_slots import decoder_slots
from tapetum.models.projectors import mlp_slots
from tapetum.models.tiled import TowerConfig, TowerNames, tower_slots
from tapetum.models.vit import BlockNames, norm_slots
from tapetum.models.weights import NameTable, Slot


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
    text = decoder_slots(decoder)
    slots = (
        *(internlm2_slots(text, decoder) if is_internlm2 else text),
        *tower_slots(tower, names.tower, names.tower_prefix),
        *norm_slots("projector.norm", norm, merged),
        *mlp_slots("projector.", (first, second), (merged, width, width)),
    )
    ignored = ("lm_head.weight", "output.weight") if decoder.is_tied else ()
    return NameTable(slots, ignored=ignored, prefixes=PREFIXES)


# InternLM2 is a Llama by other names, but for one: `wqkv` holds, for each key head, its queries, its key, its value.
_INTERNLM2 = {
    "model.embed_tokens.": "model.tok_embeddings.",
    "lm_head.": "output.",
    "self_attn.q_proj.": "attention.wqkv.",
    "self_attn.o_proj.": "attention.wo.",
    "mlp.gate_proj.": "feed_forward.w1.",
    "mlp.up_proj.": "feed_forward.w3.",
    "mlp.down_proj.": "feed_forward.w2.",
    "input_layernorm.": "attention_norm.",
    "post_attention_layernorm.": "ffn_norm.",
}


def internlm2_slots(slots: tuple[Slot, ...], decoder: DecoderConfig) -> tuple[Slot, ...]:
    """The slots of a Llama as the checkpoint of an InternLM2 fills them."""
    split = partial(_split_groups, decoder.num_heads // decoder.num_kv_heads, decoder.head_dim)
    return tuple(
        replace(slot, sources=(_renamed(slot.sources[0]),), convert=split)
        if ".self_attn.q_proj." in slot.sources[0]
        else replace(slot, sources=tuple(map(_renamed, slot.sources)))
        for slot in slots
    )


def _renamed(name: str) -> str:
    for theirs, internlm2 in _INTERNLM2.items():
        name = name.replace(theirs, internlm2)
    return name


def _split_groups(num_queries: int, head_dim: int, parts: list[Tensor]) -> Tensor:
    """[key heads * (queries of each + 2) * D, ...] -> all queries, all keys, all values."""
    fused = parts[0]
    if len(fused) % ((num_queries + 2) * head_dim):
        return fused  # whose shape is refused
    groups = fused.unflatten(0, (-1, num_queries + 2, head_dim))
    shares = groups.split((num_queries, 1, 1), 1)
    return torch.cat([share.flatten(0, 2) for share in shares])
