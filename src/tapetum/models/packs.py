"""The packed weights of a model in memory: made as they are asked for, or as a file had them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from torch import Tensor

from tapetum.models.pack_file import PackFile
from tapetum.ops.memory import HUGE_PAGE, allocate

_CHUNK = 256 * 1024**2  # bytes that weights share; what is not used costs nothing
_ALIGNMENT = 4096
_WORTH_BYTES = 64 * 1024**2  # less is packed in no time


class Packs:
    """Not for several threads. `file` None = every start packs anew."""

    def __init__(self, file: PackFile | None = None, worth_bytes: int = _WORTH_BYTES) -> None:
        self._file, self._worth_bytes = file, worth_bytes
        self._known = {} if file is None else file.read()
        self._kept: dict[str, Tensor] = {}  # of those the ones that were asked for
        self._chunks: list[Tensor] = []
        self._end = 0  # of what is used of the last chunk
        self._places: dict[str, tuple[int, int, int]] = {}  # (chunk, offset, bytes) of what is new

    def get(self, name: str, num_bytes: int, fill: Callable[[Tensor], None]) -> Tensor:
        """uint8 [num_bytes] of this name: from the file, else zeroes that `fill` has written into."""
        known = self._known.get(name)
        if known is not None and len(known) == num_bytes:
            self._kept[name] = known
            return known
        return self._add(name, num_bytes, fill)

    def keep(self, is_current: Callable[[], bool]) -> threading.Thread | None:
        """Write all for the next start, on a thread, if there is a file for it and something new that is worth it."""
        num_bytes = sum(size for *_, size in self._places.values())
        if self._file is None or not self._places or num_bytes < self._worth_bytes:
            return None
        for name, memory in self._kept.items():
            self._add(name, len(memory), partial(_copy, memory))
        self._close_chunk()
        thread = threading.Thread(
            target=self._file.write,
            args=(self._chunks, self._places, is_current),
            name="tapetum-packs",
            daemon=True,
        )
        thread.start()
        return thread

    def _add(self, name: str, num_bytes: int, fill: Callable[[Tensor], object]) -> Tensor:
        if not self._chunks or self._end + num_bytes > len(self._chunks[-1]):
            self._close_chunk()
            self._chunks.append(allocate(_up(max(_CHUNK, num_bytes), HUGE_PAGE)))
            self._end = 0
        memory = self._chunks[-1][self._end : self._end + num_bytes]
        fill(memory)
        self._places[name] = (len(self._chunks) - 1, self._end, num_bytes)
        self._end = _up(self._end + num_bytes, _ALIGNMENT)
        return memory

    def _close_chunk(self) -> None:
        """Leave only whole huge pages that are used of the last chunk."""
        if self._chunks:
            self._chunks[-1] = self._chunks[-1][: _up(self._end, HUGE_PAGE)]


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _copy(source: Tensor, target: Tensor) -> None:
    target.copy_(source)
