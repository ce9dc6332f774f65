"""Keeps special tokens out of user text while a chat template runs over it.

A Guard knows one template and the special tokens of its tokenizer; a Disguise is its use for one rendering.
Hidden text holds no first character of a special token: random digits stand for it. So no special token can begin
in user text, neither whole nor in pieces that the template joins, trims or cuts. A template may also write the
first half of a special token itself, as in `<|` + role + `|>`; then user strings begin with a code that keeps the
halves apart. Safety needs no secret: text that guesses the digits reads as the character they stand for.

Two exceptions keep templates working. Where user text says a word that the template itself compares with, such
as `</think>`, it stays readable, provided that no special token can begin with it. And a text that is one word, such
as `string` in the schema of a tool or the id of a call, gets no code before it where no special token goes on so.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping

from jinja2 import nodes

from tapetum.core.errors import TemplateError

_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Guard:
    def __init__(self, template: nodes.Template, special_tokens: Iterable[str]) -> None:
        tokens = [token for token in special_tokens if token]
        words = {node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str)}
        texts = words | {node.data for node in template.find_all(nodes.TemplateData)}
        self._first_chars = sorted({token[0] for token in tokens})
        self._leaves_open = any(_ends_inside(text, token) for text in texts for token in tokens)
        readable = sorted(word for word in words if _is_readable(word, tokens))
        # Each alternative begins with its character, so the search skips to the next of them: a hundred times faster.
        self._pattern = re.compile("|".join(_hidden(char, readable) for char in self._first_chars) or "(?!)")
        self._continuations = frozenset(token[start:] for token in tokens for start in range(1, len(token)))

    def disguise(self) -> Disguise:
        nonce = f"{secrets.randbelow(10**12):012d}"
        codes = {char: f"{nonce}{index:03d}" for index, char in enumerate(self._first_chars, start=1)}
        return Disguise(
            self._pattern,
            codes,
            start=f"{nonce}000" if self._leaves_open else "",
            mark=f"{nonce}999",
            continuations=self._continuations,
        )


class Disguise:
    """`mark` is a text that nobody but the engine writes."""

    def __init__(
        self,
        pattern: re.Pattern[str],
        codes: Mapping[str, str],
        *,
        start: str,
        mark: str,
        continuations: frozenset[str],
    ) -> None:
        self._pattern = pattern
        self._codes = codes
        self._start = start
        self._continuations = continuations
        self.mark = mark

    def hide(self, value: object) -> object:
        """The same plain data with every string in it hidden."""
        if isinstance(value, str):
            return self.hide_text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(item) for item in value]
        raise TemplateError(f"{value!r:.80} is not plain data; send strings, numbers, lists and mappings")

    def hide_text(self, text: str) -> str:
        hidden = self._pattern.sub(lambda match: self._codes[match[0]], text)
        if not self._start or (hidden == text and self._is_harmless(text)):
            return hidden
        words = hidden.lstrip()  # templates may trim: the code stands behind white space
        return hidden[: len(hidden) - len(words)] + self._start + words if words else hidden

    def _is_harmless(self, text: str) -> bool:
        """Whether `text` is a word with which no special token goes on, wherever it was begun."""
        return bool(_WORD.fullmatch(text)) and not any(
            rest.startswith(text) or text.startswith(rest) for rest in self._continuations
        )

    def reveal(self, text: str) -> str:
        """What `hide` was given, from any piece of rendered text."""
        for char, code in self._codes.items():
            text = text.replace(code, char)
        return text.replace(self._start, "") if self._start else text


def _hidden(char: str, readable: list[str]) -> str:
    """Matches a character, but not where one of the readable words stands."""
    rests = [re.escape(word[1:]) for word in readable if word[0] == char]
    return re.escape(char) + (f"(?!{'|'.join(rests)})" if rests else "")


def _is_readable(word: str, tokens: list[str]) -> bool:
    """Whether no special token can begin where user text says `word`."""
    return bool(word) and not any(token.startswith(word) or word.startswith(token) for token in tokens)


def _ends_inside(text: str, token: str) -> bool:
    """Whether `text` ends with the beginning of `token`."""
    return any(text.endswith(token[:length]) for length in range(1, len(token)))
