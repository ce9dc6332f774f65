"""What the records of requests declare at a place in a body: names of fields, words and numbers that are allowed.

Owns the reading of paths such as `messages[0].content[1].type`, in records and in bodies. Does not own any field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import msgspec
from msgspec import Raw, inspect

from tapetum.core.checks import plain, shown

_STEP = re.compile(r"\[(\d+|\.\.\.)\]|([^.\[\]]+)")
_SHOWN_BYTES = 200  # of a value; a longer one would not be recognised by its beginning
_Number = inspect.IntType | inspect.FloatType


def steps_of(path: str) -> list[str]:
    return [index or name for index, name in _STEP.findall(path)]


def allowed_words(record: object, steps: Sequence[str]) -> list[str]:
    """The words that may stand at a place; none where it is not bound to words."""
    *outer, last = steps
    words = [
        value
        for shape in _at(record, steps)
        if isinstance(shape, inspect.LiteralType)
        for value in shape.values
    ]
    tags = [
        shape.tag
        for shape in _at(record, outer)
        if isinstance(shape, inspect.StructType) and shape.tag_field == last
    ]
    return list(dict.fromkeys(str(word) for word in [*tags, *words]))


def allowed_numbers(record: object, steps: Sequence[str]) -> list[str]:
    """The ranges of the numbers that may stand at a place, in words."""
    return [told for shape in _at(record, steps) if isinstance(shape, _Number) and (told := _range(shape))]


def names_like(record: object, steps: Sequence[str], name: str) -> str:
    """What may have been meant by a field that the records at a place do not have."""
    shapes = [
        shape
        for shape in _at(record, steps)
        if isinstance(shape, inspect.StructType) and shape.cls.__struct_config__.forbid_unknown_fields
    ]
    owners = [str(shape.tag) for shape in shapes if name in (item.encode_name for item in shape.fields)]
    if owners:
        return f"only those of type {' or '.join(owners)} have it"
    names = list(dict.fromkeys(item.encode_name for shape in shapes for item in shape.fields))
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"


def value_at(body: bytes | Raw, steps: Sequence[str]) -> str | None:
    """The value at a place of a body, as a message shows it; none where that is no short word or number."""
    try:
        raw = Raw(body)
        for step in steps:
            raw = _in(raw, step)
        value = msgspec.json.decode(raw) if memoryview(raw).nbytes <= _SHOWN_BYTES else None
    except (msgspec.MsgspecError, ValueError, LookupError, RecursionError):  # what comes after may be no JSON
        return None
    return shown(value) if isinstance(value, (str, int, float)) else None


def _in(raw: Raw, step: str) -> Raw:
    if step.isdigit():
        return msgspec.json.decode(raw, type=list[Raw])[int(step)]
    return msgspec.json.decode(raw, type=dict[str, Raw])[step]


def _at(record: object, steps: Sequence[str]) -> list[inspect.Type]:
    """All shapes that a value at a place may have."""
    shapes = list(_plain(inspect.type_info(record)))
    for step in steps:
        shapes = [plain for shape in shapes for inner in _inner(shape, step) for plain in _plain(inner)]
    return shapes


def _plain(shape: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(shape, inspect.Metadata):
        yield from _plain(shape.type)
    elif isinstance(shape, inspect.UnionType):
        for each in shape.types:
            yield from _plain(each)
    else:
        yield shape


def _inner(shape: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match shape:
        case inspect.StructType(fields=fields):
            yield from (item.type for item in fields if item.encode_name == step)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield item
        case inspect.DictType(value_type=value):
            yield value


def _range(shape: _Number) -> str | None:
    low = (
        plain(shape.ge) if shape.ge is not None else None if shape.gt is None else f"above {plain(shape.gt)}"
    )
    high = None if shape.le is None else plain(shape.le)
    if low is None:
        return None if high is None else f"up to {high}"
    return f"{low} and more" if high is None else f"{low} to {high}"
