"""Clips of SmolVLM: which frames are seen, and what the prompt says around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from tapetum.core.media import Geometry
from tapetum.processing.layout import Piece
from tapetum.processing.number_words import in_words
from tapetum.processing.sampling import FrameSampling

MARGIN_S = 1.0  # left out at both ends of a long clip
ROUNDING_S = 1e-6  # a time that is whole but for rounding is told as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSampling(FrameSampling):
    """As transformers' `SmolVLMVideoProcessor.sample_frames`, whose bound of a long clip is no time, but is kept."""

    min_frames: int = 1
    multiple: int = 1
    has_last: bool = True

    def at_rate(self, seconds: float, fps: float) -> float:
        return round(seconds * fps)

    def spread(self, total: int, count: int, seconds: float | None = None) -> list[int]:
        first, last = 0, total - 1
        if seconds is not None and seconds - 2 * MARGIN_S > self.max_frames * self.fps:
            margin = round(MARGIN_S * total / seconds, 6)
            first, last = int(margin), min(int(total - margin), last)
        return [int(index) for index in np.linspace(first, last, count, dtype=int)]


def clip_pieces(geometry: Geometry, frame: tuple[Piece, ...]) -> Iterator[Piece]:
    """The prompt of a clip, each of whose frames is written as `frame`; times are told in whole seconds."""
    number = in_words(geometry.frames)
    length = timedelta(seconds=int(geometry.frames * geometry.seconds_per_grid + ROUNDING_S))
    yield f"You are provided the following series of {number} frames from a {length} [H:MM:SS] video.\n"
    for time in geometry.frame_times:
        minutes, seconds = divmod(int(time + ROUNDING_S), 60)
        yield f"\nFrame from {minutes:02}:{seconds:02}:"
        yield from frame
    yield "\n\n"
