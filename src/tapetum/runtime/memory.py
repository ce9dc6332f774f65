"""How many KV blocks fit: what the device has, less weights (already there), features and the peaks of a step."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from tapetum.core.config import GIB, EngineConfig
from tapetum.core.errors import ConfigError
from tapetum.core.model import kv_bytes_per_token
from tapetum.models.base import ModelSpec
from tapetum.ops.dense import MAX_SCORES

HOST_SHARE = 0.4  # of the available host memory, when no size is given
HOST_LIMIT = 4 * GIB
_MEMINFO = Path("/proc/meminfo")


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


def plan_blocks(spec: ModelSpec, max_model_len: int, config: EngineConfig, available_bytes: int) -> int:
    """Number of KV blocks: the given size, or what is available, never more than all rows could use at once."""
    size = config.cache.block_size
    block_bytes = token_bytes(spec) * size
    longest = -(-max_model_len // size)
    wanted, source = config.cache.kv_cache_bytes, "--kv-cache-memory"
    if wanted is None:
        wanted, source = available_bytes, "available memory"
    blocks = min(wanted // block_bytes, longest * config.schedule.max_num_seqs)
    if blocks < longest:
        needed = math.ceil(longest * block_bytes / GIB * 1000) / 1000
        raise ConfigError(
            f"{source} holds {blocks * size} tokens of KV, one request of max_model_len needs {max_model_len}; "
            f"give --kv-cache-memory {needed:.3f} (GiB) or lower --max-model-len"
        )
    return blocks


def available_bytes(spec: ModelSpec, config: EngineConfig) -> int:
    """What KV may take of the device's memory, by default."""
    if spec.device.type != "cuda":
        return min(int(host_available_bytes(_read(_MEMINFO)) * HOST_SHARE), HOST_LIMIT)
    free, total = torch.cuda.mem_get_info(spec.device)
    peak = step_peak_bytes(spec, config) + config.cache.feature_cache_bytes
    return max(0, int(total * config.device.gpu_memory_utilization) - (total - free) - peak)


def host_available_bytes(meminfo: str) -> int:
    """Memory that can be had without swapping: free pages and the file cache that can be given up.

    `meminfo` is the text of /proc/meminfo; where it says nothing, free pages alone count.
    """
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def step_peak_bytes(spec: ModelSpec, config: EngineConfig) -> int:
    """Activations of the largest legal step, by its budgets; encode and forward do not run at once."""
    tokens = config.schedule.max_num_batched_tokens
    logits = config.schedule.max_num_seqs * spec.vocab_size * 4
    forward = tokens * spec.hidden_size * 24 * spec.dtype.itemsize + logits
    patches = config.schedule.encoder_budget_tokens * 4
    encode = patches * spec.hidden_size * 24 * spec.dtype.itemsize
    scores = 3 * MAX_SCORES * spec.dtype.itemsize  # scores, their softmax, and the values they weigh
    return max(forward, encode) + scores


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
