"""OpTable: one implementation per operation, chosen once for a device and a dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tapetum.ops import dense, linear, reference
from tapetum.ops.layout import AttentionLayout, SegmentRun


class Linear(Protocol):
    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """Signatures and shapes are those of ops/reference.py."""

    name: str
    linear: Callable[[Tensor, Tensor | None], Linear]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    quick_gelu: Callable[[Tensor], Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    segment_attention: Callable[[Tensor, Tensor, Tensor, tuple[SegmentRun, ...]], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    paged_attention: Callable[[Tensor, Tensor, AttentionLayout], Tensor]


def reference_table() -> OpTable:
    return OpTable(
        name="reference",
        linear=reference.Linear,
        rms_norm=reference.rms_norm,
        rotate=reference.rotate,
        quick_gelu=reference.quick_gelu,
        silu_mul=reference.silu_mul,
        segment_attention=reference.segment_attention,
        write_kv=reference.write_kv,
        paged_attention=reference.paged_attention,
    )


def choose_table(device: torch.device, dtype: torch.dtype) -> OpTable:
    """The fastest implementations that exist for this device and dtype."""
    is_packed = device.type == "cpu" and dtype == torch.bfloat16 and linear.has_packed_linear()
    return OpTable(
        name="dense-packed" if is_packed else "dense",
        linear=linear.PackedLinear if is_packed else reference.Linear,
        rms_norm=dense.rms_norm,
        rotate=dense.rotate,
        quick_gelu=dense.quick_gelu,
        silu_mul=dense.silu_mul,
        segment_attention=dense.segment_attention,
        write_kv=dense.write_kv,
        paged_attention=dense.paged_attention,
    )
