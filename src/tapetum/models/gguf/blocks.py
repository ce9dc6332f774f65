"""Values from the blocks they are packed in: ggml's types, whole tensors at a time.

B blocks; a block of a simple type holds 32 values and one scale, one of a K type 256 values in sub-blocks with scales
of their own under one scale of all. Source of the layouts: ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tapetum.core.errors import CheckpointError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
_CHUNK = 2**14  # blocks at a time: what is between bytes and values stays small
_ONE, _FIFTH = np.uint8(1), np.uint8(16)  # the lowest bit, and the fifth


@dataclass(frozen=True, slots=True)
class BlockType:
    """`unpack` makes [B, num_values] of [B, num_bytes]; None = the values are stored as they are."""

    name: str
    num_values: int
    num_bytes: int
    unpack: Callable[[Bytes], Floats] | None = None

    def size_of(self, num_values: int) -> int:
        return num_values // self.num_values * self.num_bytes


def block_type(number: int, tensor: str) -> BlockType:
    found = _TYPES.get(number)
    if found is None:
        name = _UNREAD.get(number, f"number {number}")
        raise CheckpointError(
            f"tensor {tensor} is stored as {name}, which is not read; take a file of "
            f"{', '.join(kind.name for kind in _TYPES.values())}"
        )
    return found


def dequantise(data: Bytes, kind: BlockType) -> Floats:
    """All values of a tensor, flat."""
    assert kind.unpack is not None, "plain values are read as they are"
    blocks = data.reshape(-1, kind.num_bytes)
    values = np.empty((len(blocks), kind.num_values), np.float32)
    for start in range(0, len(blocks), _CHUNK):
        values[start : start + _CHUNK] = kind.unpack(blocks[start : start + _CHUNK])
    return values.reshape(-1)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8))


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (values.astype(np.int8) - np.int8(16))


def _q5_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8)


def _q4_k(blocks: Bytes) -> Floats:
    return _of_sub_blocks(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(blocks: Bytes) -> Floats:
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & _ONE  # [B, 8, 32]
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _of_sub_blocks(blocks, low | high * _FIFTH)


def _q6_k(blocks: Bytes) -> Floats:
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None] & 15  # [B, 2, 2, 64]
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3  # [B, 2, 4, 32]
    values = (low.reshape(-1, 2, 4, 32) | high << 4).astype(np.int8) - np.int8(32)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)  # [B, 16]
    return (scales[:, :, None] * values.reshape(-1, 16, 16)).reshape(-1, 256)


def _half(blocks: Bytes, start: int) -> Floats:
    """A float16 of each block, [B, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """The low halves of all bytes, then the high ones."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Bit i of four bytes as bit 4 of value i."""
    return np.unpackbits(packed, axis=-1, bitorder="little") * _FIFTH


def _of_sub_blocks(blocks: Bytes, values: Bytes) -> Floats:
    """Values [B, 8, 32] under eight scales and least values of six bits, which lie in twelve bytes."""
    low, middle, high = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate((low & 63, high & 15 | low >> 6 << 4), axis=1)
    least = np.concatenate((middle & 63, high >> 4 | middle >> 6 << 4), axis=1)
    scaled = (_half(blocks, 0) * scales)[:, :, None] * values
    result: Floats = scaled - (_half(blocks, 2) * least)[:, :, None]
    return result.reshape(-1, 256)


_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    30: BlockType("BF16", 1, 2),
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
}
_UNREAD = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4",
}  # fmt: skip
