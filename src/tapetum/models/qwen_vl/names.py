"""Names of published Qwen2-VL and Qwen2.5-VL checkpoints for each of our tensors."""

from __future__ import annotations

from tapetum.models.decoder import DecoderConfig, decoder_slots
from tapetum.models.qwen_vl.vision import VisionConfig
from tapetum.models.weights import NameTable, Slot

# Some exporters nest the parts one level deeper.
PREFIXES = (("model.language_model.", "model."), ("model.visual.", "visual."))


def name_table(decoder: DecoderConfig, vision: VisionConfig) -> NameTable:
    slots = decoder_slots(decoder) + vision_slots(vision)
    ignored = ("lm_head.weight",) if decoder.is_tied else ()
    return NameTable(slots, ignored=ignored, prefixes=PREFIXES)


def vision_slots(config: VisionConfig) -> tuple[Slot, ...]:
    width, inner, merged = config.width, config.mlp_width, config.width * config.merge_size**2
    kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
    slots = [
        Slot("visual.patch", ("visual.patch_embed.proj.weight",), (width, config.in_channels, *kernel)),
        *_norm("visual.merger.norm", "visual.merger.ln_q", width, config.has_layer_norm),
        *_linear("visual.merger.in", "visual.merger.mlp.0", merged, merged),
        *_linear("visual.merger.out", "visual.merger.mlp.2", merged, config.out_width),
    ]
    for block in range(config.depth):
        ours, theirs = f"visual.{block}.", f"visual.blocks.{block}."
        slots += [
            *_norm(ours + "norm1", theirs + "norm1", width, config.has_layer_norm),
            *_linear(ours + "qkv", theirs + "attn.qkv", width, 3 * width),
            *_linear(ours + "out", theirs + "attn.proj", width, width),
            *_norm(ours + "norm2", theirs + "norm2", width, config.has_layer_norm),
        ]
        if config.has_gated_mlp:
            parts = [f"{theirs}mlp.{name}_proj." for name in ("gate", "up")]
            slots += [
                Slot(ours + "in.weight", tuple(part + "weight" for part in parts), (2 * inner, width)),
                Slot(ours + "in.bias", tuple(part + "bias" for part in parts), (2 * inner,)),
                *_linear(ours + "down", theirs + "mlp.down_proj", inner, width),
            ]
        else:
            slots += [
                *_linear(ours + "in", theirs + "mlp.fc1", width, inner),
                *_linear(ours + "down", theirs + "mlp.fc2", inner, width),
            ]
    return tuple(slots)


def _linear(ours: str, theirs: str, width_in: int, width_out: int) -> tuple[Slot, Slot]:
    return (
        Slot(ours + ".weight", (theirs + ".weight",), (width_out, width_in)),
        Slot(ours + ".bias", (theirs + ".bias",), (width_out,)),
    )


def _norm(ours: str, theirs: str, width: int, has_bias: bool) -> tuple[Slot, ...]:
    weight = Slot(ours + ".weight", (theirs + ".weight",), (width,))
    return (weight, Slot(ours + ".bias", (theirs + ".bias",), (width,))) if has_bias else (weight,)
