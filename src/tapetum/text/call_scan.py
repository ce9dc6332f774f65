"""Reads the object of one tool call, `{"name": ..., "arguments": {...}}`, while it comes."""

from __future__ import annotations

import json
from collections.abc import Collection

from tapetum.text.json_scan import WHITE, JsonScanner

_KEYS = {
    "name": "name",
    "arguments": "arguments",
    "parameters": "arguments",
    "id": "id",  # the engine gives its own
    "type": "type",
}


class CallScanner:
    """`name` and the pieces of `arguments` are what has been read of them so far.

    Members may come in any order, each once. A member of another name makes it no call, and so does a function that
    is not in `names`.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._json = JsonScanner()
        self._keys: set[str] = set()
        self._key = ""  # of the member that is being read
        self._read: list[str] = []  # of the key or the name that is being read
        self.name: str | None = None
        self.arguments: list[str] = []
        self.is_in_arguments = False

    @property
    def has_both(self) -> bool:
        """Whether the name is known and the arguments have begun."""
        return self.name is not None and bool(self.arguments)

    @property
    def is_done(self) -> bool:
        return self._json.is_done

    def push(self, char: str) -> bool:
        """Whether this still is the beginning of a call with `char`; if not, the scan is of no more use."""
        depth, expected = self._json.depth, self._json.expected
        if not self._json.push(char):
            return False
        if self.is_in_arguments:
            self.arguments.append(char)
            self.is_in_arguments = self._json.depth > 1
            return True
        if depth != 1 or (expected != "string" and char in WHITE):
            return True
        if expected == "value":
            return self._begin_value(char)
        if expected in ("key", "key or end"):
            self._read = []
        self._read.append(char)
        if expected == "string" and self._json.expected == "colon":
            return self._end_key()
        if expected == "string" and self._json.expected == "comma or end" and self._key == "name":
            self.name = str(json.loads("".join(self._read)))
            return self.name in self._names
        return True

    def _begin_value(self, char: str) -> bool:
        self._read = [char]
        if self._key == "arguments":
            self.arguments.append(char)
            self.is_in_arguments = True
            return char == "{"
        return self._key != "name" or char == '"'

    def _end_key(self) -> bool:
        key = _KEYS.get(json.loads("".join(self._read)))
        if key is None or key in self._keys:
            return False
        self._keys.add(key)
        self._key = key
        return True
