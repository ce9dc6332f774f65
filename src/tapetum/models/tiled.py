"""A vision tower that sees equal square tiles: CLIP, SigLIP and InternViT as data.

Owns the patch embedding from raw bytes, learned positions, an optional class token in front of each tile, the norms
before and after the blocks, and the tower's slots. Runs only the layers that are asked for. Owns no projector: the
encoder of a family takes `rows` for its own last stages.

A picture of `grid_thw` (tiles, side, side) gives patches tile by tile, row by row. P packed rows: those of a tile lie
together, its class token first, and attend to each other alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tapetum.core.media import Geometry
from tapetum.models.encoding import Stage
from tapetum.models.vit import (
    FLOAT32_WORK,
    Batch,
    Block,
    BlockConfig,
    BlockNames,
    block_slots,
    fold_normalisation,
    make_norm,
    norm_slots,
)
from tapetum.models.weights import Slot, Weights
from tapetum.ops.layout import Segments, plan_segments
from tapetum.ops.table import OpTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerConfig:
    block: BlockConfig
    depth: int  # layers that run, which may be fewer than the checkpoint has
    patch_size: int
    side: int  # patches along a side of a tile
    image_mean: tuple[float, ...]  # of each colour
    image_std: tuple[float, ...]
    has_patch_bias: bool = True
    has_class_token: bool = False
    has_pre_norm: bool = False
    has_post_norm: bool = False

    @property
    def num_patches(self) -> int:
        """Patches of a tile."""
        return self.side**2

    @property
    def num_rows(self) -> int:
        """Patches of a tile, and its class token."""
        return self.num_patches + self.has_class_token


class TiledTower:
    """`name` is what the names of its slots begin with."""

    def __init__(self, config: TowerConfig, weights: Weights, ops: OpTable, name: str = "vision.") -> None:
        self.config = config
        kernel, bias = fold_normalisation(
            weights.take(name + "patch.weight").float(), config.image_mean, config.image_std
        )
        if config.has_patch_bias:
            bias = bias + weights.take(name + "patch.bias").float()
        self._embedding = ops.linear(kernel, bias, "none")
        self.dtype, self.device = weights.dtype, kernel.device
        positions = weights.take(name + "positions").float()
        self._positions = positions[-config.num_patches :]
        norms = {
            part: make_norm(config.block, weights, name + part, ops)
            for part, is_there in (("pre_norm", config.has_pre_norm), ("post_norm", config.has_post_norm))
            if is_there
        }
        self._pre_norm, self._post_norm = norms.get("pre_norm"), norms.get("post_norm")
        if config.has_class_token:
            start = weights.take(name + "class").float() + positions[:1]
            self._class_row = self._started(start)  # [1, width], the same for every tile
        self._blocks = [Block(config.block, weights, f"{name}{i}.", ops) for i in range(config.depth)]

    def pack(self, patches: Sequence[Tensor], geometries: Sequence[Geometry], counts: Sequence[int]) -> Batch:
        """Room for the rows of so many tiles of each of these items, uint8 [tiles * patches, values] each."""
        config = self.config
        num_values = len(config.image_mean) * config.patch_size**2
        for item, geometry, count in zip(patches, geometries, counts, strict=True):
            _, *sides = geometry.grid_thw
            wanted = (count * config.num_patches, num_values)
            if sides != [config.side] * 2 or tuple(item.shape) != wanted:
                raise ValueError(
                    f"patches have shape {tuple(item.shape)} for a grid of {geometry.grid_thw}, tiles of "
                    f"{config.side} x {config.side} patches of {num_values} values are wanted"
                )
        batch = Batch.empty(config.block, sum(counts) * config.num_rows, self.dtype, self.device)
        if config.has_class_token:
            batch.x[:: config.num_rows] = self._class_row
        return batch

    def stages(self, batch: Batch, patches: Sequence[Tensor]) -> Iterator[Stage]:
        """Everything up to the last layer that runs; then `rows` may be read."""
        config = self.config
        first = 0
        for item in filter(len, patches):
            work = FLOAT32_WORK * item.shape[1] * config.block.width
            yield Stage(len(item), work, partial(self._embed, batch, item, first))
            first += len(item)
        segments = self._segments(batch)
        for block in self._blocks:
            yield from block.stages(batch, segments)

    def rows(self, batch: Batch, start: int, end: int) -> Tensor:
        """What the tower says of patches [start, end) of all tiles, [patches, width]; class tokens do not count."""
        places = self._places(start, end)
        rows = batch.x[start:end] if places is None else batch.x.index_select(0, places)
        return rows if self._post_norm is None else self._post_norm(rows)

    def _embed(self, batch: Batch, patches: Tensor, first: int, start: int, end: int) -> None:
        """Patches [start, end) of an item that is packed from patch `first` on."""
        numbers = torch.arange(first + start, first + end, device=self.device)
        positions = self._positions.index_select(0, numbers % self.config.num_patches)
        embedded = self._started(self._embedding(patches[start:end].float(), positions))
        places = self._places(first + start, first + end)
        if places is None:
            batch.x[first + start : first + end] = embedded
        else:
            batch.x.index_copy_(0, places, embedded)

    def _started(self, embedded: Tensor) -> Tensor:
        """float32 embeddings with their positions -> what the first layer takes."""
        x = embedded.to(self.dtype)
        return x if self._pre_norm is None else self._pre_norm(x)

    def _places(self, start: int, end: int) -> Tensor | None:
        """The packed rows of patches [start, end); None where they are the same."""
        if not self.config.has_class_token:
            return None
        numbers = torch.arange(start, end, device=self.device)
        return numbers + numbers // self.config.num_patches + 1

    def _segments(self, batch: Batch) -> Segments:
        length = self.config.num_rows
        return plan_segments([length] * (len(batch.x) // length))


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerNames:
    """What a checkpoint calls the parts of a tower; `blocks` stands before the number of a block."""

    patch: str
    positions: str
    blocks: str
    block: BlockNames
    class_token: str = ""
    pre_norm: str = ""
    post_norm: str = ""


# CLIP and SigLIP, as transformers writes them behind `vision_model.`
CLIP_NAMES = TowerNames(
    patch="embeddings.patch_embedding",
    positions="embeddings.position_embedding.weight",
    blocks="encoder.layers.",
    block=BlockNames(
        norm1="layer_norm1",
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out="self_attn.out_proj",
        norm2="layer_norm2",
        mlp_in=("mlp.fc1",),
        mlp_out="mlp.fc2",
    ),
    class_token="embeddings.class_embedding",
    pre_norm="pre_layrnorm",
    post_norm="post_layernorm",
)


def tower_slots(
    config: TowerConfig, names: TowerNames, theirs: str, ours: str = "vision."
) -> tuple[Slot, ...]:
    """The slots of a tower whose names in the checkpoint begin with `theirs`."""
    block, p = config.block, config.patch_size
    width, kernel = block.width, (block.width, len(config.image_mean), p, p)
    slots = [Slot(ours + "patch.weight", (f"{theirs}{names.patch}.weight",), kernel)]
    if config.has_patch_bias:
        slots.append(Slot(ours + "patch.bias", (f"{theirs}{names.patch}.bias",), (width,)))
    slots.append(_rows_slot(ours + "positions", theirs + names.positions, config.num_rows, width))
    if config.has_class_token:
        slots.append(_rows_slot(ours + "class", theirs + names.class_token, 1, width))
    has_bias = block.norm == "layer"
    if config.has_pre_norm:
        slots += norm_slots(ours + "pre_norm", theirs + names.pre_norm, width, has_bias=has_bias)
    if config.has_post_norm:
        slots += norm_slots(ours + "post_norm", theirs + names.post_norm, width, has_bias=has_bias)
    for index in range(config.depth):
        slots += block_slots(block, names.block, f"{ours}{index}.", f"{theirs}{names.blocks}{index}.")
    return tuple(slots)


def _rows_slot(ours: str, theirs: str, count: int, width: int) -> Slot:
    """[count, width] of a tensor that may have further axes of length 1 in front."""
    return Slot(ours, (theirs,), (count, width), lambda parts: parts[0].reshape(-1, parts[0].shape[-1]))
