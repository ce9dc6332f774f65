"""InternVL 2 to 3.5: pictures in a grid of square tiles and an overview, clips as numbered frames of one tile.

The grid is the one whose aspect is nearest to that of the picture, and the picture is stretched over it. Checkpoints
come in two layouts, that of transformers (`internvl`) and the original one (`internvl_chat`), which keep the same
numbers under other names; the original one does not say which token stands for a visual token, the tokenizer does.

Sizes are (width, height); grids are counted in tiles (columns, rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tapetum.core.errors import ConfigError
from tapetum.core.files import ConfigReader
from tapetum.core.media import Geometry, MediaKind
from tapetum.core.request import Prompt
from tapetum.processing.layout import Piece, Segment, Special, lay_out, plain_run
from tapetum.processing.options import LOW_DETAIL_SHARE, LOW_DETAIL_TOKENS, ProcessorOptions
from tapetum.processing.parts import PartPlace, tile_parts
from tapetum.processing.pixels import Picture
from tapetum.processing.refusals import check_budget, check_shape
from tapetum.processing.sampling import DEFAULT_FPS, FrameSampling
from tapetum.processing.settings import (
    EVERY_STEP,
    IGNORED_KEYS,
    Normalisation,
    check_switches,
    read_normalisation,
    read_settings,
    token_id,
)
from tapetum.processing.tiles import Canvas, TileShape, cut_tiles

PLACEHOLDER = "<IMG_CONTEXT>"
VIDEO_SLOT = "<video>"
START, END = Special("<img>"), Special("</img>")
NUM_FRAMES = 8  # of a clip whose checkpoint does not say how many, as its authors show it
ORIGINAL_TYPE = "internvl_chat"

Size = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How many tiles a picture may be cut into, and whether an overview is added to several."""

    least: int
    most: int
    has_overview: bool

    def count(self, grid: Size) -> int:
        """Tiles that are encoded."""
        tiles = grid[0] * grid[1]
        return tiles + (self.has_overview and tiles > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVLProcessor:
    """Implements `processing.base.Processor` with the numbers of one checkpoint."""

    media_tokens: Mapping[MediaKind, int]
    slots: Mapping[int | str, MediaKind]
    shape: TileShape
    merge_size: int  # patches of a visual token's side
    tiling: Tiling
    sampling: FrameSampling

    @classmethod
    def load(cls, directory: Path, config: Mapping[str, object]) -> InternVLProcessor:
        """From config.json (already read) and the files beside it."""
        reader = ConfigReader(config, "config.json")
        is_original = reader.word("model_type") == ORIGINAL_TYPE
        shape, merge_size = read_shape(reader)
        pictures = read_settings(directory)
        token = token_id(directory, PLACEHOLDER) if is_original else reader.integer("image_token_id", 151667)
        return cls(
            media_tokens={"image": token, "video": token},
            slots={PLACEHOLDER if is_original else token: "image", VIDEO_SLOT: "video"},
            shape=shape,
            merge_size=merge_size,
            tiling=_original_tiling(reader) if is_original else _tiling(pictures, shape.tile_size),
            sampling=_sampling(read_settings(directory, "video")),
        )

    @property
    def parameters(self) -> Mapping[str, int]:
        return {
            "tile_size": self.shape.tile_size,
            "patch_size": self.shape.patch_size,
            "has_overview": int(self.tiling.has_overview),
        }

    def geometry(
        self,
        kind: MediaKind,
        width: int,
        height: int,
        *,
        frames: int = 1,
        frame_rate: float | None = None,
        frame_times: Sequence[float] = (),
        options: ProcessorOptions,
    ) -> Geometry:
        check_shape(kind, (width, height), frames, self.media_tokens)
        check_budget(kind, frames * self._tile_tokens, options)
        tile, side, grid = self.shape.tile_size, self.shape.side, (1, 1)
        if kind == "image":
            bounds = self._bounds(options)
            grid = choose_grid((width, height), tile, bounds.least, bounds.most)
        num_tiles = frames * self.tiling.count(grid)
        return Geometry(
            kind=kind,
            original=(width, height),
            used=(grid[0] * tile, grid[1] * tile),
            frames=frames,
            grid_thw=(num_tiles, side, side),
            num_tokens=num_tiles * self._tile_tokens,
            segments=(side * side,) * num_tiles,
            tiles=grid if grid != (1, 1) else None,
        )

    def least_pixels(self, kind: MediaKind, options: ProcessorOptions) -> int:
        least = self._bounds(options).least if kind == "image" else 1
        return least * self.shape.tile_size**2

    def patches(self, frames: Iterable[Picture], geometry: Geometry) -> NDArray[np.uint8]:
        canvases = [Canvas.filled(*geometry.used)]
        if geometry.tiles is not None and self.tiling.has_overview:
            canvases.append(Canvas.filled(self.shape.tile_size, self.shape.tile_size))
        return cut_tiles(frames, geometry, canvases, self.shape)

    def parts(self, geometry: Geometry) -> tuple[PartPlace, ...]:
        return tile_parts(geometry)

    def expand(self, geometry: Geometry) -> tuple[Piece, ...]:
        if geometry.kind == "image":
            return START, plain_run(geometry.num_tokens), END
        return tuple(self._clip(geometry.frames))

    def layout(self, segments: Sequence[Segment]) -> Prompt:
        return lay_out(segments, self.media_tokens, "plain")

    @property
    def _tile_tokens(self) -> int:
        return (self.shape.side // self.merge_size) ** 2

    def _clip(self, frames: int) -> Iterator[Piece]:
        for number in range(1, frames + 1):
            yield f"Frame{number}: " if number == 1 else f"\nFrame{number}: "
            yield from (START, plain_run(self._tile_tokens), END)

    def _bounds(self, options: ProcessorOptions) -> Tiling:
        """A bound of the request wins over the checkpoint's; a budget of tokens is kept, overview included."""
        area, budget = self.shape.tile_size**2, options.max_visual_tokens
        least = ceil(options.min_pixels / area) if options.min_pixels else self.tiling.least
        most = max(1, options.max_pixels // area) if options.max_pixels else max(self.tiling.most, least)
        if options.detail == "low":
            most = max(1, most // LOW_DETAIL_SHARE)
            budget = min(budget or LOW_DETAIL_TOKENS, LOW_DETAIL_TOKENS)
        if budget is not None:
            most = min(most, max(1, budget // self._tile_tokens - self.tiling.has_overview))
        return replace(self.tiling, least=min(least, most), most=most)


def choose_grid(size: Size, tile_size: int, least: int, most: int) -> Size:
    """The grid of `least` to `most` tiles whose aspect is nearest to that of a picture.

    Of equally near ones a larger one is taken while the picture has more than half as many pixels. The rule of
    InternVL as transformers has it: smaller grids come first, of equal ones those with fewer columns.
    """
    width, height = size
    best, nearest = (1, 1), float("inf")
    for columns, rows in _grids(least, most):
        distance = abs(width / height - columns / rows)
        is_large = width * height > 0.5 * tile_size * tile_size * columns * rows
        if distance < nearest or (distance == nearest and is_large):
            best, nearest = (columns, rows), distance
    return best


def _grids(least: int, most: int) -> list[Size]:
    grids = (
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(-(-least // columns), most // columns + 1)
    )
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def read_shape(reader: ConfigReader) -> tuple[TileShape, int]:
    """Tiles and patches of either layout of config.json, and the patches of a visual token's side."""
    vision = reader.section("vision_config")
    tile, patch = vision.side("image_size", 448), vision.side("patch_size", 14)
    ratio = reader.number("downsample_ratio", 0.5)
    merge_size = round(1 / ratio) if 0 < ratio <= 1 else 0
    shape = TileShape(tile_size=tile, patch_size=patch)
    if not merge_size or tile % (patch * merge_size):
        raise ConfigError(
            f"{reader.name}: image_size {tile}, patch_size {patch} and downsample_ratio {ratio} give no whole "
            "visual tokens; use a checkpoint whose numbers fit"
        )
    reader.only("force_image_size", tile)
    reader.only("image_seq_length", (shape.side // merge_size) ** 2)
    return shape, merge_size


def read_colours(directory: Path) -> Normalisation:
    """What the patch embedding is folded with; usually the numbers of ImageNet."""
    return read_normalisation(read_settings(directory), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def _original_tiling(reader: ConfigReader) -> Tiling:
    """Its processor file is that of a CLIP, which says nothing of tiles."""
    reader.only("pad2square", False)
    if not reader.flag("dynamic_image_size", False):
        return Tiling(least=1, most=1, has_overview=False)
    return Tiling(
        least=reader.integer("min_dynamic_patch", 1),
        most=reader.integer("max_dynamic_patch", 6),
        has_overview=reader.flag("use_thumbnail", False),
    )


def _tiling(file: ConfigReader, tile_size: int) -> Tiling:
    """Pictures are cut whatever crop_to_patches says, as the joint processor of transformers has it."""
    check_switches(file, {**EVERY_STEP, "resample": 3})  # bicubic
    file.section("size").only("height", tile_size)
    file.section("size").only("width", tile_size)
    least, most = file.integer("min_patches", 1), file.integer("max_patches", 12)
    file.finish((*IGNORED_KEYS, "crop_to_patches", "do_center_crop", "image_mean", "image_std"))
    return Tiling(least=least, most=most, has_overview=True)


def _sampling(file: ConfigReader) -> FrameSampling:
    has_rate = file.has("fps") and not file.has("num_frames")
    return FrameSampling(
        fps=file.number("fps", DEFAULT_FPS),
        num_frames=None if has_rate else file.integer("num_frames", NUM_FRAMES),
        min_frames=1,
        multiple=1,
        is_middle=True,
    )
