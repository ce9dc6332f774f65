"""Guesses of the next tokens: what followed the same words before.

Two texts are looked in, as token ids: the one that the client expects, which is followed from its beginning for as
long as the answer agrees, and the request's own, prompt and answer. Both are indexed a bounded number of tokens at a
time, so a long prompt costs no step more than a short one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from tapetum.core.request import Prompt, Request

Kind = Literal["followed", "long", "short"]  # how the place was found: it went on, or as many words agree

_LONG = 4  # equal tokens before a place, as many as are ever compared
_LEAST = 2
_MAX_TRIED = 16  # places with the same last two tokens, the latest first
_TAKEN_IN = 256  # tokens a text is indexed further in one call
_MAX_OWN = 16384  # tokens of the prompt that are looked in, the last ones
_GAP = -1  # in place of a picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    token_ids: tuple[int, ...]
    kind: Kind
    is_predicted: bool  # from the text that the client expects


class Lookup:
    """The texts of one request; `append` says how its answer goes on."""

    def __init__(self, request: Request) -> None:
        self._ends = request.stop_token_ids
        self._own = _Text(_text_tokens(request.prompt)[-_MAX_OWN:])
        self._expected = _Text(list(request.prediction))
        self._place = 0  # in the expected text, where the answer stands
        self._is_followed = bool(request.prediction)
        self._has_slipped = False  # with the last token

    def append(self, token_id: int) -> None:
        """The next token of the answer. A single other word in the expected text is stepped over."""
        self._own.token_ids.append(token_id)
        if not self._expected.token_ids:
            return
        expected, was_followed = self._expected.token_ids, self._is_followed
        self._is_followed = self._place < len(expected) and expected[self._place] == token_id
        self._has_slipped = was_followed and not self._is_followed
        self._place += self._is_followed or was_followed

    def guess(self, longest: int) -> Guess | None:
        """At most so many tokens, none behind an end of the answer; None where the words are new."""
        tail = self._own.token_ids[-_LONG:]
        if self._is_followed:
            return self._guess(self._expected, self._place, longest, "followed")
        text = self._own
        place, agreed = text.find(tail, len(text.token_ids))
        if self._expected.token_ids:
            expected_place, expected_agreed = self._expected.find(tail, self._place)
            if expected_agreed >= agreed:
                text, place, agreed = self._expected, expected_place, expected_agreed
        if agreed < _LEAST:
            return self._guess(self._expected, self._place, longest, "short") if self._has_slipped else None
        if text is self._expected:
            self._place = place
        return self._guess(text, place, longest, "long" if agreed >= _LONG else "short")

    def _guess(self, text: _Text, place: int, longest: int, kind: Kind) -> Guess | None:
        token_ids = text.read(place, longest, self._ends)
        if not token_ids:
            return None
        return Guess(token_ids=token_ids, kind=kind, is_predicted=text is self._expected)


class _Text:
    """Token ids and where each pair of them stood: the latest place behind it, and from each place the one before."""

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids
        self._latest: dict[int, int] = {}
        self._earlier: list[int] = []  # by place; -1 = none

    def find(self, tail: Sequence[int], near: int) -> tuple[int, int]:
        """The place with the most of `tail` before it, of equal ones the nearest -> (place, tokens that agree)."""
        self._take_in()
        best, most = -1, 0
        place = self._latest.get(_pair(tail[-2], tail[-1]), -1) if len(tail) >= _LEAST else -1
        if place < 0:
            return best, most
        for _ in range(_MAX_TRIED):
            if place < 0:
                break
            agreed = self._agreed(tail, place)
            if (agreed, -abs(place - near)) > (most, -abs(best - near)):
                best, most = place, agreed
            place = self._earlier[place]
        return best, most

    def read(self, place: int, longest: int, ends: Collection[int]) -> tuple[int, ...]:
        """What stands at `place`. A text that ends goes on as it went on since there: repetitions repeat."""
        found: list[int] = []
        size = len(self.token_ids)
        while len(found) < longest and place < size:
            source = place + len(found)
            token_id = self.token_ids[source] if source < size else found[source - size]
            if token_id == _GAP:
                break
            found.append(token_id)
            if token_id in ends:
                break
        return tuple(found)

    def _agreed(self, tail: Sequence[int], place: int) -> int:
        before = self.token_ids[max(0, place - len(tail)) : place]
        count = 0
        for mine, theirs in zip(reversed(tail), reversed(before), strict=False):
            if mine != theirs:
                break
            count += 1
        return count

    def _take_in(self) -> None:
        """Index further, up to the place before the last token: a place has a token."""
        token_ids, latest, earlier = self.token_ids, self._latest, self._earlier
        start = len(earlier)
        for place in range(start, min(start + _TAKEN_IN, len(token_ids))):
            if place < _LEAST:
                earlier.append(-1)
                continue
            pair = token_ids[place - 2] << 32 | token_ids[place - 1]
            earlier.append(latest.get(pair, -1))
            latest[pair] = place


def _pair(first: int, second: int) -> int:
    return first << 32 | second


def _text_tokens(prompt: Prompt) -> list[int]:
    kept: list[int] = []
    start = 0
    for span in sorted(prompt.spans, key=lambda span: span.start):
        kept += (*prompt.token_ids[start : span.start], _GAP)
        start = span.end
    return [*kept, *prompt.token_ids[start:]]
