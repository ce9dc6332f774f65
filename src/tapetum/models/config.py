"""Strict reading of config.json: every key is required, defaulted or ignored by name; others are reported."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from tapetum.core.errors import CheckpointError

logger = logging.getLogger(__name__)

# Keys that say nothing about inference, or repeat what other files say.
IGNORED = frozenset(
    """architectures attention_dropout bos_token_id dtype eos_token_id initializer_range is_encoder_decoder
    layer_types max_window_layers model_type output_attentions output_hidden_states pad_token_id return_dict
    sliding_window torch_dtype transformers_version use_cache _name_or_path chunk_size_feed_forward""".split()  # noqa: SIM905
)


def read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file of a checkpoint; a CheckpointError names the file otherwise."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path.name} is missing in {path.parent}; is this a model directory?"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__}, must be an object")
    return value


class ConfigReader:
    """One JSON object whose keys are taken one by one; `finish` reports what nobody asked for."""

    def __init__(self, values: Mapping[str, object], name: str) -> None:
        self._values, self._name = values, name
        self._taken: set[str] = set()

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, value, "a number")
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
        if not isinstance(value, (list, tuple)) or not all(type(item) is int for item in value):
            raise self._wrong(key, value, "a list of integers")
        return tuple(value)

    def section(self, key: str) -> ConfigReader:
        """A nested object, empty when absent."""
        value = self._values.get(key)
        self._taken.add(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return ConfigReader(value or {}, f"{self._name}.{key}")

    def ignore(self, *keys: str) -> None:
        self._taken.update(keys)

    def finish(self) -> None:
        unknown = sorted(set(self._values) - self._taken - IGNORED)
        if unknown:
            logger.warning("%s has keys that are not used: %s", self._name, ", ".join(unknown))

    def _take(self, key: str, default: object) -> object:
        self._taken.add(key)
        value = self._values.get(key)
        if value is not None:
            return value
        if default is None:
            raise CheckpointError(f"{self._name} has no {key!r}; the checkpoint is incomplete")
        return default

    def _wrong(self, key: str, value: object, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self._name}: {key} is {value!r}, must be {wanted}")
