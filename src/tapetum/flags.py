"""The flags of an engine and of a server, in two tables: each sets one field of the config records.

Owns spelling, units and environment variables: `--some-flag` is also TAPETUM_SOME_FLAG. Nothing below reads the
environment. Does not own ranges: the records check themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from tapetum.command_help import EngineOption
from tapetum.config_file import read_config_file
from tapetum.core.config import (
    GIB,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LogLevel,
    MediaConfig,
    ModelConfig,
    Schedule,
    ScheduleConfig,
    ServerConfig,
    Speculate,
    TierConfig,
)
from tapetum.core.media import ProcessorMode

T = TypeVar("T", bound=Callable[..., object])


class _Size(click.ParamType[int]):
    """A positive number of units, or 0 where that is a size too, in bytes."""

    def __init__(self, name: str, unit: int, least: int = 1) -> None:
        self.name = name
        self.unit = unit
        self.least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = int(float(str(value)) * self.unit)
        except (ValueError, OverflowError):
            size = -1
        if size < self.least:
            bound = "from 0 on" if self.least == 0 else "above 0"
            self.fail(f"{value!r} is not a size in {self.name}; write a number {bound}", param, ctx)
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


class _Object(click.ParamType[object]):
    """A JSON object; the record says what is wrong inside."""

    name = "JSON"

    def __init__(self, example: str) -> None:
        self._example = example

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            found = json.loads(str(value))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            self.fail(f"{value!r} is no JSON object; write one such as {self._example}", param, ctx)
        return found


class _Names(click.ParamType[tuple[str, ...]]):
    """A name, or several as vLLM writes them: a list in JSON."""

    name = "name or JSON"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        text = str(value)
        if not text.startswith("["):
            return (text,)
        try:
            names = json.loads(text)
        except ValueError:
            names = [None]
        if not all(isinstance(name, str) for name in names):
            self.fail(f'{text!r} is no list of names; write one such as ["https://a.example"]', param, ctx)
        return tuple(names)

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return [rv] if rv.startswith("[") else super().split_envvar_value(rv)


COUNT = click.IntRange(min=1)
DTYPE = click.Choice(["auto", "float32", "bfloat16", "float16"])
_GIB = _Size("GiB", GIB)
_FOLDER = click.Path(exists=True, file_okay=False)
_FILE = click.Path(exists=True, dir_okay=False)

# flag, field of a config record, type, meaning
_ENGINE_FLAGS: tuple[tuple[str, str, click.ParamType[Any], str], ...] = (
    ("--revision", "revision", click.STRING, "Branch, tag or commit of a hub id."),
    ("--device", "device", click.STRING, "auto, cpu, cuda or cuda:N."),
    ("--dtype", "dtype", DTYPE, "Type of the weights."),
    (
        "--pack-cache",
        "pack_cache",
        click.STRING,
        "Where weights, packed for the kernels, are kept for the next start: auto for ~/.cache, empty for nowhere.",
    ),
    ("--max-model-len", "max_model_len", click.INT, "Tokens of prompt and answer together."),
    ("--max-num-seqs", "max_num_seqs", click.INT, "Requests in one step."),
    ("--max-num-batched-tokens", "max_num_batched_tokens", click.INT, "Tokens in one step."),
    ("--encoder-budget-tokens", "encoder_budget_tokens", click.INT, "Visual tokens encoded in one step."),
    (
        "--itl-target-ms",
        "itl_target_ms",
        click.FLOAT,
        "Wanted time between tokens: lower for smoother streams, higher for more answers at once.",
    ),
    (
        "--quality-ladder",
        "quality_ladder_s",
        click.FLOAT,
        "Wanted seconds to the first token: where more are predicted, pictures are made smaller, as answers say.",
    ),
    ("--max-queue-len", "max_queue_len", click.INT, "Requests that may wait; more are refused."),
    (
        "--schedule",
        "schedule",
        click.Choice(get_args(Schedule)),
        "What a step is cut for: interactive for people who wait, throughput for batches.",
    ),
    (
        "--speculate",
        "speculate",
        click.Choice(get_args(Speculate)),
        "Guess tokens that stood before and verify several in a step where that is faster; the answer is the same.",
    ),
    ("--kv-cache-memory", "kv_cache_bytes", _GIB, "Memory for keys and values."),
    (
        "--swap-space",
        "swap_bytes",
        _Size("GiB", GIB, least=0),
        "Host memory for keys and values of requests that give way to others; 0 = they are computed again.",
    ),
    (
        "--visual-kv-share",
        "visual_kv_share",
        click.FLOAT,
        "Share of the KV cache that pictures may fill before what is kept of them goes first.",
    ),
    ("--feature-cache-gib", "feature_cache_bytes", _GIB, "Memory for encoded pictures."),
    (
        "--window-cache-gib",
        "window_cache_bytes",
        _Size("GiB", GIB, least=0),
        "Memory for parts of pictures half encoded, which a picture that changes a little has again; 0 = none.",
    ),
    (
        "--block-size",
        "block_size",
        click.INT,
        "Tokens in a block of the KV cache; the default is right but for experiments.",
    ),
    (
        "--gpu-memory-utilization",
        "gpu_memory_utilization",
        click.FLOAT,
        "Share of the GPU to use.",
    ),
    ("--limit-mm-per-prompt", "limit_per_prompt", _Limit(), "Pictures and clips of one prompt."),
    (
        "--mm-processor",
        "mm_processor",
        click.Choice(get_args(ProcessorMode)),
        "fast: large JPEGs are decoded at a lower scale, for nearly the same pixels in half the time.",
    ),
    (
        "--mm-processor-kwargs",
        "mm_processor_kwargs",
        _Object('{"max_pixels": 1003520}'),
        "Options of all pictures and clips; requests may ask for less.",
    ),
    (
        "--media-io-kwargs",
        "media_io_kwargs",
        _Object('{"video": {"num_frames": 40, "fps": 2}}'),
        "The same for a kind of media.",
    ),
    ("--allowed-local-media-path", "allowed_local_path", _FOLDER, "Where files of clients must lie."),
    ("--media-max-mb", "max_bytes", _Size("MiB", 1024**2), "Largest picture file."),
    ("--media-timeout-s", "timeout_s", click.FLOAT, "Longest time to fetch and decode a picture."),
    ("--seed", "seed", click.INT, "Seed of requests that bring none."),
    ("--threads", "threads", click.INT, "CPU threads."),
)
_SERVER_FLAGS: tuple[tuple[str, str, click.ParamType[Any], str], ...] = (
    ("--host", "host", click.STRING, "Address to listen on."),
    ("--port", "port", click.INT, "0 = any that is free."),
    ("--api-key-file", "api_key_file", _FILE, "Lines `key tenant [rps=N] [concurrent=N]`."),
    ("--ssl-certfile", "ssl_certfile", _FILE, "Certificate chain; serves https."),
    ("--ssl-keyfile", "ssl_keyfile", _FILE, "Key of the certificate."),
    ("--max-queue-seconds", "max_queue_s", click.FLOAT, "Refuse while the queue is longer."),
    ("--shutdown-grace-s", "shutdown_grace_s", click.FLOAT, "What runs may take to end on SIGTERM."),
    ("--engine-restarts", "engine_restarts", click.INT, "How often a dead engine is started again."),
    ("--metrics-prefix", "metrics_prefix", click.STRING, "First word of all metrics, such as vllm."),
    ("--log-level", "log_level", click.Choice(get_args(LogLevel)), "What is worth a line."),
)
_DEFAULTS: dict[str, object] = {
    item.name: None if item.default is MISSING else item.default
    for record in (
        ModelConfig,
        CacheConfig,
        TierConfig,
        ScheduleConfig,
        DeviceConfig,
        MediaConfig,
        ServerConfig,
    )
    for item in fields(record)
}
_UNSET_MEANS = {
    "revision": "the newest",
    "max_model_len": "what the model says",
    "kv_cache_bytes": "a share of what is free",
    "feature_cache_bytes": "0.5, less beside a small model on a CPU",
    "swap_bytes": "4 beside a GPU, else 0",
    "allowed_local_path": "nowhere",
    "mm_processor_kwargs": "what the model says",
    "media_io_kwargs": "what the model says",
    "api_key_file": "none",
    "ssl_certfile": "plain http",
    "ssl_keyfile": "in the same file",
    "max_queue_s": "no limit",
    "quality_ladder_s": "never",
    "threads": "the physical cores",
}


def tier_flags(command: T) -> T:
    """The two that say where pictures and prefixes are kept; both may be given several times, the fastest first."""
    for flag, name, meaning in (
        (
            "--kv-tier",
            "kv_tiers",
            "Where keys and values of prefixes that nobody uses now are kept, as --feature-tier.",
        ),
        (
            "--feature-tier",
            "feature_tiers",
            "Where encoded pictures are kept: host:?max=4GiB, disk:PATH?max=20GiB, redis://HOST:PORT/DB, "
            "s3://BUCKET/PREFIX; several, the fastest first.",
        ),
    ):
        meaning = f"{meaning}  [default: nowhere]"
        command = option(flag, name, multiple=True, cls=EngineOption, metavar="URL", help=meaning)(command)
    return command


def engine_flags(command: T) -> T:
    """Every flag of an engine; one that is not given leaves its record's default."""
    command = tier_flags(command)
    command = _of_table(_ENGINE_FLAGS, command, EngineOption)
    command = option(
        "--allowed-media-domains",
        "allowed_domains",
        type=_Names(),
        multiple=True,
        cls=EngineOption,
        help="Where http(s) references may lead: origins, host names, * for any; several.  [default: nowhere]",
    )(command)
    command = option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        "has_prefix_caching",
        default=None,
        cls=EngineOption,
        help="Reuse the keys and values of equal beginnings.  [default: enabled]",
    )(command)
    command = option(
        "--offline",
        "is_offline",
        is_flag=True,
        default=None,
        cls=EngineOption,
        help="Ask the hub nothing: what a hub id names was fetched before.",
    )(command)
    command = option(
        "--config",
        "config",
        type=_FILE,
        is_eager=True,
        expose_value=False,
        callback=read_config_file,
        help="Flags in YAML, one key per flag.",
    )(command)
    return model_option(command)


def sampling_flags(command: T) -> T:
    """The two that say how answers are sampled."""
    command = option(
        "--temperature",
        "temperature",
        type=click.FloatRange(min=0),
        help="0 is greedy.  [default: what the model says]",
    )(command)
    return option(
        "--max-tokens", "max_tokens", type=COUNT, help="Longest answer.  [default: what the model says]"
    )(command)


def server_flags(command: T) -> T:
    """Every flag of a server."""
    several = (
        ("--api-key", "api_keys", click.STRING, "Key that clients must send; may be given several times."),
        ("--served-model-name", "served_model_names", click.STRING, "What clients call the model; several."),
        ("--allowed-origins", "allowed_origins", _Names(), "Web pages that may ask, such as *; several."),
    )
    for flag, name, kind, meaning in several:
        command = option(flag, name, type=kind, multiple=True, help=meaning)(command)
    command = option(
        "--enable-debug-endpoints", "has_debug_endpoints", is_flag=True, default=None, help="Serve /debug."
    )(command)
    return _of_table(_SERVER_FLAGS, command, click.Option)


def _of_table(
    table: Sequence[tuple[str, str, click.ParamType[Any], str]], command: T, cls: type[click.Option]
) -> T:
    for flag, name, kind, meaning in reversed(table):
        meaning = f"{meaning}  [default: {_shown(name, kind)}]"
        command = option(flag, name, type=kind, cls=cls, help=meaning)(command)
    return command


def option(flag: str, name: str, *short: str, **attributes: Any) -> Callable[[T], T]:
    """A flag, perhaps with a short form, that is an environment variable too."""
    variable = "TAPETUM_" + flag.partition("/")[0].lstrip("-").replace("-", "_").upper()
    return click.option(flag, name, *short, envvar=variable, **attributes)


def model_option(command: T) -> T:
    return option("--model", "model", help="Directory or hub id.  [default: the bundled tapetum-mini]")(
        command
    )


def one_model(argument: str | None, options: dict[str, object]) -> str | None:
    """The model, named as an argument or by --model; takes it out of the options.

    An argument beats the environment and the file.
    """
    named = options.pop("model")
    is_fallback = click.get_current_context().get_parameter_source("model") is not ParameterSource.COMMANDLINE
    if argument is not None and named is not None and argument != named and not is_fallback:
        raise click.UsageError(f"two models are named, {argument} and {named}; name one")
    return str(argument or named) if argument or named else None


def engine_config(model: str | None, options: Mapping[str, object]) -> EngineConfig:
    """The records of an engine from the flags that were given."""
    from tapetum.engine.options import config_from

    given: dict[str, Any] = {name: value for name, value in options.items() if value not in (None, ())}
    if "allowed_domains" in given:
        given["allowed_domains"] = _flat(given["allowed_domains"])
    return config_from(model, given)


def serve_config(model: str | None, options: Mapping[str, object]) -> tuple[EngineConfig, ServerConfig]:
    """The records of an engine and of its server from the flags that were given."""
    names = {item.name for item in fields(ServerConfig)}
    engine = engine_config(model, {name: value for name, value in options.items() if name not in names})
    given: dict[str, Any] = {name: options[name] for name in names & options.keys()}
    given = {name: value for name, value in given.items() if value not in (None, ())}
    server = ServerConfig(
        **{**given, "allowed_origins": _flat(given.get("allowed_origins", ()))},
        # three of the largest pictures as base64, or a long text where pictures are small
        max_body_bytes=max(4 * engine.media.max_bytes, 2**24),
    )
    return engine, server


def _flat(several: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """The names of a flag that is given several times, each time with one or several."""
    return tuple(name for names in several for name in names)


def _shown(name: str, kind: click.ParamType[Any]) -> str:
    default = _DEFAULTS[name]
    if default is None:
        return _UNSET_MEANS[name]
    if isinstance(kind, _Size) and isinstance(default, int):
        default = default / kind.unit
    return f"{default:g}" if isinstance(default, float) else str(default)
