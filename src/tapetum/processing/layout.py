"""What stands in a prompt for a picture or clip, and the tokens and positions of a whole prompt.

A family says it in pieces: words, special tokens, and runs of placeholders. Words join the text around them before it
is tokenised, since a tokenizer may merge across the seam; an Insert holds what is left between the placeholders.

`T` tokens of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tapetum.core.media import MediaItem, MediaKind, Span
from tapetum.core.request import Prompt

# mrope: an item lies in a box of three axes; plain: every token is one behind the one before, on all axes alike
Positions = Literal["mrope", "plain"]


@dataclass(frozen=True, slots=True)
class Special:
    """A special token, by its text; plain text where the tokenizer has no such token."""

    text: str


@dataclass(frozen=True, slots=True)
class Placement:
    """A run of placeholders, and what their positions depend on besides where it starts: merged grid and clock.

    Step i of the time axis is trunc(i * interval) behind the start, in float32 as transformers computes it.
    """

    time: int
    rows: int
    columns: int
    interval: float = 1.0

    @property
    def num_tokens(self) -> int:
        return self.time * self.rows * self.columns

    def offsets(self) -> NDArray[np.int64]:
        """Positions behind the start, [3, num_tokens]."""
        times = (np.arange(self.time, dtype=np.float32) * np.float32(self.interval)).astype(np.int64)
        axes = np.meshgrid(times, np.arange(self.rows), np.arange(self.columns), indexing="ij")
        return np.stack(axes).reshape(3, -1).astype(np.int64)

    def as_tuple(self) -> tuple[float, ...]:
        return (self.time, self.rows, self.columns, self.interval)


def plain_run(num_tokens: int) -> Placement:
    """Placeholders whose positions count up."""
    return Placement(1, 1, num_tokens)


Piece = str | Special | Placement
Part = tuple[int, ...] | Placement


@dataclass(frozen=True, slots=True)
class Insert:
    """What stands for an item from its first placeholder to its last: placements, and the tokens between them."""

    item: MediaItem
    parts: tuple[Part, ...]


Segment = tuple[int, ...] | Insert


def lay_out(
    segments: Sequence[Segment],
    media_tokens: Mapping[MediaKind, int],
    positions: Positions,
    *,
    is_atomic: bool = False,
) -> Prompt:
    """Token ids, spans and positions of a prompt.

    Text counts up on all three axes alike. A box lies at the next free position; text goes on one behind the largest
    position of any axis. `is_atomic`: the tokens of an item see each other both ways.
    """
    token_ids: list[tuple[int, ...]] = []
    offsets: list[NDArray[np.int64]] = [np.zeros((3, 0), np.int64)]
    spans: list[Span] = []
    start = position = 0
    for segment in segments:
        if isinstance(segment, Insert):
            spans.append(_span(segment, start, position, positions, is_atomic=is_atomic))
        for tokens, place in _runs(segment, media_tokens, positions):
            token_ids.append(tokens)
            offsets.append(place + position)
            start += len(tokens)
            position += int(place.max(initial=-1)) + 1
    return Prompt(
        token_ids=tuple(chain.from_iterable(token_ids)),
        spans=tuple(spans),
        position_ids=np.concatenate(offsets, axis=1),  # [3, T]
        position_delta=position - start,
    )


def _runs(
    segment: Segment, media_tokens: Mapping[MediaKind, int], positions: Positions
) -> Iterator[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """Tokens and their positions behind the start of each run, [3, tokens]."""
    for part in segment.parts if isinstance(segment, Insert) else (segment,):
        if isinstance(part, Placement) and isinstance(segment, Insert):
            tokens = (media_tokens[segment.item.geometry.kind],) * part.num_tokens
            yield tokens, part.offsets() if positions == "mrope" else _counted(len(tokens))
        elif isinstance(part, tuple):
            yield tuple(part), _counted(len(part))


def _counted(num_tokens: int) -> NDArray[np.int64]:
    return np.broadcast_to(np.arange(num_tokens, dtype=np.int64), (3, num_tokens))


def _span(insert: Insert, start: int, position: int, positions: Positions, *, is_atomic: bool) -> Span:
    lengths = [part.num_tokens if isinstance(part, Placement) else len(part) for part in insert.parts]
    ends = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    placements = [part for part in insert.parts if isinstance(part, Placement)]
    bounds = zip(insert.parts, pairwise(ends), strict=True)
    runs = tuple(bound for part, bound in bounds if isinstance(part, Placement))
    boxes = placements if positions == "mrope" else ()
    return Span(
        start=start,
        end=start + ends[-1],
        item=insert.item,
        placement=tuple(chain.from_iterable(box.as_tuple() for box in boxes)),
        runs=runs if len(insert.parts) > 1 else (),
        position=position,
        is_atomic=is_atomic,
    )
