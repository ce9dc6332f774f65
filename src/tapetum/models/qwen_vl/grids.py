"""Where patches lie: their order, their windows, and the learned positions between which they fall.

All of it follows from grids (t, h, w) of patches alone. Patches come in merge order: the merge² patches of a visual
token are neighbours. P patches.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def window_order(grids: Sequence[Grid], merge: int, side: int) -> tuple[Tensor, list[int]]:
    """Visual tokens sorted by window, and the patches of each window.

    Windows are squares of `side` visual tokens, cut off at the right and bottom edge. Within each frame the full
    ones come first and equal sizes stay together, so that attention runs over few groups; the order is undone after
    the merger and no value depends on it.
    """
    order: list[Tensor] = []
    sizes: list[int] = []
    start = 0
    for t, height, width in grids:
        h, w = height // merge, width // merge
        index = torch.arange(h * w).view(h, w)
        windows = [
            index[y : y + side, x : x + side].flatten() for y in range(0, h, side) for x in range(0, w, side)
        ]
        windows.sort(key=len, reverse=True)
        for _ in range(t):
            order += [window + start for window in windows]
            sizes += [len(window) * merge**2 for window in windows]
            start += h * w
    return torch.cat(order), sizes


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
