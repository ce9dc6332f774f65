"""Strict reading of a checkpoint's JSON files: every key is required, defaulted or ignored by name.

A key that nobody named is reported in the log, a value of the wrong type or an unsupported one is a ConfigError
that says file, key and value.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tapetum.core.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)


def read_json(path: Path) -> Mapping[str, object] | None:
    """The object in a file; None when there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, must hold an object")
    return value


@dataclass(frozen=True, slots=True)
class Table:
    """An object of a JSON file, with the name that messages call it by."""

    name: str
    values: Mapping[str, object]

    def integer(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ConfigError(f"{self.name}: {key} is {value!r}, must be an integer of at least {low}")
        return value

    def table(self, key: str) -> Table:
        """A nested object, empty when the key is missing."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise ConfigError(f"{self.name}: {key} is {value!r}, must be an object")
        return Table(f"{self.name}, {key}", value)

    def require(self, key: str, only: object) -> None:
        """Refuses any other value of a switch that the code does not offer; a missing key is fine."""
        value = self.values.get(key)
        if value is not None and value != only:
            raise ConfigError(f"{self.name}: {key} is {value!r}, only {only!r} is supported")

    def report_unknown(self, known: Collection[str]) -> None:
        unknown = sorted(set(self.values) - set(known))
        if unknown:
            logger.warning("%s: ignoring unknown keys %s", self.name, ", ".join(unknown))
