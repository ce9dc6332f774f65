"""Checkpoint files to tensors through a strict name table: nothing unconsumed, nothing unfilled.

A table maps each of our names to the checkpoint tensors that make it up, joined along the first axis. Tensors are read
when a model asks for them. One that is stored as it is used stays where it lies, in the mapped file; a matrix whose
packed form an earlier start has kept is not read at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from tapetum.core.errors import CheckpointError
from tapetum.models.pack_file import Origin, PackFile
from tapetum.models.packs import Packs
from tapetum.models.stores import is_current, open_store
from tapetum.ops.parts import Activation, Linear
from tapetum.ops.table import OpTable

HEADS = ("lm_head.weight", "output.weight")  # of decoders, by their canonical names
_HEAD_BYTES = 2048  # of a tensor, that stand for all of it


@dataclass(frozen=True, slots=True)
class Slot:
    """One of our tensors: its name, the checkpoint names it is made from, and its whole shape.

    The sources are joined along the first axis, unless `convert` makes the tensor of them. A wide one is float32 in a
    model of any dtype.
    """

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    convert: Callable[[list[Tensor]], Tensor] | None = None
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class NameTable:
    """All slots of a model, names that may be present and are not needed, and prefixes to rewrite."""

    slots: tuple[Slot, ...]
    ignored: tuple[str, ...] = ()
    prefixes: tuple[tuple[str, str], ...] = ()  # (as written by some exporter, as in the table)

    def differences(self, names: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of canonical names: those that are missing, and those that nobody uses."""
        wanted = {source for slot in self.slots for source in slot.sources}
        unknown = (name for name in set(names) - wanted if not name.startswith(self.ignored))
        return tuple(sorted(wanted - set(names))), tuple(sorted(unknown))

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
    """The tensors of a directory under a name table: nothing missing, nothing left over."""

    def __init__(self, directory: Path, table: NameTable) -> None:
        self._directory, self._table = directory, table
        self._store = open_store(directory)
        self._homes: dict[str, str] = {}  # canonical name -> name in the store
        for name in self._store.names:
            canonical = table.canonical(name)
            if canonical in self._homes:
                raise CheckpointError(f"{directory}: tensor {canonical!r} is stored twice; remove one shard")
            self._homes[canonical] = name
        self._check()

    def weights(
        self, dtype: torch.dtype, device: torch.device, ops: OpTable, pack_folder: Path | None
    ) -> Weights:
        """Every slot of the table, joined and converted when it is taken; packs are kept in `pack_folder`."""

        def read(slot: Slot) -> Tensor:
            return self._join(slot).to(device=device, dtype=torch.float32 if slot.is_wide else dtype)

        sources = {slot.name: Source(slot.shape, partial(read, slot)) for slot in self._table.slots}
        return Weights(sources, dtype, ops, self._packs(dtype, ops, pack_folder))

    def own_head(self) -> str:
        """The canonical name of a head whose values are not those of the embedding; empty = there is none.

        For a decoder that shares the two by its config.json, which is wrong then.
        """
        (embed,) = (slot.sources[0] for slot in self._table.slots if slot.name == "embed")
        for name in HEADS:
            if name in self._homes:
                ours, theirs = (self._store.read(self._homes[each]) for each in (name, embed))
                return "" if torch.equal(ours, theirs) else name
        return ""

    def is_current(self) -> bool:
        """Whether no file was changed or replaced since it was opened."""
        return is_current(self._directory, self._store.stamps)

    def fingerprint(self, prefixes: tuple[str, ...] = ("",)) -> bytes:
        """32 bytes over names, shapes and the first kilobytes of every tensor under one of canonical prefixes."""
        digest = hashlib.sha256()
        for canonical in sorted(name for name in self._homes if name.startswith(prefixes)):
            name = self._homes[canonical]
            kind, shape = self._store.kind(name), self._store.shape(name)
            digest.update(f"{canonical}:{kind}:{list(shape)};".encode())
            digest.update(self._store.head(name, _HEAD_BYTES))
        return digest.digest()

    def _packs(self, dtype: torch.dtype, ops: OpTable, folder: Path | None) -> Packs:
        if folder is None or ops.packing is None:
            return Packs()
        digest = hashlib.sha256(self.fingerprint())
        digest.update(repr(sorted(self._store.stamps.items())).encode())
        origin = Origin(
            directory=str(self._directory.resolve()),
            checkpoint=digest.hexdigest(),
            dtype=str(dtype).removeprefix("torch."),
            layout=ops.packing.layout,
        )
        return Packs(PackFile(folder, origin))

    def _check(self) -> None:
        missing, unknown = self._table.differences(self._homes)
        if missing:
            raise CheckpointError(
                f"{self._directory} lacks {_some(missing)}; it does not fit its config.json, download it again"
            )
        if unknown:
            raise CheckpointError(
                f"{self._directory} holds tensors that no part of the model uses: {_some(unknown)}; "
                "take the checkpoint that goes with its config.json"
            )
        for slot in self._table.slots:
            for source in slot.sources:
                if refusal := self._store.refusal(self._homes[source]):
                    raise CheckpointError(refusal)

    def _join(self, slot: Slot) -> Tensor:
        parts = [self._store.read(self._homes[source]) for source in slot.sources]
        is_stored_so = len(parts) == 1 and slot.convert is None
        joined = parts[0] if is_stored_so else (slot.convert or torch.cat)(parts)
        if tuple(joined.shape) != slot.shape:
            raise CheckpointError(
                f"{self._directory}: {' + '.join(slot.sources)} has shape {tuple(joined.shape)}, config.json says "
                f"{slot.shape}; take the checkpoint that goes with its config.json"
            )
        return joined


def _some(names: Sequence[str], count: int = 4) -> str:
    rest = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + rest
