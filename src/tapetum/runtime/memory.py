"""How many KV blocks fit: what the device has, less weights (already there), features and the largest legal step."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tapetum.core.config import GIB, USUAL_CONTEXTS, EngineConfig
from tapetum.core.errors import ConfigError
from tapetum.core.footprint import shown_bytes
from tapetum.core.model import kv_bytes_per_token
from tapetum.models.base import ModelSpec
from tapetum.ops.dense import MAX_SCORES
from tapetum.processing.extent import Extent

HOST_SHARE = 0.4  # of the available host memory, when no size is given
HOST_LIMIT = 4 * GIB
HOST_MARGIN = 0.05  # of it that nobody gets: the rest of the process, and what allocators keep
_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def bound_kernel_caches() -> None:
    """Keep few of the kernels that oneDNN makes for each shape; call it before the first of them is made.

    It would keep 1,024 in each of two caches. Nearly every prefill has a shape of its own, so they fill up with kernels
    that nobody calls again, hundreds of MB in all. The few that decodes use stay. What the operator has set counts.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "1")


def token_bytes(spec: ModelSpec) -> int:
    """KV bytes of one token of this model."""
    return kv_bytes_per_token(spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.dtype.itemsize)


def plan_blocks(spec: ModelSpec, max_model_len: int, config: EngineConfig, room: Room) -> int:
    """Number of KV blocks: the given size, or what there is room for, never more than all rows could use at once."""
    size = config.cache.block_size
    block_bytes = token_bytes(spec) * size
    longest = -(-max_model_len // size)
    wanted, source = config.cache.kv_cache_bytes, "--kv-cache-memory"
    rows = config.schedule.max_num_seqs
    if wanted is None:
        wanted, source = room.usual_bytes, "available memory"
        rows = rows if spec.device.type == "cuda" else min(rows, USUAL_CONTEXTS)
    blocks = min(wanted // block_bytes, longest * rows)
    if blocks < longest:
        needed = math.ceil(longest * block_bytes / GIB * 1000) / 1000
        raise ConfigError(
            f"{source} holds {blocks * size} tokens of KV, one request of max_model_len needs {max_model_len}; "
            f"give --kv-cache-memory {needed:.3f} (GiB) or lower --max-model-len ({room})"
        )
    if blocks * block_bytes > room.kv_bytes:
        raise ConfigError(
            f"--kv-cache-memory asks for {shown_bytes(blocks * block_bytes)}, there is room for "
            f"{shown_bytes(max(0, room.kv_bytes))} ({room}); lower it, --max-model-len or --max-num-batched-tokens"
        )
    return blocks


def plan_host_slots(spec: ModelSpec, max_model_len: int, config: EngineConfig) -> int:
    """Number of KV blocks that the host keeps of preempted requests, never more than all rows could use at once.

    None by default where the device's memory is the host's: a larger KV cache is the better use of it.
    """
    size = config.cache.block_size
    wanted = config.cache.swap_bytes
    if wanted is None:
        is_apart = spec.device.type == "cuda"
        wanted = min(int(_host_available() * HOST_SHARE), HOST_LIMIT) if is_apart else 0
    return min(wanted // (token_bytes(spec) * size), -(-max_model_len // size) * config.schedule.max_num_seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a device has beside the weights, and who else wants it."""

    free_bytes: int  # that may be used
    step_bytes: int  # the largest step
    feature_bytes: int
    usual_limit: int  # of KV that nobody has asked for
    window_bytes: int = 0  # kept of windows
    host_bytes: int = (
        0  # of what leaves the device, where its memory is the host's: --swap-space and tiers there
    )

    @property
    def kv_bytes(self) -> int:
        """Below zero where even the others do not fit."""
        others = self.step_bytes + self.feature_bytes + self.window_bytes + self.host_bytes
        return self.free_bytes - others

    @property
    def usual_bytes(self) -> int:
        return max(0, min(self.kv_bytes, self.usual_limit))

    def __str__(self) -> str:
        windows = f", windows {shown_bytes(self.window_bytes)}" if self.window_bytes else ""
        host = f", --swap-space and host: tiers {shown_bytes(self.host_bytes)}" if self.host_bytes else ""
        return (
            f"{shown_bytes(self.free_bytes)} may be used, the largest step takes {shown_bytes(self.step_bytes)}, "
            f"features {shown_bytes(self.feature_bytes)}{windows}{host}"
        )


def room_of(
    spec: ModelSpec, config: EngineConfig, step_bytes: int, window_bytes: int = 0, num_host_slots: int = 0
) -> Room:
    """What is free now that the weights are there, less what must stay free."""
    features = config.cache.feature_room if spec.step.patch_bytes else 0
    if spec.device.type != "cuda":
        available = _host_available()
        limit = min(int(available * HOST_SHARE), HOST_LIMIT)
        return Room(
            free_bytes=int(available * (1 - HOST_MARGIN)),
            step_bytes=step_bytes,
            feature_bytes=features,
            usual_limit=limit,
            window_bytes=window_bytes,
            host_bytes=num_host_slots * token_bytes(spec) * config.cache.block_size + _tier_bytes(config),
        )
    free, total = torch.cuda.mem_get_info(spec.device)
    used = total - free
    allowed = int(total * config.device.gpu_memory_utilization) - used
    return Room(
        free_bytes=allowed,
        step_bytes=step_bytes,
        feature_bytes=features,
        usual_limit=total,
        window_bytes=window_bytes,
    )


def _tier_bytes(config: EngineConfig) -> int:
    """That tiers in the memory of this process may take."""
    urls = (url for several in config.tiers.urls().values() for url in several)
    return sum(url.max_bytes or 0 for url in urls if url.scheme == "host")


def host_available_bytes(meminfo: str, group_limit: str = "", group_stat: str = "") -> int:
    """Memory that can be had without swapping: free pages and the file cache that can be given up.

    `meminfo` is the text of /proc/meminfo; where it says nothing, free pages alone count. The group of processes that
    a container is may have a lower limit, and says what counts against it.
    """
    kib = _numbers(meminfo).get("MemAvailable:")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if kib is None else kib * 1024
    if not group_limit.strip().isdecimal():
        return free
    used = _numbers(group_stat)
    return min(free, max(0, int(group_limit) - used.get("anon", 0) - used.get("shmem", 0)))


def _host_available() -> int:
    return host_available_bytes(_read(_MEMINFO), _read(_GROUP / "memory.max"), _read(_GROUP / "memory.stat"))


def _numbers(text: str) -> dict[str, int]:
    """Of lines of a name, a number and perhaps a unit."""
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def largest_step_bytes(
    spec: ModelSpec, config: EngineConfig, extent: Extent, max_model_len: int, *, is_native: bool
) -> int:
    """What the largest legal step takes, by its budgets.

    Encode and forward do not run at once, but an item that is encoded in slices stays while others are, and while rows
    are computed.
    """
    schedule, step = config.schedule, spec.step
    tokens, rows = schedule.max_num_batched_tokens, schedule.max_num_seqs
    scored = tokens if schedule.speculate == "auto" else min(rows, tokens)
    forward = step.forward_bytes(tokens, scored, min(rows, tokens))
    capacity = config.cache.feature_room // (spec.feature_size * spec.dtype.itemsize)
    item = min(extent.most_tokens, max_model_len, capacity)
    # room for features is reserved before an encode begins, so no more than that is encoded at a time
    batch = min(max(item, schedule.encoder_budget_tokens), max(0, capacity - item))
    kept = step.encode_bytes(min(extent.most_patches, extent.patches_of(item)), item)
    encode = step.encode_bytes(extent.patches_of(batch), batch) + step.slice_bytes if item else 0
    products = (
        0 if is_native else 3 * MAX_SCORES * spec.dtype.itemsize
    )  # of attention: scores, weights, values
    return kept + max(forward, encode) + products


def check_holds_picture(spec: ModelSpec, config: EngineConfig, extent: Extent, max_model_len: int) -> None:
    """Raises ConfigError where not even the smallest picture of this model fits, though pictures may be sent."""
    limit = config.media.limit_per_prompt
    if not extent.least_tokens or limit == 0 or (isinstance(limit, Mapping) and not any(limit.values())):
        return
    tokens = extent.least_tokens
    num_bytes = tokens * spec.feature_size * spec.dtype.itemsize
    what, remedy = f"the smallest picture has {tokens} visual tokens", "allow none: --limit-mm-per-prompt 0"
    if num_bytes > config.cache.feature_room:
        raise ConfigError(
            f"{what} with {num_bytes} bytes of features, --feature-cache-gib gives {config.cache.feature_room} "
            f"bytes; give at least {math.ceil(num_bytes / GIB * 1e6) / 1e6:.6f}, or {remedy}"
        )
    if tokens + 2 > max_model_len:  # with a token of text and one of the answer
        raise ConfigError(
            f"{what}, --max-model-len is {max_model_len}; give at least {tokens + 2}, or {remedy}"
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
