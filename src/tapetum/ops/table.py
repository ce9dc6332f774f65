"""OpTable: one implementation per operation, chosen once for a device and a dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tapetum.ops import dense, linear, reference
from tapetum.ops.layout import AttentionLayout, Segments
from tapetum.ops.packing import Packing
from tapetum.ops.parts import Activation, DecoderParts, Linear, RunDecoder

__all__ = ["Activation", "Linear", "OpTable", "choose_table", "reference_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """Signatures and shapes are those of ops/reference.py."""

    name: str
    linear: Callable[[Tensor, Tensor | None, Activation], Linear]
    packing: Packing | None = None  # of the weights of `linear`, where they can outlive the process
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    layer_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    turns: Callable[[Tensor, Tensor, Tensor, torch.dtype], tuple[Tensor, Tensor]]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    segment_keys: Callable[[Tensor, Tensor, Segments], tuple[Tensor, ...]]
    segment_attention: Callable[[Tensor, int, tuple[Tensor, ...], Segments], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    paged_attention: Callable[[Tensor, Tensor, AttentionLayout], Tensor]
    decoder: Callable[[DecoderParts], RunDecoder] | None = (
        None  # all layers at once, with the values of the above
    )


def reference_table() -> OpTable:
    return OpTable(
        name="reference",
        linear=reference.Linear,
        rms_norm=reference.rms_norm,
        layer_norm=reference.layer_norm,
        turns=reference.turns,
        rotate=reference.rotate,
        segment_keys=reference.segment_keys,
        segment_attention=reference.segment_attention,
        write_kv=reference.write_kv,
        paged_attention=reference.paged_attention,
    )


def choose_table(device: torch.device, dtype: torch.dtype) -> OpTable:
    """The fastest implementations that exist for this device and dtype."""
    is_packed = device.type == "cpu" and dtype == torch.bfloat16 and linear.has_packed_linear()
    return OpTable(
        name="dense-packed" if is_packed else "dense",
        linear=linear.pack if is_packed else linear.DenseLinear,
        rms_norm=dense.rms_norm,
        layer_norm=dense.layer_norm,
        turns=reference.turns,
        rotate=dense.rotate,
        segment_keys=dense.segment_keys,
        segment_attention=dense.segment_attention,
        write_kv=dense.write_kv,
        paged_attention=dense.paged_attention,
    )
