"""LLaVA-1.5, LLaVA-NeXT and LLaVA-OneVision: pictures on one tile, or on an overview and a field of tiles.

LLaVA-1.5 scales a picture to the tile by its shorter side and takes the middle, or stretches it where its processor
file says so. The later two stretch it for the overview and scale it in its own aspect into one of a list of fields
(anyres.py). `Geometry.used` is the part of the field whose features count, in whole patches. The frames of a clip are
stretched to a tile each. Every picture of a prompt is seen in a field, also where there are several.

Sizes are (width, height); fields are counted in tiles (columns, rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tapetum.core.errors import MediaError
from tapetum.core.files import ConfigReader
from tapetum.core.media import Geometry, MediaKind
from tapetum.core.request import Prompt
from tapetum.processing.anyres import Size, best_field, scaled_into, shrunk, unpadded
from tapetum.processing.base import MAX_ASPECT
from tapetum.processing.layout import Piece, Segment, lay_out, plain_run
from tapetum.processing.llava_files import (
    NOT_ASKED,
    ONE_TILE,
    ONE_VISION,
    check_files,
    read_crop,
    read_fields,
    read_most_cells,
    read_shape,
    read_tokens,
)
from tapetum.processing.llava_parts import llava_parts
from tapetum.processing.options import ProcessorOptions
from tapetum.processing.parts import PartPlace
from tapetum.processing.pixels import Picture
from tapetum.processing.refusals import check_budget, check_shape
from tapetum.processing.sampling import FrameSampling
from tapetum.processing.settings import IGNORED_KEYS, read_settings
from tapetum.processing.tiles import Canvas, TileShape, cut_tiles

NUM_FRAMES = 32  # of a clip that is a file, as the model was trained


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaProcessor:
    """Implements `processing.base.Processor` with the numbers of one checkpoint."""

    media_tokens: Mapping[MediaKind, int]
    shape: TileShape
    cropped_from: int | None  # pixels of the shorter side before the middle is taken; None = stretched
    fields: tuple[Size, ...]  # in pixels; none = a picture is one tile
    has_newline: bool  # a token behind every line of patches of a field, and behind all other items
    most_cells: int | None  # patches of a field that are not averaged to fewer; None = all stay
    sampling: FrameSampling

    @classmethod
    def load(cls, directory: Path, config: Mapping[str, object]) -> LlavaProcessor:
        """From config.json (already read) and the processor files beside it."""
        reader = ConfigReader(config, "config.json")
        model_type = reader.word("model_type")
        is_tiled, is_one_vision = model_type != ONE_TILE, model_type == ONE_VISION
        file = read_settings(directory)
        clips = read_settings(directory, "video") if is_one_vision else file
        shape, cropped_from = read_shape(reader, file), read_crop(reader, file)
        check_files(reader, file, clips, is_tiled=is_tiled)
        fields = read_fields(reader, file, is_one_vision=is_one_vision) if is_tiled else ()
        sampling = FrameSampling(num_frames=clips.integer("num_frames", NUM_FRAMES), multiple=1)
        for part in (file, clips):
            part.finish((*IGNORED_KEYS, *NOT_ASKED))
        return cls(
            media_tokens=read_tokens(reader, is_one_vision=is_one_vision),
            shape=shape,
            cropped_from=None if is_tiled else cropped_from,
            fields=fields,
            has_newline=is_tiled,
            most_cells=read_most_cells(reader) if is_one_vision else None,
            sampling=sampling,
        )

    @property
    def slots(self) -> Mapping[int | str, MediaKind]:
        return {token: kind for kind, token in self.media_tokens.items()}

    @property
    def parameters(self) -> Mapping[str, int]:
        return {
            "tile_size": self.shape.tile_size,
            "patch_size": self.shape.patch_size,
            "cropped_from": self.cropped_from or 0,
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
        size = (width, height)
        check_shape(kind, size, frames, self.media_tokens)
        self._check_aspect(size)
        field = self._field(size, options) if kind == "image" else None
        num_tokens = self._clip_tokens(frames) if kind == "video" else self._picture_tokens(size, field)
        check_budget(kind, num_tokens, options)
        tiles = None if field is None else self._tiles(field)
        num_tiles = frames if tiles is None else tiles[0] * tiles[1] + 1
        side = self.shape.side
        return Geometry(
            kind=kind,
            original=size,
            used=(self.shape.tile_size,) * 2 if field is None else self._used(size, field),
            frames=frames,
            grid_thw=(num_tiles, side, side),
            num_tokens=num_tokens,
            segments=(side * side,) * num_tiles,
            tiles=tiles,
        )

    def least_pixels(self, kind: MediaKind, options: ProcessorOptions) -> int:
        return self.shape.tile_size**2

    def patches(self, frames: Iterable[Picture], geometry: Geometry) -> NDArray[np.uint8]:
        tile = self.shape.tile_size
        canvases = [Canvas.filled(tile, tile)]
        if geometry.kind == "image" and self.cropped_from is not None:
            canvases = [self._middle(geometry.original, self.cropped_from)]
        if geometry.tiles is not None:
            field = geometry.tiles[0] * tile, geometry.tiles[1] * tile
            scaled = scaled_into(geometry.original, field)
            corner = (field[0] - scaled[0]) // 2, (field[1] - scaled[1]) // 2
            canvases.append(Canvas(size=field, scaled=scaled, corner=corner))
        return cut_tiles(frames, geometry, canvases, self.shape)

    def parts(self, geometry: Geometry) -> tuple[PartPlace, ...]:
        return llava_parts(geometry, self.shape, has_newline=self.has_newline, most_cells=self.most_cells)

    def expand(self, geometry: Geometry) -> tuple[Piece, ...]:
        return (plain_run(geometry.num_tokens),)

    def layout(self, segments: Sequence[Segment]) -> Prompt:
        return lay_out(segments, self.media_tokens, "plain")

    def _check_aspect(self, size: Size) -> None:
        """A picture that is scaled by its shorter side grows with its aspect ratio."""
        if self.cropped_from is not None and max(size) > MAX_ASPECT * min(size):
            raise MediaError(
                f"picture is {size[0]}x{size[1]}, an aspect ratio of {max(size) / min(size):.0f}, "
                f"limit {MAX_ASPECT}; crop or pad it"
            )

    def _field(self, size: Size, options: ProcessorOptions) -> Size | None:
        """The field of a picture within what a request allows; None where it is seen on one tile.

        max_pixels bounds the area of all tiles together, the overview among them.
        """
        if options.detail == "low":
            return None
        allowed = self.fields
        if options.max_pixels is not None:
            area = options.max_pixels - self.shape.tile_size**2
            allowed = tuple(field for field in allowed if field[0] * field[1] <= area)
        if options.max_visual_tokens is not None:
            most = options.max_visual_tokens
            allowed = tuple(field for field in allowed if self._picture_tokens(size, field) <= most)
        return best_field(size, allowed)

    def _tiles(self, field: Size) -> Size:
        return field[0] // self.shape.tile_size, field[1] // self.shape.tile_size

    def _cells(self, size: Size, field: Size) -> Size:
        """Patches that the picture lies on, (columns, rows)."""
        columns, rows = self._tiles(field)
        return unpadded((columns * self.shape.side, rows * self.shape.side), size)

    def _used(self, size: Size, field: Size) -> Size:
        """Of an extreme picture there may be no line that counts."""
        columns, rows = self._cells(size, field)
        return max(1, columns * self.shape.patch_size), max(1, rows * self.shape.patch_size)

    def _picture_tokens(self, size: Size, field: Size | None) -> int:
        overview = self.shape.side**2
        if field is None:
            return overview + self.has_newline
        cells = self._cells(size, field)
        columns, rows = cells if self.most_cells is None else shrunk(cells, self.most_cells)
        return overview + rows * (columns + self.has_newline)

    def _clip_tokens(self, frames: int) -> int:
        return frames * ceil(self.shape.side / 2) ** 2 + self.has_newline

    def _middle(self, size: Size, shorter: int) -> Canvas:
        """The tile around the middle of a picture scaled by its shorter side."""
        tile = self.shape.tile_size
        longer = int(shorter * max(size) / min(size))
        width, height = (shorter, longer) if size[0] <= size[1] else (longer, shorter)
        corner = -((width - tile) // 2), -((height - tile) // 2)
        return Canvas(size=(tile, tile), scaled=(width, height), corner=corner)
