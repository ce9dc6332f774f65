"""Attention of the native library on torch tensors, with the signatures of the OpTable.

Views of larger tensors are read in place: only heads and head widths have to lie side by side. What lies inside a block
of a cache is the library's own layout (native/src/kv.h), so a cache belongs to these functions from the first write.

T packed tokens, H query heads, K key-value heads, D head width, P patches, N cache blocks, S block size.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from tapetum.ops import reference
from tapetum.ops.layout import AttentionLayout, Segments

MAX_WIDTH = 256  # D
GROUP = 16  # tokens of a block that lie together, where S and D are multiples of it
DTYPES = {torch.float32: 0, torch.bfloat16: 1}


@dataclass(frozen=True, slots=True)
class NativeAttention:
    library: ctypes.CDLL

    def segment_keys(self, k: Tensor, v: Tensor, segments: Segments) -> tuple[Tensor, ...]:
        """Packed keys and values [P, H, D] -> one buffer that only `segment_attention` can read."""
        _, heads, width = k.shape
        check_width(width)
        bounds, count = segments.bounds.data_ptr(), len(segments.bounds) - 1
        keys = k.new_empty(self.library.tpt_segment_keys_size(bounds, count, heads, width))
        self.library.tpt_segment_keys(
            DTYPES[k.dtype],
            bounds,
            count,
            heads,
            width,
            k.data_ptr(),
            _stride(k),
            v.data_ptr(),
            _stride(v),
            keys.data_ptr(),
        )
        return (keys,)

    def segment_attention(
        self, q: Tensor, first: int, keys: tuple[Tensor, ...], segments: Segments
    ) -> Tensor:
        """Attention inside each segment for the packed queries [first, first + Q): q [Q, H, D] -> same."""
        length, heads, width = q.shape
        out = q.new_empty(q.shape)
        self.library.tpt_segment_attention(
            DTYPES[q.dtype],
            segments.bounds.data_ptr(),
            len(segments.bounds) - 1,
            heads,
            width,
            keys[0].data_ptr(),
            q.data_ptr(),
            _stride(q),
            first,
            length,
            width**-0.5,
            out.data_ptr(),
            heads * width,
        )
        return out

    def write_kv(self, cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Put k, v [T, K, D] at `slots` of cache [2 K, N, S, D], keys first."""
        self.library.tpt_write_kv(
            *_parts(cache), k.data_ptr(), _stride(k), v.data_ptr(), _stride(v), slots.data_ptr(), len(slots)
        )

    def read_kv(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """What lies at `slots` of cache [2 K, N, S, D]: keys and values, [T, K, D] each."""
        size, width = cache.shape[2:]
        if size % GROUP or width % GROUP:
            return reference.read_kv(cache, slots)
        blocks, places = torch.unique_consecutive(slots // size, return_inverse=True)
        keys, values = cache.index_select(1, blocks).chunk(2)  # [K, B, S, D], packed in groups
        heads, side = len(keys), 4 // cache.element_size()
        keys = keys.view(heads, -1, width // side, GROUP, side).transpose(2, 3)
        values = values.view(heads, -1, GROUP // side, width, side).transpose(3, 4)
        tokens = places * size + slots % size
        return _tokens(keys, tokens, width), _tokens(values, tokens, width)

    def paged_attention(self, q: Tensor, cache: Tensor, layout: AttentionLayout, window: int = 0) -> Tensor:
        """Attention of packed q [T, H, D] over each row's blocks, as far as it reaches -> [T, H, D]."""
        _, heads, width = q.shape
        out = q.new_empty(q.shape)
        self.library.tpt_paged_attention(
            *_parts(cache),
            layout.rows.data_ptr(),
            len(layout.rows),
            layout.blocks.data_ptr(),
            heads,
            width**-0.5,
            q.data_ptr(),
            _stride(q),
            out.data_ptr(),
            heads * width,
            None if layout.reach is None else layout.reach.data_ptr(),
            window,
        )
        return out


def check_width(head_dim: int) -> None:
    if head_dim % 2 or head_dim > MAX_WIDTH:
        raise ValueError(
            f"head width is {head_dim}, native attention takes even ones up to {MAX_WIDTH}; use the dense table"
        )


def _tokens(plain: Tensor, tokens: Tensor, width: int) -> Tensor:
    """Of the blocks of some heads, tokens in the order of their numbers: [T, K, D]."""
    return plain.reshape(len(plain), -1, width).index_select(1, tokens).transpose(0, 1)


def _parts(cache: Tensor) -> tuple[int, int, int, int, int, int]:
    """(dtype, data, blocks, block size, key-value heads, head width)"""
    heads, blocks, size, width = cache.shape
    check_width(width)
    return DTYPES[cache.dtype], cache.data_ptr(), blocks, size, heads // 2, width


def _stride(x: Tensor) -> int:
    """Elements from one token of x [T, heads, D] to the next."""
    row, head, element = x.stride()
    assert element == 1 and (head == x.shape[2] or x.shape[1] == 1)
    return row
