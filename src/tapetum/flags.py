"""The flags of an engine, in one table: each sets one field of the config records and shows its default.

Owns spelling, units and environment variables: `--some-flag` is also TAPETUM_SOME_FLAG. Nothing below reads the
environment. Does not own ranges: the records check themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_args

import click

from tapetum.core.config import (
    GIB,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    MediaConfig,
    ModelConfig,
    Schedule,
    ScheduleConfig,
)

T = TypeVar("T", bound=Callable[..., object])


class _Size(click.ParamType[int]):
    """A positive number of units, in bytes."""

    def __init__(self, name: str, unit: int) -> None:
        self.name = name
        self.unit = unit

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = int(float(str(value)) * self.unit)
        except (ValueError, OverflowError):
            size = 0
        if size < 1:
            self.fail(f"{value!r} is not a size in {self.name}; write a number above 0", param, ctx)
        return size


class _Limit(click.ParamType[object]):
    """A number, or one for each kind of media as vLLM writes it; the record says what else is wrong."""

    name = "number or JSON"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return json.loads(str(value))
        except ValueError:
            self.fail(
                f'{value!r} is neither a number nor JSON such as {{"image": 5, "video": 1}}', param, ctx
            )


COUNT = click.IntRange(min=1)
DTYPE = click.Choice(["auto", "float32", "bfloat16", "float16"])
_GIB = _Size("GiB", GIB)
_FOLDER = click.Path(exists=True, file_okay=False)

# flag, field of a config record, type, meaning
_ENGINE_FLAGS: tuple[tuple[str, str, click.ParamType[Any], str], ...] = (
    ("--revision", "revision", click.STRING, "Branch, tag or commit of a hub id."),
    ("--device", "device", click.STRING, "auto, cpu, cuda or cuda:N."),
    ("--dtype", "dtype", DTYPE, "Type of the weights."),
    ("--max-model-len", "max_model_len", click.INT, "Tokens of prompt and answer together."),
    ("--max-num-seqs", "max_num_seqs", click.INT, "Requests in one step."),
    ("--max-num-batched-tokens", "max_num_batched_tokens", click.INT, "Tokens in one step."),
    ("--encoder-budget-tokens", "encoder_budget_tokens", click.INT, "Visual tokens encoded in one step."),
    ("--itl-target-ms", "itl_target_ms", click.FLOAT, "Wanted time between tokens."),
    ("--max-queue-len", "max_queue_len", click.INT, "Requests that may wait; more are refused."),
    ("--schedule", "schedule", click.Choice(get_args(Schedule)), "What a step is cut for."),
    ("--kv-cache-memory", "kv_cache_bytes", _GIB, "Memory for keys and values."),
    ("--feature-cache-gib", "feature_cache_bytes", _GIB, "Memory for encoded pictures."),
    ("--block-size", "block_size", click.INT, "Tokens in a block of the KV cache."),
    (
        "--gpu-memory-utilization",
        "gpu_memory_utilization",
        click.FLOAT,
        "Share of the GPU to use.",
    ),
    ("--limit-mm-per-prompt", "limit_per_prompt", _Limit(), "Pictures and clips of one prompt."),
    ("--allowed-local-media-path", "allowed_local_path", _FOLDER, "Where files of clients must lie."),
    ("--media-max-mb", "max_bytes", _Size("MiB", 1024**2), "Largest picture file."),
    ("--media-timeout-s", "timeout_s", click.FLOAT, "Longest time to fetch and decode a picture."),
    ("--seed", "seed", click.INT, "Seed of requests that bring none."),
    ("--threads", "threads", click.INT, "CPU threads."),
)
_DEFAULTS: dict[str, object] = {
    item.name: item.default
    for record in (ModelConfig, CacheConfig, ScheduleConfig, DeviceConfig, MediaConfig)
    for item in fields(record)
}
_UNSET_MEANS = {
    "revision": "the newest",
    "max_model_len": "what the model says",
    "kv_cache_bytes": "a share of what is free",
    "allowed_local_path": "nowhere",
    "threads": "the physical cores",
}


def engine_flags(command: T) -> T:
    """Every flag of an engine; one that is not given leaves its record's default."""
    for flag, name, kind, meaning in reversed(_ENGINE_FLAGS):
        command = option(flag, name, type=kind, help=f"{meaning}  [default: {_shown(name, kind)}]")(command)
    command = option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        "has_prefix_caching",
        default=None,
        help="Reuse the keys and values of equal beginnings.  [default: enabled]",
    )(command)
    return model_option(command)


def option(flag: str, name: str, **attributes: Any) -> Callable[[T], T]:
    """A flag that is an environment variable too."""
    variable = "TAPETUM_" + flag.partition("/")[0].lstrip("-").replace("-", "_").upper()
    return click.option(flag, name, envvar=variable, **attributes)


def model_option(command: T) -> T:
    return option("--model", "model", help="Directory or hub id.  [default: the bundled tapetum-mini]")(
        command
    )


def one_model(argument: str | None, options: dict[str, object]) -> str | None:
    """The model, named as an argument or by --model; takes it out of the options."""
    named = options.pop("model")
    if argument is not None and named is not None and argument != named:
        raise click.UsageError(f"two models are named, {argument} and {named}; name one")
    return str(argument or named) if argument or named else None


def engine_config(model: str | None, options: Mapping[str, object]) -> EngineConfig:
    """The records of an engine from the flags that were given."""
    from tapetum.engine.options import config_from

    return config_from(model, {name: value for name, value in options.items() if value not in (None, ())})


def _shown(name: str, kind: click.ParamType[Any]) -> str:
    default = _DEFAULTS[name]
    if default is None:
        return _UNSET_MEANS[name]
    if isinstance(kind, _Size) and isinstance(default, int):
        default = default / kind.unit
    return f"{default:g}" if isinstance(default, float) else str(default)
