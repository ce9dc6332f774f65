"""Entries as bytes: what is read is what was written, and nothing else is ever taken for it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from tapetum.cache.entries import HEAD_BYTES, VERSION, BadEntry, pack, peek, unpack
from tapetum.cache.tiers import DTYPES, Entry, Name
from tests.tier_entries import entry, name_of, whole

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(st.sampled_from(sorted(DTYPES)), SHAPES, st.binary(min_size=1, max_size=40), st.floats(0, 1e6))
def test_what_is_packed_comes_back(dtype: str, shape: tuple[int, ...], key: bytes, cost_s: float) -> None:
    data = bytes(index % 251 for index in range(math.prod(shape) * DTYPES[dtype][1]))
    made = Entry(kind="kv", key=key, dtype=dtype, shape=shape, data=data, cost_s=cost_s)
    head, rest = pack(made)
    assert unpack(head + bytes(rest), name_of(made)) == made
    assert peek(head[:HEAD_BYTES]) == (VERSION, cost_s)
    assert len(head) == HEAD_BYTES, "one read of a known size tells what an entry is"


def test_large_data_is_not_copied() -> None:
    made = entry(1, 2**20)
    data = bytearray(made.data)
    head, rest = pack(
        Entry(kind=made.kind, key=made.key, dtype="uint8", shape=(2**20,), data=data, cost_s=0.5)
    )
    assert rest.obj is data
    raw = bytes(head) + bytes(rest)
    assert unpack(raw, name_of(made)).data.obj is raw


def test_data_must_be_as_long_as_its_shape_says() -> None:
    with pytest.raises(AssertionError):
        Entry(kind="kv", key=b"k", dtype="float32", shape=(2,), data=b"1234567", cost_s=0.0)


def test_every_flipped_bit_is_seen() -> None:
    made = entry(3, 96)
    raw = whole(made)
    for bit in range(8 * len(raw)):
        broken = bytearray(raw)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadEntry):
            unpack(broken, name_of(made))


def test_every_cut_and_every_tail_is_seen() -> None:
    made = entry(3, 96)
    raw = whole(made)
    for size in range(len(raw)):
        with pytest.raises(BadEntry, match="corrupt"):
            unpack(raw[:size], name_of(made))
    with pytest.raises(BadEntry, match="corrupt"):
        unpack(raw + b"\0", name_of(made))


@given(st.binary(max_size=700))
def test_bytes_of_anything_else_are_refused(raw: bytes) -> None:
    for each in (raw, len(raw).to_bytes(8, "little") + raw):
        with pytest.raises(BadEntry):
            unpack(each, Name("features", b"k"))
        with pytest.raises(BadEntry):
            peek(each)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["format", "kind", "key", "cost_s", "checksum"]), JSON), JSON, JSON)
def test_headers_with_anything_in_them_are_refused(
    said: dict[str, object], shape: object, offsets: object
) -> None:
    tensor = {"dtype": "U8", "shape": shape, "data_offsets": offsets}
    text = json.dumps({"__metadata__": {"format": VERSION, **said}, "data": tensor}).encode()
    with pytest.raises(BadEntry):
        unpack(len(text).to_bytes(8, "little") + text, Name("features", b"k"))


def test_a_header_of_endless_depth_is_refused() -> None:
    text = b"[" * 60_000
    with pytest.raises(BadEntry):
        unpack(len(text).to_bytes(8, "little") + text, Name("features", b"k"))


def test_another_entry_is_not_the_one_that_was_asked_for() -> None:
    made = entry(3)
    for name in (Name("kv", made.key), Name("features", entry(4).key), Name("features", made.key[:-1])):
        with pytest.raises(BadEntry, match="corrupt"):
            unpack(whole(made), name)


def test_another_version_is_told_apart_from_damage() -> None:
    made = entry(3)
    other = whole(made).replace(VERSION.encode(), b"tapetum entry 2")
    with pytest.raises(BadEntry, match="version"):
        unpack(other, name_of(made))
    assert peek(other[:HEAD_BYTES])[0] == "tapetum entry 2"


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int32", "int64"])
def test_the_library_of_safetensors_reads_our_files(dtype: str) -> None:
    values = (np.arange(24).reshape(2, 3, 4) - 5 * (dtype != "uint8")).astype(dtype)
    made = Entry(
        kind="features", key=b"k" * 32, dtype=dtype, shape=values.shape, data=memoryview(values), cost_s=0.25
    )
    read = safetensors.numpy.load(whole(made))
    assert list(read) == ["data"]
    assert read["data"].dtype == values.dtype
    np.testing.assert_array_equal(read["data"], values)
