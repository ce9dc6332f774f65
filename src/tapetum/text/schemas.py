"""What a client's JSON schema says, as far as we have to know before llguidance reads it.

Owns how long an answer may become where the schema does not say, and what llguidance would take for something else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TypeGuard

from tapetum.text.recursion import Recursion

MAX_WHOLE = 2**53 - 1  # every integer up to here is read as itself, whoever reads it
MAX_MULTIPLE = 4096  # what tells its multiples apart has to be built for each of the remainders
# Formats whose digits or letters could go on forever, with the characters of the longest that anybody writes
_FORMAT_CHARS = {"date-time": 40, "time": 30, "duration": 40, "email": 254, "hostname": 253}
_VALUES = frozenset({"const", "enum"})
_NUMBERS = _VALUES | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_DATA = _VALUES | {"default", "examples"}  # no schemas in there
_JOINED = frozenset({"allOf", "anyOf", "oneOf", "$ref"})  # bounds may be in there


def bounded(schema: Mapping[str, object], *, is_lenient: bool = False) -> dict[str, object]:
    """The schema with bounds where none are given, on what could run on: formats, and multiples of a number, whose
    next one might never come. If `is_lenient`, without what `flaw_of` finds in a multipleOf.
    """
    found = {key: part if key in _DATA else _inner(part, is_lenient) for key, part in schema.items()}
    name = found.get("format")
    if isinstance(name, str) and name in _FORMAT_CHARS and not {"maxLength", "minLength"} & found.keys():
        found["maxLength"] = _FORMAT_CHARS[name]
    multiple = found.get("multipleOf")
    if is_lenient and _is_too_fine(multiple):
        del found["multipleOf"]
    elif _is_number(multiple) and not _JOINED & found.keys():
        found |= _range(found, Decimal(repr(multiple)))
    return found


def stated_numbers(schema: object, *, is_value: bool = False) -> Iterator[Decimal]:
    """The numbers that bound others, or are values themselves."""
    if isinstance(schema, Mapping):
        for key, part in schema.items():
            yield from stated_numbers(part, is_value=is_value or key in _NUMBERS)
    elif isinstance(schema, list):
        for part in schema:
            yield from stated_numbers(part, is_value=is_value)
    elif is_value and _is_number(schema):
        yield Decimal(schema)


def flaw_of(schema: object) -> str | None:
    """Why it cannot be kept to, where llguidance would not say so."""
    if not Recursion(schema).has_end():
        return "a value would have to contain another of its kind, and so on without end"
    return next(_flaws(schema), None)


def _inner(part: object, is_lenient: bool) -> object:
    if isinstance(part, list):
        return [_inner(inner, is_lenient) for inner in part]
    return bounded(part, is_lenient=is_lenient) if isinstance(part, Mapping) else part


def _range(schema: Mapping[str, object], multiple: Decimal) -> dict[str, object]:
    """The bounds that are missing to a number that must be a multiple; its digits may not lead past the last one."""
    kinds = schema.get("type")
    if multiple <= 1 and "integer" not in (kinds if isinstance(kinds, list) else [kinds]):
        return {}  # behind the point there always is one
    lowest = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highest = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    room = MAX_WHOLE - multiple
    added: dict[str, object] = {}
    if not highest and all(_is_number(bound) and bound <= room for bound in lowest):
        added["maximum"] = MAX_WHOLE
    if not lowest and all(_is_number(bound) and bound >= -room for bound in highest):
        added["minimum"] = -MAX_WHOLE
    return added


def _flaws(schema: object) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if _is_too_fine(schema.get("multipleOf")):
            yield f"multipleOf is {schema['multipleOf']}, limit {MAX_MULTIPLE} (in units of its last digit)"
        for key, part in schema.items():
            if key in _VALUES and not isinstance(part, Mapping):
                yield from _inexact(part)
            elif key not in _DATA:
                yield from _flaws(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _flaws(part)


def _inexact(value: object) -> Iterator[str]:
    for number in stated_numbers(value, is_value=True):
        if Decimal(float(number)) != number:
            yield f"{number} is between two numbers of double precision; write it as a string"


def _is_too_fine(multiple: object) -> bool:
    """Whether its digits, the point left out, are too great a number."""
    if not _is_number(multiple):
        return False
    number = Decimal(repr(multiple)).normalize()
    digits = int("".join(map(str, number.as_tuple().digits)))
    return abs(number) > MAX_MULTIPLE or digits > MAX_MULTIPLE


def _is_number(value: object) -> TypeGuard[int | float]:
    """Of double precision; no NaN, nothing infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
