"""All layers of a decoder in one call of the native library, for what a step costs beside its kernels.

Owns the workspace, which grows to the largest step seen. Values are those of the operations one by one.

T packed tokens, R rows that sample, L layers, D head width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from tapetum.native import structures
from tapetum.ops.layout import AttentionLayout
from tapetum.ops.native_attention import MAX_WIDTH
from tapetum.ops.native_linear import NativeLinear
from tapetum.ops.native_rows import CODES
from tapetum.ops.parts import DecoderParts, DeepFeatures, GatedMlp, LayerParts, Linear, num_levels


class NativeDecoder:
    def __init__(self, library: ctypes.CDLL, parts: DecoderParts) -> None:
        assert parts.head_dim <= MAX_WIDTH, f"heads are {parts.head_dim} wide, limit {MAX_WIDTH}"
        self._library, self._parts = library, parts  # the parts own what the structures point to
        self._layers = (structures.Layer * len(parts.layers))(*map(_layer, parts.layers))
        self._turns = (structures.Turns * len(parts.turns))(
            *(
                structures.Turns(table.axes.data_ptr(), table.frequencies.data_ptr(), table.scale)
                for table in parts.turns
            )
        )
        self._decoder = structures.Decoder(
            layers=ctypes.addressof(self._layers),
            num_layers=len(parts.layers),
            turns=ctypes.addressof(self._turns),
            num_turns=len(self._turns),
            norm=parts.norm.data_ptr(),
            hidden=len(parts.norm),
            heads=parts.num_heads,
            kv_heads=parts.num_kv_heads,
            head_dim=parts.head_dim,
            dtype=CODES[parts.dtype],
            has_wide_norms=parts.norm.dtype != parts.dtype,
            eps=parts.eps,
            scale=parts.head_dim**-0.5,
        )
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def __call__(
        self,
        x: Tensor,
        position_ids: Tensor,
        caches: Sequence[Tensor],
        layout: AttentionLayout,
        deep: Sequence[DeepFeatures],
    ) -> Tensor:
        """x [T, hidden], which is used up -> normalised hidden states [R, hidden]."""
        assert position_ids.is_contiguous() and x.is_contiguous()
        self._reserve(len(x))
        out = x.new_empty(len(layout.sample_rows), x.shape[1])
        pointers = (ctypes.c_void_p * len(caches))(*(cache.data_ptr() for cache in caches))
        runs = (structures.Deep * len(deep))(
            *(structures.Deep(run.start, run.end, run.values.data_ptr()) for run in deep)
        )
        assert all(run.values.is_contiguous() and run.values.dtype == x.dtype for run in deep)
        _, num_blocks, block_size, _ = caches[0].shape
        step = structures.Step(
            x.data_ptr(), position_ids.data_ptr(), layout.slots.data_ptr(), len(x),
            ctypes.addressof(pointers), num_blocks, layout.rows.data_ptr(), len(layout.rows),
            layout.blocks.data_ptr(), _pointer(layout.reach), layout.sample_rows.data_ptr(), len(out),
            ctypes.addressof(runs), len(deep), num_levels(deep, x.shape[1]),
            self._workspace.data_ptr(), out.data_ptr(), block_size,
        )  # fmt: skip
        self._library.tpt_run_decoder(ctypes.addressof(self._decoder), ctypes.addressof(step))
        return out

    def _reserve(self, tokens: int) -> None:
        needed = self._library.tpt_decoder_workspace(ctypes.addressof(self._decoder), tokens)
        if needed > len(self._workspace):
            self._workspace = torch.empty(needed, dtype=torch.uint8)


def _layer(layer: LayerParts) -> structures.Layer:
    assert isinstance(layer.mlp, GatedMlp)
    return structures.Layer(
        layer.norm1.data_ptr(), _address(layer.qkv), _pointer(layer.q_norm), _pointer(layer.k_norm),
        _address(layer.out), _pointer(layer.post1), layer.norm2.data_ptr(),
        _address(layer.mlp.gate_up), _address(layer.mlp.down), _pointer(layer.post2), layer.turns, layer.window,
    )  # fmt: skip


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _address(linear: Linear) -> int:
    assert isinstance(linear, NativeLinear)
    return linear.address


def native_head(linear: Linear, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """hidden [R, hidden] -> scores [R, V] and the best token of each row [R], found while they are written."""
    assert isinstance(linear, NativeLinear)
    scores, best = linear.head(hidden)
    return scores, best[:, 0]
