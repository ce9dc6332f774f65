"""Rows of a step in the forms that batched products of torch take; kernels that take any row do without.

R decode rows, B blocks, S = B x block size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
class RowTable:
    """The rows of an AttentionLayout as numbers of the host."""

    rows: Sequence[Sequence[int]]  # start, length, context, first index into blocks
    blocks: np.ndarray
    block_size: int
    dtype: torch.dtype
    device: torch.device

    def segments(self) -> tuple[PrefillSegment, ...]:
        """Rows of more than one token."""
        return tuple(
            PrefillSegment(start, start + length, context, self._to(self._table(row).astype(np.int64)))
            for row in self.rows
            if (length := row[1]) > 1
            for start, context in [(row[0], row[2])]
        )

    def groups(self) -> tuple[DecodeGroup, ...]:
        """Neighbouring rows of one token, cut where padding would more than double the blocks of the first one."""
        groups: list[DecodeGroup] = []
        members: list[Sequence[int]] = []
        for row in self.rows:
            if row[1] != 1:
                continue
            limit = max(2 * self._count(members[0]), 8) if members else 0
            if members and (row[0] != members[-1][0] + 1 or self._count(row) > limit):
                groups.append(self._group(members))
                members = []
            members.append(row)
        return (*groups, self._group(members)) if members else tuple(groups)

    def _group(self, members: Sequence[Sequence[int]]) -> DecodeGroup:
        width = max(self._count(row) for row in members)
        blocks = np.zeros((len(members), width), np.int64)
        for index, row in enumerate(members):
            blocks[index, : self._count(row)] = self._table(row)
        lengths = np.array([row[2] + 1 for row in members], np.int64)
        is_padding = np.arange(width * self.block_size)[None] >= lengths[:, None]
        mask = torch.zeros(is_padding.shape, dtype=self.dtype)
        mask.masked_fill_(torch.from_numpy(is_padding), -torch.inf)
        first = members[0][0]
        return DecodeGroup(
            first,
            first + len(members),
            self._to(blocks.reshape(-1)),
            self._to(lengths),
            mask[:, None].to(self.device, non_blocking=True),
            self._to(np.flatnonzero(is_padding)),
        )

    def _count(self, row: Sequence[int]) -> int:
        return -(-(row[1] + row[2]) // self.block_size)

    def _table(self, row: Sequence[int]) -> np.ndarray:
        return self.blocks[row[3] : row[3] + self._count(row)]

    def _to(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)
