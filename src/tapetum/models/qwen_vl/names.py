"""Names of published Qwen-VL checkpoints of each generation for each of our tensors."""

from __future__ import annotations

from dataclasses import dataclass

from tapetum.models.decoder_config import DecoderConfig
from tapetum.models.decoder_slots import decoder_slots, ignored_slots
from tapetum.models.qwen_vl.vision import Generation, VisionConfig
from tapetum.models.vit import BlockNames, block_slots, linear_slots, norm_slots
from tapetum.models.weights import NameTable, Slot

# Some exporters nest the parts one level deeper.
PREFIXES = (("model.language_model.", "model."), ("model.visual.", "visual."))


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerNames:
    mlp_in: tuple[str, ...]
    mlp_out: str
    merger: tuple[str, str, str] = ("ln_q", "mlp.0", "mlp.2")  # norm, first and second linear layer

    @property
    def block(self) -> BlockNames:
        return BlockNames(
            norm1="norm1",
            qkv=("attn.qkv",),
            out="attn.proj",
            norm2="norm2",
            mlp_in=self.mlp_in,
            mlp_out=self.mlp_out,
        )


NAMES: dict[Generation, TowerNames] = {
    "2": TowerNames(mlp_in=("mlp.fc1",), mlp_out="mlp.fc2"),
    "2.5": TowerNames(mlp_in=("mlp.gate_proj", "mlp.up_proj"), mlp_out="mlp.down_proj"),
    "3": TowerNames(
        mlp_in=("mlp.linear_fc1",),
        mlp_out="mlp.linear_fc2",
        merger=("norm", "linear_fc1", "linear_fc2"),
    ),
}


def name_table(decoder: DecoderConfig, vision: VisionConfig) -> NameTable:
    slots = decoder_slots(decoder) + vision_slots(vision)
    return NameTable(slots, ignored=ignored_slots(decoder), prefixes=PREFIXES)


def vision_slots(config: VisionConfig) -> tuple[Slot, ...]:
    width, names = config.block.width, NAMES[config.generation]
    kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
    return (
        *linear_slots(
            "visual.patch",
            ("visual.patch_embed.proj",),
            (width, config.in_channels, *kernel),
            has_bias=config.generation == "3",
        ),
        *_position_slots(config),
        *_merger_slots(config, "visual.merger.", "visual.merger.", width),
        *(
            slot
            for level in range(len(config.deep_layers))
            for slot in _merger_slots(
                config, f"visual.deep.{level}.", f"visual.deepstack_merger_list.{level}.", config.merged_width
            )
        ),
        *(
            slot
            for block in range(config.depth)
            for slot in block_slots(config.block, names.block, f"visual.{block}.", f"visual.blocks.{block}.")
        ),
    )


def _position_slots(config: VisionConfig) -> tuple[Slot, ...]:
    if not config.position_side:
        return ()
    return (
        Slot("visual.positions", ("visual.pos_embed.weight",), (config.position_side**2, config.block.width)),
    )


def _merger_slots(config: VisionConfig, ours: str, theirs: str, norm_width: int) -> tuple[Slot, ...]:
    norm, first, second = (theirs + part for part in NAMES[config.generation].merger)
    wide = config.merged_width
    return (
        *norm_slots(ours + "norm", norm, norm_width, has_bias=config.block.norm == "layer"),
        *linear_slots(ours + "in", (first,), (wide, wide)),
        *linear_slots(ours + "out", (second,), (config.out_width, wide)),
    )
