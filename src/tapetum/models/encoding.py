"""Encoding: an encode under way, which goes on in slices of any size.

Owns how far it is and where the next cut falls. What is computed belongs to the model: it hands over its stages in
order, each a run of like rows (patches, queries, visual tokens) that may be cut between any two of them without a
change of the result. Work is counted in multiply-adds of a linear layer, so a share of it predicts a share of time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from torch import Tensor

QUANTUM = 64  # rows of the smallest slice: a few milliseconds in a large model, and whole tiles of a kernel
MAX_ROWS = 2048  # of one call, which bounds what it allocates


class WindowStates(Protocol):
    """What is kept of windows by their keys, [patches, width]: what the layers make of them that see nothing else."""

    def get(self, key: bytes) -> Tensor | None: ...

    def put(self, key: bytes, state: Tensor) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownParts:
    """What an encode of an item may leave out."""

    tiles: tuple[int, ...] | None = None  # those that are encoded, whose patches alone are given; None = all
    windows: tuple[bytes, ...] = ()  # a key for each, in the order of the geometry's segments
    states: WindowStates | None = None  # of windows that were encoded before; gets those that are encoded now


@dataclass(frozen=True, slots=True)
class Stage:
    """`run(start, end)` computes rows [start, end) of `rows`; each row is so much `work`."""

    rows: int
    work: float
    run: Callable[[int, int], None]


class Encoding:
    """`stages` in order, then `collect`, which gives the features of each item, [visual tokens, hidden].

    `spared` is work that the stages would have more, had nothing been known of the items.
    """

    def __init__(
        self, stages: Iterable[Stage], collect: Callable[[], list[Tensor]], spared: float = 0.0
    ) -> None:
        self._stages = deque(stages)
        self._collect = collect
        self._row = 0  # of the first stage
        self._total = sum(stage.rows * stage.work for stage in self._stages)
        self._work = 0.0
        self._spared = spared

    @property
    def spared(self) -> float:
        """Share of the whole work, 0 to 1, that need not be done."""
        return self._spared / (self._total + self._spared) if self._spared else 0.0

    @property
    def done(self) -> float:
        """The share of the work that is done, 0 to 1; 1 only when all of it is."""
        return min(self._work / self._total, 1 - 1e-9) if self._stages else 1.0

    def advance(self, share: float) -> float:
        """Work until this share of the whole is done, a little more at most -> the share that is."""
        while self._stages and (share >= 1 or self.done < share):
            self._run_some(share * self._total - self._work)
        return self.done

    def finish(self) -> list[Tensor]:
        """Do what is left -> the features of each item."""
        self.advance(1)
        return self._collect()

    def _run_some(self, work: float) -> None:
        """As many rows of the stage at hand as come to so much work, but whole quanta of them."""
        stage, start = self._stages[0], self._row
        wanted = QUANTUM * max(1, ceil(min(work / stage.work, MAX_ROWS) / QUANTUM))
        end = min(start + wanted, stage.rows)
        stage.run(start, end)
        self._work += (end - start) * stage.work
        self._row = end
        if end == stage.rows:
            self._stages.popleft()
            self._row = 0
