"""The torch path that runs on any device: batched matrix products where they beat fused attention on CPUs.

T packed tokens, H query heads, K key-value heads, G = H / K, D head width, P patches, N blocks, S block size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tapetum.ops.groups import DecodeGroup, PrefillSegment
from tapetum.ops.layout import AttentionLayout, Segments
from tapetum.ops.reference import hidden_keys

QUERY_CHUNK = 256  # queries of one product
SMALL_SCORES = (
    4 * 1024**2
)  # scores of one product over many small segments: they stay in the processor's cache
MAX_SCORES = 64 * 1024**2  # scores of any product: bounds its memory however long the context is


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    return (wide * scale).to(weight.dtype).mul_(weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def segment_keys(k: Tensor, v: Tensor, segments: Segments) -> tuple[Tensor, ...]:
    return k, v


def segment_attention(q: Tensor, first: int, keys: tuple[Tensor, ...], segments: Segments) -> Tensor:
    k, v = keys
    q = q * q.shape[-1] ** -0.5
    out = torch.empty_like(q)
    last = first + len(q)
    for run in segments.runs:
        step = max(1, SMALL_SCORES // (q.shape[1] * run.length * min(run.length, QUERY_CHUNK)))
        start = run.start
        while start < run.end:
            low, high = max(start, first), min(start + run.length, last)
            if low == start and high == start + run.length:  # whole segments go together
                count = min(step, (last - start) // run.length, (run.end - start) // run.length)
                high = start + count * run.length
                keep = slice(start - first, high - first)
                _attend_segments(q[keep], k[start:high], v[start:high], count, out[keep])
            elif low < high:
                keep, whole = slice(low - first, high - first), slice(start, start + run.length)
                _attend_segments(q[keep], k[whole], v[whole], 1, out[keep])
                high = start + run.length
            else:
                high = start + run.length
            start = high
    return out


def _attend_segments(q: Tensor, k: Tensor, v: Tensor, count: int, out: Tensor) -> None:
    def split(x: Tensor) -> Tensor:  # [count x L, H, D] -> [count x H, L, D]
        return x.view(count, -1, *x.shape[1:]).transpose(1, 2).flatten(0, 1)

    queries, keys, values = split(q), split(k).transpose(1, 2), split(v)
    length = queries.shape[1]
    target = out.view(count, length, *out.shape[1:])  # [count, L, H, D]
    chunk = _query_chunk(len(queries) * keys.shape[-1])
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        weights = torch.bmm(queries[:, start:end], keys).softmax(-1)
        mixed = torch.bmm(weights, values).view(count, -1, end - start, values.shape[-1])
        target[:, start:end] = mixed.transpose(1, 2)


def write_kv(cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    flat = cache.flatten(1, 2)  # [2 K, N x S, D]
    heads = k.shape[1]
    flat[:heads].index_copy_(1, slots, k.transpose(0, 1))
    flat[heads:].index_copy_(1, slots, v.transpose(0, 1))


def paged_attention(q: Tensor, cache: Tensor, layout: AttentionLayout, window: int = 0) -> Tensor:
    q = q * q.shape[-1] ** -0.5
    out = torch.empty_like(q)
    for group in layout.groups:
        out[group.start : group.end] = _decode(q[group.start : group.end], cache, group, window)
    for segment in layout.segments:
        part = slice(segment.start, segment.end)
        reach = None if layout.reach is None else layout.reach[part]
        _prefill(q[part], cache, segment, out[part], Sight(window, reach))
    return out


def _query_chunk(scores_of_a_query: int) -> int:
    return max(1, min(QUERY_CHUNK, MAX_SCORES // scores_of_a_query))


def _gather(cache: Tensor, blocks: Tensor) -> Tensor:
    """[2 K, N, S, D] -> the blocks in order, [2 K, B x S, D]."""
    heads, count, size, width = cache.shape
    return cache.view(heads, count, size * width).index_select(1, blocks).view(heads, -1, width)


def _decode(q: Tensor, cache: Tensor, group: DecodeGroup, window: int) -> Tensor:
    rows, heads, width = q.shape
    kv_heads = cache.shape[0] // 2
    # A masked weight is 0, and 0 times a stray NaN or infinity would still be NaN: padding is emptied.
    kv = _gather(cache, group.blocks).index_fill_(1, group.padding, 0)
    kv = kv.view(2, kv_heads * rows, -1, width)  # keys, values: [K x R, S, D]
    queries = q.view(rows, kv_heads, -1, width).transpose(0, 1).reshape(kv_heads * rows, -1, width)
    scores = torch.bmm(queries, kv[0].transpose(1, 2)).view(kv_heads, rows, -1, kv.shape[2])
    scores.add_(group.mask)
    if window:
        position = torch.arange(kv.shape[2], device=q.device)
        scores.masked_fill_((position < group.lengths[:, None] - window)[:, None], -torch.inf)
    weights = scores.softmax(-1)
    mixed = torch.bmm(weights.view(kv_heads * rows, -1, kv.shape[2]), kv[1])  # [K x R, G, D]
    return mixed.view(kv_heads, rows, -1, width).transpose(0, 1).reshape(rows, heads, width)


@dataclass(frozen=True, slots=True)
class Sight:
    """How far the tokens of a row see back, 0 = to the first one, and from the first one on, None = to themselves."""

    window: int
    reach: Tensor | None

    def hide(self, scores: Tensor, start: int, before: int) -> None:
        """Take out of scores [.., T, seen] what tokens from `start` of a row on, after `before` others, do not see."""
        count, seen = scores.shape[-2:]
        if (
            self.reach is None and not self.window
        ):  # of the keys before the first of these tokens nothing is hidden
            future = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu_(1)
            scores[..., seen - count :].masked_fill_(future, -torch.inf)
            return
        own = torch.arange(before + start + 1, before + start + count + 1)
        reach = own if self.reach is None else self.reach[start : start + count]
        scores.masked_fill_(hidden_keys(own, reach, seen, self.window).to(scores.device), -torch.inf)


def _prefill(q: Tensor, cache: Tensor, segment: PrefillSegment, out: Tensor, sight: Sight) -> None:
    """Attention of one row, in chunks of queries that only look as far as they may."""
    length, heads, width = q.shape
    kv_heads = cache.shape[0] // 2
    keys, values = _gather(cache, segment.blocks).chunk(2, 0)  # [K, S, D]
    keys = keys.transpose(1, 2)
    queries = q.view(length, kv_heads, -1, width).permute(1, 2, 0, 3)  # [K, G, T, D]
    chunk = _query_chunk(heads * (segment.context + length))
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        seen = segment.context + (end if sight.reach is None else length)
        part = queries[:, :, start:end].reshape(kv_heads, -1, width)
        scores = torch.bmm(part, keys[:, :, :seen]).view(kv_heads, -1, end - start, seen)
        sight.hide(scores, start, segment.context)
        weights = scores.softmax(-1).view(kv_heads, -1, seen)
        mixed = torch.bmm(weights, values[:, :seen]).view(kv_heads, -1, end - start, width)
        out[start:end] = mixed.permute(2, 0, 1, 3).reshape(end - start, heads, width)
