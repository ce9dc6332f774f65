"""Weights in the native library's layout, as what keeps packed weights between starts asks for them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from tapetum.ops.native_linear import NativeLinear, num_packed_bytes, pack_into
from tapetum.ops.parts import Activation


@dataclass(frozen=True, slots=True)
class NativePacking:
    """See ops/packing.py."""

    library: ctypes.CDLL

    @property
    def layout(self) -> str:
        return "groups of 32 outputs, 1"  # native/src/gemm.h; the number goes up when the layout changes

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype, activation: Activation) -> int:
        return num_packed_bytes(self.library, _shape_alone(shape, dtype), activation)

    def pack(self, weight: Tensor, activation: Activation, memory: Tensor) -> None:
        pack_into(self.library, weight, activation, memory)

    def linear(
        self,
        memory: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        bias: Tensor | None,
        activation: Activation,
    ) -> NativeLinear:
        weight = _shape_alone(shape, dtype)
        return NativeLinear(self.library, weight, bias, activation, lambda *_: memory)


def _shape_alone(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor without values."""
    return torch.empty(shape, dtype=dtype, device="meta")
