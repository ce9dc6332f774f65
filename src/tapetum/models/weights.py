"""Checkpoint files to tensors through a strict name table: nothing unconsumed, nothing unfilled.

A table maps each of our names to the checkpoint tensors that make it up, joined along the first axis.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tapetum.core.errors import CheckpointError
from tapetum.core.files import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Slot:
    """One of our tensors: its name, the checkpoint names it is joined from, and its whole shape."""

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]


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


class Checkpoint:
    """The safetensors files of a directory, one or sharded, opened lazily through memory maps."""

    def __init__(self, directory: Path, table: NameTable) -> None:
        self._directory, self._table = directory, table
        self._files: dict[str, safe_open] = {}
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

    def load(self, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        """Every slot of the table, converted and joined."""
        return {slot.name: self._join(slot).to(device=device, dtype=dtype) for slot in self._table.slots}

    def fingerprint(self, prefix: str = "") -> bytes:
        """32 bytes over names, shapes and the first kilobytes of every tensor under a canonical prefix."""
        digest = hashlib.sha256()
        for canonical in sorted(name for name in self._homes if name.startswith(prefix)):
            file, name = self._homes[canonical]
            piece = self._open(file).get_slice(name)
            head = piece[: max(1, 2048 // max(1, _row_size(piece.get_shape())))]
            digest.update(f"{canonical}:{piece.get_dtype()}:{piece.get_shape()};".encode())
            digest.update(head.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.digest()

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
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        if tuple(joined.shape) != slot.shape:
            raise CheckpointError(
                f"{' + '.join(slot.sources)} has shape {tuple(joined.shape)}, config.json says {slot.shape}"
            )
        return joined


def _row_size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape[1:]:
        size *= length
    return size


def _some(names: Sequence[str], count: int = 4) -> str:
    rest = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + rest
