"""Idefics3 and SmolVLM: pictures in square tiles beside an overview, clips as frames of one tile with their times.

A picture is scaled to the longest edge, up or down, then to whole tiles; the overview is made of that, and not of the
picture. What is no larger than one tile is that tile alone. The prompt says which tile is where, and of a clip how many
frames it has, how long it lasts and when each frame is shown.

Sizes are (width, height); tiles are counted (columns, rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tapetum.core.errors import ConfigError
from tapetum.core.files import ConfigReader, read_json
from tapetum.core.media import Geometry, MediaKind
from tapetum.core.request import Prompt
from tapetum.processing.idefics_clips import ClipSampling, clip_pieces
from tapetum.processing.layout import Piece, Placement, Segment, Special, lay_out, plain_run
from tapetum.processing.options import LOW_DETAIL_SHARE, LOW_DETAIL_TOKENS, ProcessorOptions
from tapetum.processing.parts import PartPlace, tile_parts
from tapetum.processing.pixels import Picture, size_of
from tapetum.processing.refusals import check_budget, check_shape
from tapetum.processing.sampling import FrameSampling
from tapetum.processing.settings import (
    EVERY_STEP,
    IGNORED_KEYS,
    JOINT,
    check_switches,
    read_resample,
    read_settings,
)
from tapetum.processing.tiles import Canvas, TileShape, cut_tiles

FAKE_TOKEN = "<fake_token_around_image>"
OVERVIEW_TOKEN = "<global-img>"
VIDEO_SLOT = "<video>"
USUAL_EDGE, USUAL_TILE = 4 * 364, 364  # of a checkpoint that says nothing
MAX_EDGE = 4096

Size = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdeficsProcessor:
    """Implements `processing.base.Processor` with the numbers of one checkpoint."""

    media_tokens: Mapping[MediaKind, int]
    slots: Mapping[int | str, MediaKind]
    shape: TileShape
    merge_size: int  # patches of a visual token's side
    is_split: bool  # whether pictures are cut into tiles
    edges: Mapping[MediaKind, int]  # what the longer side is scaled to first
    sampling: FrameSampling

    @classmethod
    def load(cls, directory: Path, config: Mapping[str, object]) -> IdeficsProcessor:
        """From config.json (already read) and the processor files beside it."""
        reader = ConfigReader(config, "config.json")
        shape, merge_size = read_shape(directory, reader)
        file, token = read_settings(directory), reader.integer("image_token_id", 128257, low=0)
        check_switches(file, EVERY_STEP)
        media_tokens: dict[MediaKind, int] = {"image": token}
        slots: dict[int | str, MediaKind] = {token: "image"}
        edges: dict[MediaKind, int] = {"image": longest_edge(file, "size", USUAL_EDGE)}
        sampling = FrameSampling()
        if reader.word("model_type") == "smolvlm":
            media_tokens["video"], slots[VIDEO_SLOT] = token, "video"
            edges["video"], sampling = _read_clips(directory, shape.tile_size)
        is_split = file.flag("do_image_splitting", True)
        file.finish((*IGNORED_KEYS, *_IGNORED))
        joint = ConfigReader(read_json(directory / JOINT) or {}, JOINT)
        joint.only("image_seq_len", (shape.side // merge_size) ** 2)
        return cls(
            media_tokens=media_tokens,
            slots=slots,
            shape=shape,
            merge_size=merge_size,
            is_split=is_split,
            edges=edges,
            sampling=sampling,
        )

    @property
    def parameters(self) -> Mapping[str, int]:
        return {
            "tile_size": self.shape.tile_size,
            "patch_size": self.shape.patch_size,
            "merge_size": self.merge_size,
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
        used = self._field((width, height), options) if kind == "image" else self._tile
        tiles = None if used == self._tile else self._tiles(used)
        num_tiles = self._num_tiles(used) * frames
        check_budget(kind, num_tiles * self._tokens.num_tokens, options)
        side, rate = self.shape.side, frame_rate or options.fps or self.sampling.fps
        times = tuple(frame_times) or tuple(index / rate for index in range(frames))
        return Geometry(
            kind=kind,
            original=(width, height),
            used=used,
            frames=frames,
            grid_thw=(num_tiles, side, side),
            num_tokens=num_tiles * self._tokens.num_tokens,
            segments=(side * side,) * num_tiles,
            seconds_per_grid=1 / rate if kind == "video" else 0.0,
            tiles=tiles,
            frame_times=times if kind == "video" else (),
        )

    def least_pixels(self, kind: MediaKind, options: ProcessorOptions) -> int:
        return self.shape.tile_size**2

    def patches(self, frames: Iterable[Picture], geometry: Geometry) -> NDArray[np.uint8]:
        edge = self.edges[geometry.kind]
        if geometry.tiles is not None:
            edge = min(edge, max(geometry.used))
        frames = (self._resized(frame, edge_size(size_of(frame), edge)) for frame in frames)
        canvases = [Canvas.filled(*self._tile)]
        if geometry.tiles is not None:
            frames = (self._resized(frame, geometry.used) for frame in frames)
            canvases = [Canvas.filled(*geometry.used), *canvases]
        return cut_tiles(frames, geometry, canvases, self.shape)

    def parts(self, geometry: Geometry) -> tuple[PartPlace, ...]:
        return tile_parts(geometry)

    def expand(self, geometry: Geometry) -> tuple[Piece, ...]:
        if geometry.kind == "video":
            return tuple(clip_pieces(geometry, self._overview))
        if geometry.tiles is None:
            return self._overview
        return (*self._grid(*geometry.tiles), "\n", *self._overview)

    def layout(self, segments: Sequence[Segment]) -> Prompt:
        return lay_out(segments, self.media_tokens, "plain")

    @property
    def _tile(self) -> Size:
        return self.shape.tile_size, self.shape.tile_size

    @property
    def _tokens(self) -> Placement:
        """Of one tile."""
        return plain_run((self.shape.side // self.merge_size) ** 2)

    @property
    def _overview(self) -> tuple[Piece, ...]:
        return Special(FAKE_TOKEN), Special(OVERVIEW_TOKEN), self._tokens, Special(FAKE_TOKEN)

    def _grid(self, columns: int, rows: int) -> Iterator[Piece]:
        """A line for each row of tiles."""
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                yield from (Special(FAKE_TOKEN), Special(f"<row_{row}_col_{column}>"), self._tokens)
            yield "\n"

    def _tiles(self, field: Size) -> Size:
        return field[0] // self.shape.tile_size, field[1] // self.shape.tile_size

    def _num_tiles(self, field: Size) -> int:
        """With the overview."""
        columns, rows = self._tiles(field)
        return 1 if field == self._tile else columns * rows + 1

    def _field(self, size: Size, options: ProcessorOptions) -> Size:
        """The size that is cut into tiles; that of one tile where a picture is not cut.

        What a request allows is kept by a shorter edge: each that is tried is about a tile shorter than the last.
        """
        if not self.is_split:
            return self._tile
        tile, longest = self.shape.tile_size, self.edges["image"]
        width, height = whole_tiles(edge_size(size, longest), tile)
        area = min(width * height, options.max_pixels or width * height)
        tokens = options.max_visual_tokens
        if options.detail == "low":
            area, tokens = area // LOW_DETAIL_SHARE, min(tokens or LOW_DETAIL_TOKENS, LOW_DETAIL_TOKENS)
        for edge in (longest, *range((min(longest, MAX_EDGE) - 1) // tile * tile, tile, -tile)):
            field = whole_tiles(edge_size(size, edge), tile)
            count = self._num_tiles(field) * self._tokens.num_tokens
            if field[0] * field[1] <= area and (tokens is None or count <= tokens):
                return field
        return self._tile

    def _resized(self, frame: Picture, size: Size) -> Picture:
        if size_of(frame) == size:
            return frame
        image = frame if isinstance(frame, Image.Image) else Image.fromarray(frame)
        return image.resize(size, self.shape.resample)


def edge_size(size: Size, edge: int) -> Size:
    """The size whose longer side is `edge`, but at most MAX_EDGE; the shorter is rounded down, then to an even number.

    The order of roundings is that of transformers, by which two sides of nearly one length may change places.
    """
    used_width, used_height = _with_longer(size, edge)
    if size[0] >= size[1]:
        used_height += used_height % 2
    else:
        used_width += used_width % 2
    used = max(used_width, 1), max(used_height, 1)
    if max(used) <= MAX_EDGE:
        return used
    used_width, used_height = _with_longer(used, MAX_EDGE)
    return max(used_width, 1), max(used_height, 1)


def whole_tiles(size: Size, tile: int) -> Size:
    """The size rounded up to whole tiles, the longer side first and the other in proportion to it."""
    width, height = _with_longer(size, ceil(max(size) / tile) * tile)
    return ceil(width / tile) * tile, ceil(height / tile) * tile


def _with_longer(size: Size, longer: int) -> Size:
    width, height = size
    if width >= height:
        return longer, int(longer / (width / height))
    return int(longer * (width / height)), longer


def read_shape(directory: Path, reader: ConfigReader) -> tuple[TileShape, int]:
    """Tiles of the processor's file, patches of config.json, and the patches of a visual token's side."""
    vision, file = reader.section("vision_config"), read_settings(directory)
    patch, merge_size = vision.side("patch_size", 32), reader.integer("scale_factor", 2)
    tile = longest_edge(file, "max_image_size", USUAL_TILE)
    resample = read_resample(file, Image.Resampling.LANCZOS)
    shape = TileShape(tile_size=tile, patch_size=patch, resample=resample)
    if not shape.side or shape.side % merge_size:
        raise ConfigError(
            f"{file.name}: a tile of {tile} pixels, patches of {patch} and a scale_factor of {merge_size} give no "
            "whole visual tokens; use a checkpoint whose numbers fit"
        )
    return shape, merge_size


_IGNORED = (
    "do_pad", "image_mean", "image_std", "max_image_size", "resample", "return_row_col_info", "size",
    "video_sampling",
)  # fmt: skip


def longest_edge(file: ConfigReader, key: str, usual: int) -> int:
    section = file.section(key)
    return usual if section.is_empty else section.integer("longest_edge")


def _read_clips(directory: Path, tile_size: int) -> tuple[int, FrameSampling]:
    """What a frame's longer side is scaled to first, and which frames are taken; `size` goes before video_size."""
    file = read_settings(directory, "video")
    if longest_edge(file, "max_image_size", tile_size) != tile_size:
        raise ConfigError(f"{file.name}: max_image_size is not {tile_size} as for pictures; make it so")
    chosen = file.section("video_sampling")
    edge = longest_edge(file, "size", longest_edge(chosen, "video_size", USUAL_EDGE))
    sampling = ClipSampling(
        fps=chosen.number("fps", file.number("fps", 1.0)),
        max_frames=chosen.integer("max_frames", file.integer("num_frames", 64)),
    )
    return edge, sampling
