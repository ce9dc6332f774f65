"""Every choice of an operator, in frozen records. They are built once, at the edge (cli, LLM, tests).

A record checks itself: one that exists holds values of the declared types within the ranges of `core.checks`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tapetum.core.checks import check_record, shown
from tapetum.core.errors import ConfigError
from tapetum.core.media import MediaKind, ProcessorMode
from tapetum.core.tier_urls import TierUrl

Schedule = Literal["balanced", "interactive", "throughput"]
Speculate = Literal["auto", "off"]
LogLevel = Literal["debug", "info", "warning", "error"]
GIB = 1024**3
# What is kept of a small model on a CPU, unless sizes are given: KV and features of so many contexts of full length.
USUAL_CONTEXTS = 16
MEDIA_BYTES = 64 * 1024**2  # of one file
MEDIA_LIMIT = 64  # pictures and clips of a prompt; of a kind, where only others are limited


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which checkpoint, and how it is read. `model` None = the bundled tapetum-mini."""

    model: str | None = None  # directory or hub id
    revision: str | None = None
    is_offline: bool = False  # a hub id must have been fetched before
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_len: int | None = None  # tokens; None = what the checkpoint says
    served_model_names: tuple[str, ...] = ()
    pack_cache: str = (
        "auto"  # folder of packed weights for the next start; auto = the user's cache, empty = none
    )

    def __post_init__(self) -> None:
        check_record(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    block_size: int = 16  # tokens of a KV block
    kv_cache_bytes: int | None = None  # None = a share of free memory
    feature_cache_bytes: int | None = None  # None = half a GiB, beside a small model on a CPU less
    window_cache_bytes: int = (
        GIB // 8
    )  # of encoders with windows: for those that a picture has again; 0 = none
    swap_bytes: int | None = (
        None  # host memory for KV of preempted requests; None = 4 GiB beside a GPU, else none
    )
    has_prefix_caching: bool = True
    # of the KV blocks: where pictures take more, what is kept of them goes before texts
    visual_kv_share: float = 0.9

    def __post_init__(self) -> None:
        check_record(self)
        if self.block_size & (self.block_size - 1):
            raise ConfigError(f"--block-size is {self.block_size}, must be a power of two such as 16")

    @property
    def feature_room(self) -> int:
        """Bytes of encoded pictures that are planned for."""
        return GIB // 2 if self.feature_cache_bytes is None else self.feature_cache_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """Where features and KV blocks go beside the device, as URLs, the fastest first."""

    feature_tiers: tuple[str, ...] = ()
    kv_tiers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_record(self)
        seen: dict[str, TierUrl] = {}
        for kind, urls in self.urls().items():
            if len({url.text for url in urls}) < len(urls):
                raise ConfigError(f"--{kind.removesuffix('s')}-tier names the same place twice; name it once")
            for url in urls:
                if url.scheme != "host" and seen.setdefault(url.text, url) != url:
                    raise ConfigError(
                        f"{url.shown} has other options as --feature-tier and --kv-tier; give it the same"
                    )

    def urls(self) -> Mapping[Literal["features", "kv"], tuple[TierUrl, ...]]:
        """Raises ConfigError for one that is no URL of a tier."""
        return {
            "features": tuple(TierUrl.parse(text, "--feature-tier") for text in self.feature_tiers),
            "kv": tuple(TierUrl.parse(text, "--kv-tier") for text in self.kv_tiers),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    max_num_seqs: int = 64  # rows of a step
    max_num_batched_tokens: int = 2048  # tokens of a step
    encoder_budget_tokens: int = 4096  # visual tokens encoded in a step; a larger item runs alone
    itl_target_ms: float = 50.0  # wanted time between tokens while others prefill or encode
    schedule: Schedule = "balanced"  # throughput ignores itl_target_ms
    speculate: Speculate = "auto"  # guess tokens and verify several in a step, where that pays
    quality_ladder_s: float | None = None  # wanted time to the first token; None = no picture is degraded
    max_queue_len: int = 4096  # waiting requests beyond this are refused
    # where requests take position-independent reuse: the share of a picture that is computed nevertheless, its first
    # tokens, at least so many; and how far these may be from what is there for them
    link_share: float = 0.05
    link_tokens: int = 32
    link_tolerance: float = 0.12

    def __post_init__(self) -> None:
        check_record(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    threads: int | None = None  # CPU threads; None = the physical cores
    gpu_memory_utilization: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        check_record(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaConfig:
    """Limits on what clients may send. They are checked in the header, before anything is decoded."""

    max_bytes: int = MEDIA_BYTES
    max_pixels: int = 178_956_970  # width x height of one picture, before the resize
    max_frames: int = 768
    max_pages: int = 2000  # of a document
    limit_per_prompt: int | Mapping[MediaKind, int] = MEDIA_LIMIT  # together, or of each kind
    timeout_s: float = 10.0
    allowed_local_path: str | None = None  # file: references of clients must lie below
    # where http(s) references may lead: origins, host names, or * for any
    allowed_domains: tuple[str, ...] = ()
    mm_processor: ProcessorMode = "exact"  # fast: JPEGs are decoded at a lower scale where that is enough
    # defaults and upper bounds of requests: of all media, and of a kind
    mm_processor_kwargs: Mapping[str, float | bool | str] = field(default_factory=dict)
    media_io_kwargs: Mapping[MediaKind, Mapping[str, float | bool | str]] = field(default_factory=dict)
    alpha_ground: tuple[int, int, int] = (255, 255, 255)  # what transparent pixels are put on

    def __post_init__(self) -> None:
        check_record(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the server is reached, by whom, and how it ends."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()  # of a tenant each
    api_key_file: str | None = None  # lines `key tenant [limits]`
    allowed_origins: tuple[str, ...] = ()  # of web pages that may ask; "*" = all
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    max_body_bytes: int = 4 * MEDIA_BYTES
    max_queue_s: float | None = None  # a longer queue refuses; None = only --max-queue-len does
    shutdown_grace_s: float = 30.0
    engine_restarts: int = 0  # of an engine process that has died
    has_debug_endpoints: bool = False
    metrics_prefix: str = "tapetum"
    log_level: LogLevel = "info"

    def __post_init__(self) -> None:
        check_record(self)
        if not all(self.api_keys):
            raise ConfigError("--api-key is empty; give a key or leave the flag out")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("--ssl-keyfile is set without --ssl-certfile; give the certificate too")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.metrics_prefix):
            raise ConfigError(
                f"--metrics-prefix is {shown(self.metrics_prefix)}, must be letters, digits and _ such as vllm"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The records an engine needs, together."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    tiers: TierConfig = field(default_factory=TierConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    media: MediaConfig = field(default_factory=MediaConfig)

    def __post_init__(self) -> None:
        check_record(self)
