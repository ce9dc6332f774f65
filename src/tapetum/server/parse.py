"""From the bytes of a body to a typed request, or to an error that names the field at fault.

Owns the words for what a JSON decoder refuses. Does not own any field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from tapetum.core.errors import InvalidParameter, RequestError
from tapetum.server.declared import allowed_numbers, allowed_words, names_like, steps_of, value_at

T = TypeVar("T")
MAX_BRACKETS = 2**20  # that open, be it in texts too
MAX_COMMAS = 2**22 + 2**10  # enough for all token ids that /detokenize takes
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_RANGE = re.compile(r"Expected `(?:int|float)` [<>]=? .*")
_PLACE = re.compile(r"(.*) - at (?:`key` in )?`\$\.?([^`]*)`", re.DOTALL)


def parsed(decoder: msgspec.json.Decoder[T], body: bytes, remedies: Mapping[str, str] | None = None) -> T:
    """What a decoder makes of a body; raises RequestError and its children.

    `remedies`: what to do about a value, by a pattern of the end of its path.
    """
    _check_parts(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error, decoder.type, body, remedies=remedies) from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply; flatten it") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is no JSON object: {error}") from error


def _check_parts(body: bytes) -> None:
    """Before millions of objects are made in one go, in which nothing else runs; raises RequestError."""
    if len(body) <= MAX_BRACKETS:
        return
    for what, limit, marks in (("brackets", MAX_BRACKETS, b"[{"), ("commas", MAX_COMMAS, b",")):
        count = sum(body.count(mark) for mark in marks)
        if count > limit:
            raise RequestError(f"the body has {count} {what}, limit {limit}; send fewer and larger parts")


def invalid(
    error: msgspec.ValidationError,
    record: object,
    body: bytes | msgspec.Raw,
    place: str = "",
    *,
    remedies: Mapping[str, str] | None = None,
) -> InvalidParameter:
    """The decoder says where as a path; the field's name is what clients look for. `place` is where its root lies."""
    reason = str(error)
    match = _PLACE.fullmatch(reason)
    path, what = (match[2].removesuffix("[...]"), match[1]) if match else ("", reason)
    param = _joined(place, path)
    if unknown := _UNKNOWN.fullmatch(what):
        name = unknown[1]
        param = _joined(param, name)
        what = f"there is no such field, {names_like(record, steps_of(path), name)}"
        return InvalidParameter(f"{param}: {what}", param=param)
    remedy = _remedy(param, remedies) if what.startswith("Invalid") else ""
    allowed = remedy or _allowed(what, record, steps_of(path))
    if allowed and (value := value_at(body, steps_of(path))):
        return InvalidParameter(f"{param} is {value}{allowed}", param=param)
    return InvalidParameter(f"{param or 'body'}: {what}{remedy}", param=param or None)


def _allowed(what: str, record: object, steps: Sequence[str]) -> str:
    """What may stand at a place where something else does, if that can be told."""
    is_word = what.startswith(("Invalid enum value", "Invalid value"))
    if not steps or not (is_word or _RANGE.fullmatch(what)):
        return ""
    allowed = [*(allowed_words(record, steps) if is_word else ()), *allowed_numbers(record, steps)]
    return f", allowed are {' or '.join(allowed)}" if allowed else ""


def _remedy(param: str, remedies: Mapping[str, str] | None) -> str:
    for pattern, remedy in (remedies or {}).items():
        if re.search(rf"(?:{pattern})$", param):
            return f"; {remedy}"
    return ""


def _joined(place: str, path: str) -> str:
    return place + path if not (place and path) or path.startswith("[") else f"{place}.{path}"
