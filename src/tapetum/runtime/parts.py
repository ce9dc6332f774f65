"""Parts of pictures that are not encoded again: where their features come from, and how they get to their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tapetum.core.media import MediaItem
from tapetum.core.plan import EncodeJob
from tapetum.runtime.store import FeatureStore

Run = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Loan:
    """Features of one part: `runs` of `source` become `targets` of the item's own; None = of these themselves."""

    source: Tensor | None
    runs: Sequence[Run]
    targets: Sequence[Run]


def loans_of(job: EncodeJob, features: FeatureStore) -> dict[int, Loan]:
    """By the number of the part. A part whose source is not there is encoded after all.

    What is lent stays in memory until the encode has ended, even if its source is dropped before.
    """
    item, there, loans = job.item, features.keys, {}
    for part in job.known:
        is_own = part.media_key == item.key
        if is_own or part.media_key in there:
            source = None if is_own else features.get(part.media_key)
            loans[part.number] = Loan(source, part.runs, item.parts[part.number].runs)
    return loans


def pay_out(loans: dict[int, Loan], features: Tensor) -> None:
    """Write what is lent into features [visual tokens, hidden]; what the item has twice last."""
    for loan in sorted(loans.values(), key=lambda loan: loan.source is None):
        source = features if loan.source is None else loan.source
        features[_rows(loan.targets)] = source[_rows(loan.runs)]


def _rows(runs: Sequence[Run]) -> Tensor:
    """Their numbers: equal parts may lie in runs of other lengths."""
    return torch.cat([torch.arange(start, end) for start, end in runs])


def tiles_left(item: MediaItem, loans: dict[int, Loan]) -> tuple[int, ...] | None:
    """The tiles that are encoded; None = all of an item that may have none."""
    if not loans:
        return None
    return tuple(number for number in range(len(item.parts)) if number not in loans)


def patches_of(item: MediaItem, tiles: Sequence[int] | None) -> Tensor:
    """uint8 [P, values] of these tiles, or of all of an item."""
    patches = np.asarray(item.patches)
    if tiles is not None:
        by_tile = patches.reshape(len(item.parts), -1, patches.shape[1])
        patches = by_tile[list(tiles)].reshape(-1, patches.shape[1])
    return torch.from_numpy(patches)
