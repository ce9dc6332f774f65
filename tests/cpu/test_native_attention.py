"""Attention of the native library: against the reference, and the same bits however rows are cut, batched or placed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tapetum.native import library as native
from tapetum.ops import reference
from tapetum.ops.layout import AttentionLayout, plan_segments
from tapetum.ops.native_attention import NativeAttention

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
WIDTHS = (2, 8, 16, 18, 64, 80, 128)
TILE = 256  # keys of a tile
STRETCH = 4 * TILE  # of what threads share
LIBRARY = native.load()

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the native library is not built: make native")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=("portable", "avx2", "avx512"))
def attention(request: pytest.FixtureRequest) -> Iterator[NativeAttention]:
    assert LIBRARY is not None
    best = LIBRARY.tpt_isa()
    if LIBRARY.tpt_use_isa(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    yield NativeAttention(LIBRARY)
    assert LIBRARY.tpt_use_isa(best) == 0


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    assert LIBRARY is not None
    count = LIBRARY.tpt_num_threads()
    yield LIBRARY
    LIBRARY.tpt_set_num_threads(count)


@dataclass(frozen=True, slots=True)
class Row:
    """One request: queries, keys and values of all its tokens."""

    q: Tensor  # [total, H, D]
    k: Tensor  # [total, K, D]
    v: Tensor
    pictures: tuple[tuple[int, int], ...] = ()  # runs of tokens that see each other both ways

    @property
    def reach(self) -> list[int]:
        reach = list(range(1, len(self.q) + 1))
        for start, end in self.pictures:
            reach[start:end] = [end] * (end - start)
        return reach


@dataclass(slots=True)
class Pool:
    """A cache whose blocks were somebody else's before, and the oracle's beside it."""

    attention: NativeAttention
    row: Row  # any: for shapes
    block_size: int
    num_blocks: int = 320
    cache: Tensor = field(init=False)
    plain: Tensor = field(init=False)
    free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        shape = (2 * self.row.k.shape[1], self.num_blocks, self.block_size, self.row.k.shape[2])
        self.cache = torch.full(shape, torch.nan, dtype=self.row.k.dtype)
        self.cache.view(-1)[::3] = torch.inf
        self.plain = torch.zeros(shape, dtype=self.row.k.dtype)
        self.free = torch.randperm(self.num_blocks).tolist()

    def table(self, tokens: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-tokens // self.block_size))]

    def fill(self, row: Row, table: list[int]) -> None:
        """Write the keys and values of a whole row."""
        tokens = torch.arange(len(row.k))
        slots = torch.tensor(table)[tokens // self.block_size] * self.block_size + tokens % self.block_size
        self.attention.write_kv(self.cache, row.k, row.v, slots)
        reference.write_kv(self.plain, row.k, row.v, slots)

    def run(self, *parts: tuple[Row, list[int], int, int], window: int = 0) -> tuple[Tensor, Tensor]:
        """One step over (row, its blocks, first token, last token + 1): what the library and the oracle say."""
        rows, blocks, slots = [], [], []
        for _, table, start, end in parts:
            rows.append((len(slots), end - start, start, len(blocks)))
            blocks += table
            slots += [
                table[i // self.block_size] * self.block_size + i % self.block_size for i in range(start, end)
            ]
        q, k, v = (
            torch.cat([getattr(row, name)[start:end] for row, _, start, end in parts]) for name in "qkv"
        )
        layout = AttentionLayout(
            torch.tensor(rows, dtype=torch.int32),
            torch.tensor(blocks, dtype=torch.int32),
            torch.tensor(slots),
            torch.tensor([0]),
            self.block_size,
            q.dtype,
        )
        if any(row.pictures for row, *_ in parts):
            reach = [row.reach[i] for row, _, start, end in parts for i in range(start, end)]
            layout = replace(layout, reach=torch.tensor(reach, dtype=torch.int32))
        self.attention.write_kv(self.cache, k, v, layout.slots)
        reference.write_kv(self.plain, k, v, layout.slots)
        return (
            self.attention.paged_attention(q, self.cache, layout, window),
            reference.paged_attention(q, self.plain, layout, window),
        )


def make_row(
    tokens: int, heads: int, kv_heads: int, width: int, dtype: torch.dtype, *pictures: tuple[int, int]
) -> Row:
    shapes = ((tokens, heads, width), (tokens, kv_heads, width), (tokens, kv_heads, width))
    q, k, v = (torch.randn(shape).to(dtype) for shape in shapes)
    return Row(q, k, v, pictures)


def whole(row: Row, attention: NativeAttention, block_size: int = 16) -> Tensor:
    pool = Pool(attention, row, block_size)
    return pool.run((row, pool.table(len(row.q)), 0, len(row.q)))[0]


def assert_near(got: Tensor, wanted: Tensor) -> None:
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, atol=TOLERANCE[got.dtype], rtol=TOLERANCE[got.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_rows_are_those_of_the_reference(
    attention: NativeAttention, dtype: torch.dtype, width: int, block_size: int
) -> None:
    row = make_row(90, 6, 2, width, dtype)
    pool = Pool(attention, row, block_size, num_blocks=600 // block_size)
    first, second, third = (pool.table(90) for _ in range(3))
    assert_near(*pool.run((row, first, 0, 1), (row, second, 0, 15), (row, third, 0, 49)))
    assert_near(*pool.run((row, first, 1, 2), (row, second, 15, 31), (row, third, 49, 50)))
    assert_near(*pool.run((row, second, 31, 90), (row, first, 2, 19)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (7, 1), (12, 2), (14, 2), (40, 1)])
def test_any_number_of_heads_shares_keys(
    attention: NativeAttention, dtype: torch.dtype, heads: int, kv_heads: int
) -> None:
    row = make_row(70, heads, kv_heads, 16, dtype)
    pool = Pool(attention, row, 16)
    table = pool.table(70)
    assert_near(*pool.run((row, table, 0, 69)))
    assert_near(*pool.run((row, table, 69, 70)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "block_size"), [(32, 16), (18, 16), (32, 4)])
def test_bits_do_not_depend_on_how_a_row_is_cut(
    attention: NativeAttention, dtype: torch.dtype, width: int, block_size: int
) -> None:
    tokens = TILE + 20
    row = make_row(tokens, 6, 2, width, dtype)
    wanted = whole(row, attention, block_size if block_size < 16 else 32)
    for cuts in ((0, 1, 2, 3, 40, 41, TILE - 1, TILE, TILE + 1, tokens), (0, TILE + 3, TILE + 4, tokens)):
        pool = Pool(attention, row, block_size, num_blocks=160)
        table = pool.table(tokens)
        parts = [pool.run((row, table, start, end))[0] for start, end in pairwise(cuts)]
        assert torch.equal(torch.cat(parts), wanted)


def naive(row: Row, window: int) -> Tensor:
    """Softmax attention of a whole row, token by token."""
    groups = row.q.shape[1] // row.k.shape[1]
    k, v = (x.double().repeat_interleave(groups, 1) for x in (row.k, row.v))
    mixed = []
    for position, reach in enumerate(row.reach):
        seen = slice(max(0, position - window + 1) if window else 0, reach)
        scores = torch.einsum("hd,khd->hk", row.q[position].double(), k[seen]) * row.q.shape[2] ** -0.5
        mixed.append(torch.einsum("hk,khd->hd", scores.softmax(-1), v[seen]))
    return torch.stack(mixed).to(row.q.dtype)


PICTURES = ((3, 40), (41, 42), (60, TILE + 30))  # the last one lies across the end of a tile
WINDOWS = (0, 1, 2, 16, 17, 100, TILE + 5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("width", "block_size"), [(16, 16), (18, 16), (64, 4)])
def test_windows_and_pictures_hide_what_they_should(
    attention: NativeAttention, dtype: torch.dtype, window: int, width: int, block_size: int
) -> None:
    tokens = TILE + 60
    for pictures in ((), PICTURES):
        row = make_row(tokens, 4, 2, width, dtype, *pictures)
        pool = Pool(attention, row, block_size)
        table = pool.table(tokens)
        wanted = naive(row, window)
        for start, end in pairwise((0, 3, 41, 60, tokens - 1, tokens)):
            got, oracle = pool.run((row, table, start, end), window=window)
            assert_near(got, wanted[start:end])
            assert_near(oracle, wanted[start:end])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", WINDOWS)
def test_bits_with_a_window_depend_neither_on_cuts_nor_on_the_batch(
    attention: NativeAttention, dtype: torch.dtype, window: int
) -> None:
    tokens = 2 * TILE + 30
    row = make_row(tokens, 4, 2, 16, dtype, *PICTURES)
    other = make_row(50, 4, 2, 16, dtype)
    wanted, _ = Pool(attention, row, 16).run((row, list(range(40)), 0, tokens), window=window)
    pool = Pool(attention, row, 16)
    table, others = pool.table(tokens), pool.table(50)
    cuts = (0, 1, 3, 60, TILE + 30, TILE + 31, TILE + 32, 2 * TILE - 1, 2 * TILE, 2 * TILE + 1, tokens)
    parts = []
    for index, (start, end) in enumerate(pairwise(cuts)):
        got, _ = pool.run((other, others, index, index + 1), (row, table, start, end), window=window)
        parts.append(got[1:])
    assert torch.equal(torch.cat(parts), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_window_wider_than_the_row_and_a_reach_to_oneself_change_no_bit(
    attention: NativeAttention, dtype: torch.dtype
) -> None:
    row = make_row(TILE + 40, 4, 2, 16, dtype)
    each = replace(row, pictures=tuple((i, i + 1) for i in range(len(row.q))))
    pool = Pool(attention, row, 16)
    got, _ = pool.run((each, pool.table(len(row.q)), 0, len(row.q)), window=len(row.q))
    assert torch.equal(got, whole(row, attention))


def test_packed_and_plain_blocks_give_the_same_bits(attention: NativeAttention) -> None:
    row = make_row(TILE + 9, 4, 2, 16, torch.bfloat16)
    assert torch.equal(whole(row, attention, 4), whole(row, attention, 16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_who_is_in_the_batch(attention: NativeAttention, dtype: torch.dtype) -> None:
    rows = [make_row(tokens, 6, 2, 16, dtype) for tokens in (33, 1, 100, 17)]
    alone = [whole(row, attention) for row in rows]
    pool = Pool(attention, rows[0], 16)
    got, _ = pool.run(*((row, pool.table(len(row.q)), 0, len(row.q)) for row in rows))
    assert torch.equal(got, torch.cat(alone))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_the_number_of_threads(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    attention = NativeAttention(library)
    row = make_row(TILE + 30, 6, 2, 32, dtype)
    q, k, v = torch.randn(300, 3, 2, 32).to(dtype).unbind(1)
    segments = plan_segments([100, 200])
    seen = []
    for threads in (1, 2, 3):
        library.tpt_set_num_threads(threads)
        packed = attention.segment_keys(k, v, segments)
        seen.append((whole(row, attention), attention.segment_attention(q, 0, packed, segments)))
    for rows, patches in seen[1:]:
        assert torch.equal(rows, seen[0][0]) and torch.equal(patches, seen[0][1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 1500])
def test_threads_share_the_keys_of_a_long_row(
    attention: NativeAttention, library: ctypes.CDLL, dtype: torch.dtype, window: int
) -> None:
    """Where there are fewer tasks than threads; the row sees parts of three stretches of 1,024 keys."""
    total = 2 * STRETCH + 100
    row = make_row(total, 2, 1, 16, dtype, (STRETCH - 9, STRETCH + 30), (total - 30, total - 10))
    pool = Pool(attention, row, 16)
    table = pool.table(total)
    pool.fill(row, table)
    steps = ((total - 31, total - 1), (total - 1, total))
    seen = []
    for threads in (1, 2, 3):
        library.tpt_set_num_threads(threads)
        seen.append([pool.run((row, table, *step), window=window) for step in steps])
        for got, wanted in seen[-1]:
            assert_near(got, wanted)
    for each in seen[1:]:
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(each, seen[0], strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 1, 900, 1500])
def test_bits_of_a_long_row_do_not_depend_on_how_it_is_cut(
    attention: NativeAttention, dtype: torch.dtype, window: int
) -> None:
    total = 2 * STRETCH + 40
    row = make_row(total, 2, 1, 16, dtype)
    pool = Pool(attention, row, 16)
    table = pool.table(total)
    wanted, oracle = pool.run((row, table, 0, total), window=window)
    assert_near(wanted, oracle)
    ends = (STRETCH - 5, STRETCH - 1, STRETCH, STRETCH + 1, 2 * STRETCH - 1, 2 * STRETCH, 2 * STRETCH + 1)
    parts = [
        pool.run((row, table, start, end), window=window)[0] for start, end in pairwise((0, *ends, total))
    ]
    assert torch.equal(torch.cat(parts), wanted)


@pytest.mark.parametrize("block_size", [4, 16])
def test_a_block_may_move_as_a_whole(attention: NativeAttention, block_size: int) -> None:
    row = make_row(64, 4, 2, 16, torch.bfloat16)
    pool = Pool(attention, row, block_size)
    table = pool.table(64)
    pool.run((row, table, 0, 63))
    order = torch.randperm(pool.num_blocks)
    place = order.argsort()
    wanted, _ = pool.run((row, table, 63, 64))
    pool.cache = pool.cache[:, order].contiguous()
    got, _ = pool.run((row, place[table].tolist(), 63, 64))
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_row(dtype: torch.dtype) -> None:
    assert LIBRARY is not None
    row = make_row(3000, 2, 1, 64, dtype)
    pool = Pool(NativeAttention(LIBRARY), row, 16)
    table = pool.table(3000)
    got, wanted = pool.run((row, table, 0, 2999))
    assert_near(got, wanted)
    assert_near(*pool.run((row, table, 2999, 3000)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_stay_finite(attention: NativeAttention, dtype: torch.dtype) -> None:
    row = make_row(TILE + 40, 2, 1, 16, dtype)
    row = Row(row.q * 30, row.k * 30, row.v)
    pool = Pool(attention, row, 16)
    got, wanted = pool.run((row, pool.table(len(row.q)), 0, len(row.q)))
    tolerance = (
        2e-2 if dtype == torch.bfloat16 else 2e-3
    )  # scores in the thousands, of which rounding is a part
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "block_size"), [(32, 16), (64, 32), (18, 16), (32, 4)])
def test_what_was_written_is_read_bit_by_bit(
    attention: NativeAttention, dtype: torch.dtype, width: int, block_size: int
) -> None:
    row = make_row(70, 4, 2, width, dtype)
    pool = Pool(attention, row, block_size, num_blocks=160 // block_size)
    table = torch.tensor(pool.table(70))
    pool.fill(row, table.tolist())
    tokens = torch.arange(11, 70)
    slots = table[tokens // block_size] * block_size + tokens % block_size
    keys, values = attention.read_kv(pool.cache, slots)
    assert torch.equal(keys, row.k[11:]) and torch.equal(values, row.v[11:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_and_values_lie_in_a_block_as_documented(attention: NativeAttention, dtype: torch.dtype) -> None:
    tokens, width = 40, 16
    row = make_row(tokens, 1, 1, width, dtype)
    pool = Pool(attention, row, 16)
    table = pool.table(tokens)
    pool.run((row, table, 0, tokens))
    keys, values = read_first_head(pool.cache, table, tokens)
    assert torch.equal(keys, row.k[:, 0]) and torch.equal(values, row.v[:, 0])


def read_first_head(cache: Tensor, table: list[int], tokens: int) -> tuple[Tensor, Tensor]:
    """Keys and values [tokens, D] of the first head, out of packed blocks of 16."""
    lanes = 4 // cache.element_size()
    width = cache.shape[3]
    keys = cache[0, table].view(len(table), width // lanes, 16, lanes).transpose(1, 2)
    values = cache[1, table].view(len(table), 16 // lanes, width, lanes).transpose(2, 3)
    return keys.reshape(-1, width)[:tokens], values.reshape(-1, width)[:tokens]


@pytest.mark.parametrize("width", [3, 258])
def test_other_head_widths_are_refused(attention: NativeAttention, width: int) -> None:
    row = make_row(1, 1, 1, width, torch.float32)
    with pytest.raises(ValueError, match=f"head width is {width}"):
        whole(row, attention)
    with pytest.raises(ValueError, match=f"head width is {width}"):
        attention.segment_keys(row.k, row.v, plan_segments([1]))


SEGMENTS = ([1], [2, 1, 3], [16, 16, 17], [64, 64, 64, 37], [TILE - 1, TILE + 1], [5, 600, 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lengths", SEGMENTS, ids=str)
def test_segments_are_those_of_the_reference(
    attention: NativeAttention, dtype: torch.dtype, width: int, lengths: list[int]
) -> None:
    q, k, v = torch.randn(sum(lengths), 6, width).to(dtype).split(2, 1)  # views of one tensor
    segments = plan_segments(lengths)
    packed = attention.segment_keys(k, v, segments)
    got = attention.segment_attention(q, 0, packed, segments)
    assert_near(got, reference.segment_attention(q, 0, (k, v), segments))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_how_patches_are_cut(attention: NativeAttention, dtype: torch.dtype) -> None:
    lengths = [7, TILE + 50, 64, 64]
    total = sum(lengths)
    q, k, v = torch.randn(total, 3, 2, 24).to(dtype).unbind(1)
    segments = plan_segments(lengths)
    packed = attention.segment_keys(k, v, segments)
    wanted = attention.segment_attention(q, 0, packed, segments)
    for step in (1, 33, 100):
        blocks = [
            attention.segment_attention(q[first : first + step], first, packed, segments)
            for first in range(0, total, step)
        ]
        assert torch.equal(torch.cat(blocks), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_segment_knows_nothing_of_others(attention: NativeAttention, dtype: torch.dtype) -> None:
    q, k, v = torch.randn(120, 3, 2, 16).to(dtype).unbind(1)
    part = slice(20, 93)
    alone = plan_segments([73])
    wanted = attention.segment_attention(q[part], 0, attention.segment_keys(k[part], v[part], alone), alone)
    k[:20], v[93:] = torch.nan, torch.inf
    among = plan_segments([20, 73, 27])
    got = attention.segment_attention(q, 0, attention.segment_keys(k, v, among), among)
    assert torch.equal(got[part], wanted)
