"""An entry as bytes: a safetensors file of one tensor, which any tool can open, with a checksum over all of it.

Layout (the safetensors format): 8 bytes of length, a JSON header of that length, the data. The header is written in
one way only, and reading compares it byte by byte with the one that its fields give, so no bit of it can change
unseen; the checksum in it covers its own fields and the data. It is padded so that data begins at a multiple of 512.
"""

from __future__ import annotations

import json
import math
from hashlib import blake2b
from typing import Literal, NamedTuple

from tapetum.cache.tiers import DTYPES, Buffer, Entry, Name

VERSION = "tapetum entry 1"
HEAD_BYTES = 512  # what the head of any entry of few dimensions fits into
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 2**16
_DTYPES = {code: (dtype, width) for dtype, (code, width) in DTYPES.items()}


class BadEntry(Exception):
    """Bytes that are not the entry that was asked for."""

    def __init__(self, reason: Literal["corrupt", "version"]) -> None:
        super().__init__(reason)
        self.reason = reason


def pack(entry: Entry) -> tuple[Buffer, Buffer]:
    """Head and data, to be written one behind the other. The data is not copied."""
    data = memoryview(entry.data).cast("B")
    code, _ = DTYPES[entry.dtype]
    fields = _Fields(entry.kind, entry.key.hex(), code, list(entry.shape), data.nbytes, repr(entry.cost_s))
    return _head(fields, _checksum(fields, data)), data


def unpack(raw: Buffer, name: Name) -> Entry:
    """The entry of that name in `raw`, whose memory it shares. Raises BadEntry for anything else."""
    whole = memoryview(raw).cast("B")
    start = _LENGTH_BYTES + int.from_bytes(whole[:_LENGTH_BYTES], "little")
    if not _LENGTH_BYTES < start <= min(whole.nbytes, _MAX_HEADER_BYTES):
        raise BadEntry("corrupt")
    head, data = whole[:start], whole[start:]
    fields, checksum, version = _read_header(bytes(head[_LENGTH_BYTES:]))
    if version != VERSION:
        raise BadEntry("version")
    dtype, width = _DTYPES.get(fields.code, ("", 0))
    is_right = (
        (fields.kind, fields.key) == (name.kind, name.key.hex())
        and data.nbytes == fields.num_bytes == width * math.prod(fields.shape)
        and head == _head(fields, checksum)
        and checksum == _checksum(fields, data)
    )
    if not is_right:
        raise BadEntry("corrupt")
    return Entry(
        kind=name.kind,
        key=name.key,
        dtype=dtype,
        shape=tuple(fields.shape),
        data=data,
        cost_s=float(fields.cost),
    )


def peek(head: Buffer) -> tuple[str, float]:
    """Version and cost that the first bytes of an entry tell, unverified. Raises BadEntry if they tell nothing."""
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    fields, _, version = _read_header(
        bytes(head[_LENGTH_BYTES : _LENGTH_BYTES + min(length, _MAX_HEADER_BYTES)])
    )
    return version, float(fields.cost)


class _Fields(NamedTuple):
    """What a header says beside version and checksum."""

    kind: str
    key: str
    code: str
    shape: list[int]
    num_bytes: int
    cost: str


def _checksum(fields: _Fields, data: Buffer) -> str:
    digest = blake2b(json.dumps([VERSION, *fields]).encode(), digest_size=32)
    digest.update(data)
    return digest.hexdigest()


def _head(fields: _Fields, checksum: str) -> bytes:
    header = {
        "__metadata__": {
            "format": VERSION, "kind": fields.kind, "key": fields.key, "cost_s": fields.cost, "checksum": checksum
        },
        "data": {"dtype": fields.code, "shape": fields.shape, "data_offsets": [0, fields.num_bytes]},
    }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    size = -(-(_LENGTH_BYTES + len(text)) // HEAD_BYTES) * HEAD_BYTES - _LENGTH_BYTES
    return size.to_bytes(_LENGTH_BYTES, "little") + text.ljust(size)


def _read_header(text: bytes) -> tuple[_Fields, str, str]:
    """Fields of the right types, the checksum and the version. Raises BadEntry where there are none."""
    try:
        header = json.loads(text)
        said, tensor = header["__metadata__"], header["data"]
        version, checksum = str(said["format"]), str(said["checksum"])
        if version != VERSION:  # whose other fields may mean anything
            return _Fields("", "", "", [], 0, "0"), checksum, version
        fields = _Fields(
            str(said["kind"]),
            str(said["key"]),
            str(tensor["dtype"]),
            [_count(size) for size in tensor["shape"]],
            _count(tensor["data_offsets"][1]),
            str(said["cost_s"]),
        )
        float(fields.cost)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise BadEntry("corrupt") from error
    return fields, checksum, version


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value
