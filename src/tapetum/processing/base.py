"""What every model family shares between a picture's header and the encoder's input.

Owns the resize rule of native resolutions. A family (one file each) says with which numbers. Owns no prompt
(layout.py), no pixels (patches.py) and no normalisation: patches are raw uint8, and mean and deviation are folded into
the weights of the patch embedding.

`P` patches, `C` values of a patch; sizes are (width, height).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tapetum.core.errors import ConfigError, MediaError
from tapetum.core.media import Geometry, MediaKind
from tapetum.core.request import Prompt
from tapetum.processing.layout import Piece, Segment
from tapetum.processing.options import LOW_DETAIL_SHARE, LOW_DETAIL_TOKENS, ProcessorOptions
from tapetum.processing.parts import PartPlace
from tapetum.processing.pixels import Picture
from tapetum.processing.sampling import FrameSampling

MAX_ASPECT = 200


@dataclass(frozen=True, slots=True)
class PixelBounds:
    """The area of one frame after the resize, in pixels; where a family says so, of all frames of a clip together."""

    min_pixels: int
    max_pixels: int

    def __post_init__(self) -> None:
        if not 1 <= self.min_pixels <= self.max_pixels:
            raise ConfigError(
                f"pixel bounds are {self.min_pixels} to {self.max_pixels}; "
                "the lower must be at least 1 and not above the upper"
            )

    def chosen(self, options: ProcessorOptions, *, token_area: int, frames: int = 1) -> PixelBounds:
        """A bound the request gives wins; a bound of the checkpoint moves out of its way.

        `token_area` are the pixels behind a visual token. These bounds are of `frames` together, those of a request
        of each.
        """
        wanted_low, wanted_high = (options.min_pixels or 0) * frames, (options.max_pixels or 0) * frames
        low = wanted_low or min(self.min_pixels, wanted_high or self.min_pixels)
        high = wanted_high or max(self.max_pixels, low)
        if options.detail == "low":
            high = max(1, min(high // LOW_DETAIL_SHARE, LOW_DETAIL_TOKENS * token_area * frames))
        return PixelBounds(min(low, high), high)


class Processor(Protocol):
    """One model family over one checkpoint: header -> geometry, pixels -> patches, segments -> prompt."""

    @property
    def media_tokens(self) -> Mapping[MediaKind, int]:
        """The placeholder token of each kind that the family takes."""

    @property
    def slots(self) -> Mapping[int | str, MediaKind]:
        """The tokens or words by which a chat template marks the places of media.

        One that is given by its text needs nothing around it: to a template that reads only strings it is handed in
        them.
        """

    @property
    def parameters(self) -> Mapping[str, int]:
        """Numbers that decide how pixels become patches; part of every media key."""

    @property
    def sampling(self) -> FrameSampling:
        """Which frames of a video file the family looks at."""

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
        """From the upright size alone; raises MediaError for a shape the family does not take.

        `frame_rate` is that of the frames the family gets, where it is known better than by `options.fps`;
        `frame_times` are the seconds at which they are shown, where those are known.
        """

    def least_pixels(self, kind: MediaKind, options: ProcessorOptions) -> int:
        """The area of a frame below which no budget of a whole prompt pushes it."""

    def patches(self, frames: Iterable[Picture], geometry: Geometry) -> NDArray[np.uint8]:
        """[P, C] in merge order; `frames` is read one at a time, so a lazy one keeps memory low."""

    def parts(self, geometry: Geometry) -> tuple[PartPlace, ...]:
        """One for each of the geometry's segments; none where the encoder sees all of an item at once."""

    def expand(self, geometry: Geometry) -> tuple[Piece, ...]:
        """What stands in the prompt for one item; its placements have `geometry.num_tokens` tokens together."""

    def layout(self, segments: Sequence[Segment]) -> Prompt:
        """Writes the placeholders and gives every token its position."""


def smart_resize(
    width: int, height: int, *, factor: int, bounds: PixelBounds, frames: int = 1, multiple: int = 1
) -> tuple[int, int]:
    """The size a picture is scaled to: sides divisible by `factor`, area within bounds, aspect nearly kept.

    The rule of Qwen2-VL as transformers has it, and for `frames` that share the bounds and are counted in a `multiple`
    that of Qwen3-VL. Python's `round` (half to even) is part of it. Only a picture much longer than wide may end
    outside the bounds, because a side never shrinks below one factor.
    """
    if width < 1 or height < 1:
        raise MediaError(f"picture is {width}x{height} pixels; both sides must be at least 1")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise MediaError(
            f"picture is {width}x{height}, an aspect ratio of {max(width, height) / min(width, height):.0f}, "
            f"limit {MAX_ASPECT}; crop or pad it"
        )
    used_width, used_height = round(width / factor) * factor, round(height / factor) * factor
    used_area = round(frames / multiple) * multiple * used_width * used_height
    if used_area > bounds.max_pixels:
        beta = math.sqrt(frames * height * width / bounds.max_pixels)
        used_width = max(factor, math.floor(width / beta / factor) * factor)
        used_height = max(factor, math.floor(height / beta / factor) * factor)
    elif used_area < bounds.min_pixels:
        beta = math.sqrt(bounds.min_pixels / (frames * height * width))
        used_width = math.ceil(width * beta / factor) * factor
        used_height = math.ceil(height * beta / factor) * factor
    return used_width, used_height


def fit_tokens(width: int, height: int, *, factor: int, most: int) -> tuple[int, int]:
    """The size of at most `most` tokens, where `smart_resize` goes over its bounds: for a strict budget."""
    beta = math.sqrt(width * height / (most * factor * factor))
    columns = max(1, math.floor(width / beta / factor))
    rows = max(1, math.floor(height / beta / factor))
    # Over the budget only where one side is a single token that could not shrink further.
    return min(columns, most) * factor, min(rows, most) * factor
