"""The windows of a packed encode, and which of them go through the layers before the first that sees beyond them.

What those layers make of a window, its state [patches, width], depends on its patches and its place in the picture
alone. A state that is kept of an encode before is copied to its place, a window that is there twice is computed once,
and new states are kept. This changes no bit where rows do not depend on each other's number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from tapetum.models.encoding import KnownParts, WindowStates
from tapetum.models.qwen_vl.grids import WindowOrder


@dataclass(frozen=True, slots=True)
class Window:
    """Packed rows [start, end). What is not known of it is computed, and kept under its key if it has one."""

    start: int
    end: int
    key: bytes | None = None
    states: WindowStates | None = None
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class WindowRun:
    """Neighbours that are all known, or all not."""

    windows: Sequence[Window]

    @property
    def is_known(self) -> bool:
        return self.windows[0].is_known

    @property
    def rows(self) -> slice:
        return slice(self.windows[0].start, self.windows[-1].end)

    @property
    def sizes(self) -> list[int]:
        return [window.end - window.start for window in self.windows]

    @property
    def has_keys(self) -> bool:
        return any(window.key is not None for window in self.windows)


@dataclass(slots=True, eq=False)
class Windows:
    runs: Sequence[WindowRun] = ()
    twins: list[tuple[int, Window]] = field(default_factory=list)  # first row of an equal one -> a known one

    @property
    def known_rows(self) -> int:
        return sum(sum(run.sizes) for run in self.runs if run.is_known)

    def is_computed(self, num_rows: int) -> Tensor:
        """[P] of packed rows."""
        computed = torch.ones(num_rows, dtype=torch.bool)
        for run in self.runs:
            computed[run.rows] = not run.is_known
        return computed

    def keep(self, x: Tensor, run: WindowRun, start: int, end: int) -> None:
        """Windows [start, end) of a run have come through the layers, x [P, width]."""
        for window in run.windows[start:end]:
            if window.key is not None and window.states is not None:
                window.states.put(window.key, x[window.start : window.end].clone())

    def copy_twins(self, x: Tensor, start: int, end: int) -> None:
        for first, window in self.twins[start:end]:
            x[window.start : window.end] = x[first : first + window.end - window.start]


def plan_windows(order: WindowOrder, known: Sequence[KnownParts], x: Tensor) -> Windows:
    """Looks all windows up and writes the states that are kept into x [P, width]."""
    windows, firsts = Windows(), dict[bytes, int]()
    placed: list[Window] = []
    start = 0
    for size, (item, number) in zip(order.sizes, order.numbers, strict=True):
        window = _window(start, size, known[item] if known else KnownParts(), number)
        start = window.end
        if window.key is not None and window.states is not None:
            state = window.states.get(window.key)
            if state is not None:
                x[window.start : window.end] = state
            elif window.key in firsts:
                windows.twins.append((firsts[window.key], window))
            else:
                firsts[window.key] = window.start
                placed.append(window)
                continue
            window = Window(window.start, window.end, is_known=True)
        placed.append(window)
    windows.runs = _runs(placed)
    return windows


def _window(start: int, size: int, known: KnownParts, number: int) -> Window:
    if known.states is None or not known.windows:
        return Window(start, start + size)
    return Window(start, start + size, known.windows[number], known.states)


def _runs(windows: Iterable[Window]) -> list[WindowRun]:
    return [WindowRun(list(group)) for _, group in groupby(windows, key=lambda window: window.is_known)]
