"""The vision tower of Qwen2-VL, Qwen2.5-VL and Qwen3-VL over packed patches of pictures and clips, with its mergers.

P packed patches in merge order (the merge_size² patches of a visual token are neighbours), D head width. Raw bytes
come in: rescale and normalisation are folded into the patch embedding, and a still picture, whose frame the reference
model repeats, meets the sum of both temporal kernel slices. The embedding stays in float32: it sees values up to 255,
costs about one percent of the tower, and so loses nothing to rounding.

A visual token's features are [merged | deep level 1 | ...]: what the last layer gives, then what the merger of each
deep layer makes of that layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from tapetum.core.media import Geometry
from tapetum.models.encoding import Encoding, KnownParts, Stage
from tapetum.models.qwen_vl.grids import Grid, merge_order_coordinates, neighbours, window_order
from tapetum.models.qwen_vl.windows import WindowRun, Windows, plan_windows
from tapetum.models.vit import (
    FLOAT32_WORK,
    Batch,
    Block,
    BlockConfig,
    fold_normalisation,
    make_linear,
    make_norm,
)
from tapetum.models.weights import Weights
from tapetum.ops.layout import Segments, plan_segments
from tapetum.ops.table import OpTable

Generation = Literal["2", "2.5", "3"]
ROPE_THETA = 10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    generation: Generation  # says what a checkpoint calls the parts
    block: BlockConfig
    depth: int
    out_width: int
    in_channels: int
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    window: int = 0  # visual tokens of a side; 0 = every layer sees the whole picture
    full_attention_layers: frozenset[int] = frozenset()  # of a tower with windows
    position_side: int = 0  # of the square of learned positions; 0 = there are none
    deep_layers: tuple[int, ...] = ()  # layers behind which a merger of their own gives features

    @property
    def num_early(self) -> int:
        """Layers before the first that sees beyond windows; none without windows."""
        return min(self.full_attention_layers, default=self.depth) if self.window else 0

    @property
    def merged_width(self) -> int:
        return self.block.width * self.merge_size**2


@dataclass(slots=True, eq=False)
class Work:
    """Pictures and clips packed for one encode, and what has come of them."""

    batch: Batch
    features: Tensor  # [visual tokens, out width * (1 + deep levels)]
    whole: Segments  # one segment a frame
    windows: Segments  # one segment a window; same as `whole` without windows
    early: Windows  # on their way through the layers before the first that sees more; none without windows
    order: Tensor | None  # [visual tokens] window order -> merge order, None if they are the same
    places: Tensor | None  # [P] the same for patches, the other way round
    positions: tuple[Tensor, Tensor] | None  # learned positions around each patch and their shares, [P, 4]


class VisionTower:
    def __init__(self, config: VisionConfig, weights: Weights, ops: OpTable) -> None:
        self._config, self._ops = config, ops
        patch = weights.take("visual.patch.weight").float()  # [width, C, t, y, x]
        self._dtype, self._device = weights.dtype, patch.device
        self._positions = weights.take("visual.positions").float() if config.position_side else None
        more = weights.take("visual.patch.bias").float() if config.generation == "3" else 0
        self._embeddings = {}  # by the number of values in a patch
        for kernel in (patch.sum(2), patch):
            weight, bias = fold_normalisation(kernel, config.image_mean, config.image_std)
            self._embeddings[weight.shape[1]] = ops.linear(weight, bias + more, "none")
        self._blocks = [Block(config.block, weights, f"visual.{i}.", ops) for i in range(config.depth)]
        self._merger = Merger(config, weights, "visual.merger.", ops)
        self._deep_mergers = {
            layer: Merger(config, weights, f"visual.deep.{level}.", ops, is_norm_late=True)
            for level, layer in enumerate(config.deep_layers)
        }
        width = config.block.width // config.block.num_heads // 2
        step = torch.arange(0, width, 2, device=self._device, dtype=torch.float32) / width
        self._frequencies = (ROPE_THETA**-step).repeat(2)  # [D / 2]: of the row, then of the column
        self._axes = torch.arange(2, device=self._device).repeat_interleave(len(step))

    def begin(
        self, patches: Sequence[Tensor], geometries: Sequence[Geometry], known: Sequence[KnownParts] = ()
    ) -> Encoding:
        """uint8 patches [P_i, values] -> an encode of [tokens_i, out width * (1 + deep levels)] each."""
        grids = [geometry.grid_thw for geometry in geometries]
        for item, (t, h, w) in zip(patches, grids, strict=True):
            if item.shape[0] != t * h * w or item.shape[1] not in self._embeddings:
                raise ValueError(
                    f"patches have shape {tuple(item.shape)}, grid {t} x {h} x {w} wants another"
                )
        work = self._pack(grids, known)
        sizes = [t * h * w // self._config.merge_size**2 for t, h, w in grids]
        spared = sum(
            stage.rows * stage.work
            for run in work.early.runs
            if run.is_known
            for stage in self._early(work, run)
        )
        stages = self._stages(work, patches)
        return Encoding(stages, collect=lambda: list(torch.split(work.features, sizes)), spared=spared)

    def _stages(self, work: Work, patches: Sequence[Tensor]) -> Iterator[Stage]:
        config = self._config
        yield from self._embeds(work, patches)
        for run in work.early.runs:
            if not run.is_known:
                yield from self._early(work, run)
                if run.has_keys:
                    keep = partial(work.early.keep, work.batch.x, run)
                    yield Stage(len(run.windows), config.block.width, keep)
        if work.early.twins:
            copy = partial(work.early.copy_twins, work.batch.x)
            yield Stage(len(work.early.twins), config.block.width, copy)
        merging = config.merged_width * (config.merged_width + config.out_width)
        levels = iter(range(1, 1 + len(self._deep_mergers)))
        for index in range(config.num_early, config.depth):
            block = self._blocks[index]
            is_whole = index in config.full_attention_layers
            yield from block.stages(work.batch, work.whole if is_whole else work.windows)
            if index in self._deep_mergers:
                merge = partial(self._merge, work, self._deep_mergers[index], next(levels))
                yield Stage(len(work.features), merging, merge)
        yield Stage(len(work.features), merging, partial(self._merge, work, self._merger, 0))

    def _embeds(self, work: Work, patches: Sequence[Tensor]) -> Iterator[Stage]:
        """Of all patches but those of known windows."""
        computed = None
        if work.early.known_rows and work.places is not None:
            computed = work.early.is_computed(len(work.batch.x))[work.places.cpu()]
        first = 0
        for item in patches:
            cost = FLOAT32_WORK * item.shape[1] * self._config.block.width
            own = (
                torch.arange(len(item))
                if computed is None
                else computed[first : first + len(item)].nonzero()[:, 0]
            )
            if len(own):
                yield Stage(len(own), cost, partial(self._embed, work, item, first, own))
            first += len(item)

    def _early(self, work: Work, run: WindowRun) -> Iterator[Stage]:
        """Of a run of windows, the layers before the first that sees beyond them."""
        batch, segments = work.batch.part(run.rows), plan_segments(run.sizes)
        for block in self._blocks[: self._config.num_early]:
            yield from block.stages(batch, segments)

    def _embed(self, work: Work, patches: Tensor, first: int, rows: Tensor, start: int, end: int) -> None:
        """The `rows` [start, end) of an item that is packed from `first` on."""
        rows = rows[start:end].to(self._device)
        embedded = self._embeddings[patches.shape[1]](patches[rows].float())
        part = first + rows
        if work.positions is not None and self._positions is not None:
            indices, shares = (tensor[part] for tensor in work.positions)
            for corner in range(indices.shape[1]):
                embedded += self._positions[indices[:, corner]] * shares[:, corner, None]
        if work.places is None:
            work.batch.x.index_copy_(0, part, embedded.to(self._dtype))
        else:
            work.batch.x.index_copy_(0, work.places[part], embedded.to(self._dtype))

    def _merge(self, work: Work, merger: Merger, level: int, start: int, end: int) -> None:
        unit, width = self._config.merge_size**2, self._config.out_width
        merged = merger(work.batch.x[start * unit : end * unit])
        features = work.features[:, level * width : (level + 1) * width]
        if work.order is None:
            features[start:end] = merged
        else:
            features.index_copy_(0, work.order[start:end], merged)

    def _pack(self, grids: Sequence[Grid], known: Sequence[KnownParts]) -> Work:
        config, device = self._config, self._device
        each = [merge_order_coordinates(grid, config.merge_size) for grid in grids]
        coordinates = torch.cat(each)  # [P, 2]
        whole = [h * w for t, h, w in grids for _ in range(t)]
        order, places, positions, found = None, None, None, None
        if config.window:
            found = window_order(grids, config.merge_size, config.window)
            patches = torch.arange(len(coordinates)).view(len(found.tokens), -1)[found.tokens].flatten()
            coordinates, places = coordinates[patches], patches.argsort().to(device)
            order = found.tokens.to(device)
        if config.position_side:
            corners = [
                neighbours(grid, own, config.position_side) for grid, own in zip(grids, each, strict=True)
            ]
            indices, shares = (torch.cat(parts).to(device) for parts in zip(*corners, strict=True))
            positions = indices, shares
        turns = self._ops.turns(coordinates.t().to(device), self._axes, self._frequencies, self._dtype)
        num_tokens = len(coordinates) // config.merge_size**2
        width = config.out_width * (1 + len(config.deep_layers))
        batch = Batch.empty(config.block, len(coordinates), self._dtype, device, turns)
        return Work(
            batch=batch,
            features=torch.empty(num_tokens, width, dtype=self._dtype, device=device),
            whole=plan_segments(whole),
            windows=plan_segments(whole if found is None else found.sizes),
            early=Windows() if found is None else plan_windows(found, known, batch.x),
            order=order,
            places=places,
            positions=positions,
        )


class Merger:
    """A projector: normalise, put merge_size² neighbours side by side, two linears with GELU between.

    A late norm sees the neighbours side by side.
    """

    def __init__(
        self, config: VisionConfig, weights: Weights, name: str, ops: OpTable, *, is_norm_late: bool = False
    ) -> None:
        self._norm = make_norm(config.block, weights, name + "norm", ops)
        self._in = make_linear(weights, name + "in", "gelu")
        self._out = make_linear(weights, name + "out")
        self._width = config.merged_width
        self._is_norm_late = is_norm_late

    def __call__(self, x: Tensor) -> Tensor:
        if self._is_norm_late:
            return self._out(self._in(self._norm(x.view(-1, self._width))))
        return self._out(self._in(self._norm(x).view(-1, self._width)))
