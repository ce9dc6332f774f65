"""How many KV blocks fit: what the device has, less weights (already there), features and the peaks of a step."""

from __future__ import annotations

import os

import torch

from tapetum.core.config import EngineConfig
from tapetum.core.errors import ConfigError
from tapetum.core.model import kv_bytes_per_token
from tapetum.models.base import ModelSpec

HOST_SHARE = 0.4  # of the free host memory, when no size is given
HOST_LIMIT = 4 * 1024**3


def token_bytes(spec: ModelSpec) -> int:
    """KV bytes of one token of this model."""
    return kv_bytes_per_token(spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.dtype.itemsize)


def plan_blocks(spec: ModelSpec, max_model_len: int, config: EngineConfig) -> int:
    """Number of KV blocks: the given size, or what is free, never more than all rows could use at once."""
    size = config.cache.block_size
    block_bytes = token_bytes(spec) * size
    longest = -(-max_model_len // size)
    useful = longest * config.schedule.max_num_seqs
    if config.cache.kv_cache_bytes is not None:
        blocks, source = config.cache.kv_cache_bytes // block_bytes, "--kv-cache-memory"
    else:
        blocks, source = min(_free_bytes(spec, config) // block_bytes, useful), "free memory"
    if blocks < longest:
        raise ConfigError(
            f"{source} holds {blocks * size} tokens of KV, one request of max_model_len needs {max_model_len}; "
            f"give {longest * block_bytes / 1024**3:.3f} GiB or lower --max-model-len"
        )
    return blocks


def _free_bytes(spec: ModelSpec, config: EngineConfig) -> int:
    if spec.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(spec.device)
        used = total - free
        peak = _step_peak_bytes(spec, config) + config.cache.feature_cache_bytes
        return max(0, int(total * config.device.gpu_memory_utilization) - used - peak)
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(pages * HOST_SHARE), HOST_LIMIT)


def _step_peak_bytes(spec: ModelSpec, config: EngineConfig) -> int:
    """Activations of the largest legal step, by its budgets; encode and forward do not run at once."""
    tokens = config.schedule.max_num_batched_tokens
    logits = config.schedule.max_num_seqs * spec.vocab_size * 4
    forward = tokens * spec.hidden_size * 24 * spec.dtype.itemsize + logits
    patches = config.schedule.encoder_budget_tokens * 4
    encode = patches * spec.hidden_size * 24 * spec.dtype.itemsize
    return max(forward, encode)
