"""Pictures that look the same as one that came before: frames of a camera that nobody walks through.

Lossy, so only for who asks. A few mean levels of a picture propose a candidate; its patches decide: in none may a value
differ by more than the noise of a camera, nor its mean by more than a slight change of light. The candidate is a
picture that was encoded itself, never one that was taken for another, so nothing drifts. Owns the candidates of each
tenant, up to a number of bytes; no picture that is there to be read is among them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tapetum.core.media import Degradation, MediaItem

MAX_PEAK = 24  # of 255, of any value of any patch
MAX_MEAN = 3.0  # of 255, of the mean of any patch: noise cancels out in it
_LEVELS = 64  # of a signature
_ROWS = 256  # patches that are compared at a time: the first that differs ends it
_SAMPLED = 100  # one hit of so many is encoded all the same, to learn how far off the others are

Levels = NDArray[np.float32]
Group = tuple[str, tuple[int, int], tuple[int, int, int]]  # tenant, used size, grid


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    item: MediaItem
    levels: Levels
    num_bytes: int


class NearIndex:
    """Safe to use from many threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # guards all below
        self._groups: dict[Group, OrderedDict[bytes, _Candidate]] = {}
        self._recent: OrderedDict[bytes, Group] = OrderedDict()  # media keys, least recent first
        self._num_hits = 0
        self.num_bytes = 0

    def settle(self, item: MediaItem, tenant: str, is_dense: Callable[[], bool]) -> MediaItem:
        """The picture that it is taken for, which says so; else itself, a candidate from now on unless it is dense.

        One hit of a hundred is itself too, and says whose features its own are to be compared with.
        """
        if item.geometry.kind != "image":
            return item
        patches, group = _patches(item), _group(item, tenant)
        levels = signature(patches)
        for candidate in self._proposed(group, levels):
            if candidate.item.key == item.key:
                return item
            if looks_same(_patches(candidate.item), patches):
                return self._hit(candidate.item, item)
        if not is_dense():
            self._add(group, _Candidate(item, levels, patches.nbytes))
        return item

    def clear(self) -> None:
        with self._lock:
            self._groups.clear()
            self._recent.clear()
            self.num_bytes = 0

    def _proposed(self, group: Group, levels: Levels) -> list[_Candidate]:
        """Those with like levels, the likest first."""
        with self._lock:
            candidates = list(self._groups.get(group, {}).values())
        if not candidates:
            return []
        off = np.abs(np.stack([candidate.levels for candidate in candidates]) - levels).max(axis=1)
        return [candidates[index] for index in np.argsort(off, kind="stable") if off[index] <= MAX_MEAN]

    def _hit(self, known: MediaItem, item: MediaItem) -> MediaItem:
        with self._lock:
            if known.key in self._recent:
                self._touch(known.key)
            self._num_hits += 1
            is_sampled = self._num_hits % _SAMPLED == 0
        if is_sampled:
            return replace(item, compared_with=known.key)
        return replace(
            known,
            degraded=Degradation(reason="near_duplicate"),
            fetch_s=item.fetch_s,
            decode_s=item.decode_s,
            resize_s=item.resize_s,
        )

    def _touch(self, key: bytes) -> None:
        self._recent.move_to_end(key)
        self._groups[self._recent[key]].move_to_end(key)

    def _add(self, group: Group, candidate: _Candidate) -> None:
        key = candidate.item.key
        with self._lock:
            if key in self._recent or candidate.num_bytes > self._max_bytes:
                return
            self._groups.setdefault(group, OrderedDict())[key] = candidate
            self._recent[key] = group
            self.num_bytes += candidate.num_bytes
            while self.num_bytes > self._max_bytes:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        key, group = self._recent.popitem(last=False)
        self.num_bytes -= self._groups[group].pop(key).num_bytes
        if not self._groups[group]:
            del self._groups[group]


def signature(patches: NDArray[np.uint8]) -> Levels:
    """Mean levels of at most 64 runs of patches, 0 to 255: noise hardly moves them."""
    means = patches.mean(axis=1, dtype=np.float32)
    edges = np.linspace(0, len(means), min(_LEVELS, len(means)) + 1).astype(np.intp)
    levels: Levels = (np.add.reduceat(means, edges[:-1]) / np.diff(edges)).astype(np.float32)
    return levels


def looks_same(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    """Whether no patch differs by more than noise. Both [P, values] of one shape."""
    for start in range(0, len(one), _ROWS):
        a, b = one[start : start + _ROWS], other[start : start + _ROWS]
        if (np.maximum(a, b) - np.minimum(a, b)).max() > MAX_PEAK:
            return False
        if np.abs(a.mean(axis=1, dtype=np.float32) - b.mean(axis=1, dtype=np.float32)).max() > MAX_MEAN:
            return False
    return True


def _patches(item: MediaItem) -> NDArray[np.uint8]:
    return np.asarray(item.patches)


def _group(item: MediaItem, tenant: str) -> Group:
    return tenant, item.geometry.used, item.geometry.grid_thw
