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
from tapetum.runtime.store import KVStore


class Linker:
    def __init__(self, spec: ModelSpec, kv: KVStore) -> None:
        self._kv = kv
        self._num_heads = spec.num_kv_heads
        self._frequencies = spec.key_frequencies
        self._probes = _probes(spec.num_layers)

    def link(self, link: Link) -> float:
        """Copy the tokens of a link if its fresh ones agree -> how far those are from the same ones in the source."""
        source = _slots(link.source_ids, link.source_first, link.end - link.first, self._kv)
        own = _slots(link.block_ids, link.first, link.end - link.first, self._kv)
        num_fresh = link.start - link.first
        turns = {rates: self._turn(rates, link.shift) for rates in set(self._frequencies)}
        errors = [
            _distance(
                self._read(layer, own[:num_fresh]),
                self._turned(layer, source[:num_fresh], turns[self._frequencies[layer]]),
                self._num_heads,
            )
            for layer in self._probes
        ]
        error = max(errors)
        if link.fits(error):
            for layer, rates in enumerate(self._frequencies):
                moved = self._turned(layer, source[num_fresh:], turns[rates])
                self._kv.layers[layer].flatten(1, 2).index_copy_(1, own[num_fresh:], moved)
        return error

    def _turn(self, rates: Sequence[float], shift: int) -> Tensor:
        """Cosines and sines of a shift, [2, D / 2]."""
        angles = shift * torch.tensor(rates, dtype=torch.float64)
        return torch.stack((angles.cos(), angles.sin())).float().to(self._kv.layers[0].device)

    def _read(self, layer: int, slots: Tensor) -> Tensor:
        """[2 K, T, D]: keys, then values."""
        return self._kv.layers[layer].flatten(1, 2).index_select(1, slots)

    def _turned(self, layer: int, slots: Tensor, turn: Tensor) -> Tensor:
        """The same with the keys turned."""
        found = self._read(layer, slots)
        cos, sin = turn
        first, second = found[: self._num_heads].float().chunk(2, -1)
        found[: self._num_heads] = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        return found


def _probes(num_layers: int) -> tuple[int, ...]:
    return (num_layers // 2, num_layers - 1)


def _distance(fresh: Tensor, cached: Tensor, num_heads: int) -> float:
    """How far keys or values are apart, whichever are further, relative to the fresh ones."""
    apart, size = (fresh - cached).float(), fresh.float()
    parts = ((slice(None, num_heads)), slice(num_heads, None))
    return max(float(apart[part].norm() / size[part].norm()) for part in parts)


def _slots(block_ids: Sequence[int], first: int, count: int, kv: KVStore) -> Tensor:
    places = torch.arange(first, first + count)
    blocks = torch.tensor(block_ids)[places // kv.block_size]
    return (blocks * kv.block_size + places % kv.block_size).to(kv.layers[0].device)
