"""Follows JSON text character by character and says at once when it can no longer be JSON (RFC 8259).

Owns no values: whoever scans cuts out of the text what it wants to read, and reads it with `json`.
"""

from __future__ import annotations

from typing import Literal

Expected = Literal[
    "value",
    "item or end",
    "key or end",
    "key",
    "colon",
    "comma or end",
    "string",
    "escape",
    "hex",
    "number",
    "word",
]

MAX_DEPTH = 200  # readers of JSON give up at some depth; what is deeper is called no JSON
WHITE = frozenset(" \t\n\r")
_HEX = frozenset("0123456789abcdefABCDEF")
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}
# What may follow in a number, by what came last; digits but zero are written 1.
_NUMBER: dict[str, dict[str, str]] = {
    "-": {"0": "zero", "1": "whole"},
    "zero": {".": "point", "e": "e"},
    "whole": {"0": "whole", "1": "whole", ".": "point", "e": "e"},
    "point": {"0": "fraction", "1": "fraction"},
    "fraction": {"0": "fraction", "1": "fraction", "e": "e"},
    "e": {"0": "exponent", "1": "exponent", "+": "sign"},
    "sign": {"0": "exponent", "1": "exponent"},
    "exponent": {"0": "exponent", "1": "exponent"},
}
_NUMBER_ENDS = frozenset(("zero", "whole", "fraction", "exponent"))
_CLASSES = dict.fromkeys("123456789", "1") | {"E": "e", "-": "+"}


class JsonScanner:
    """One value. `expected` is what the next character may begin or go on with."""

    def __init__(self) -> None:
        self.expected: Expected = "value"
        self._open: list[str] = []  # the closing character of each list and object the scan is in
        self._is_key = False  # the string that is being read
        self._rest = ""  # of the word true, false or null
        self._num_hex = 0  # digits to come
        self._number = ""

    @property
    def depth(self) -> int:
        """Lists and objects that are open."""
        return len(self._open)

    @property
    def is_done(self) -> bool:
        """Whether an outermost list, object, string or word has ended."""
        return self.expected == "comma or end" and not self._open

    def push(self, char: str) -> bool:
        """Whether the text goes on as JSON with `char`; if not, the scan is of no more use."""
        if self.expected == "string":
            return self._in_string(char)
        if self.expected == "escape":
            return self._escaped(char)
        if self.expected == "hex":
            self._num_hex -= 1
            self.expected = "hex" if self._num_hex else "string"
            return char in _HEX
        if self.expected == "word":
            is_right, self._rest = char == self._rest[0], self._rest[1:]
            self.expected = "word" if self._rest else "comma or end"
            return is_right
        if self.expected == "number":
            return self._in_number(char)
        return char in WHITE or self._between(char)

    def _in_string(self, char: str) -> bool:
        if char == '"':
            self.expected = "colon" if self._is_key else "comma or end"
        elif char == "\\":
            self.expected = "escape"
        return char >= " "

    def _escaped(self, char: str) -> bool:
        self.expected = "hex" if char == "u" else "string"
        self._num_hex = 4
        return char in '"\\/bfnrtu'

    def _in_number(self, char: str) -> bool:
        following = _NUMBER[self._number].get(_CLASSES.get(char, char))
        if following is not None:
            self._number = following
            return True
        self.expected = "comma or end"
        return self._number in _NUMBER_ENDS and (char in WHITE or self._between(char))

    def _between(self, char: str) -> bool:
        """A character that is neither white space nor inside a scalar."""
        if self.expected == "comma or end":
            if char == "," and self._open:
                self.expected = "key" if self._open[-1] == "}" else "value"
                return True
            return self._close(char)
        if self.expected == "colon":
            self.expected = "value"
            return char == ":"
        if self.expected in ("key", "key or end"):
            if char == '"':
                self.expected, self._is_key = "string", True
                return True
            return self.expected == "key or end" and self._close(char)
        if self.expected == "item or end" and char == "]":
            return self._close(char)
        return self._begin(char)

    def _close(self, char: str) -> bool:
        if not self._open or char != self._open.pop():
            return False
        self.expected = "comma or end"
        return True

    def _begin(self, char: str) -> bool:
        """The first character of a value."""
        if char in "{[":
            self._open.append("}" if char == "{" else "]")
            self.expected = "key or end" if char == "{" else "item or end"
            return len(self._open) <= MAX_DEPTH
        if char == '"':
            self.expected, self._is_key = "string", False
            return True
        if char in _WORDS:
            self.expected, self._rest = "word", _WORDS[char]
            return True
        self.expected = "number"
        self._number = {"-": "-", "0": "zero"}.get(char, "whole")
        return char in "-0123456789"
