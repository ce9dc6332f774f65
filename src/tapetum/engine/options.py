"""Keyword options of LLM and AsyncEngine to an EngineConfig: every field of its records, flat, by its own name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

from tapetum.core.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    MediaConfig,
    ModelConfig,
    ScheduleConfig,
    TierConfig,
)
from tapetum.core.errors import ConfigError

_RECORDS = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "tiers": TierConfig,
    "schedule": ScheduleConfig,
    "device": DeviceConfig,
    "media": MediaConfig,
}
_ALSO_KNOWN_AS = {
    "allowed_local_media_path": "allowed_local_path",
    "allowed_media_domains": "allowed_domains",
    "enable_prefix_caching": "has_prefix_caching",
    "feature_tier": "feature_tiers",
    "kv_tier": "kv_tiers",
    "limit_mm_per_prompt": "limit_per_prompt",
    "media_timeout_s": "timeout_s",
    "offline": "is_offline",
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
    names = (field.name for field in fields(record))
    return record(**{name: _plain(given[name]) for name in names if name in given})


def _plain(value: object) -> object:
    """What a record holds for what is as good in Python."""
    if isinstance(value, list):
        return tuple(value)
    return str(value) if isinstance(value, Path) else value


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
