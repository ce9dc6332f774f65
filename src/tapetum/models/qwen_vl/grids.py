"""Where patches lie: their order, their windows, and the learned positions between which they fall.

All of it follows from grids (t, h, w) of patches alone. Patches come in merge order: the merge² patches of a visual
token are neighbours. P patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Grid = tuple[int, int, int]


def merge_order_coordinates(grid: Grid, merge: int) -> Tensor:
    """(row, column) of each patch of a grid, in merge order: [t h w, 2]."""
    t, h, w = grid
    rows = torch.arange(h).view(h, 1).expand(h, w)
    columns = torch.arange(w).view(1, w).expand(h, w)
    both = torch.stack((rows, columns), -1).view(h // merge, merge, w // merge, merge, 2)
    return both.transpose(1, 2).reshape(h * w, 2).repeat(t, 1)


@dataclass(frozen=True, slots=True)
class WindowOrder:
    tokens: Tensor  # visual tokens, window by window
    sizes: list[int]  # patches of each window
    numbers: list[tuple[int, int]]  # the item of each window, and its number there: by frame, row and column


def window_order(grids: Sequence[Grid], merge: int, side: int) -> WindowOrder:
    """Visual tokens sorted by window.

    Windows are squares of `side` visual tokens, cut off at the right and bottom edge. Within each frame the full
    ones come first and equal sizes stay together, so that attention runs over few groups; the order is undone after
    the merger and no value depends on it.
    """
    order: list[Tensor] = []
    sizes: list[int] = []
    numbers: list[tuple[int, int]] = []
    start = 0
    for item, (t, height, width) in enumerate(grids):
        h, w = height // merge, width // merge
        index = torch.arange(h * w).view(h, w)
        windows = [
            index[y : y + side, x : x + side].flatten() for y in range(0, h, side) for x in range(0, w, side)
        ]
        ranked = sorted(range(len(windows)), key=lambda number: len(windows[number]), reverse=True)
        for step in range(t):
            order += [windows[number] + start for number in ranked]
            sizes += [len(windows[number]) * merge**2 for number in ranked]
            numbers += [(item, step * len(windows) + number) for number in ranked]
            start += h * w
    return WindowOrder(torch.cat(order), sizes, numbers)


def neighbours(grid: Grid, coordinates: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """The four learned positions around each patch and their shares, [P, 4] both.

    `side`² positions are learned; the corners of every grid lie on their corners (bilinear, aligned corners), in
    float32 as transformers computes it.
    """
    sizes = torch.tensor(grid[1:])  # rows, columns
    places = coordinates.float() * (side - 1) / (sizes - 1).clamp(min=1)  # [P, 2]
    lower = places.floor()
    share = places - lower
    near = lower.long()
    far = (near + 1).clamp(max=side - 1)
    rows, columns = (torch.stack((near[:, axis], far[:, axis]), 1) for axis in range(2))  # [P, 2]
    down, across = (torch.stack((1 - share[:, axis], share[:, axis]), 1) for axis in range(2))
    indices = rows[:, :, None] * side + columns[:, None, :]
    return indices.flatten(1), (down[:, :, None] * across[:, None, :]).flatten(1)
