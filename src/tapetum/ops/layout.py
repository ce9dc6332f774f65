"""What attention needs to know of a step, planned once on the host and only read by the layers.

T packed tokens, R decode rows, B blocks, S = B x block size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one token each with similar context lengths, packed at `[start, end)`, padded to one block count."""

    start: int
    end: int
    blocks: Tensor  # [R * B] int64, padded with block 0
    lengths: Tensor  # [R] int64, tokens to attend to
    mask: Tensor  # [R, 1, S] additive: 0 for a token to attend to, -inf for padding
    padding: Tensor  # indices into R * S of the padding, which may hold anything an earlier owner left


@dataclass(frozen=True, slots=True)
class PrefillSegment:
    """Consecutive tokens of one request, packed at `[start, end)`, after `context` earlier ones."""

    start: int
    end: int
    context: int
    blocks: Tensor  # [B] int64, covers context + (end - start) tokens


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """One step: where each token's K and V go, who attends to what, which positions yield logits.

    `rows` says the same as `groups` and `segments`, for kernels that take any row: (start, length, context, first
    index into `blocks`) each; both lie on the host.
    """

    rows: Tensor  # [requests, 4] int32
    blocks: Tensor  # int32: block tables, one behind the other
    slots: Tensor  # [T] int64: block id x block size + offset
    groups: tuple[DecodeGroup, ...]
    segments: tuple[PrefillSegment, ...]
    sample_rows: Tensor  # [rows that sample] int64: packed index of each row's last token


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
