"""What attention needs to know of a step, planned once on the host and only read by the layers.

T packed tokens, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from tapetum.ops.groups import DecodeGroup, PrefillSegment, RowTable


@dataclass(frozen=True)
class AttentionLayout:
    """One step: where each token's K and V go, who attends to what, which positions yield logits.

    `groups` and `segments` say what `rows` says, for batched products; they are made when the first layer asks.
    """

    rows: Tensor  # [R, 4] int32 on the host: first packed token, tokens, tokens before them, first of its `blocks`
    blocks: Tensor  # int32 on the host: block tables, one behind the other
    slots: Tensor  # [T] int64: block id x block size + offset
    sample_rows: Tensor  # int64: packed indices of the tokens that yield logits, ascending
    block_size: int
    dtype: torch.dtype
    # [T] int32 on the host: how many tokens of its row each token sees, from the first on; None = those up to itself
    reach: Tensor | None = None

    @cached_property
    def groups(self) -> tuple[DecodeGroup, ...]:
        return self._table.groups()

    @cached_property
    def segments(self) -> tuple[PrefillSegment, ...]:
        return self._table.segments()

    @property
    def _table(self) -> RowTable:
        return RowTable(
            self.rows.tolist(), self.blocks.numpy(), self.block_size, self.dtype, self.slots.device
        )


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """`count` attention segments of `length` patches each, packed from `start` on."""

    start: int
    count: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.count * self.length


@dataclass(frozen=True, slots=True)
class Segments:
    """Neighbouring attention segments of packed patches: `bounds` int32 [n + 1] from 0 on, and runs of equal length."""

    bounds: Tensor
    runs: tuple[SegmentRun, ...]

    def pairs(self) -> list[tuple[int, int]]:
        """(start, end) of each segment."""
        ends = self.bounds.tolist()
        return list(pairwise(ends))


def plan_segments(lengths: Sequence[int]) -> Segments:
    """Group neighbouring segments of equal length, so that each group can be one batched product."""
    runs: list[SegmentRun] = []
    start = 0
    for length in lengths:
        if runs and runs[-1].length == length:
            last = runs[-1]
            runs[-1] = SegmentRun(last.start, last.count + 1, length)
        else:
            runs.append(SegmentRun(start, 1, length))
        start += length
    bounds = torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32)
    return Segments(bounds, tuple(runs))
