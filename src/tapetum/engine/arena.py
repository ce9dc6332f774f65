"""Shared memory for the patches of pictures and clips, between the front's process and the engine's.

One anonymous file, mapped by both: the front owns it and gives parts of it out, the engine only reads. It has no name
that could be left behind, its pages come with their first use, and it ends with the last process that has it open.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import insort

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 4096


class Arena:
    """The front's side, over an open file. A part is known by where it begins; any thread may call all methods."""

    def __init__(self, file: int, num_bytes: int) -> None:
        self.file = file
        self._map = mmap.mmap(file, num_bytes)
        self._lock = threading.Lock()
        self._free = [(0, num_bytes)]  # (offset, length), in order, never two that touch
        self._held: dict[int, int] = {}  # offset -> length

    @property
    def num_held_bytes(self) -> int:
        with self._lock:
            return sum(self._held.values())

    def try_put(self, patches: NDArray[np.uint8]) -> int | None:
        """Copy an array in -> its offset; None when there is no room for it."""
        length = max(_ALIGNMENT, -(-patches.nbytes // _ALIGNMENT) * _ALIGNMENT)
        with self._lock:
            offset = self._take(length)
        if offset is not None:
            place = np.frombuffer(self._map, np.uint8, patches.nbytes, offset)
            np.copyto(place, patches.reshape(-1))
        return offset

    def free(self, offset: int) -> None:
        """Give a part back; nobody reads it any more."""
        with self._lock:
            length = self._held.pop(offset)
            insort(self._free, (offset, length))
            index = self._free.index((offset, length))
            for left in (index, index - 1):  # join with the part behind, then with the one before
                if 0 <= left < len(self._free) - 1:
                    begin, size = self._free[left]
                    if begin + size == self._free[left + 1][0]:
                        self._free[left : left + 2] = [(begin, size + self._free[left + 1][1])]

    def close(self) -> None:
        os.close(self.file)

    def _take(self, length: int) -> int | None:
        """The first free part that is long enough: low pages are used again and again."""
        for index, (offset, room) in enumerate(self._free):
            if room >= length:
                self._free[index : index + 1] = [(offset + length, room - length)] if room > length else []
                self._held[offset] = length
                return offset
        return None


class ArenaReader:
    """The engine's side, over the file that the front has opened."""

    def __init__(self, file: int, num_bytes: int) -> None:
        self._map = mmap.mmap(file, num_bytes)  # writable only because torch takes no other arrays

    def array(self, offset: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """A view, good until the front frees that part."""
        size = int(np.prod(shape))
        return np.frombuffer(self._map, np.uint8, size, offset).reshape(shape)
