"""InternVL 2 to 3.5: pictures in a grid of square tiles and an overview, clips as numbered frames of one tile.

The grid is the one whose aspect is nearest to that of the picture, and the picture is stretched over it. Checkpoints
come in two layouts, that of transformers (`internvl`) and the original one (`internvl_chat`), which keep the same
numbers under other names; the original one does not say which token stands for a visual token, the tokenizer does.

Sizes are (width, height); grids are counted in tiles (columns, rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tapetum.core.errors import CheckpointError, ConfigError, InvalidParameter, MediaError
from tapetum.core.files import ConfigReader, read_json
from tapetum.core.media import Geometry, MediaKind
from tapetum.core.request import Prompt
from tapetum.processing.layout import Piece, Segment, Special, lay_out, plain_run
from tapetum.processing.options import LOW_DETAIL_SHARE, LOW_DETAIL_TOKENS, ProcessorOptions
from tapetum.processing.pixels import Picture
from tapetum.processing.sampling import FrameSampling
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
    shape: TileShape
    merge_size: int  # patches of a visual token's side
    tiling: Tiling
    sampling: FrameSampling

    @classmethod
    def load(cls, directory: Path, config: Mapping[str, object]) -> InternVLProcessor:
        """From config.json (already read) and the files beside it."""
        reader = ConfigReader(config, "config.json")
        shape, merge_size = read_shape(reader)
        token = _placeholder_id(directory, reader)
        return cls(
            media_tokens={"image": token, "video": token},
            shape=shape,
            merge_size=merge_size,
            tiling=_tiling(directory, reader, shape),
            sampling=_sampling(directory),
        )

    @property
    def slots(self) -> Mapping[int | str, MediaKind]:
        return {self.media_tokens["image"]: "image", VIDEO_SLOT: "video"}

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
        if frames < 1 or (kind == "image" and frames != 1):
            raise MediaError(f"{kind} has {frames} frames; a picture has one, a clip at least one")
        if width < 1 or height < 1:
            raise MediaError(f"{kind} is {width}x{height} pixels; both sides must be at least 1")
        self._check_budget(kind, frames, options)
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
        area, tokens = self.shape.tile_size**2, self._tile_tokens
        most = max(1, options.max_pixels // area) if options.max_pixels else self.tiling.most
        least = ceil(options.min_pixels / area) if options.min_pixels else self.tiling.least
        if options.detail == "low":
            most = max(1, min(most // LOW_DETAIL_SHARE, LOW_DETAIL_TOKENS // tokens))
        if options.max_visual_tokens is not None:
            budget = options.max_visual_tokens // tokens
            most = min(most, max(1, budget - self.tiling.has_overview))
        return Tiling(least=min(least, most), most=most, has_overview=self.tiling.has_overview)

    def _check_budget(self, kind: MediaKind, frames: int, options: ProcessorOptions) -> None:
        budget, least = options.max_visual_tokens, frames * self._tile_tokens
        if budget is not None and budget < least:
            raise InvalidParameter(
                f"max_visual_tokens is {budget}, the {kind} has at least {least}, {self._tile_tokens} for each "
                "tile or frame; raise it or take fewer frames",
                param="max_visual_tokens",
            )


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


Normalisation = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation of each colour
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_normalisation(directory: Path) -> Normalisation:
    """What the patch embedding is folded with."""
    file = _settings(directory)
    return file.numbers("image_mean", _MEAN), file.numbers("image_std", _STD)


def _settings(directory: Path) -> ConfigReader:
    joint = ConfigReader(read_json(directory / "processor_config.json") or {}, "processor_config.json")
    if joint.has("image_processor"):
        return joint.section("image_processor")
    return ConfigReader(read_json(directory / "preprocessor_config.json") or {}, "preprocessor_config.json")


def _tiling(directory: Path, reader: ConfigReader, shape: TileShape) -> Tiling:
    if reader.word("model_type") != ORIGINAL_TYPE:
        file = _settings(directory)
        return Tiling(
            least=file.integer("min_patches", 1), most=file.integer("max_patches", 12), has_overview=True
        )
    reader.only("pad2square", False)
    if not reader.flag("dynamic_image_size", False):
        return Tiling(least=1, most=1, has_overview=False)
    return Tiling(
        least=reader.integer("min_dynamic_patch", 1),
        most=reader.integer("max_dynamic_patch", 6),
        has_overview=reader.flag("use_thumbnail", False),
    )


def _sampling(directory: Path) -> FrameSampling:
    file = ConfigReader(
        read_json(directory / "video_preprocessor_config.json") or {}, "video_preprocessor_config.json"
    )
    return FrameSampling(num_frames=file.integer("num_frames", NUM_FRAMES), min_frames=1, multiple=1)


def _placeholder_id(directory: Path, reader: ConfigReader) -> int:
    """From config.json, or where that does not say, from the added tokens of the tokenizer."""
    if reader.has("image_token_id"):
        return reader.integer("image_token_id", low=0)
    declared = (read_json(directory / "tokenizer_config.json") or {}).get("added_tokens_decoder")
    for token_id, token in declared.items() if isinstance(declared, dict) else ():
        if isinstance(token, dict) and token.get("content") == PLACEHOLDER:
            return int(token_id)
    added = (read_json(directory / "tokenizer.json") or {}).get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and token.get("content") == PLACEHOLDER:
            return int(token["id"])
    raise CheckpointError(
        f"{directory}: neither tokenizer_config.json nor tokenizer.json has the token {PLACEHOLDER}, which stands "
        "for a visual token; fetch the tokenizer's files again"
    )
