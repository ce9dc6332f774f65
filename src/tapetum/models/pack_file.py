"""The file of a checkpoint's packed weights, from which the next start maps them.

It is named after the checkpoint's directory and dtype, and says inside which state of the checkpoint and which layout
it was made of: of any other origin it is not used, and the next one replaces it, so a directory has one file a dtype.
A file is written beside and renamed, so readers see whole ones, and those who have the old one mapped keep it.

It holds a head (up to one huge page), then memory as it was, rounded up to huge pages. Mapped, it takes no memory of
its own and next to no time. Where the system maps it in small pages only, it is read instead: decodes read the
weights over and over.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from tapetum.ops.memory import HUGE_PAGE, advise_huge, allocate

_log = logging.getLogger(__name__)
_MAGIC = b"tapetum packs 1\n"
_SUFFIX = ".packs"
_PIECE = (
    32 * 1024**2
)  # written or read at a time: whole huge pages, so that those of the file become huge too
_PROBE_EVERY = 1024**2  # bytes of which one page is compared
_PAGE = 4096
_UNUSED_S = 30 * 86_400.0  # a file that nobody has used for so long goes
_ABANDONED_S = 86_400.0  # and one that nobody can still be writing
_POPULATE_READ = 22  # of madvise, Linux 5.14


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose packs: all that their bytes depend on."""

    directory: str  # of the checkpoint
    checkpoint: str  # its state, as Checkpoint.state
    dtype: str
    layout: str  # of the kernels


class _Head(msgspec.Struct, frozen=True):
    origin: Origin
    num_bytes: int  # of the whole file
    weights: dict[str, tuple[int, int]]  # (offset, bytes)
    probe: str


class PackFile:
    def __init__(self, folder: Path, origin: Origin) -> None:
        name = hashlib.sha256(f"{origin.directory}\n{origin.dtype}".encode()).hexdigest()[:32]
        self.path = folder / (name + _SUFFIX)
        self._origin = origin

    def read(self) -> dict[str, Tensor]:
        """Its weights, uint8 each; none if there is no such file, or it is of other origin or damaged."""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = _decode(file.read(HUGE_PAGE))
                if head.origin != self._origin:
                    return {}
                if head.num_bytes != size:
                    raise ValueError(f"it has {size} bytes and should have {head.num_bytes}")
                memory = _mapped(file.fileno(), size)
            if _probe([memory[HUGE_PAGE:]]) != head.probe:
                raise ValueError("its bytes are not those that were written")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            _log.warning("weights are packed anew, %s cannot be used: %s", self.path, error)
            return {}
        with suppress(OSError):
            os.utime(self.path)  # it is in use
        return {name: memory[start : start + size] for name, (start, size) in head.weights.items()}

    def write(
        self,
        chunks: Sequence[Tensor],
        weights: Mapping[str, tuple[int, int, int]],
        is_current: Callable[[], bool],
    ) -> None:
        """Replace it by these weights, (chunk, offset, bytes) each; a line in the log where that cannot be.

        `is_current` says, once all is written, whether the checkpoint is still what was read.
        """
        temporary = self.path.with_suffix(f".{os.getpid()}-{time.monotonic_ns()}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            sweep(self.path.parent)
            _check_room(self.path.parent, sum(map(len, chunks)))
            with temporary.open("wb", buffering=0) as file:
                file.write(self._head(chunks, weights))
                for piece in (piece for chunk in chunks for piece in chunk.split(_PIECE)):
                    if file.write(piece.numpy().data) != len(piece):
                        raise OSError("the disk is full")
                os.fsync(file.fileno())
            if not is_current():
                raise OSError("the checkpoint has changed meanwhile")
            temporary.replace(self.path)
        except OSError as error:
            _log.warning("packed weights are not kept for the next start: %s", error)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _head(self, chunks: Sequence[Tensor], weights: Mapping[str, tuple[int, int, int]]) -> bytes:
        starts = [HUGE_PAGE]
        for chunk in chunks:
            starts.append(starts[-1] + len(chunk))
        places = {name: (starts[chunk] + offset, size) for name, (chunk, offset, size) in weights.items()}
        head = _Head(origin=self._origin, num_bytes=starts[-1], weights=places, probe=_probe(chunks))
        return _encode(head)


def sweep(folder: Path) -> None:
    """Remove files that nobody will use again: unused for long, half written, or of a checkpoint that is gone."""
    now = time.time()
    for path in folder.iterdir():
        with suppress(OSError):
            age_s = now - path.stat().st_mtime
            if age_s > (_UNUSED_S if path.suffix == _SUFFIX else _ABANDONED_S) or _is_orphan(path):
                path.unlink()


def _is_orphan(path: Path) -> bool:
    if path.suffix != _SUFFIX:
        return False
    try:
        with path.open("rb") as file:
            return not Path(_decode(file.read(HUGE_PAGE)).origin.directory).exists()
    except (OSError, ValueError):
        return False


def _check_room(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < 2 * num_bytes:
        raise OSError(f"{folder} has {free >> 20} MiB free, {2 * num_bytes >> 20} are asked for")


def _encode(head: _Head) -> bytes:
    text = msgspec.json.encode(head)
    block = _MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    assert len(block) <= HUGE_PAGE, "a head has room for thousands of weights"
    return block.ljust(HUGE_PAGE, b"\0")


def _decode(block: bytes) -> _Head:
    rest = block.removeprefix(_MAGIC)
    text = rest[40 : 40 + int.from_bytes(rest[:8], "little")]
    if rest == block or hashlib.sha256(text).digest() != rest[8:40]:
        raise ValueError("its head is damaged")
    return msgspec.json.decode(text, type=_Head)


def _probe(chunks: Iterable[Tensor]) -> str:
    """Digest of one page of every MiB: finds what was never written, at the price of a look."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        for start in range(0, len(chunk), _PROBE_EVERY):
            digest.update(chunk[start : start + _PAGE].numpy().data)
    return digest.hexdigest()


def _mapped(file: int, size: int) -> Tensor:
    # Private and writable as torch wants it, though nobody writes: the pages are those of the file.
    mapping = mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    advise_huge(mapping)
    with suppress(OSError):
        mapping.madvise(_POPULATE_READ)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    if _num_huge_bytes(memory.data_ptr()) >= size // 2:
        return memory
    return _copied(file, size)


def _num_huge_bytes(address: int) -> int:
    """Of the mapping that begins there; a system that does not tell has small pages."""
    with suppress(OSError), open("/proc/self/smaps", encoding="ascii") as lines:
        is_ours = False
        for line in lines:
            first, *rest = line.split()
            if not first.endswith(":"):
                is_ours = first.startswith(f"{address:x}-")
            elif is_ours and first == "FilePmdMapped:":
                return int(rest[0]) * 1024
    return 0


def _copied(file: int, size: int) -> Tensor:
    memory = allocate(size)

    def read(start: int) -> int:
        return os.preadv(file, [memory[start : start + _PIECE].numpy().data], start)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if sum(pool.map(read, range(0, size, _PIECE))) != size:
            raise OSError("it has become shorter")
    return memory
