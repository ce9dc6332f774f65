"""Tokens to text while they are made: whole characters, and nothing that a stop string may still take back.

The text does not depend on where the borders between tokens lie: what all `push` and the `flush` return is
together the decoded whole, cut where the first stop string to become complete begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tapetum.text.tokenizer import Tokenizer

_UNFINISHED = "\ufffd"  # what the bytes of an incomplete character decode to
_MAX_PENDING = 64  # tokens of garbage bytes that are waited for; beyond, they are let out as they are
_TAIL = 6  # prompt tokens that settle how the first new token is written, such as a leading space


class TextStream:
    """One answer. `stopped` is the stop string that ended it; text after that is dropped."""

    def __init__(self, tokenizer: Tokenizer, prompt_tail: Sequence[int], stop: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._before = list(prompt_tail[-_TAIL:])  # tokens whose text is out, kept for what follows
        self._pending: list[int] = []
        self._num_out = len(self._decode(self._before))  # characters of before + pending that are out
        self._stop = tuple(stop)
        self._held = ""  # decoded, but may be the beginning of a stop string
        self.stopped: str | None = None

    def push(self, token_id: int, *, is_early: bool = False) -> str:
        """The text that is certain now that this token has come. Too early, no stop string ends the answer."""
        if self.stopped is not None or token_id in self._tokenizer.special_ids:
            return ""
        self._pending.append(token_id)
        text = self._decode(self._before + self._pending)
        whole = text if len(self._pending) >= _MAX_PENDING else text.rstrip(_UNFINISHED)
        new, self._num_out = whole[self._num_out :], max(len(whole), self._num_out)
        if new and len(whole) == len(text):
            self._before, self._pending = self._pending, []
            self._num_out = len(self._decode(self._before))
        return new if is_early else self._release(new)

    def flush(self) -> str:
        """What is still held back, at the end of the answer."""
        if self.stopped is not None:
            return ""
        rest = self._decode(self._before + self._pending)[self._num_out :]
        text = self._release(rest)
        if self.stopped is None:
            text, self._held = text + self._held, ""
        self._before, self._pending, self._num_out = [], [], 0
        return text

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special=True)

    def _release(self, new: str) -> str:
        text = self._held + new
        hits = [(start + len(stop), start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if hits:
            _, start, self.stopped = min(hits)
            self._held = ""
            return text[:start]
        num_held = max((overlap(text, stop) for stop in self._stop), default=0)
        certain = len(text) - num_held
        self._held = text[certain:]
        return text[:certain]


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins, short of the whole."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
