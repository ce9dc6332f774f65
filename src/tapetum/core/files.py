"""Strict reading of a checkpoint's JSON files: every key is required, defaulted or ignored by name.

A key that nobody named is reported in the log; a value of the wrong type, or one that the code does not offer, is an
error that says file, key and value.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeGuard, cast

from tapetum.core.checks import shown
from tapetum.core.errors import CheckpointError

logger = logging.getLogger(__name__)

_HIGHEST = 2**31 - 1
# What as much is made of as they say: far above any checkpoint, and soon counted through.
_HIGHEST_OF = {
    "depth": 4096,
    "num_hidden_layers": 4096,
    "num_experts": 4096,
    "num_local_experts": 4096,
    "max_dynamic_patch": 4096,
    "max_patches": 4096,
    "min_dynamic_patch": 4096,
    "min_patches": 4096,
    "head_dim": 2**16,
    "hidden_size": 2**20,
}


def read_text(path: Path) -> str | None:
    """The text in a file; None when there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path} cannot be read as UTF-8: {error}; fetch the checkpoint again"
        ) from error


def read_json(path: Path) -> dict[str, object] | None:
    """The object in a file; None when there is no such file."""
    text = read_text(path)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}; fetch the checkpoint again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, must hold an object")
    return value


def require_json(path: Path) -> dict[str, object]:
    """The object in a file that a checkpoint cannot do without."""
    values = read_json(path)
    if values is None:
        raise CheckpointError(f"{path.parent} has no {path.name}; give the directory of a checkpoint")
    return values


class ConfigReader:
    """One JSON object whose keys are taken one by one; `finish` reports what nobody asked for.

    `name` is what messages call the object. A key that is null counts as missing.
    """

    def __init__(self, values: Mapping[str, object], name: str) -> None:
        self._values, self.name = values, name
        self._taken: set[str] = set()

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the file says that there is none, where a missing key would mean a default."""
        return key in self._values and self._values[key] is None

    @property
    def is_empty(self) -> bool:
        return not self._values

    def integer(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self._wrong(key, value, f"an integer of at least {low}")
        if value > (highest := _HIGHEST_OF.get(key, _HIGHEST)):
            raise self._wrong(key, value, f"at most {highest}")
        return value

    def side(self, key: str, default: int | None = None) -> int:
        """Of a square: an integer, or two that are equal."""
        value = self._take(key, default)
        sides = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
        if len(sides) != 2 or sides[0] != sides[1] or type(sides[0]) is not int or sides[0] < 1:
            raise self._wrong(key, value, "an integer of at least 1, or two that are equal")
        if sides[0] > _HIGHEST:
            raise self._wrong(key, value, f"at most {_HIGHEST}")
        return sides[0]

    def number(self, key: str, default: float | None = None, *, above: float | None = None) -> float:
        value = self._take(key, default)
        if not _is_number(value):
            raise self._wrong(key, value, "a finite number")
        if above is not None and value <= above:
            raise self._wrong(key, value, f"above {above:g}")
        return float(value)

    def word(self, key: str, default: str | None = None) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        value = self._take(key, default)
        if not isinstance(value, (list, tuple)) or not all(map(_is_integer, value)):
            raise self._wrong(key, value, "a list of integers")
        return tuple(value)

    def pairs(self, key: str, default: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        value = self._take(key, default)
        pairs = value if isinstance(value, (list, tuple)) else ()
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(map(_is_integer, pair)):
                pairs = ()
        if not pairs:
            raise self._wrong(key, value, "a list of pairs of integers")
        return tuple((first, second) for first, second in pairs)

    def numbers(self, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        value = self._take(key, default)
        if not isinstance(value, (list, tuple)) or not all(map(_is_number, value)):
            raise self._wrong(key, value, "a list of finite numbers")
        return tuple(map(float, value))

    def words(self, key: str) -> tuple[str, ...]:
        value = self._take(key, None)
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return tuple(value)

    def section(self, key: str) -> ConfigReader:
        """A nested object, empty when the key is missing."""
        value = self._take(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return ConfigReader(value, f"{self.name}, {key}")

    def only(self, key: str, value: object) -> None:
        """Refuse any other value of a switch that the code does not offer; a missing key is fine."""
        found = self._take(key, value)
        if found != value:
            raise CheckpointError(f"{self.name}: {key} is {found!r}, only {value!r} is supported")

    def ignore(self, *keys: str) -> None:
        self._taken.update(keys)

    def finish(self, ignored: Collection[str] = ()) -> None:
        unknown = sorted(set(self._values) - self._taken - set(ignored))
        if unknown:
            logger.warning("%s has keys that are not used: %s", self.name, ", ".join(unknown))

    def _take(self, key: str, default: object) -> object:
        self._taken.add(key)
        value = self._values.get(key)
        if value is not None:
            return value
        if default is None:
            raise CheckpointError(f"{self.name} has no {key!r}; the checkpoint is incomplete")
        return default

    def _wrong(self, key: str, value: object, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self.name}: {key} is {shown(value)}, must be {wanted}")


def _is_integer(value: object) -> TypeGuard[int]:
    return type(value) is int and abs(value) <= _HIGHEST


def _is_number(value: object) -> TypeGuard[float]:
    """One that is finite, and so large at most that a float holds it."""
    return type(value) in (int, float) and abs(cast("float", value)) <= sys.float_info.max
