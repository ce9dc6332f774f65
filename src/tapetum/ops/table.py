"""OpTable: one implementation per operation, chosen once for a device and a dtype."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from tapetum.native.library import load
from tapetum.ops import best, dense, linear, reference
from tapetum.ops.layout import AttentionLayout, Segments
from tapetum.ops.native_attention import MAX_WIDTH, NativeAttention
from tapetum.ops.native_decoder import NativeDecoder, native_head
from tapetum.ops.native_linear import NativeLinear
from tapetum.ops.native_packing import NativePacking
from tapetum.ops.native_rows import CODES, NativeRows
from tapetum.ops.packing import Packing
from tapetum.ops.parts import Activation, DecoderParts, Linear, RunDecoder

_log = logging.getLogger(__name__)
__all__ = [
    "Activation",
    "Linear",
    "OpTable",
    "choose_table",
    "native_table",
    "reference_table",
    "torch_table",
]


class PagedAttention(Protocol):
    """(q [T, H, D], cache, layout, window in tokens, 0 = none) -> [T, H, D]"""

    def __call__(self, q: Tensor, cache: Tensor, layout: AttentionLayout, window: int = 0) -> Tensor: ...


def _use_threads(count: int | None) -> None:
    if count is not None:
        torch.set_num_threads(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """Signatures and shapes are those of ops/reference.py."""

    name: str
    has_exact_rows: bool = (
        False  # the bits of a row do not depend on how many others there are, nor on its place
    )
    linear: Callable[[Tensor, Tensor | None, Activation], Linear]
    packing: Packing | None = None  # of the weights of `linear`, where they can outlive the process
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    layer_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    turns: Callable[[Tensor, Tensor, Tensor, torch.dtype], tuple[Tensor, Tensor]]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    segment_keys: Callable[[Tensor, Tensor, Segments], tuple[Tensor, ...]]
    segment_attention: Callable[[Tensor, int, tuple[Tensor, ...], Segments], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    read_kv: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    paged_attention: PagedAttention
    max_head_width: int | None = None  # of keys and values; None = any
    # all layers at once, with the values of the above
    decoder: Callable[[DecoderParts], RunDecoder] | None = None
    # (linear, hidden [R, hidden]) -> scores [R, V], best tokens [R]
    head: Callable[[Linear, Tensor], tuple[Tensor, Tensor]] = best.head
    use_threads: Callable[[int | None], None] = _use_threads  # None = all cores

    def for_heads(self, width: int) -> OpTable:
        """The table for a decoder with heads so wide: with attention of torch where its own does not take them."""
        if self.max_head_width is None or width <= self.max_head_width:
            return self
        _log.warning(
            "heads are %d wide, native attention takes up to %d: attention of torch runs, which is slower,"
            " and with it the last bits of an answer may depend on its neighbours",
            width,
            self.max_head_width,
        )
        return replace(
            self,
            write_kv=dense.write_kv,
            read_kv=reference.read_kv,
            paged_attention=dense.paged_attention,
            decoder=None,
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
        read_kv=reference.read_kv,
        paged_attention=reference.paged_attention,
    )


def choose_table(device: torch.device, dtype: torch.dtype) -> OpTable:
    """The fastest implementations that exist for this device and dtype."""
    native = native_table(dtype) if device.type == "cpu" else None
    return native or torch_table(device, dtype)


def native_table(dtype: torch.dtype) -> OpTable | None:
    """The native library's kernels; None where there is no library, or it does not compute in the dtype."""
    library = load()
    if library is None or dtype not in CODES:
        return None
    rows, attention = NativeRows(library), NativeAttention(library)
    return OpTable(
        name=f"native-{library.tpt_isa().decode()}",
        has_exact_rows=True,
        linear=partial(NativeLinear, library),
        packing=NativePacking(library),
        rms_norm=rows.rms_norm,
        layer_norm=rows.layer_norm,
        turns=rows.turns,
        rotate=rows.rotate,
        segment_keys=attention.segment_keys,
        segment_attention=attention.segment_attention,
        write_kv=attention.write_kv,
        read_kv=attention.read_kv,
        paged_attention=attention.paged_attention,
        max_head_width=MAX_WIDTH,
        decoder=partial(NativeDecoder, library),
        head=native_head,
        use_threads=partial(_use_native_threads, library),
    )


def _use_native_threads(library: ctypes.CDLL, count: int | None) -> None:
    """The library's threads do the work; torch's would only take the cores from them."""
    torch.set_num_threads(1)
    if count is not None:
        library.tpt_set_num_threads(count)


def torch_table(device: torch.device, dtype: torch.dtype) -> OpTable:
    """What runs on any device."""
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
        read_kv=reference.read_kv,
        paged_attention=dense.paged_attention,
    )
