"""Numbers that come to an end.

A schema without bounds lets a number have any number of digits, and a model that has lost its way writes them until
its answer is cut in the middle of its JSON. So a number may have what it takes to write every double, and every
integer that survives being read as one, and no more; a schema that names greater or smaller numbers gets room for
them. Owns how far a number may go. Does not own what the schema allows: where nothing but digits can follow, they may.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal

from tapetum.text.schemas import MAX_WHOLE
from tapetum.text.tool_calls import FORMS
from tapetum.text.vocabulary import NumberTokens

_MAX_SIGNIFICANT = 17  # digits
_MAX_ZEROS = 6  # between the point and the first significant digit
_MAX_EXPONENT = 3  # digits

_NUMBER = re.compile(rb"-?([0-9]+)(\.?)([0-9]*)(?:[eE]([+-]?)([0-9]*))?")
_BEGINNING, _PARTS = b"-0123456789", b"0123456789.eE+-"
_BEFORE_ARGUMENTS = tuple(f'"{form.arguments_key}": '.encode() for form in FORMS.values())
_AFTER_CALL = b"</tool_call>"
_MAX_MARK = max(map(len, (*_BEFORE_ARGUMENTS, _AFTER_CALL)))


class Numbers:
    """The numbers of one answer: which one it is in, and how that may go on.

    `stated` are the numbers that its schemas name. With `in_calls`, only the arguments of calls are JSON.
    """

    def __init__(self, tokens: NumberTokens, stated: Iterable[Decimal], *, in_calls: bool) -> None:
        self._tokens = tokens
        self._bounds = _Bounds([number for number in stated if number])
        self._number = b""  # as far as it has come; empty outside of one
        self._is_string = False
        self._is_escaped = False
        self._in_calls = in_calls
        self._is_json = not in_calls
        self._tail = b""

    def read(self, text: bytes) -> None:
        """The answer goes on with `text`, which may begin or end within a character."""
        for byte in text:
            if self._is_json:
                self._read(byte)
            if self._in_calls:
                self._look_for_calls(byte)

    def keep_short(self, mask: bytearray) -> bytearray:
        """The tokens of a mask with which the number does not go too far."""
        if not self._number:
            return mask
        kept = mask.copy()
        for head, ids in self._tokens.items():
            if not self._bounds.allow(self._number + head):
                for token_id in ids:
                    kept[token_id >> 3] &= ~(1 << (token_id & 7))
        return kept

    def _read(self, byte: int) -> None:
        if self._is_string:
            self._is_string = self._is_escaped or byte != ord('"')
            self._is_escaped = byte == ord("\\") and not self._is_escaped
        elif byte in (_PARTS if self._number else _BEGINNING):
            self._number += bytes((byte,))
        else:
            self._number = b""
            self._is_string = byte == ord('"')

    def _look_for_calls(self, byte: int) -> None:
        self._tail = (self._tail + bytes((byte,)))[-_MAX_MARK:]
        if self._tail.endswith(_BEFORE_ARGUMENTS):  # no string of JSON holds this
            self._is_json, self._is_string = True, False
        elif self._tail.endswith(_AFTER_CALL) and not self._is_string:
            self._is_json, self._number = False, b""


class _Bounds:
    def __init__(self, stated: list[Decimal]) -> None:
        greatest = int(max(map(abs, stated), default=0))
        self._whole = MAX_WHOLE if greatest < MAX_WHOLE else 10 * greatest
        self._significant = max(_MAX_SIGNIFICANT, len(str(self._whole)))
        self._zeros = _MAX_ZEROS + max(0, -min((number.adjusted() for number in stated), default=0))

    def allow(self, number: bytes) -> bool:
        """Whether a number may begin like this, which need not be a number."""
        if len(number) < 5 or not (match := _NUMBER.fullmatch(number)):
            return True
        whole, point, fraction, sign, exponent = match.groups(default=b"")
        digits = (whole + fraction).lstrip(b"0")
        has_room = len(digits) + (bool(point) and not fraction) <= self._significant
        num_zeros = 0 if whole.strip(b"0") else len(fraction) - len(fraction.lstrip(b"0"))
        return (
            has_room
            and num_zeros <= self._zeros
            and int(whole or b"0") <= self._whole
            and len(exponent) <= _MAX_EXPONENT
            and (not exponent or sign == b"-" or math.isfinite(float(number)))
        )
