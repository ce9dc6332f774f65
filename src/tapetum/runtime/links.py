"""Linker: keys and values of a picture, taken over from where the same picture stood before.

A key is stored turned by its position, and a picture in another place stands there as a whole: all axes of its
positions are shifted by one number, so one turn by that number moves each key (Gim et al., 2024, for text). Values
have no position. What differs still is what the tokens saw before them: the fresh ones at the front of the picture say
how much.

T tokens, K key-value heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tapetum.core.plan import Link
from tapetum.models.base import ModelSpec
from tapetum.ops.table import OpTable
from tapetum.runtime.store import KVStore


class Linker:
    def __init__(self, spec: ModelSpec, ops: OpTable, kv: KVStore) -> None:
        self._ops = ops
        self._kv = kv
        self._frequencies = spec.key_frequencies
        self._probes = (spec.num_layers // 2, spec.num_layers - 1)

    def link(self, link: Link) -> float:
        """Copy the tokens of a link if its fresh ones agree -> how far those are from the same ones in the source."""
        count, num_fresh = link.end - link.first, link.start - link.first
        source = self._slots(link.source_ids, link.source_first, count)
        own = self._slots(link.block_ids, link.first, count)
        turns = {rates: self._turn(rates, link.shift) for rates in set(self._frequencies)}
        error = max(
            _distance(
                self._ops.read_kv(self._kv.layers[layer], own[:num_fresh]),
                self._moved(layer, source[:num_fresh], turns[self._frequencies[layer]]),
            )
            for layer in self._probes
        )
        if link.fits(error):
            for layer, rates in enumerate(self._frequencies):
                keys, values = self._moved(layer, source[num_fresh:], turns[rates])
                self._ops.write_kv(self._kv.layers[layer], keys, values, own[num_fresh:])
        return error

    def _slots(self, block_ids: Sequence[int], first: int, count: int) -> Tensor:
        size = self._kv.block_size
        places = torch.arange(first, first + count)
        slots = torch.tensor(block_ids)[places // size] * size + places % size
        return slots.to(self._kv.layers[0].device)

    def _turn(self, rates: Sequence[float], shift: int) -> Tensor:
        """Cosines and sines of a shift, [2, D / 2]."""
        angles = shift * torch.tensor(rates, dtype=torch.float64)
        return torch.stack((angles.cos(), angles.sin())).float().to(self._kv.layers[0].device)

    def _moved(self, layer: int, slots: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values as they are where the picture stands now, [T, K, D] each."""
        keys, values = self._ops.read_kv(self._kv.layers[layer], slots)
        cos, sin = turn
        first, second = keys.float().chunk(2, -1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        return turned.to(keys.dtype), values.contiguous()


def _distance(fresh: tuple[Tensor, Tensor], cached: tuple[Tensor, Tensor]) -> float:
    """How far keys or values are apart, whichever are further, relative to the fresh ones."""
    return max(
        float((mine.float() - other.float()).norm() / mine.float().norm())
        for mine, other in zip(fresh, cached, strict=True)
    )
