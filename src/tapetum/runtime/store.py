"""The tensors that outlive a step: paged keys and values, on the device and on the host, and features of pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from tapetum.core.plan import Payload
from tapetum.models.base import ModelSpec
from tapetum.ops.memory import allocate
from tapetum.runtime.payloads import joined, payload_of


class KVStore:
    """One cache a layer, [2 K, N, S, D]: key heads, then value heads; N blocks of S tokens; D head width.

    Beside it the host's, [slots, 2 K, S, D] a layer: blocks of requests that were preempted.

    All zeroes at first: attention multiplies what padding reads by nothing, which NaN would survive.
    """

    def __init__(self, spec: ModelSpec, num_blocks: int, block_size: int, num_host_slots: int = 0) -> None:
        shape = (2 * spec.num_kv_heads, num_blocks, block_size, spec.head_dim)
        self.layers = [_zeros(shape, spec) for _ in range(spec.num_layers)]
        self.block_size = block_size
        host_shape = (num_host_slots, 2 * spec.num_kv_heads, block_size, spec.head_dim)
        self._host = [_host_memory(host_shape, spec) for _ in range(spec.num_layers if num_host_slots else 0)]

    def save(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Copy blocks to slots of the host, one by one. Waits for nothing but what the copies need."""
        for layer, host in zip(self.layers, self._host, strict=True):
            blocks = torch.tensor(block_ids, device=layer.device)
            copied = layer.index_select(1, blocks).transpose(0, 1).contiguous()  # [n, 2 K, S, D]
            for place, start, length in _runs(slots):
                host[start : start + length].copy_(copied[place : place + length], non_blocking=True)

    def load(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Copy slots of the host to blocks."""
        for layer, host in zip(self.layers, self._host, strict=True):
            blocks = torch.tensor(block_ids, device=layer.device)
            for place, start, length in _runs(slots):
                copied = host[start : start + length].to(layer.device, non_blocking=True)
                layer.index_copy_(1, blocks[place : place + length], copied.transpose(0, 1))

    def export(self, block_ids: Sequence[int]) -> list[Payload]:
        """Copies of blocks in the memory of the host, [L, 2 K, S, D] each; L layers."""
        blocks = torch.tensor(block_ids, device=self.layers[0].device)
        copied = torch.stack([layer.index_select(1, blocks) for layer in self.layers])  # [L, 2 K, n, S, D]
        whole = payload_of(copied.permute(2, 0, 1, 3, 4))
        data = memoryview(whole.data)  # type: ignore[arg-type]
        size = data.nbytes // len(block_ids)
        return [
            Payload(dtype=whole.dtype, shape=whole.shape[1:], data=data[start : start + size])
            for start in range(0, data.nbytes, size)
        ]

    def arrive(self, block_ids: Sequence[int], payloads: Sequence[Payload]) -> None:
        """Fill blocks with what `export` gave. Raises ValueError for payloads of another size."""
        first = self.layers[0]
        shape = (len(self.layers), first.shape[0], *first.shape[2:])
        blocks = torch.tensor(block_ids, device=first.device)
        arrived = joined(payloads, shape, first.dtype).to(first.device)  # [n, L, 2 K, S, D]
        for layer, of_layer in zip(self.layers, arrived.transpose(0, 1), strict=True):
            layer.index_copy_(1, blocks, of_layer.transpose(0, 1))

    def num_bytes(self, num_blocks: int) -> int:
        """Of so many blocks in all layers."""
        return sum(num_blocks * layer[:, 0].nbytes for layer in self.layers)


def _zeros(shape: tuple[int, ...], spec: ModelSpec) -> Tensor:
    if spec.device.type != "cpu":
        return torch.zeros(shape, dtype=spec.dtype, device=spec.device)
    # Memory that becomes real when it is written: torch would write all of it now, for seconds.
    return allocate(math.prod(shape) * spec.dtype.itemsize).view(spec.dtype).view(shape)


def _host_memory(shape: tuple[int, ...], spec: ModelSpec) -> Tensor:
    if spec.device.type != "cpu":
        return torch.empty(shape, dtype=spec.dtype, pin_memory=True)
    return _zeros(shape, spec)


def _runs(slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Of slots that follow each other: index of the first, its slot, how many."""
    for _, group in groupby(enumerate(slots), key=lambda pair: pair[1] - pair[0]):
        run = list(group)
        yield (*run[0], len(run))


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
