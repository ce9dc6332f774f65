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
from tapetum.ops.layout import AttentionLayout
from tapetum.runtime.reach import plan_reach


class TokenBook:
    """Token ids and positions of each live request, prompt and output; grows by what the sampler chose."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def add(self, request: Request) -> None:
        self._entries[request.request_id] = _Entry(request)

    def append(self, request_id: str, token_ids: Sequence[int]) -> None:
        self._entries[request_id].append(token_ids)

    def remove(self, request_id: str) -> None:
        self._entries.pop(request_id, None)

    def __getitem__(self, request_id: str) -> _Entry:
        return self._entries[request_id]

    def __len__(self) -> int:
        return len(self._entries)


class _Entry:
    def __init__(self, request: Request) -> None:
        prompt = request.prompt
        self.num_tokens = len(prompt.token_ids)
        room = self.num_tokens + request.max_tokens
        self.spans = prompt.spans
        self.last_span_end = max((span.end for span in prompt.spans), default=0)
        self.has_atomic = any(span.is_atomic for span in prompt.spans)
        self.ids = np.zeros((4, room), np.int64)  # token ids, then positions on three axes
        self.ids[0, : self.num_tokens] = prompt.token_ids
        self.ids[1:, : self.num_tokens] = np.asarray(prompt.position_ids)
        # Past the prompt all axes advance together.
        self.ids[1:, self.num_tokens :] = np.arange(self.num_tokens, room) + prompt.position_delta
        self._block_ids: tuple[int, ...] = ()
        self._blocks = np.empty(0, np.int32)

    def append(self, token_ids: Sequence[int]) -> None:
        end = self.num_tokens + len(token_ids)
        self.ids[0, self.num_tokens : end] = token_ids
        self.num_tokens = end

    def blocks(self, block_ids: tuple[int, ...]) -> np.ndarray:
        """The block table as an array; from one step to the next it mostly stays, or grows by a block."""
        known = len(self._block_ids)
        if block_ids[:known] != self._block_ids:
            known = 0
        if len(block_ids) > len(self._blocks):
            room = np.empty(2 * len(block_ids), np.int32)
            room[:known] = self._blocks[:known]
            self._blocks = room
        if known < len(block_ids):
            self._blocks[known : len(block_ids)] = block_ids[known:]
        self._block_ids = block_ids
        return self._blocks[: len(block_ids)]


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
    packed = sorted(rows, key=lambda row: (row.length > 1, row.start if row.length == 1 else 0))
    num_tokens = sum(row.length for row in packed)
    ids, slots = np.empty((4, num_tokens), np.int64), np.empty(num_tokens, np.int64)
    numbers: list[tuple[int, int, int, int]] = []
    tables: list[np.ndarray] = []
    places: list[int] = []
    sampled: list[str] = []
    copies: list[FeatureCopy] = []
    start = num_blocks = 0
    for row in packed:
        entry, end = book[row.request_id], start + row.length
        if row.guess:  # behind what is known, where the tokens that come true will stand
            entry.ids[0, row.end - len(row.guess) : row.end] = row.guess
        ids[:, start:end] = entry.ids[:, row.start : row.end]
        blocks = entry.blocks(row.block_ids)
        slots[start:end] = _slots(row, blocks, block_size)
        numbers.append((start, row.length, row.start, num_blocks))
        tables.append(blocks)
        if row.has_sample:
            first = end - 1 - len(row.guess)
            places += range(first, end)
            sampled += [row.request_id] * (end - first)
        if row.start < entry.last_span_end:
            copies += _copies(row, start, entry.spans)
        start, num_blocks = end, num_blocks + len(blocks)
    layout = AttentionLayout(
        rows=torch.from_numpy(np.array(numbers, np.int32)),
        blocks=torch.from_numpy(np.concatenate(tables)),
        slots=_to(slots, device),
        sample_rows=_to(np.array(places, np.int64), device),
        block_size=block_size,
        dtype=dtype,
        reach=_reach(packed, book),
    )
    on_device = _to(ids, device)
    return StepInputs(on_device[0], on_device[1:], tuple(copies), layout, tuple(sampled))


def _reach(rows: Sequence[Row], book: TokenBook) -> Tensor | None:
    """None for most models, whose pictures are seen like text: each token by those behind it."""
    if not any(book[row.request_id].has_atomic for row in rows):
        return None
    entries = [(row, book[row.request_id]) for row in rows]
    if all(row.start >= entry.last_span_end for row, entry in entries if entry.has_atomic):
        return None
    reach = plan_reach([(row.start, row.end, entry.spans) for row, entry in entries])
    return None if reach is None else torch.from_numpy(reach)


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def _slots(row: Row, blocks: np.ndarray, block_size: int) -> np.ndarray | int:
    if row.length == 1:
        return int(blocks[row.start // block_size]) * block_size + row.start % block_size
    positions = np.arange(row.start, row.end)
    return blocks[positions // block_size] * block_size + positions % block_size


def _copies(row: Row, packed_start: int, spans: Sequence[Span]) -> list[FeatureCopy]:
    copies = []
    shift = packed_start - row.start
    for span in spans:
        offset = 0  # of the features that the runs before took
        for start, end in span.placeholders if span.start < row.end and row.start < span.end else ():
            first, last = max(row.start, start), min(row.end, end)
            if first < last:
                copies.append(FeatureCopy(first + shift, last + shift, span.key, offset + first - start))
            offset += end - start
    return copies
