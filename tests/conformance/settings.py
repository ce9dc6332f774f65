"""The settings that scenarios ask for, as flags of `tapetum serve`: one table.

Owns the words of `config` and of `start`'s `args`, in the plain language of the cases, and the numbers they stand for.
A setting that is not in the table is an error of its case.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Flags = list[str]
_GIB = 1024**3
_ONE_PICTURE = 1.25  # room for one picture is less than for two


class UnknownSetting(Exception):
    """A key or a value that the table does not know."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What has been measured on a server with default settings."""

    context: int = 0  # tokens
    prompt_tokens: Mapping[str, int] = field(default_factory=dict)  # of cases that settings name
    visual_tokens: int = 0  # of the scenario's first picture
    feature_bytes: int = 0  # of its features


def needs_picture(config: Mapping[str, object]) -> bool:
    """Whether a setting is told in pictures."""
    return any(isinstance(value, str) and re.search(r"picture|image", value) for value in config.values())


def needs_context(config: Mapping[str, object]) -> bool:
    """Whether a setting is told as all that the context holds."""
    return any(str(value).lower() in _WHOLE for value in config.values())


def named_cases(config: Mapping[str, object]) -> list[str]:
    """The cases whose size a setting is told in."""
    return [found[1] for value in config.values() if (found := _TOKENS_OF.match(str(value)))]


def flags_of(config: Mapping[str, object], figures: Figures) -> tuple[str, ...]:
    """The flags of a scenario's settings in the order of the table; defaults need none."""
    for key in config:
        if key not in TABLE:
            raise UnknownSetting(f"no flag is known for the setting {key}; known are {', '.join(TABLE)}")
    return tuple(
        flag for key, flags in TABLE.items() if key in config for flag in flags(config[key], figures)
    )


_WHOLE = ("unlimited", "whole", "context")
_TOKENS_OF = re.compile(r"tokens of (\S+?)(?: plus (\d+))?$")


def _tokens(value: object, figures: Figures) -> int:
    """A number of tokens: itself, all of the context, a share of a picture, or the size of a case and some more."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value)
    words = str(value).strip().lower()
    if words in _WHOLE:
        return figures.context
    if found := _TOKENS_OF.match(str(value)):
        return figures.prompt_tokens[found[1]] + int(found[2] or 0)
    if found := re.fullmatch(r"(half|[\d.]+)(?: of)? (?:this|the|one|a|an)? ?(?:picture|image)s?", words):
        return math.ceil((0.5 if found[1] == "half" else float(found[1])) * figures.visual_tokens)
    raise UnknownSetting(f"{value!r} is no number of tokens")


def _tokens_flag(flag: str) -> _Writer:
    return lambda value, figures: [flag, str(_tokens(value, figures))]


def _number_flag(flag: str, unit: float = 1) -> _Writer:
    """A number as it is, or in another unit."""
    return lambda value, figures: [flag, f"{float(str(value)) / unit:.10g}"]


def _text_flag(flag: str) -> _Writer:
    return lambda value, figures: [flag, str(value)]


def _each_flag(flag: str) -> _Writer:
    """The flag once for each value of a list."""
    return lambda value, figures: [part for item in _listed(value) for part in (flag, str(item))]


def _json_flag(flag: str, name: str) -> _Writer:
    return lambda value, figures: [flag, json.dumps({name: value})]


def _remote_media(value: object, figures: Figures) -> Flags:
    words = str(value).lower()
    if words in ("off", "none", "false") or words.startswith("off"):
        return []
    if words in ("public hosts only", "public", "any", "on", "true"):
        return ["--allowed-media-domains", "*"]
    raise UnknownSetting(f"remote_media {value!r} is neither off nor 'public hosts only'")


def _local_media(value: object, figures: Figures) -> Flags:
    is_off = value in (False, None) or str(value).lower().startswith("off")
    return [] if is_off else ["--allowed-local-media-path", str(value)]


def _prefix_cache(value: object, figures: Figures) -> Flags:
    return [] if value in (True, "on", None) else ["--no-enable-prefix-caching"]


def _encoder_cache(value: object, figures: Figures) -> Flags:
    if value in (True, "on", None, "default"):
        return []
    if found := re.fullmatch(r"room for (\d+) (?:picture|image)s?", str(value)):
        room_bytes = (int(found[1]) - 1 + _ONE_PICTURE) * figures.feature_bytes
    elif value in (False, "off", 0):
        room_bytes = 1.0
    else:
        room_bytes = float(str(value)) * 1024**2
    return ["--feature-cache-gib", f"{room_bytes / _GIB:.12f}"]


def _kv_cache(value: object, figures: Figures) -> Flags:
    """Megabytes."""
    return ["--kv-cache-memory", f"{float(str(value)) / 1024:.10g}"]


def _nothing(value: object, figures: Figures) -> Flags:
    if not str(value).startswith("default"):
        raise UnknownSetting(f"{value!r} is not the default, and nothing else is known")
    return []


def _switch(flag: str) -> _Writer:
    return lambda value, figures: [flag] if value in (True, "on") else []


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else [value]


_Writer = Callable[[object, Figures], Flags]
TABLE: dict[str, _Writer] = {
    "model": _text_flag("--model"),
    "served_model_name": _each_flag("--served-model-name"),
    "served_model_names": _each_flag("--served-model-name"),
    "context": _tokens_flag("--max-model-len"),
    "max_model_len": _tokens_flag("--max-model-len"),
    "prefill_chunk": _tokens_flag("--max-num-batched-tokens"),
    "max_batched_tokens": _tokens_flag("--max-num-batched-tokens"),
    "encoder_budget_tokens": _tokens_flag("--encoder-budget-tokens"),
    "max_running": _number_flag("--max-num-seqs"),
    "max_num_seqs": _number_flag("--max-num-seqs"),
    "max_batch": _number_flag("--max-num-seqs"),
    "memory_mb": _kv_cache,
    "kv_cache_mb": _kv_cache,
    "kv_memory_mb": _kv_cache,
    "block_size": _number_flag("--block-size"),
    "prefix_cache": _prefix_cache,
    "encoder_cache": _encoder_cache,
    "encoder_cache_mb": _encoder_cache,
    "feature_cache_mb": _encoder_cache,
    "caches": _nothing,
    "schedule": _text_flag("--schedule"),
    "speculate": _text_flag("--speculate"),
    "itl_target_ms": _number_flag("--itl-target-ms"),
    "max_images_per_request": _json_flag("--limit-mm-per-prompt", "image"),
    "max_images": _json_flag("--limit-mm-per-prompt", "image"),
    "max_videos_per_request": _json_flag("--limit-mm-per-prompt", "video"),
    "max_pixels": _json_flag("--mm-processor-kwargs", "max_pixels"),
    "min_pixels": _json_flag("--mm-processor-kwargs", "min_pixels"),
    "max_frames": _json_flag("--media-io-kwargs", "num_frames"),
    "allow_media_hosts": _each_flag("--allowed-media-domains"),
    "remote_media": _remote_media,
    "local_media": _local_media,
    "allowed_local_path": _local_media,
    "media_timeout_s": _number_flag("--media-timeout-s"),
    "fetch_timeout_s": _number_flag("--media-timeout-s"),
    "max_media_mb": _number_flag("--media-max-mb"),
    "media_max_mb": _number_flag("--media-max-mb"),
    "max_media_bytes": _number_flag("--media-max-mb", 1024**2),
    "api_key": _each_flag("--api-key"),
    "api_keys": _each_flag("--api-key"),
    "max_queue": _number_flag("--max-queue-len"),
    "max_waiting": _number_flag("--max-queue-len"),
    "queue_limit": _number_flag("--max-queue-len"),
    "max_queue_len": _number_flag("--max-queue-len"),
    "max_queue_seconds": _number_flag("--max-queue-seconds"),
    "max_queue_s": _number_flag("--max-queue-seconds"),
    "shutdown_grace_s": _number_flag("--shutdown-grace-s"),
    "grace_s": _number_flag("--shutdown-grace-s"),
    "drain_s": _number_flag("--shutdown-grace-s"),
    "engine_restarts": _number_flag("--engine-restarts"),
    "restart_worker": _switch("--engine-restarts=1"),
    "log_level": _text_flag("--log-level"),
    "metrics_prefix": _text_flag("--metrics-prefix"),
    "seed": _number_flag("--seed"),
    "dtype": _text_flag("--dtype"),
    "threads": _number_flag("--threads"),
    "debug": lambda value, figures: [],  # always on
}
