"""Checkpoint files to tensors through a strict name table: nothing unconsumed, nothing unfilled.

A table maps each of our names to the checkpoint tensors that make it up, joined along the first axis. Tensors are read
when a model asks for them. One that is stored as it is used stays where it lies, in the mapped file; a matrix whose
packed form an earlier start has kept is not read at all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tapetum.core.errors import CheckpointError
from tapetum.core.files import read_json
from tapetum.models.pack_file import Origin, PackFile
from tapetum.models.packs import Packs
from tapetum.ops.parts import Activation, Linear
from tapetum.ops.table import OpTable

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Slot:
    """One of our tensors: its name, the checkpoint names it is made from, and its whole shape.

    The sources are joined along the first axis, unless `convert` makes the tensor of them.
    """

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    convert: Callable[[list[Tensor]], Tensor] | None = None


@dataclass(frozen=True, slots=True)
class NameTable:
    """All slots of a model, names that may be present and are not needed, and prefixes to rewrite."""

    slots: tuple[Slot, ...]
    ignored: tuple[str, ...] = ()
    prefixes: tuple[tuple[str, str], ...] = ()  # (as written by some exporter, as in the table)

    def canonical(self, name: str) -> str:
        for old, new in self.prefixes:
            if name.startswith(old):
                return new + name[len(old) :]
        return name


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that has not been read yet."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


class Weights:
    """What a model is built of, by our names. A name may be asked for more than once."""

    def __init__(
        self, sources: Mapping[str, Source], dtype: torch.dtype, ops: OpTable, packs: Packs | None = None
    ) -> None:
        self.dtype = dtype
        self._sources, self._ops, self._packs = sources, ops, packs or Packs()
        self._unused = set(sources)
        self._alive: WeakValueDictionary[str, Tensor] = WeakValueDictionary()

    def take(self, name: str) -> Tensor:
        self._unused.discard(name)
        tensor = self._alive.get(name)
        if tensor is None:
            self._alive[name] = tensor = self._sources[name].read()
        return tensor

    def linear(self, name: str, bias_name: str | None = None, activation: Activation = "none") -> Linear:
        """A layer of this matrix; in a table that packs, neither form of it is made if there is one already."""
        bias = None if bias_name is None else self.take(bias_name)
        packing, shape = self._ops.packing, self._sources[name].shape
        if packing is None:
            return self._ops.linear(self.take(name), bias, activation)
        self._unused.discard(name)
        packed = self._packs.get(
            f"{name} {activation}",
            packing.num_bytes(shape, self.dtype, activation),
            lambda memory: packing.pack(self.take(name), activation, memory),
        )
        return packing.linear(packed, shape, self.dtype, bias, activation)

    def finish(self, is_current: Callable[[], bool]) -> None:
        """All has been asked for: what was packed may be kept for the next start."""
        assert not self._unused, f"unused weights: {sorted(self._unused)}"
        self._packs.keep(is_current)


class Checkpoint:
    """The safetensors files of a directory, one or sharded, opened lazily through memory maps."""

    def __init__(self, directory: Path, table: NameTable) -> None:
        self._directory, self._table = directory, table
        self._files: dict[str, safe_open] = {}
        self._stamps: dict[str, Stamp] = {}  # of the files, from before they were opened
        self._homes: dict[str, tuple[str, str]] = {}  # canonical name -> (file, name in the file)
        for file in self._file_names():
            for name in self._open(file).keys():  # noqa: SIM118 - not a dict
                canonical = table.canonical(name)
                if canonical in self._homes:
                    raise CheckpointError(
                        f"{directory}: tensor {canonical!r} is stored twice; remove one shard"
                    )
                self._homes[canonical] = (file, name)
        self._check_names()

    def weights(
        self, dtype: torch.dtype, device: torch.device, ops: OpTable, pack_folder: Path | None
    ) -> Weights:
        """Every slot of the table, joined and converted when it is taken; packs are kept in `pack_folder`."""

        def read(slot: Slot) -> Tensor:
            return self._join(slot).to(device=device, dtype=dtype)

        sources = {slot.name: Source(slot.shape, partial(read, slot)) for slot in self._table.slots}
        return Weights(sources, dtype, ops, self._packs(dtype, ops, pack_folder))

    def is_current(self) -> bool:
        """Whether no file was changed or replaced since it was opened."""
        try:
            return all(stamp == _stamp(self._directory / file) for file, stamp in self._stamps.items())
        except OSError:
            return False

    def fingerprint(self, prefixes: tuple[str, ...] = ("",)) -> bytes:
        """32 bytes over names, shapes and the first kilobytes of every tensor under one of canonical prefixes."""
        digest = hashlib.sha256()
        for canonical in sorted(name for name in self._homes if name.startswith(prefixes)):
            file, name = self._homes[canonical]
            piece = self._open(file).get_slice(name)
            head = piece[: max(1, 2048 // max(1, _row_size(piece.get_shape())))]
            digest.update(f"{canonical}:{piece.get_dtype()}:{piece.get_shape()};".encode())
            digest.update(head.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.digest()

    def _packs(self, dtype: torch.dtype, ops: OpTable, folder: Path | None) -> Packs:
        if folder is None or ops.packing is None:
            return Packs()
        digest = hashlib.sha256(self.fingerprint())
        digest.update(repr(sorted(self._stamps.items())).encode())
        origin = Origin(
            directory=str(self._directory.resolve()),
            checkpoint=digest.hexdigest(),
            dtype=str(dtype).removeprefix("torch."),
            layout=ops.packing.layout,
        )
        return Packs(PackFile(folder, origin))

    def _file_names(self) -> list[str]:
        if index := read_json(self._directory / INDEX):
            weight_map = index.get("weight_map")
            files = set(weight_map.values()) if isinstance(weight_map, dict) else set()
            if not files or not all(isinstance(file, str) for file in files):
                raise CheckpointError(
                    f"{INDEX} in {self._directory} has no weight_map of tensors to file names"
                )
            return sorted(files)
        if (self._directory / SINGLE).exists():
            return [SINGLE]
        raise CheckpointError(
            f"{self._directory} holds neither {SINGLE} nor {INDEX}; only safetensors are read"
        )

    def _open(self, file: str) -> safe_open:
        if file not in self._files:
            try:
                self._stamps[file] = _stamp(self._directory / file)
                self._files[file] = safe_open(self._directory / file, framework="pt")
            except FileNotFoundError as error:
                raise CheckpointError(
                    f"shard {file} named in {INDEX} is missing in {self._directory}"
                ) from error
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{self._directory / file} is damaged: {error}; download it again"
                ) from error
        return self._files[file]

    def _check_names(self) -> None:
        wanted = {source for slot in self._table.slots for source in slot.sources}
        missing = sorted(wanted - set(self._homes))
        if missing:
            raise CheckpointError(
                f"{self._directory} lacks {_some(missing)}; the checkpoint does not fit its config.json"
            )
        extra = sorted(name for name in set(self._homes) - wanted if not name.startswith(self._table.ignored))
        if extra:
            raise CheckpointError(
                f"{self._directory} holds tensors that no part of the model uses: {_some(extra)}"
            )

    def _join(self, slot: Slot) -> Tensor:
        parts = []
        for source in slot.sources:
            file, name = self._homes[source]
            parts.append(self._open(file).get_tensor(name))
        is_stored_so = len(parts) == 1 and slot.convert is None
        joined = parts[0] if is_stored_so else (slot.convert or torch.cat)(parts)
        if tuple(joined.shape) != slot.shape:
            raise CheckpointError(
                f"{' + '.join(slot.sources)} has shape {tuple(joined.shape)}, config.json says {slot.shape}"
            )
        return joined


# Size, and nanoseconds of the last change of a file's bytes and of the last of anything about it: the latter nobody can
# set, so a file that was written again has another stamp, even one of equal size and a date that was put back.
Stamp = tuple[int, int, int]


def _stamp(path: Path) -> Stamp:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _row_size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape[1:]:
        size *= length
    return size


def _some(names: Sequence[str], count: int = 4) -> str:
    rest = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + rest
