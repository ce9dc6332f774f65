"""Names of published Qwen2-VL and Qwen2.5-VL checkpoints for each of our tensors."""

from __future__ import annotations

from tapetum.models.decoder import DecoderConfig, decoder_slots
from tapetum.models.qwen_vl.vision import VisionConfig
from tapetum.models.vit import BlockNames, block_slots, linear_slots, norm_slots
from tapetum.models.weights import NameTable, Slot

# Some exporters nest the parts one level deeper.
PREFIXES = (("model.language_model.", "model."), ("model.visual.", "visual."))


def name_table(decoder: DecoderConfig, vision: VisionConfig) -> NameTable:
    slots = decoder_slots(decoder) + vision_slots(vision)
    ignored = ("lm_head.weight",) if decoder.is_tied else ()
    return NameTable(slots, ignored=ignored, prefixes=PREFIXES)


def vision_slots(config: VisionConfig) -> tuple[Slot, ...]:
    width, merged = config.width, config.width * config.merge_size**2
    kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
    is_gated = config.has_gated_mlp
    names = BlockNames(
        norm1="norm1",
        qkv=("attn.qkv",),
        out="attn.proj",
        norm2="norm2",
        mlp_in=("mlp.gate_proj", "mlp.up_proj") if is_gated else ("mlp.fc1",),
        mlp_out="mlp.down_proj" if is_gated else "mlp.fc2",
    )
    merger = "visual.merger."
    return (
        Slot("visual.patch", ("visual.patch_embed.proj.weight",), (width, config.in_channels, *kernel)),
        *norm_slots(merger + "norm", merger + "ln_q", width, has_bias=config.has_layer_norm),
        *linear_slots(merger + "in", (merger + "mlp.0",), (merged, merged)),
        *linear_slots(merger + "out", (merger + "mlp.2",), (config.out_width, merged)),
        *(
            slot
            for block in range(config.depth)
            for slot in block_slots(config.block, names, f"visual.{block}.", f"visual.blocks.{block}.")
        ),
    )
