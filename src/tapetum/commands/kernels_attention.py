"""Micro-benchmarks of attention: the native kernels beside the torch path, on the shapes of real models.

The best of many calls counts, the two sides one after the other: torch's threads spin for a while after a call, and
those of the library sleep after a while, which within a step they do not. Decodes take turns among caches that
together do not fit into the processor, as in a model whose layers each have one, in the memory that an engine gives
them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch

from tapetum.ops import dense, memory
from tapetum.ops.layout import AttentionLayout, plan_segments
from tapetum.ops.native_attention import NativeAttention

HEADS, KV_HEADS, WIDTH, BLOCK = 12, 2, 128, 16  # of the 2B model's decoder
CACHES_BYTES = 96 * 1024**2
TOWERS = (("2b", 16, 80), ("mini", 6, 64))  # name, heads, head width
SEGMENTS = ((1024,), (64,) * 64, (9216,))
DECODES = ((1, 1024), (8, 1024))  # rows, keys
CHUNKS = ((512, 0), (512, 1536))  # tokens, tokens before them


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    name: str
    native_s: float
    torch_s: float
    work: float  # floating-point operations or bytes of a call
    unit: str  # GF/s or GB/s

    @property
    def rate(self) -> float:
        return self.work / self.native_s / 1e9


def timings(native: NativeAttention, seconds: float) -> list[Timing]:
    """Each shape for `seconds`, in bfloat16."""
    towers = [tower(native, *shape, lengths, seconds) for lengths in SEGMENTS for shape in TOWERS]
    decodes = [decode(native, rows, keys, seconds) for rows, keys in DECODES]
    return towers + decodes + [prefill(native, tokens, context, seconds) for tokens, context in CHUNKS]


def tower(
    native: NativeAttention, name: str, heads: int, width: int, lengths: Sequence[int], seconds: float
) -> Timing:
    """Attention of a vision layer, packing of keys included, out of the joined product as in the model."""
    segments = plan_segments(lengths)
    q, k, v = torch.randn(sum(lengths), 3 * heads, width).bfloat16().chunk(3, 1)

    def by_native() -> None:
        native.segment_attention(q, 0, native.segment_keys(k, v, segments), segments)

    def by_torch() -> None:
        dense.segment_attention(q, 0, dense.segment_keys(k, v, segments), segments)

    native_s, torch_s = fastest(by_native, seconds), fastest(by_torch, seconds)
    work = 4 * heads * width * sum(length**2 for length in lengths)
    title = f"vision {name}, {len(lengths)} x {lengths[0]} patches"
    return Timing(name=title, native_s=native_s, torch_s=torch_s, work=work, unit="GF/s")


def decode(native: NativeAttention, rows: int, keys: int, seconds: float) -> Timing:
    layout = layout_of([(1, keys - 1)] * rows)
    work = 4 * KV_HEADS * WIDTH * rows * keys  # bytes of keys and values
    native_s, torch_s = paged(native, layout, -(-CACHES_BYTES // work), seconds)
    title = f"decode, {rows} rows of {keys} tokens"
    return Timing(name=title, native_s=native_s, torch_s=torch_s, work=work, unit="GB/s")


def prefill(native: NativeAttention, tokens: int, context: int, seconds: float) -> Timing:
    native_s, torch_s = paged(native, layout_of([(tokens, context)]), 1, seconds)
    work = 4 * HEADS * WIDTH * tokens * (context + (tokens + 1) / 2)
    title = f"prefill, {tokens} tokens after {context}"
    return Timing(name=title, native_s=native_s, torch_s=torch_s, work=work, unit="GF/s")


def paged(
    native: NativeAttention, layout: AttentionLayout, num_caches: int, seconds: float
) -> tuple[float, float]:
    caches = cycle([random_cache(len(layout.blocks)) for _ in range(num_caches)])
    q = torch.randn(len(layout.slots), HEADS, WIDTH).bfloat16()
    native_s = fastest(lambda: native.paged_attention(q, next(caches), layout), seconds)
    return native_s, fastest(lambda: dense.paged_attention(q, next(caches), layout), seconds)


def random_cache(num_blocks: int) -> torch.Tensor:
    shape = (2 * KV_HEADS, num_blocks, BLOCK, WIDTH)
    return memory.allocate(2 * math.prod(shape)).view(torch.bfloat16).view(shape).normal_()


def layout_of(rows: Sequence[tuple[int, int]]) -> AttentionLayout:
    """(tokens, tokens before them) of each row; blocks in order."""
    numbers, first, start = [], 0, 0
    for tokens, context in rows:
        numbers.append((start, tokens, context, first))
        start += tokens
        first += -(-(context + tokens) // BLOCK)
    return AttentionLayout(
        rows=torch.tensor(numbers, dtype=torch.int32),
        blocks=torch.arange(first, dtype=torch.int32),
        slots=torch.zeros(start, dtype=torch.int64),
        sample_rows=torch.zeros(0, dtype=torch.int64),
        block_size=BLOCK,
        dtype=torch.bfloat16,
    )


def fastest(call: Callable[[], object], seconds: float) -> float:
    """The shortest time of a call among all within `seconds`."""
    best = float("inf")
    end = time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() > end:
            return best
