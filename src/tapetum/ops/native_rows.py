"""Norms and rotary embedding by the native library; a row's bits do not depend on the other rows.

T packed tokens, H heads, D head width, A position axes.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

CODES = {torch.float32: 0, torch.bfloat16: 1}  # the library's names of types
MAX_HEAD_WIDTH = 1024


class NativeRows:
    """Signatures and shapes are those of ops/reference.py."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
        width = x.shape[-1]
        self._library.tpt_rms_norm(
            CODES[x.dtype], x.data_ptr(), weight.data_ptr(), weight.dtype != x.dtype, eps,
            x.numel() // width, width, out.data_ptr(),
        )  # fmt: skip
        return out

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
        width = x.shape[-1]
        self._library.tpt_layer_norm(
            CODES[x.dtype], x.data_ptr(), weight.data_ptr(), bias.data_ptr(), eps,
            x.numel() // width, width, out.data_ptr(),
        )  # fmt: skip
        return out

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        tokens, heads, width = x.shape
        if x.stride(2) != 1 or x.stride(1) != width:
            x = x.contiguous()
        cos, sin = cos.contiguous(), sin.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype)
        self._library.tpt_rotate(
            CODES[x.dtype], tokens, heads, width, x.stride(0),
            x.data_ptr(), cos.data_ptr(), sin.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        return out

    def turns(
        self, positions: Tensor, axes: Tensor, frequencies: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        positions, half = positions.contiguous(), len(frequencies)
        tokens = positions.shape[1]
        cos, sin = torch.empty(2, tokens, 1, 2 * half, dtype=dtype)
        code = self._library.tpt_turns(
            CODES[dtype], tokens, half, positions.data_ptr(), axes.data_ptr(), frequencies.data_ptr(),
            cos.data_ptr(), sin.data_ptr(),
        )  # fmt: skip
        assert code == 0, f"heads are {2 * half} wide, limit {MAX_HEAD_WIDTH}"
        return cos, sin
