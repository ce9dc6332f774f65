"""How large the pictures and clips of a checkpoint become, from the smallest to the largest that its rules allow.

Owns the question, asked of the processor for a few shapes; the rules are the family's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

from tapetum.core.errors import MediaError
from tapetum.core.media import Geometry
from tapetum.processing.base import Processor
from tapetum.processing.options import ProcessorOptions

_SHAPES = ((1, 1), (4, 3), (3, 4), (16, 9), (9, 16), (2, 1), (1, 2), (3, 1), (1, 3))
_SIDES = (28, 56, 112, 224)  # of small pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Of one picture or clip; all 0 for a model of text."""

    least_tokens: int = 0
    most_tokens: int = 0
    most_patches: int = 0
    patches_per_token: float = 0.0  # where they are most

    def patches_of(self, num_tokens: int) -> int:
        """At most so many patches become this many visual tokens."""
        return int(num_tokens * self.patches_per_token)


def extent(processor: Processor, max_pixels: int, max_frames: int) -> Extent:
    found = tuple(_geometries(processor, max_pixels, max_frames))
    if not found:
        return Extent()
    return Extent(
        least_tokens=min(geometry.num_tokens for geometry in found),
        most_tokens=max(geometry.num_tokens for geometry in found),
        most_patches=max(geometry.num_patches for geometry in found),
        patches_per_token=max(geometry.num_patches / geometry.num_tokens for geometry in found),
    )


def _geometries(processor: Processor, max_pixels: int, max_frames: int) -> Iterator[Geometry]:
    small = [(side, side) for side in _SIDES]
    middle = [(512 * width, 512 * height) for width, height in _SHAPES]
    large = [_shaped(max_pixels, *shape) for shape in _SHAPES]
    for kind in processor.media_tokens:
        for width, height in (*small, *middle, *large):
            frames = max_frames if kind == "video" else 1
            try:
                yield processor.geometry(kind, width, height, frames=frames, options=ProcessorOptions())
            except MediaError:
                continue  # a shape that the family refuses of clients too


def _shaped(pixels: int, width: int, height: int) -> tuple[int, int]:
    unit = isqrt(pixels // (width * height))
    return max(1, unit * width), max(1, unit * height)
