"""Models that read text only: no media, positions that count up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tapetum.core.errors import MediaError
from tapetum.core.media import Geometry, MediaKind
from tapetum.core.request import Prompt
from tapetum.processing.layout import Piece, Segment, lay_out
from tapetum.processing.options import ProcessorOptions
from tapetum.processing.parts import PartPlace
from tapetum.processing.pixels import Picture
from tapetum.processing.sampling import FrameSampling


@dataclass(frozen=True, slots=True, kw_only=True)
class TextProcessor:
    """Implements `processing.base.Processor`; refuses every picture and clip."""

    media_tokens: Mapping[MediaKind, int] = field(default_factory=dict)
    slots: Mapping[int | str, MediaKind] = field(default_factory=dict)
    parameters: Mapping[str, int] = field(default_factory=dict)
    sampling: FrameSampling = field(default_factory=FrameSampling)

    @classmethod
    def load(cls, directory: Path, config: Mapping[str, object]) -> TextProcessor:
        return cls()

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
        raise _refusal()

    def least_pixels(self, kind: MediaKind, options: ProcessorOptions) -> int:
        raise _refusal()

    def patches(self, frames: Iterable[Picture], geometry: Geometry) -> NDArray[np.uint8]:
        raise _refusal()

    def parts(self, geometry: Geometry) -> tuple[PartPlace, ...]:
        raise _refusal()

    def expand(self, geometry: Geometry) -> tuple[Piece, ...]:
        raise _refusal()

    def layout(self, segments: Sequence[Segment]) -> Prompt:
        return lay_out(segments, self.media_tokens, "plain")


def _refusal() -> MediaError:
    return MediaError(
        "this model reads text only; leave pictures and clips out or serve a model that takes them"
    )
