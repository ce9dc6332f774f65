"""The tensors that outlive a step: paged keys and values, and the features of encoded pictures."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tapetum.models.base import ModelSpec
from tapetum.ops.memory import allocate


class KVStore:
    """One cache a layer, [2 K, N, S, D]: key heads, then value heads; N blocks of S tokens; D head width.

    All zeroes at first: attention multiplies what padding reads by nothing, which NaN would survive.
    """

    def __init__(self, spec: ModelSpec, num_blocks: int, block_size: int) -> None:
        shape = (2 * spec.num_kv_heads, num_blocks, block_size, spec.head_dim)
        self.layers = [_zeros(shape, spec) for _ in range(spec.num_layers)]
        self.block_size = block_size


def _zeros(shape: tuple[int, ...], spec: ModelSpec) -> Tensor:
    if spec.device.type != "cpu":
        return torch.zeros(shape, dtype=spec.dtype, device=spec.device)
    # Memory that becomes real when it is written: torch would write all of it now, for seconds.
    return allocate(math.prod(shape) * spec.dtype.itemsize).view(spec.dtype).view(shape)


class FeatureStore:
    """Features by media key, [visual tokens, hidden] each. The scheduler's VisualCache says what to drop."""

    def __init__(self) -> None:
        self._features: dict[bytes, Tensor] = {}

    def put(self, key: bytes, features: Tensor) -> None:
        self._features[key] = features

    def get(self, key: bytes) -> Tensor:
        return self._features[key]

    def drop(self, key: bytes) -> None:
        self._features.pop(key, None)

    @property
    def keys(self) -> frozenset[bytes]:
        return frozenset(self._features)
