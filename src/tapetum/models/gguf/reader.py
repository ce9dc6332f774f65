"""The container: typed metadata and a table of tensors in one mapped file, little-endian, version 2 or 3.

Owns bounds: every length in the file is checked against it, so a truncated or damaged file is one sentence. Does not
own what the numbers mean (config.py, tokenizer.py, names.py), nor the blocks that values are packed in (blocks.py).
Source: the GGUF specification in ggml's docs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tapetum.core.errors import CheckpointError
from tapetum.models.gguf.blocks import BlockType, block_type

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT, _LEAST_ALIGNMENT = 32, 8
_MAX_DIMENSIONS = 4

_STRING, _ARRAY, _FLAG = 8, 9, 7
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _FLAG: "?", 10: "Q", 11: "q", 12: "d"}

Value = int | float | bool | str | list["Value"]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies; `shape` has the rows first, as torch has it."""

    shape: tuple[int, ...]
    kind: BlockType
    start: int  # in the file

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.kind.size_of(self.num_values)


class GGUFFile:
    """`metadata` by key, `tensors` by name. The file stays mapped as long as an array of it lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._bytes = np.memmap(
                path, np.uint8, mode="c"
            )  # private: torch wants memory that may be written
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}; download it again") from error
        try:
            self.metadata, self.tensors = _Cursor(self._bytes).head()
        except (struct.error, ValueError) as error:
            raise CheckpointError(f"{path} is damaged: {error}; download it again") from error
        for name, place in self.tensors.items():
            if place.start + place.num_bytes > len(self._bytes):
                raise CheckpointError(
                    f"{path} ends at byte {len(self._bytes)}, tensor {name} goes on to "
                    f"{place.start + place.num_bytes}; download it again"
                )

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor, where they lie."""
        place = self.tensors[name]
        return self._bytes[place.start : place.start + place.num_bytes]


class _Cursor:
    """A place in the head of a file that moves on with what is read."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._view, self._at = data.data, 0

    def head(self) -> tuple[Mapping[str, Value], Mapping[str, TensorPlace]]:
        if bytes(self._view[:4]) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version = self._number("I")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}, must be 2 or 3 and little-endian")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        metadata = {self._text(): self._value(self._number("I")) for _ in range(num_keys)}
        table = [self._tensor() for _ in range(num_tensors)]
        unit = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(unit, int) or unit < 1 or unit % _LEAST_ALIGNMENT:
            raise ValueError(f"general.alignment is {unit!r}, must be a multiple of {_LEAST_ALIGNMENT}")
        data = -(-self._at // unit) * unit
        return metadata, {name: TensorPlace(shape, kind, data + start) for name, shape, kind, start in table}

    def _tensor(self) -> tuple[str, tuple[int, ...], BlockType, int]:
        name, num_dimensions = self._text(), self._number("I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(num_dimensions))[::-1]
        return name, shape, block_type(self._number("I"), name), self._number("Q")

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._number(_number_code(kind))
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            return self._texts(count)
        code = _number_code(kind)
        found = np.frombuffer(
            self._take(count * struct.calcsize("<" + code)), np.dtype(code).newbyteorder("<")
        )
        values: list[Value] = found.tolist()
        return values

    def _number(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self._view, self._at)
        self._at += struct.calcsize("<" + code)
        number: int = value
        return number

    def _text(self) -> str:
        return str(self._take(self._number("Q")), "utf-8")

    def _texts(self, count: int) -> list[Value]:
        """One after the other: vocabularies have hundreds of thousands."""
        view, at = self._view, self._at
        texts: list[Value] = []
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            (length,) = length_at(view, at)
            at += 8 + length
            if at > len(view):
                raise ValueError("it ends within a list of texts")
            texts.append(str(view[at - length : at], "utf-8"))
        self._at = at
        return texts

    def _take(self, length: int) -> memoryview:
        start, self._at = self._at, self._at + length
        if self._at > len(self._view):
            raise ValueError(f"it ends at byte {len(self._view)}, a value goes on to {self._at}")
        return self._view[start : self._at]


def _number_code(kind: int) -> str:
    if kind not in _NUMBERS:
        raise ValueError(f"a value has type {kind}, known are 0 to 12")
    return _NUMBERS[kind]
