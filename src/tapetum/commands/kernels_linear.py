"""Micro-benchmarks of memory, matrix products and norms: the native kernels beside torch, on the shapes of real models.

The best of many calls counts, the two sides one after the other: torch's threads spin for a while after a call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial

import torch

from tapetum.commands.kernels_attention import Timing, fastest
from tapetum.ops import dense, linear, memory
from tapetum.ops.native_linear import NativeLinear
from tapetum.ops.native_rows import NativeRows

# name, outputs, inputs
BF16_SHAPES = (
    ("2b qkv", 2048, 1536),
    ("2b gate and up", 17920, 1536),
    ("2b down", 1536, 8960),
    ("2b vision qkv", 3840, 1280),
    ("2b vision fc1", 5120, 1280),
    ("2b vision fc2", 1280, 5120),
    ("mini gate and up", 4096, 512),
    ("mini down", 512, 2048),
    ("mini vision qkv", 1152, 384),
)
FP32_SHAPES = (("2b patch embedding", 1280, 1176), ("2b vision fc2", 1280, 5120))
HEADS = (("2b head", 151936, 1536), ("mini head", 151936, 512))
ROWS, FEW_ROWS = 1024, (1, 2, 4, 8, 16)
READ_BYTES = 512 * 1024**2  # far more than any cache holds
NORM_WIDTH = 1536


def timings(library: ctypes.CDLL, seconds: float) -> Iterator[Timing]:
    """Each shape for `seconds` on either side."""
    yield memory_read(library, seconds)
    for dtype, shapes in ((torch.bfloat16, BF16_SHAPES), (torch.float32, FP32_SHAPES)):
        for name, outputs, inputs in shapes:
            yield from products(library, (name, outputs, inputs), dtype, (ROWS,), seconds)
    for shape in HEADS:
        yield from products(library, shape, torch.bfloat16, FEW_ROWS, seconds)
    yield norm(library, seconds)


def memory_read(library: ctypes.CDLL, seconds: float) -> Timing:
    words = memory.allocate(READ_BYTES).view(torch.int64).random_()
    native_s = fastest(lambda: library.tpt_read(words.data_ptr(), READ_BYTES), seconds)
    torch_s = fastest(words.sum, seconds)
    return Timing(name="memory read", native_s=native_s, torch_s=torch_s, work=READ_BYTES, unit="GB/s")


def products(
    library: ctypes.CDLL,
    shape: tuple[str, int, int],
    dtype: torch.dtype,
    rows: tuple[int, ...],
    seconds: float,
) -> Iterator[Timing]:
    """Products with a weight; for few rows what counts is how fast the weight is read."""
    name, outputs, inputs = shape
    weight = (torch.rand(outputs, inputs) - 0.5).to(dtype)
    native, beside = NativeLinear(library, weight, None, "none"), linear.pack(weight, None, "none")
    for count in rows:
        x = (torch.rand(count, inputs) - 0.5).to(dtype)
        native_s, torch_s = fastest(partial(native, x), seconds), fastest(partial(beside, x), seconds)
        is_read = count <= max(FEW_ROWS)
        work = weight.numel() * (weight.itemsize if is_read else 2 * count)
        yield Timing(
            name=f"{name}, {str(dtype).removeprefix('torch.')}, {count} x {inputs} x {outputs}",
            native_s=native_s,
            torch_s=torch_s,
            work=work,
            unit="GB/s" if is_read else "GF/s",
        )


def norm(library: ctypes.CDLL, seconds: float) -> Timing:
    x, weight = torch.randn(ROWS, NORM_WIDTH).bfloat16(), torch.ones(NORM_WIDTH).bfloat16()
    rows = NativeRows(library)
    native_s = fastest(lambda: rows.rms_norm(x, weight, 1e-6), seconds)
    torch_s = fastest(lambda: dense.rms_norm(x, weight, 1e-6), seconds)
    work = 2 * x.numel() * x.itemsize  # read and written
    return Timing(
        name=f"RMS norm, {ROWS} x {NORM_WIDTH}", native_s=native_s, torch_s=torch_s, work=work, unit="GB/s"
    )
