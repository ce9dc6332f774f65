"""Keyword options of LLM and AsyncEngine to an EngineConfig: every field of its records, flat, by its own name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Literal, Union, cast, get_args, get_origin, get_type_hints

from tapetum.core.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    MediaConfig,
    ModelConfig,
    ScheduleConfig,
)
from tapetum.core.errors import ConfigError

_RECORDS = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "schedule": ScheduleConfig,
    "device": DeviceConfig,
    "media": MediaConfig,
}
_ALSO_KNOWN_AS = {
    "enable_prefix_caching": "has_prefix_caching",
    "limit_mm_per_prompt": "limit_per_prompt",
    "media_timeout_s": "timeout_s",
}


def config_from(model: str | Path | EngineConfig | None, options: Mapping[str, object]) -> EngineConfig:
    """The config of `model` with `options`; a ready config takes no options."""
    if isinstance(model, EngineConfig):
        if options:
            raise ConfigError(f"a config leaves no room for options; put {_names(options)} into it")
        return model
    given = {_ALSO_KNOWN_AS.get(name, name): value for name, value in options.items()}
    given["model"] = None if model is None else str(model)
    known = {field.name for record in _RECORDS.values() for field in fields(record)}
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {_names(known)}"
            raise ConfigError(f"{name} is no option; {hint}")
    parts = {part: _record(record, given) for part, record in _RECORDS.items()}
    return EngineConfig(**parts)  # type: ignore[arg-type]


def _record(record: type, given: Mapping[str, object]) -> object:
    hints = get_type_hints(record)
    return record(**{name: _checked(name, given[name], hints[name]) for name in hints if name in given})


def _checked(name: str, value: object, hint: object) -> object:
    if isinstance(value, list):
        value = tuple(value)
    elif isinstance(value, Path):
        value = str(value)
    if not _fits(value, hint):
        wanted = hint.__name__ if isinstance(hint, type) else str(hint).removeprefix("typing.")
        raise ConfigError(f"{name} is {value!r}, must be {wanted}")
    return value


def _fits(value: object, hint: object) -> bool:
    kind, parts = get_origin(hint), get_args(hint)
    if kind is UnionType or kind is Union:
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return value in parts
    if kind is tuple:
        inner = parts[:1] * len(value) if isinstance(value, tuple) and Ellipsis in parts else parts
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_fits, value, inner))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else cast("type", hint))


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
