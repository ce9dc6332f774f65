"""Where the tensors of a checkpoint lie: safetensors, one file or sharded, or one GGUF file; mapped, and read lazily.

Owns files and their faults: one that is missing, cut short, or stored in a way that is not read. Does not own what the
tensors are for (weights.py).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tapetum.core.errors import CheckpointError
from tapetum.core.files import read_json
from tapetum.models.gguf.blocks import dequantise
from tapetum.models.gguf.folder import LINK
from tapetum.models.gguf.names import Home, find_homes
from tapetum.models.gguf.reader import GGUFFile

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_READ = ("F64", "F32", "F16", "BF16")  # what safetensors may hold
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# Size, and nanoseconds of the last change of a file's bytes and of the last of anything about it: the latter nobody can
# set, so a file that was written again has another stamp, even one of equal size and a date that was put back.
Stamp = tuple[int, int, int]


class Store(Protocol):
    """The tensors of one checkpoint by the names it has for them."""

    @property
    def names(self) -> Collection[str]: ...

    @property
    def stamps(self) -> Mapping[str, Stamp]:
        """Of its files by name, from before they were opened."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def kind(self, name: str) -> str:
        """What its values are stored as."""

    def refusal(self, name: str) -> str:
        """Why this tensor cannot be read, in one sentence; empty = it can."""

    def read(self, name: str) -> Tensor: ...

    def head(self, name: str, num_bytes: int) -> bytes:
        """About so many of its first bytes, whole rows."""


def open_store(directory: Path) -> Store:
    """The tensors of a checkpoint directory; safetensors come first."""
    if not (directory / INDEX).exists() and (directory / LINK).exists():
        return GGUFStore(directory / LINK)
    return SafetensorStore(directory)


def has_tensors(directory: Path) -> bool:
    """Whether weights are there at all: at least one of their files."""
    index = _index(directory)
    names = (SINGLE, LINK) if index is None else index
    return any((directory / name).exists() for name in names)


def indexed_names(directory: Path) -> Collection[str]:
    """The tensors that the index of a sharded checkpoint names, whether their files are there or not."""
    weight_map = (read_json(directory / INDEX) or {}).get("weight_map")
    return weight_map.keys() if isinstance(weight_map, dict) else ()


def is_current(directory: Path, stamps: Mapping[str, Stamp]) -> bool:
    """Whether no file was changed or replaced since its stamp was taken."""
    try:
        return all(stamp == _stamp(directory / file) for file, stamp in stamps.items())
    except OSError:
        return False


class SafetensorStore:
    """The safetensors files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, safe_open] = {}
        self._homes: dict[str, str] = {}  # name -> file
        self.stamps: dict[str, Stamp] = {}
        for file in _shards(directory):
            for name in self._open(file).keys():  # noqa: SIM118 - not a dict
                if name in self._homes:
                    raise CheckpointError(f"{directory}: tensor {name!r} is stored twice; remove one shard")
                self._homes[name] = file

    @property
    def names(self) -> Collection[str]:
        return self._homes.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[self._homes[name]].get_slice(name).get_shape())

    def kind(self, name: str) -> str:
        return str(self._files[self._homes[name]].get_slice(name).get_dtype())

    def refusal(self, name: str) -> str:
        kind = self.kind(name)
        if kind in _READ:
            return ""
        return (
            f"{self._directory / self._homes[name]}: tensor {name} is stored as {kind}, read are {', '.join(_READ)}; "
            "take the checkpoint that is not quantised"
        )

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._files[self._homes[name]].get_tensor(name)
        return tensor

    def head(self, name: str, num_bytes: int) -> bytes:
        shape, file = self.shape(name), self._files[self._homes[name]]
        count = max(1, num_bytes // max(1, prod(shape[1:])))
        rows: Tensor = file.get_slice(name)[:count] if shape else file.get_tensor(name)
        return rows.contiguous().flatten().view(torch.uint8).numpy().tobytes()

    def _open(self, file: str) -> safe_open:
        path = self._directory / file
        if file not in self._files:
            try:
                self.stamps[file] = _stamp(path)
                self._files[file] = safe_open(path, framework="pt")
            except FileNotFoundError as error:
                raise CheckpointError(
                    f"shard {file} named in {INDEX} is missing in {self._directory}; download it again"
                ) from error
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is damaged: {error}; download it again") from error
        return self._files[file]


class GGUFStore:
    """One GGUF file, by the names of published checkpoints. What is packed in blocks is read as float32."""

    def __init__(self, path: Path) -> None:
        self.stamps = {path.name: _stamp(path)}
        self._file = GGUFFile(path)
        self._homes = find_homes(self._file)

    @property
    def names(self) -> Collection[str]:
        return self._homes.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        home = self._homes[name]
        whole = self._file.tensors[home.name].shape
        return whole if home.expert is None else whole[1:]

    def kind(self, name: str) -> str:
        return self._file.tensors[self._homes[name].name].kind.name

    def refusal(self, name: str) -> str:
        return ""  # a file with a tensor of another kind is refused when it is opened

    def read(self, name: str) -> Tensor:
        kind, data = self._file.tensors[self._homes[name].name].kind, self._bytes(name)
        if kind.unpack is None:
            values = torch.from_numpy(data).view(_PLAIN[kind.name])
        else:
            values = torch.from_numpy(dequantise(data, kind))
        return _as_published(values.view(self.shape(name)), self._homes[name])

    def head(self, name: str, num_bytes: int) -> bytes:
        return self._bytes(name)[:num_bytes].tobytes()

    def _bytes(self, name: str) -> np.typing.NDArray[np.uint8]:
        home = self._homes[name]
        data = self._file.blocks(home.name)
        if home.expert is None:
            return data
        return data.reshape(self._file.tensors[home.name].shape[0], -1)[home.expert]


def _as_published(tensor: Tensor, home: Home) -> Tensor:
    """What llama.cpp made of a tensor, undone."""
    if home.change == "less one":
        return tensor - 1
    if (
        home.change == "rows in halves"
    ):  # pairs of rows lie together; here the first halves of a head come first
        pairs = tensor.unflatten(0, (home.num_heads, -1, 2))
        return pairs.transpose(1, 2).reshape(tensor.shape)
    return tensor


def _shards(directory: Path) -> Sequence[str]:
    index = _index(directory)
    if index is not None:
        return index
    if (directory / SINGLE).exists():
        return [SINGLE]
    raise CheckpointError(
        f"{directory} holds neither {SINGLE} nor {INDEX}; only safetensors and GGUF files are read, which "
        "transformers' save_pretrained and llama.cpp write"
    )


def _index(directory: Path) -> Sequence[str] | None:
    """The files that the index of a sharded checkpoint names; None where there is no index."""
    index = read_json(directory / INDEX)
    if index is None:
        return None
    weight_map = index.get("weight_map")
    files = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    if not files or not all(isinstance(file, str) for file in files):
        raise CheckpointError(
            f"{INDEX} in {directory} has no weight_map of tensors to file names; download it again"
        )
    return sorted(files)


def _stamp(path: Path) -> Stamp:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
