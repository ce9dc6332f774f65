"""The tokens of a prompt once the sizes of its media are known.

Owns the joining of what a family writes for an item with the text around it, and its tokens. Knows no pixels: the same
arrangement counts a prompt and, given its items, becomes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from tapetum.core.chat import MediaPart
from tapetum.core.media import MediaItem, MediaKind
from tapetum.processing.layout import Insert, Part, Piece, Placement, Segment, Special

PromptRun = str | int | MediaPart  # plain text, a token, a picture or clip


@dataclass(frozen=True, slots=True)
class Gap:
    """The parts of an item that is not there yet."""

    kind: MediaKind
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Arrangement:
    segments: tuple[tuple[int, ...] | Gap, ...]

    @property
    def num_tokens(self) -> int:
        return sum(map(_length, self._parts()))

    @property
    def num_visual_tokens(self) -> int:
        """Placeholders."""
        return sum(part.num_tokens for part in self._parts() if isinstance(part, Placement))

    def token_ids(self, media_tokens: Mapping[MediaKind, int]) -> tuple[int, ...]:
        return tuple(chain.from_iterable(self._tokens(media_tokens)))

    def filled(self, items: Sequence[MediaItem]) -> list[Segment]:
        """With the items in the order of the prompt."""
        rest = iter(items)
        return [
            Insert(next(rest), segment.parts) if isinstance(segment, Gap) else segment
            for segment in self.segments
        ]

    def _parts(self) -> Iterator[Part]:
        for segment in self.segments:
            yield from segment.parts if isinstance(segment, Gap) else (segment,)

    def _tokens(self, media_tokens: Mapping[MediaKind, int]) -> Iterator[Sequence[int]]:
        for segment in self.segments:
            for part in segment.parts if isinstance(segment, Gap) else (segment,):
                if isinstance(part, Placement) and isinstance(segment, Gap):
                    yield (media_tokens[segment.kind],) * part.num_tokens
                elif isinstance(part, tuple):
                    yield part


class Encode(Protocol):
    """Tokens of plain text; `is_first`: nothing of the prompt stands before it."""

    def __call__(self, text: str, *, is_first: bool) -> tuple[int, ...]: ...


class TextTokens:
    """Tokens of the texts of one prompt, each looked up once. `opening` stands before all of them."""

    def __init__(
        self, encode: Encode, special_tokens: Mapping[str, int], opening: tuple[int, ...] = ()
    ) -> None:
        self._encode, self._special_tokens, self.opening = encode, special_tokens, opening
        self._known: dict[tuple[str, bool], tuple[int, ...]] = {}

    def plain(self, text: str, *, is_first: bool) -> tuple[int, ...]:
        key = text, is_first
        if key not in self._known:
            self._known[key] = self._encode(text, is_first=is_first)
        return self._known[key]

    def special(self, text: str) -> int | str:
        """The token, or the text itself where the tokenizer has none of it."""
        return self._special_tokens.get(text, text)


def arrange(
    runs: Sequence[PromptRun], expansions: Sequence[tuple[Piece, ...]], tokens: TextTokens
) -> Arrangement:
    """`expansions` are what stands for each item, in the order of the prompt; each holds a placement."""
    writer = _Writer(tokens)
    rest = iter(expansions)
    for run in runs:
        if isinstance(run, MediaPart):
            writer.add_item(run.kind, next(rest))
        else:
            writer.add(run)
    return writer.close()


class _Writer:
    """Collects text until something ends it, and tokens until an item begins or goes on."""

    def __init__(self, tokens: TextTokens) -> None:
        self._tokens = tokens
        self._is_first = True  # nothing of the prompt was written yet
        self._text: list[str] = []
        self._ids: list[int] = list(tokens.opening)
        self._segments: list[tuple[int, ...] | Gap] = []

    def add(self, run: str | int) -> None:
        if isinstance(run, str):
            self._text.append(run)
        else:
            self._end_text()
            self._ids.append(run)
            self._is_first = False

    def add_item(self, kind: MediaKind, pieces: Sequence[Piece]) -> None:
        parts: list[Part] = []
        left = sum(isinstance(piece, Placement) for piece in pieces)
        assert left, "every item has a placeholder"
        for piece in pieces:
            if isinstance(piece, Placement):
                ids = self._take_ids()
                if ids:
                    (parts if parts else self._segments).append(ids)
                parts.append(piece)
                self._is_first = False
                left -= 1
                if not left:
                    self._segments.append(Gap(kind, tuple(parts)))
            else:
                self.add(self._tokens.special(piece.text) if isinstance(piece, Special) else piece)

    def close(self) -> Arrangement:
        if ids := self._take_ids():
            self._segments.append(ids)
        return Arrangement(tuple(self._segments))

    def _take_ids(self) -> tuple[int, ...]:
        self._end_text()
        ids = tuple(self._ids)
        self._ids.clear()
        return ids

    def _end_text(self) -> None:
        if self._text:
            self._ids.extend(self._tokens.plain("".join(self._text), is_first=self._is_first))
            self._text.clear()
            self._is_first = False


def _length(part: Part) -> int:
    return part.num_tokens if isinstance(part, Placement) else len(part)
