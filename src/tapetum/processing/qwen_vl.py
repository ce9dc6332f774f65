"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: pictures at their own resolution, clips as pairs of frames, M-RoPE positions.

They differ in what a clip is. Qwen2-VL lays it in one box whose time axis counts steps; Qwen2.5-VL spaces that axis by
seconds x tokens per second; Qwen3-VL makes a picture of each step, with its time in words before it, and bounds the
pixels of all frames together. Attention segments: one per frame of the grid; in Qwen2.5-VL the windows of 4x4 merged
cells that all but a few layers of its encoder use (fewer cells at the right and lower edge), so that the sum of squares
over segments follows the cost of most layers.

A still picture is folded once ([P, 3*p*p]); the model adds up its temporal kernels instead of seeing it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tapetum.core.errors import ConfigError, InvalidParameter, MediaError
from tapetum.core.files import ConfigReader
from tapetum.core.media import Geometry, MediaKind
from tapetum.core.request import Prompt
from tapetum.processing import qwen_vl_files as files
from tapetum.processing.base import PixelBounds, fit_tokens, smart_resize
from tapetum.processing.layout import Piece, Placement, Segment, Special, lay_out
from tapetum.processing.options import ProcessorOptions
from tapetum.processing.parts import PartPlace, window_parts
from tapetum.processing.patches import PatchShape, cut
from tapetum.processing.pixels import Picture
from tapetum.processing.sampling import FrameSampling


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVLProcessor:
    """Implements `processing.base.Processor` with the numbers of one checkpoint."""

    media_tokens: Mapping[MediaKind, int]
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    bounds: Mapping[MediaKind, PixelBounds]
    sampling: FrameSampling = field(default_factory=FrameSampling)
    window: int | None = None  # merged cells per side of an attention window; None = whole frames
    tokens_per_second: int | None = None  # None = the time axis counts steps
    has_timed_steps: bool = False  # a clip as Qwen3-VL has it

    @classmethod
    def load(cls, directory: Path, config: Mapping[str, object]) -> QwenVLProcessor:
        """From config.json (already read) and the processor files beside it."""
        model_type = config.get("model_type")
        is_newest, has_windows = model_type in files.NEWEST, model_type == "qwen2_5_vl"
        vision = ConfigReader(config, "config.json").section("vision_config")
        sizes = files.read_sizes(vision, is_newest=is_newest)
        found = files.read_files(directory, sizes)
        bounds = files.read_bounds(found, is_newest=is_newest)
        sampling = files.read_sampling(found, sizes, is_newest=is_newest)
        files.finish(found)
        factor = sizes["patch_size"] * sizes["merge_size"]
        return cls(
            media_tokens=files.read_media_tokens(config),
            bounds=bounds,
            sampling=sampling,
            window=_cells_of_window(vision, factor) if has_windows else None,
            tokens_per_second=vision.integer("tokens_per_second", 4) if has_windows else None,
            has_timed_steps=is_newest,
            **sizes,
        )

    @property
    def slots(self) -> Mapping[int | str, MediaKind]:
        return {token_id: kind for kind, token_id in self.media_tokens.items()}

    @property
    def parameters(self) -> Mapping[str, int]:
        return {
            "patch_size": self.patch_size,
            "merge_size": self.merge_size,
            "temporal_patch_size": self.temporal_patch_size,
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
        time = -(-frames // self.temporal_patch_size)
        used = self._used(kind, (width, height), frames, options)
        rows, columns = used[1] // self.patch_size, used[0] // self.patch_size
        has_clock = kind == "video" and self.tokens_per_second is not None
        rate = frame_rate or options.fps or self.sampling.fps
        times = tuple(frame_times) or tuple(number / rate for number in range(frames))
        return Geometry(
            kind=kind,
            original=(width, height),
            used=used,
            frames=frames,
            grid_thw=(time, rows, columns),
            num_tokens=time * rows * columns // self.merge_size**2,
            segments=self._segments(rows, columns) * time,
            seconds_per_grid=self.temporal_patch_size / rate if has_clock else 0.0,
            frame_times=times if kind == "video" and self.has_timed_steps else (),
        )

    def least_pixels(self, kind: MediaKind, options: ProcessorOptions) -> int:
        if kind == "video" and self.has_timed_steps:
            return self._factor**2  # the share of a frame depends on how many there are
        return self._bounds(kind, options, 1).min_pixels

    def patches(self, frames: Iterable[Picture], geometry: Geometry) -> NDArray[np.uint8]:
        fold = 1 if geometry.kind == "image" else self.temporal_patch_size
        shape = PatchShape(patch_size=self.patch_size, merge_size=self.merge_size, fold=fold)
        return cut(frames, geometry, shape)

    def parts(self, geometry: Geometry) -> tuple[PartPlace, ...]:
        return () if self.window is None else window_parts(geometry, self.merge_size, self.window)

    def expand(self, geometry: Geometry) -> tuple[Piece, ...]:
        if geometry.frame_times:
            return tuple(self._timed_steps(geometry))
        time, rows, columns = geometry.grid_thw
        interval = 1.0
        if geometry.kind == "video" and self.tokens_per_second is not None:
            interval = float(np.float32(self.tokens_per_second) * np.float32(geometry.seconds_per_grid))
        return (Placement(time, rows // self.merge_size, columns // self.merge_size, interval),)

    def layout(self, segments: Sequence[Segment]) -> Prompt:
        return lay_out(segments, self.media_tokens, "mrope")

    def _timed_steps(self, geometry: Geometry) -> Iterator[Piece]:
        """Each step of the time axis as a picture, behind the mean time of its first and its last frame."""
        _, rows, columns = geometry.grid_thw
        for first in range(0, geometry.frames, self.temporal_patch_size):
            last = min(first + self.temporal_patch_size, geometry.frames) - 1
            seconds = (geometry.frame_times[first] + geometry.frame_times[last]) / 2
            yield f"<{seconds:.1f} seconds>"
            yield Special("<|vision_start|>")
            yield Placement(1, rows // self.merge_size, columns // self.merge_size)
            yield Special("<|vision_end|>")

    @property
    def _factor(self) -> int:
        """Pixels of the side of a visual token."""
        return self.patch_size * self.merge_size

    def _bounds(self, kind: MediaKind, options: ProcessorOptions, frames: int) -> PixelBounds:
        return self.bounds[kind].chosen(options, token_area=self._factor**2, frames=frames)

    def _used(
        self, kind: MediaKind, size: tuple[int, int], frames: int, options: ProcessorOptions
    ) -> tuple[int, int]:
        """The size of a frame. The reference's rule may go a little over its bounds; a budget is kept."""
        step, factor = self.temporal_patch_size, self._factor
        steps, sharing, multiple = -(-frames // step), 1, 1
        if kind == "video" and self.has_timed_steps:  # all frames share the bounds
            sharing, multiple, size = max(frames, step), step, _grown(size, factor)
        bounds = self._bounds(kind, options, sharing)
        used = smart_resize(*size, factor=factor, bounds=bounds, frames=sharing, multiple=multiple)
        budgets = []  # tokens of a frame
        if options.detail == "low":
            budgets.append(max(1, bounds.max_pixels // sharing // factor**2))
        if options.max_visual_tokens is not None:
            budgets.append(options.max_visual_tokens // steps)
        if budgets and min(budgets) < 1:
            raise InvalidParameter(
                f"max_visual_tokens is {options.max_visual_tokens}, the {kind} has at least {steps}, one for each "
                f"{step} frames; raise it or take fewer frames",
                param="max_visual_tokens",
            )
        if budgets and used[0] * used[1] > min(budgets) * factor**2:
            return fit_tokens(*size, factor=factor, most=min(budgets))
        return used

    def _segments(self, rows: int, columns: int) -> tuple[int, ...]:
        """Patches of the attention segments of one frame, in the order in which the encoder runs them."""
        if self.window is None:
            return (rows * columns,)
        side = self.window * self.merge_size  # in patches
        return tuple(
            min(side, rows - top) * min(side, columns - left)
            for top in range(0, rows, side)
            for left in range(0, columns, side)
        )


def _grown(size: tuple[int, int], factor: int) -> tuple[int, int]:
    """A frame with a side below the factor is scaled up to it before anything else."""
    width, height = size
    if min(size) >= factor or min(size) < 1:
        return size
    scale = max(factor / height, factor / width)
    return int(width * scale), int(height * scale)


def _cells_of_window(vision: ConfigReader, factor: int) -> int:
    size = vision.integer("window_size", 112)
    if size < factor:
        raise ConfigError(f"{vision.name}: window_size is {size}, below patch x merge size {factor}")
    return size // factor
