"""Whether a config record holds what its fields declare: values of their types, numbers within one table of ranges.

Owns the table and the messages. A range keeps out what would end a thread or a step much later, such as a time that
is no number, and what nobody can have meant; whether a machine has the memory or a model the context is asked there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import UnionType
from typing import Literal, Union, cast, get_args, get_origin, get_type_hints

from tapetum.core.errors import ConfigError

MAX_TOKENS = 2**31 - 1
MAX_SEED = 2**63 - 1
_DAY_S = 86_400.0

# field: how a message calls it, lowest and highest value (of each item where it holds several), unit
RANGES: dict[str, tuple[str, float, float, str]] = {
    "max_model_len": ("--max-model-len", 2, MAX_TOKENS, "tokens"),  # one of the prompt and one of the answer
    "block_size": ("--block-size", 1, 2**16, "tokens"),
    "kv_cache_bytes": ("--kv-cache-memory", 1, 2**50, "bytes"),
    "feature_cache_bytes": ("--feature-cache-gib", 1, 2**50, "bytes"),
    "window_cache_bytes": ("--window-cache-gib", 0, 2**50, "bytes"),
    "swap_bytes": ("--swap-space", 0, 2**50, "bytes"),
    "visual_kv_share": ("--visual-kv-share", 0.0, 1.0, ""),
    "max_num_seqs": ("--max-num-seqs", 1, 2**20, ""),
    "max_num_batched_tokens": ("--max-num-batched-tokens", 1, MAX_TOKENS, "tokens"),
    "encoder_budget_tokens": ("--encoder-budget-tokens", 1, MAX_TOKENS, "tokens"),
    "itl_target_ms": ("--itl-target-ms", 0.001, 1000 * _DAY_S, "ms"),
    "quality_ladder_s": ("--quality-ladder", 0.001, _DAY_S, "s"),
    "max_queue_len": ("--max-queue-len", 1, 2**31 - 1, "requests"),
    "link_share": ("ScheduleConfig.link_share", 0, 1, ""),
    "link_tokens": ("ScheduleConfig.link_tokens", 1, MAX_TOKENS, "tokens"),
    "link_tolerance": ("ScheduleConfig.link_tolerance", 0, 1e9, ""),
    "threads": ("--threads", 1, 1024, ""),
    "gpu_memory_utilization": ("--gpu-memory-utilization", 0.01, 1.0, ""),
    "seed": ("--seed", -MAX_SEED - 1, MAX_SEED, ""),
    "max_bytes": ("--media-max-mb", 1, 2**32, "bytes"),
    "max_pixels": ("MediaConfig.max_pixels", 1, 2**31 - 1, "pixels"),
    "max_frames": ("MediaConfig.max_frames", 1, 2**20, "frames"),
    "max_pages": ("MediaConfig.max_pages", 1, 2**20, "pages"),
    "limit_per_prompt": ("--limit-mm-per-prompt", 0, 2**20, ""),
    "timeout_s": ("--media-timeout-s", 0.001, _DAY_S, "s"),
    "alpha_ground": ("MediaConfig.alpha_ground", 0, 255, ""),
    "port": ("--port", 0, 65_535, ""),
    "max_body_bytes": ("ServerConfig.max_body_bytes", 1024, 2**34, "bytes"),
    "max_queue_s": ("--max-queue-seconds", 0.001, _DAY_S, "s"),
    "shutdown_grace_s": ("--shutdown-grace-s", 0, _DAY_S, "s"),
    "engine_restarts": ("--engine-restarts", 0, 1_000_000, ""),
}


def check_record(record: object) -> None:
    """Raises ConfigError for the first field that holds something else than it declares."""
    for name, hint in get_type_hints(type(record)).items():
        value = getattr(record, name)
        label, low, high, unit = RANGES.get(name, (name, None, None, ""))
        if not _fits(value, hint):
            raise ConfigError(f"{label} is {shown(value)}, must be {_words(hint)}")
        if low is None or high is None:
            continue
        for number in _numbers(value):
            if not low <= number <= high:  # also refuses NaN
                raise ConfigError(f"{label} is {shown(number)}, allowed are {low} to {high} {unit}".rstrip())


def shown(value: object) -> str:
    """A value in a message: enough to recognise it."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"{type(value).__name__} of too many digits"
    return text if len(text) <= 80 else text[:77] + "..."


def plain(number: float) -> str:
    """A bound in a message: an integer with all its digits, anything else in short."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def _fits(value: object, hint: object) -> bool:
    kind, parts = get_origin(hint), get_args(hint)
    if kind is UnionType or kind is Union:
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return isinstance(value, str) and value in parts
    if kind is tuple:
        return isinstance(value, tuple) and _all_fit(value, parts)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return isinstance(value, Mapping) and all(_all_fit(pair, parts) for pair in value.items())
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else cast("type", hint))


def _all_fit(values: Collection[object], hints: tuple[object, ...]) -> bool:
    wanted = hints[:1] * len(values) if Ellipsis in hints else hints
    return len(values) == len(wanted) and all(map(_fits, values, wanted))


def _words(hint: object) -> str:
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return text.replace("typing.", "").replace("collections.abc.", "")


def _numbers(value: object) -> Iterable[float]:
    """The numbers of a field: none where it is unset."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return cast("Iterable[float]", value.values())
    return cast("Iterable[float]", value if isinstance(value, tuple) else (value,))
