"""What the layers above tensors need to know of a loaded model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Sizes and identity of a loaded checkpoint on its device. Lengths in tokens, sizes in bytes."""

    model_type: str
    dtype: str
    device: str
    vocab_size: int
    max_model_len: int
    num_blocks: int  # KV blocks in the pool
    block_size: int
    kv_bytes_per_token: int  # 2 x layers x kv heads x head width x bytes
    feature_bytes_per_token: int  # hidden x bytes
    weights_fingerprint: bytes  # checkpoint + dtype: part of every prefix root
    encoder_fingerprint: bytes  # vision weights + dtype: part of every feature key
    has_exact_parts: bool = (
        False  # tiles and windows come out with the same bits whatever they are encoded with
    )
    window_cache_bytes: int = 0  # for what is kept of windows; 0 = nothing is
    num_host_slots: int = 0  # KV blocks of preempted requests that host memory holds


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    """Bytes of keys and values that one token takes, a visual one the same as a text one."""
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_value
