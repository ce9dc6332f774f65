"""The fast operations against the plain reference, at the edges of their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from tapetum.core.plan import Row
from tapetum.core.request import Prompt, Request, SamplingParams
from tapetum.ops import dense, linear, reference
from tapetum.ops.layout import AttentionLayout, SegmentRun, Segments, plan_segments
from tapetum.ops.table import Activation, torch_table
from tapetum.runtime.inputs import TokenBook, build_inputs

DTYPES = [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)]
CPU = torch.device("cpu")


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, bound: float) -> None:
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    error = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max().clamp(min=1e-6)
    assert error < bound


@pytest.mark.parametrize("dtype,bound", DTYPES)
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_elementwise(dtype: torch.dtype, bound: float, tokens: int) -> None:
    x, weight = randn(tokens, 96, dtype=dtype) * 30, randn(96, dtype=dtype, seed=1)
    assert_close(dense.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6), bound)
    wide = weight.float() + 1e-3
    assert_close(dense.rms_norm(x, wide, 1e-6), reference.rms_norm(x, wide, 1e-6), bound)
    shift = randn(96, dtype=dtype, seed=4)
    assert_close(
        dense.layer_norm(x, weight, shift, 1e-6), reference.layer_norm(x, weight, shift, 1e-6), bound
    )
    heads = randn(tokens, 6, 32, dtype=dtype)
    cos, sin = randn(tokens, 1, 32, dtype=dtype, seed=2), randn(tokens, 1, 32, dtype=dtype, seed=3)
    assert_close(dense.rotate(heads, cos, sin), reference.rotate(heads, cos, sin), bound)


@pytest.mark.parametrize("dtype,bound", DTYPES)
@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_linear(dtype: torch.dtype, bound: float, activation: Activation) -> None:
    x, weight, bias = (randn(*size, dtype=dtype, seed=i) for i, size in enumerate([(7, 64), (96, 64), (96,)]))
    wanted = reference.Linear(weight, bias, activation)(x)
    residual = randn(*wanted.shape, dtype=dtype, seed=3)
    linear = torch_table(CPU, dtype).linear(weight, bias, activation)
    assert_close(linear(x), wanted, bound)
    assert_close(linear(x, residual), reference.Linear(weight, bias, activation)(x, residual), bound)


def attend(ops: ModuleType, q: Tensor, k: Tensor, v: Tensor, segments: Segments, *cuts: int) -> Tensor:
    """Attention in query blocks that end at the cuts."""
    keys = ops.segment_keys(k, v, segments)
    bounds = [0, *cuts, len(q)]
    parts = [ops.segment_attention(q[a:b], a, keys, segments) for a, b in pairwise(bounds)]
    return torch.cat(parts)


@pytest.mark.parametrize("dtype,bound", DTYPES)
@pytest.mark.parametrize(
    "lengths",
    [[1], [4], [dense.QUERY_CHUNK], [dense.QUERY_CHUNK + 1, 3], [16] * 9 + [8, 8, 4], [300, 16, 16, 1]],
)
def test_segment_attention(dtype: torch.dtype, bound: float, lengths: list[int]) -> None:
    q, k, v = (randn(sum(lengths), 3, 16, dtype=dtype, seed=i) for i in range(3))
    segments = plan_segments(lengths)
    assert sum(run.count for run in segments.runs) == len(lengths)
    wanted = attend(reference, q, k, v, segments)
    assert_close(attend(dense, q, k, v, segments), wanted, bound)
    cuts = sorted({len(q) // 3, len(q) // 2})
    assert_close(attend(dense, q, k, v, segments, *cuts), wanted, bound)
    assert_close(attend(reference, q, k, v, segments, *cuts), wanted, bound)


def test_many_small_segments_are_cut_into_several_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "SMALL_SCORES", 3 * 16 * 16 * 2)
    segments = plan_segments([16] * 7)
    q, k, v = (randn(112, 3, 16, dtype=torch.float32, seed=i) for i in range(3))
    assert_close(attend(dense, q, k, v, segments), attend(reference, q, k, v, segments), 2e-5)


def test_a_long_context_is_attended_to_in_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    largest: list[int] = []
    product = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: largest.append((out := product(a, b)).numel()) or out)
    monkeypatch.setattr(dense, "MAX_SCORES", 6 * 300 * 20)
    layout, num_tokens = make_layout([(30, 270)], torch.float32)
    cache, q = (
        randn(4, 512, 4, 16, dtype=torch.float32),
        randn(num_tokens, 6, 16, dtype=torch.float32, seed=3),
    )
    assert_close(dense.paged_attention(q, cache, layout), reference.paged_attention(q, cache, layout), 2e-5)
    q, k, v = (randn(300, 6, 16, dtype=torch.float32, seed=i) for i in range(3))
    segments = plan_segments([300])
    assert_close(attend(dense, q, k, v, segments), attend(reference, q, k, v, segments), 2e-5)
    assert max(largest) <= dense.MAX_SCORES


def test_neighbouring_equal_segments_form_one_run() -> None:
    segments = plan_segments([16, 16, 8, 16])
    assert segments.pairs() == [(0, 16), (16, 32), (32, 40), (40, 56)]
    assert segments.runs == (
        SegmentRun(0, 2, 16),
        SegmentRun(32, 1, 8),
        SegmentRun(40, 1, 16),
    )


@pytest.mark.parametrize("dtype,bound", DTYPES)
@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1)],
        [(3, 1), (4, 1), (7, 1), (8, 1)],  # block - 1, block, block + 1 in a cache of 4
        [(0, 5)],
        [(0, 4), (4, 4), (5, 1), (90, 1), (0, 300)],
        [(33, 270), (2, 1)],
    ],
)
def test_paged_attention(dtype: torch.dtype, bound: float, rows: list[tuple[int, int]]) -> None:
    layout, num_tokens = make_layout(rows, dtype)
    cache = randn(4, 512, 4, 16, dtype=dtype)  # 2 key and 2 value heads
    other = cache.clone()
    k, v = (randn(num_tokens, 2, 16, dtype=dtype, seed=i) for i in (1, 2))
    dense.write_kv(cache, k, v, layout.slots)
    reference.write_kv(other, k, v, layout.slots)
    assert torch.equal(cache, other)
    assert all(map(torch.equal, reference.read_kv(cache, layout.slots), (k, v)))
    q = randn(num_tokens, 6, 16, dtype=dtype, seed=3)
    assert_close(dense.paged_attention(q, cache, layout), reference.paged_attention(q, cache, layout), bound)


@pytest.mark.parametrize("dtype,bound", DTYPES)
@pytest.mark.parametrize("window", [0, 1, 7, 64, 1000])
@pytest.mark.parametrize("pictures", [(), ((1, 60, 80), (2, 90, 360))], ids=["causal", "pictures"])
def test_windows_and_pictures(
    dtype: torch.dtype,
    bound: float,
    window: int,
    pictures: tuple[tuple[int, int, int], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [(50, 40), (90, 1), (61, 300)]  # build_inputs packs the row of one token first
    layout, num_tokens = make_layout(rows, dtype)
    cache = randn(4, 512, 4, 16, dtype=dtype)
    q = randn(num_tokens, 6, 16, dtype=dtype, seed=3)
    if pictures:
        layout = replace(layout, reach=reach_of(layout, pictures))
    wanted = naive_attention(q, cache, layout, window)
    assert_close(reference.paged_attention(q, cache, layout, window), wanted, bound)
    assert_close(dense.paged_attention(q, cache, layout, window), wanted, bound)
    monkeypatch.setattr(dense, "QUERY_CHUNK", 33)
    assert_close(dense.paged_attention(q, cache, layout, window), wanted, bound)


def reach_of(layout: AttentionLayout, pictures: Sequence[tuple[int, int, int]]) -> Tensor:
    """Of pictures (row, first position, last + 1)."""
    reach = torch.cat([torch.arange(c + 1, c + n + 1) for _, n, c, _ in layout.rows.tolist()])
    order = [row for row, (_, n, *_) in enumerate(layout.rows.tolist()) for _ in range(n)]
    own = reach - 1
    for row, start, end in pictures:
        reach[(torch.tensor(order) == row) & (own >= start) & (own < end)] = end
    return reach.int()


def naive_attention(q: Tensor, cache: Tensor, layout: AttentionLayout, window: int) -> Tensor:
    """Token by token over the positions that it sees."""
    out = torch.empty_like(q)
    for start, length, context, first in layout.rows.tolist():
        for token in range(start, start + length):
            position = context + token - start
            reach = position + 1 if layout.reach is None else int(layout.reach[token])
            seen = torch.arange(max(0, position - window + 1) if window else 0, reach)
            blocks = layout.blocks[first + seen // 4]
            k, v = cache[:, blocks, seen % 4].double().chunk(2, 0)  # [K, seen, D]
            k, v = (x.repeat_interleave(3, 0) for x in (k, v))
            weights = (torch.einsum("hd,hkd->hk", q[token].double(), k) / 4).softmax(-1)
            out[token] = torch.einsum("hk,hkd->hd", weights, v).to(q.dtype)
    return out


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_an_earlier_owner_left_in_a_block_is_never_seen(value: float) -> None:
    rows = [(0, 1), (5, 1), (13, 1), (2, 6)]
    layout, num_tokens = make_layout(rows, torch.float32)
    clean, dirty = torch.zeros(4, 512, 4, 16), torch.full((4, 512, 4, 16), value)
    own = randn(4, 512, 4, 16, dtype=torch.float32)
    for group in layout.groups:
        for table, length in zip(
            group.blocks.view(len(group.lengths), -1), group.lengths.tolist(), strict=True
        ):
            for position in range(length):
                place = (slice(None), table[position // 4], position % 4)
                clean[place] = dirty[place] = own[place]
    for segment in layout.segments:
        for position in range(segment.context + segment.end - segment.start):
            place = (slice(None), segment.blocks[position // 4], position % 4)
            clean[place] = dirty[place] = own[place]
    q = randn(num_tokens, 6, 16, dtype=torch.float32, seed=3)
    assert torch.equal(dense.paged_attention(q, dirty, layout), dense.paged_attention(q, clean, layout))


def test_rows_of_very_different_length_are_decoded_in_groups() -> None:
    layout, _ = make_layout([(1, 1), (5, 1), (900, 1)], torch.float32)
    assert [(group.start, group.end) for group in layout.groups] == [(0, 2), (2, 3)]


HAS_OPERATOR = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()


@pytest.mark.skipif(not HAS_OPERATOR, reason="this torch build has no oneDNN")
def test_packed_weights_are_chosen_where_they_work(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(32, 64)
    chosen = torch_table(CPU, torch.bfloat16).linear
    assert isinstance(chosen(weight.bfloat16(), None, "none"), linear.PackedLinear)
    assert isinstance(chosen(weight, None, "none"), linear.DenseLinear)
    assert torch_table(CPU, torch.float32).linear is linear.DenseLinear
    monkeypatch.setattr(linear.PackedLinear, "__call__", lambda self, x: torch.zeros(len(x), 32).bfloat16())
    assert torch_table(CPU, torch.bfloat16).linear is linear.DenseLinear


@pytest.mark.skipif(not HAS_OPERATOR, reason="this torch build has no oneDNN")
@pytest.mark.parametrize("tokens", [1, 2, 17, 130])
def test_packed_linear(tokens: int) -> None:
    weight, bias = randn(96, 64, dtype=torch.bfloat16), randn(96, dtype=torch.bfloat16, seed=1)
    x = randn(tokens, 64, dtype=torch.bfloat16, seed=2)
    for given in (bias, None):
        assert_close(linear.PackedLinear(weight, given, "none")(x), reference.Linear(weight, given)(x), 1e-2)


def make_layout(rows: list[tuple[int, int]], dtype: torch.dtype):
    """A layout of rows (start, length) in disjoint, shuffled blocks of 4 tokens."""
    book, free = TokenBook(), np.random.default_rng(0).permutation(512).tolist()
    planned = []
    for index, (start, length) in enumerate(rows):
        name, total = str(index), start + length
        positions = np.tile(np.arange(total), (3, 1))
        prompt = Prompt(token_ids=(1,) * total, spans=(), position_ids=positions, position_delta=0)
        sampling = SamplingParams(max_tokens=1)
        book.add(
            Request(
                request_id=name, prompt=prompt, sampling=sampling, max_tokens=1, stop_token_ids=frozenset()
            )
        )
        blocks = tuple(free.pop() for _ in range(-(-total // 4)))
        planned.append(Row(request_id=name, start=start, length=length, block_ids=blocks, has_sample=True))
    inputs = build_inputs(planned, book, 4, dtype, CPU)
    return inputs.layout, len(inputs.token_ids)
