"""From the rows of a plan to packed tensors: token ids, positions, block tables, who samples.

T packed tokens: rows of one token first (decode), sorted by context length, then longer rows (prefill).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tapetum.core.media import Span
from tapetum.core.plan import Row
from tapetum.core.request import Request
from tapetum.ops.layout import AttentionLayout, DecodeGroup, PrefillSegment


class TokenBook:
    """Token ids and positions of each live request, prompt and output; grows by what the sampler chose."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def add(self, request: Request) -> None:
        self._entries[request.request_id] = _Entry(request)

    def append(self, request_id: str, token_id: int) -> None:
        self._entries[request_id].append(token_id)

    def remove(self, request_id: str) -> None:
        self._entries.pop(request_id, None)

    def __getitem__(self, request_id: str) -> _Entry:
        return self._entries[request_id]

    def __len__(self) -> int:
        return len(self._entries)


class _Entry:
    def __init__(self, request: Request) -> None:
        prompt = request.prompt
        room = len(prompt.token_ids) + request.max_tokens
        self.spans = prompt.spans
        self.num_tokens = len(prompt.token_ids)
        self.token_ids = np.zeros(room, np.int64)
        self.token_ids[: self.num_tokens] = prompt.token_ids
        self.position_ids = np.empty((3, room), np.int64)
        self.position_ids[:, : self.num_tokens] = np.asarray(prompt.position_ids)
        # Past the prompt all axes advance together.
        self.position_ids[:, self.num_tokens :] = np.arange(self.num_tokens, room) + prompt.position_delta

    def append(self, token_id: int) -> None:
        self.token_ids[self.num_tokens] = token_id
        self.num_tokens += 1


@dataclass(frozen=True, slots=True)
class FeatureCopy:
    """Features of one picture for placeholder tokens: packed `[start, end)` <- features[offset:]."""

    start: int
    end: int
    key: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    token_ids: Tensor  # [T]
    position_ids: Tensor  # [3, T]
    copies: tuple[FeatureCopy, ...]
    layout: AttentionLayout
    sample_ids: tuple[str, ...]  # requests of layout.sample_rows, in order


def build_inputs(
    rows: Sequence[Row], book: TokenBook, block_size: int, dtype: torch.dtype, device: torch.device
) -> StepInputs:
    """Pack the rows of one step and move everything to the device."""
    decodes = sorted((row for row in rows if row.length == 1), key=lambda row: row.start)
    prefills = [row for row in rows if row.length > 1]
    packed = decodes + prefills
    entries = [book[row.request_id] for row in packed]
    starts = np.cumsum([0] + [row.length for row in packed]).tolist()
    token_ids = np.concatenate(
        [entry.token_ids[row.start : row.end] for row, entry in zip(packed, entries, strict=True)]
    )
    position_ids = np.concatenate(
        [entry.position_ids[:, row.start : row.end] for row, entry in zip(packed, entries, strict=True)],
        axis=1,
    )
    sampled = [
        (row.request_id, start + row.length - 1)
        for row, start in zip(packed, starts, strict=False)
        if row.has_sample
    ]
    counts = [_count(row, block_size) for row in packed]
    tables = np.cumsum([0, *counts])[:-1]
    layout = AttentionLayout(
        rows=torch.from_numpy(
            np.array(
                [
                    (start, row.length, row.start, table)
                    for row, start, table in zip(packed, starts, tables, strict=False)
                ],
                np.int32,
            )
        ),
        blocks=torch.from_numpy(
            np.concatenate(
                [np.array(row.block_ids[:count], np.int32) for row, count in zip(packed, counts, strict=True)]
            )
        ),
        slots=_to(np.concatenate([_slots(row, block_size) for row in packed]), device),
        groups=_group(decodes, block_size, dtype, device),
        segments=tuple(
            PrefillSegment(start, start + row.length, row.start, _blocks(row, block_size, device))
            for row, start in zip(prefills, starts[len(decodes) :], strict=False)
        ),
        sample_rows=_to(np.array([index for _, index in sampled], np.int64), device),
    )
    copies = [
        copy
        for row, entry, start in zip(packed, entries, starts, strict=False)
        for copy in _copies(row, start, entry.spans)
    ]
    return StepInputs(
        _to(token_ids, device),
        _to(position_ids, device),
        tuple(copies),
        layout,
        tuple(request_id for request_id, _ in sampled),
    )


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def _slots(row: Row, block_size: int) -> np.ndarray:
    positions = np.arange(row.start, row.end)
    blocks = np.asarray(row.block_ids, np.int64)
    return blocks[positions // block_size] * block_size + positions % block_size


def _blocks(row: Row, block_size: int, device: torch.device) -> Tensor:
    count = -(-row.end // block_size)
    return _to(np.array(row.block_ids[:count], np.int64), device)


def _group(
    rows: Sequence[Row], block_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[DecodeGroup, ...]:
    """Rows sorted by length, cut where padding would more than double the shortest one's blocks."""
    groups: list[DecodeGroup] = []
    start = 0
    while start < len(rows):
        limit = max(2 * _count(rows[start], block_size), 8)
        end = start + 1
        while end < len(rows) and _count(rows[end], block_size) <= limit:
            end += 1
        groups.append(_make_group(rows[start:end], start, block_size, dtype, device))
        start = end
    return tuple(groups)


def _make_group(
    rows: Sequence[Row], start: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> DecodeGroup:
    width = max(_count(row, block_size) for row in rows)
    blocks = np.zeros((len(rows), width), np.int64)
    for index, row in enumerate(rows):
        count = _count(row, block_size)
        blocks[index, :count] = row.block_ids[:count]
    lengths = np.array([row.end for row in rows], np.int64)
    is_padding = np.arange(width * block_size)[None] >= lengths[:, None]
    mask = torch.zeros(is_padding.shape, dtype=dtype).masked_fill_(torch.from_numpy(is_padding), -torch.inf)
    return DecodeGroup(
        start,
        start + len(rows),
        _to(blocks.reshape(-1), device),
        _to(lengths, device),
        mask[:, None].to(device, non_blocking=True),
        _to(np.flatnonzero(is_padding), device),
    )


def _count(row: Row, block_size: int) -> int:
    return -(-row.end // block_size)


def _copies(row: Row, packed_start: int, spans: Sequence[Span]) -> list[FeatureCopy]:
    copies = []
    for span in spans:
        first, last = max(row.start, span.start), min(row.end, span.end)
        if first < last:
            shift = packed_start - row.start
            copies.append(FeatureCopy(first + shift, last + shift, span.key, first - span.start))
    return copies
