"""Gemma 3: every picture scaled to one square whatever its shape, and some cut into crops beside it (pan and scan).

The square is 4096 patches that the model averages to 256 tokens, which see each other both ways: they are atomic. Pan
and scan is off unless the checkpoint turns it on; then a long picture is also seen in two or more crops along its
longer side, each scaled to the square like the picture itself.

Sizes are (width, height); crops are counted (columns, rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, isqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tapetum.core.errors import ConfigError
from tapetum.core.files import ConfigReader
from tapetum.core.media import Geometry, MediaKind
from tapetum.core.request import Prompt
from tapetum.processing.layout import Piece, Segment, Special, lay_out, plain_run
from tapetum.processing.options import ProcessorOptions
from tapetum.processing.parts import PartPlace, tile_parts
from tapetum.processing.pixels import Picture
from tapetum.processing.refusals import check_budget, check_shape
from tapetum.processing.sampling import FrameSampling
from tapetum.processing.settings import (
    EVERY_STEP,
    IGNORED_KEYS,
    check_switches,
    read_resample,
    read_settings,
)
from tapetum.processing.tiles import Canvas, TileShape, cut_tiles

START_TOKEN = "<start_of_image>"
END_TOKEN = "<end_of_image>"

Size = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PanAndScan:
    """When a picture is cut into crops, and into how many."""

    min_crop_size: int  # pixels of a crop's shorter side
    max_num_crops: int
    min_ratio: float  # of the longer side to the shorter

    def crops(self, size: Size) -> Size | None:
        """Columns and rows of crops; None where the picture is seen as a whole alone."""
        longer, shorter = max(size), min(size)
        if longer / shorter < self.min_ratio:
            return None
        count = min(floor(longer / shorter + 0.5), longer // self.min_crop_size)
        count = min(max(count, 2), self.max_num_crops)
        if min(ceil(longer / count), shorter) < self.min_crop_size:
            return None
        return (count, 1) if size[0] >= size[1] else (1, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Processor:
    """Implements `processing.base.Processor` with the numbers of one checkpoint."""

    media_tokens: Mapping[MediaKind, int]
    slots: Mapping[int | str, MediaKind]  # templates write the token that begins a picture
    shape: TileShape
    side: int  # visual tokens along a side of the square
    pan_and_scan: PanAndScan | None = None
    sampling: FrameSampling = field(default_factory=FrameSampling)  # not used: the family takes no clips

    @classmethod
    def load(cls, directory: Path, config: Mapping[str, object]) -> Gemma3Processor:
        """From config.json (already read) and the processor file beside it."""
        reader = ConfigReader(config, "config.json")
        shape, side = read_shape(directory, reader)
        file = read_settings(directory)
        check_switches(file, EVERY_STEP)
        pan_and_scan = None
        if file.flag("do_pan_and_scan", False):
            pan_and_scan = PanAndScan(
                min_crop_size=file.integer("pan_and_scan_min_crop_size", 256),
                max_num_crops=file.integer("pan_and_scan_max_num_crops", 4),
                min_ratio=file.number("pan_and_scan_min_ratio_to_activate", 1.2),
            )
        file.finish((*IGNORED_KEYS, *_IGNORED))
        return cls(
            media_tokens={"image": reader.integer("image_token_index", 262144, low=0)},
            slots={reader.integer("boi_token_index", 255999, low=0): "image"},
            shape=shape,
            side=side,
            pan_and_scan=pan_and_scan,
        )

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"tile_size": self.shape.tile_size, "patch_size": self.shape.patch_size}

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
        check_budget(kind, self.side**2, options)
        crops = self._crops((width, height), options)
        num_squares = 1 + (0 if crops is None else crops[0] * crops[1])
        patches = self.shape.side
        return Geometry(
            kind="image",
            original=(width, height),
            used=(self.shape.tile_size, self.shape.tile_size),
            frames=1,
            grid_thw=(num_squares, patches, patches),
            num_tokens=num_squares * self.side**2,
            segments=(patches**2,) * num_squares,
            tiles=crops,
        )

    def least_pixels(self, kind: MediaKind, options: ProcessorOptions) -> int:
        return self.shape.tile_size**2

    def patches(self, frames: Iterable[Picture], geometry: Geometry) -> NDArray[np.uint8]:
        pictures = [piece for frame in frames for piece in _with_crops(frame, geometry.tiles)]
        squares = replace(geometry, frames=geometry.grid_thw[0])
        return cut_tiles(pictures, squares, [Canvas.filled(*geometry.used)], self.shape)

    def parts(self, geometry: Geometry) -> tuple[PartPlace, ...]:
        return tile_parts(geometry)

    def expand(self, geometry: Geometry) -> tuple[Piece, ...]:
        tokens = plain_run(self.side**2)
        square = ("\n\n", Special(START_TOKEN), tokens, Special(END_TOKEN), "\n\n")
        if geometry.tiles is None:
            return square
        columns, rows = geometry.tiles
        crops = [piece for _ in range(columns * rows) for piece in (" ", *square)]
        told = " and here are some crops to help you see better "
        return ("Here is the original image ", *square, told, *crops[1:])

    def layout(self, segments: Sequence[Segment]) -> Prompt:
        return lay_out(segments, self.media_tokens, "plain", is_atomic=True)

    def _crops(self, size: Size, options: ProcessorOptions) -> Size | None:
        """None as well where a request has no room for them."""
        if self.pan_and_scan is None or options.detail == "low":
            return None
        crops, budget = self.pan_and_scan.crops(size), options.max_visual_tokens
        if crops is None or budget is None:
            return crops
        return crops if (1 + crops[0] * crops[1]) * self.side**2 <= budget else None


def _with_crops(frame: Picture, crops: Size | None) -> list[Image.Image]:
    """The picture and its crops from left to right and down; the last may be smaller by some pixels."""
    image = frame if isinstance(frame, Image.Image) else Image.fromarray(frame)
    if crops is None:
        return [image]
    columns, rows = crops
    width, height = ceil(image.width / columns), ceil(image.height / rows)
    boxes = [(left * width, top * height) for top in range(rows) for left in range(columns)]
    return [
        image,
        *(
            image.crop((left, top, min(left + width, image.width), min(top + height, image.height)))
            for left, top in boxes
        ),
    ]


def read_shape(directory: Path, reader: ConfigReader) -> tuple[TileShape, int]:
    """The square and its patches, and the visual tokens along its side."""
    vision = reader.section("vision_config")
    size, patch = vision.side("image_size", 224), vision.side("patch_size", 16)
    side = isqrt(reader.integer("mm_tokens_per_image", 256))
    file = read_settings(directory)
    resample = read_resample(file, Image.Resampling.BILINEAR)
    shape = TileShape(tile_size=size, patch_size=patch, resample=resample)
    square = file.section("size")
    if (square.integer("width", 224), square.integer("height", 224)) != (size, size):
        raise ConfigError(f"{square.name} is not the image_size of config.json, {size}x{size}; make it so")
    if size % patch or shape.side % side:
        raise ConfigError(
            f"{reader.name}: image_size {size}, patch_size {patch} and {side}x{side} mm_tokens_per_image give no "
            "whole visual tokens; use a checkpoint whose numbers fit"
        )
    return shape, side


_IGNORED = (
    "image_mean", "image_std", "pan_and_scan_max_num_crops", "pan_and_scan_min_crop_size",
    "pan_and_scan_min_ratio_to_activate", "resample", "size",
)  # fmt: skip
