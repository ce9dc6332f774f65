"""From the bytes of a body to a typed request, or to an error that names the field at fault.

Owns the words for what a JSON decoder refuses. Does not own any field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from tapetum.core.errors import InvalidParameter, RequestError

T = TypeVar("T")
MAX_BRACKETS = 2**20  # that open, be it in texts too
MAX_COMMAS = 2**22 + 2**10  # enough for all token ids that /detokenize takes
_PLACE = re.compile(r"(.*) - at (?:`key` in )?`\$\.?([^`]*)`", re.DOTALL)


def parsed(decode: Callable[[bytes], T], body: bytes, remedies: Mapping[str, str] | None = None) -> T:
    """What a decoder makes of a body; raises RequestError and its children.

    `remedies`: what to do about a value, by a pattern of the end of its path.
    """
    _check_parts(body)
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error, remedies=remedies) from error
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
    error: msgspec.ValidationError, place: str = "", *, remedies: Mapping[str, str] | None = None
) -> InvalidParameter:
    """The decoder says where as a path; the field's name is what clients look for. `place` is where its root lies."""
    reason = str(error)
    match = _PLACE.fullmatch(reason)
    path, what = (match[2].removesuffix("[...]"), match[1]) if match else ("", reason)
    param = place + path if not (place and path) or path.startswith("[") else f"{place}.{path}"
    for pattern, remedy in (remedies or {}).items():
        if re.search(rf"(?:{pattern})$", param) and what.startswith("Invalid"):
            what += f"; {remedy}"
    return InvalidParameter(f"{param or 'body'}: {what}", param=param or None)
