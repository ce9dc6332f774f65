"""Linear layers by the native library: weights packed once, rows whose bits do not depend on the other rows.

Owns the layout's Python side: the structure that the C functions take and the buffer it points to. Who keeps packed
weights between starts gives a `Pack` of his own.

M rows, N outputs, K inputs, V vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from tapetum.native import structures
from tapetum.ops import memory
from tapetum.ops.parts import Activation, has_gate

CODES = {torch.float32: 0, torch.bfloat16: 1}  # the library's names of types
ACTIVATIONS: tuple[Activation, ...] = structures.ACTIVATIONS
ALIGNMENT = 64  # bytes, of a packed weight

# (library, weight [N, K], activation) -> the packed weight, uint8, aligned
Pack = Callable[[ctypes.CDLL, Tensor, Activation], Tensor]


def num_packed_bytes(library: ctypes.CDLL, weight: Tensor, activation: Activation) -> int:
    outputs, inputs = num_outputs(weight, activation), weight.shape[1]
    return int(library.tpt_packed_bytes(outputs, inputs, CODES[weight.dtype], ACTIVATIONS.index(activation)))


def num_outputs(weight: Tensor, activation: Activation) -> int:
    return len(weight) // 2 if has_gate(activation) else len(weight)


def pack_into(library: ctypes.CDLL, weight: Tensor, activation: Activation, packed: Tensor) -> None:
    """Write the packed form of `weight` [N, K] to `packed`, uint8 [num_packed_bytes]."""
    rows = _in_rows(weight)
    library.tpt_pack(
        rows.data_ptr(), rows.stride(0), num_outputs(weight, activation), weight.shape[1],
        CODES[weight.dtype], ACTIVATIONS.index(activation), packed.data_ptr(),
    )  # fmt: skip


def packed(library: ctypes.CDLL, weight: Tensor, activation: Activation) -> Tensor:
    """The packed form of `weight` in memory of its own."""
    buffer = memory.allocate(num_packed_bytes(library, weight, activation))
    pack_into(library, weight, activation, buffer)
    return buffer


class NativeLinear:
    """`activation(x @ weight.T + bias) + residual`, rounded once; x of the weight's dtype, rows at any distance."""

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: Tensor,
        bias: Tensor | None,
        activation: Activation,
        pack: Pack = packed,
    ) -> None:
        self._run, self._run_head = library.tpt_linear, library.tpt_head
        self._packed = pack(library, weight, activation)
        assert self._packed.data_ptr() % ALIGNMENT == 0
        self._bias = None if bias is None else bias.float().contiguous()
        self._dtype, self._outputs = weight.dtype, num_outputs(weight, activation)
        self._weight = structures.Weight(
            self._packed.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            self._outputs,
            weight.shape[1],
            CODES[weight.dtype],
            ACTIVATIONS.index(activation),
        )
        self.address = ctypes.addressof(self._weight)  # of a `Weight`, for as long as this object lives

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [..., K], residual [..., N] or None -> [..., N]."""
        rows = self._rows(x)
        out = torch.empty((len(rows), self._outputs), dtype=self._dtype)
        beside, stride = None, 0
        if residual is not None:
            added = _in_rows(residual)
            assert added.shape == out.shape and added.dtype == self._dtype
            beside, stride = added.data_ptr(), added.stride(0)
        self._run(
            self.address, rows.data_ptr(), rows.stride(0), len(rows),
            beside, stride, out.data_ptr(), self._outputs,
        )  # fmt: skip
        return out if x.dim() == 2 else out.view(*x.shape[:-1], self._outputs)

    def head(self, x: Tensor, num_best: int = 1) -> tuple[Tensor, Tensor]:
        """Scores [M, V] of x [M, K], and the ids [M, num_best] of the best, from the best down.

        Of equal scores the lowest id comes first. NaN counts as the highest score; an id is -1 where its score is
        not finite.
        """
        rows = self._rows(x)
        scores = torch.empty((len(rows), self._outputs), dtype=self._dtype)
        best = torch.empty((len(rows), num_best), dtype=torch.float32)
        ids = torch.empty((len(rows), num_best), dtype=torch.int64)
        self._run_head(
            self.address, rows.data_ptr(), rows.stride(0), len(rows), CODES[self._dtype],
            scores.data_ptr(), self._outputs, num_best, best.data_ptr(), ids.data_ptr(),
        )  # fmt: skip
        return scores, ids

    def _rows(self, x: Tensor) -> Tensor:
        rows = _in_rows(x)
        assert x.dtype == self._dtype and rows.shape[1] == self._weight.inputs
        return rows


def _in_rows(x: Tensor) -> Tensor:
    """x [..., K] as [M, K] whose elements of a row are neighbours; a copy only where they are not."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()
