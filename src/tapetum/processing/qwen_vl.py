"""Qwen2-VL and Qwen2.5-VL: pictures at their own resolution, clips as pairs of frames, M-RoPE positions.

The two differ in three places. Attention segments: one per frame of the grid in Qwen2-VL; in Qwen2.5-VL the windows
of 4x4 merged cells that all but a few layers of its encoder use (fewer cells at the right and lower edge), so that
the sum of squares over segments follows the cost of most layers. Clock: Qwen2.5-VL spaces the time axis of a clip by
seconds x tokens per second, Qwen2-VL counts steps. Defaults of some numbers.

A still picture is folded once ([P, 3*p*p]); the model adds up its temporal kernels instead of seeing it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tapetum.core.errors import ConfigError, InvalidParameter, MediaError
from tapetum.core.files import ConfigReader
from tapetum.core.media import Geometry, MediaKind
from tapetum.core.request import Prompt
from tapetum.processing import settings
from tapetum.processing.base import (
    PixelBounds,
    fit_tokens,
    smart_resize,
)
from tapetum.processing.layout import Piece, Placement, Segment, lay_out
from tapetum.processing.options import ProcessorOptions
from tapetum.processing.patches import PatchShape, cut
from tapetum.processing.pixels import Picture
from tapetum.processing.sampling import DEFAULT_FPS, FrameSampling
from tapetum.processing.settings import IGNORED_KEYS, Normalisation, check_switches, read_settings


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

    @classmethod
    def load(cls, directory: Path, config: Mapping[str, object]) -> QwenVLProcessor:
        """From config.json (already read) and the processor files beside it."""
        vision = ConfigReader(config, "config.json").section("vision_config")
        patch_size = vision.integer("patch_size", 14)
        merge_size = vision.integer("spatial_merge_size", 2)
        sizes = {
            "patch_size": patch_size,
            "merge_size": merge_size,
            "temporal_patch_size": vision.integer("temporal_patch_size", 2),
        }
        files = _processor_files(directory)
        for file in files.values():
            _check_sizes(file, sizes)
        _normalisation(files)
        bounds = {kind: _pixel_bounds(file, kind) for kind, file in files.items()}
        sampling = _sampling(files["video"], sizes["temporal_patch_size"])
        for file in files.values():
            file.finish(IGNORED_KEYS)
        has_windows = config.get("model_type") == "qwen2_5_vl"
        return cls(
            media_tokens=_media_tokens(config),
            bounds=bounds,
            sampling=sampling,
            window=_cells_of_window(vision, patch_size * merge_size) if has_windows else None,
            tokens_per_second=vision.integer("tokens_per_second", 4) if has_windows else None,
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
        used = self._used(kind, (width, height), time, options)
        rows, columns = used[1] // self.patch_size, used[0] // self.patch_size
        has_clock = kind == "video" and self.tokens_per_second is not None
        rate = frame_rate or options.fps or DEFAULT_FPS
        return Geometry(
            kind=kind,
            original=(width, height),
            used=used,
            frames=frames,
            grid_thw=(time, rows, columns),
            num_tokens=time * rows * columns // self.merge_size**2,
            segments=self._segments(rows, columns) * time,
            seconds_per_grid=self.temporal_patch_size / rate if has_clock else 0.0,
        )

    def least_pixels(self, kind: MediaKind, options: ProcessorOptions) -> int:
        return self._bounds(kind, options).min_pixels

    def patches(self, frames: Iterable[Picture], geometry: Geometry) -> NDArray[np.uint8]:
        fold = 1 if geometry.kind == "image" else self.temporal_patch_size
        shape = PatchShape(patch_size=self.patch_size, merge_size=self.merge_size, fold=fold)
        return cut(frames, geometry, shape)

    def expand(self, geometry: Geometry) -> tuple[Piece, ...]:
        return (self._place(geometry),)

    def layout(self, segments: Sequence[Segment]) -> Prompt:
        return lay_out(segments, self.media_tokens, "mrope")

    def _bounds(self, kind: MediaKind, options: ProcessorOptions) -> PixelBounds:
        return self.bounds[kind].chosen(options, token_area=(self.patch_size * self.merge_size) ** 2)

    def _used(
        self, kind: MediaKind, size: tuple[int, int], steps: int, options: ProcessorOptions
    ) -> tuple[int, int]:
        """The size of a frame. The reference's rule may go a little over its bounds; a budget is kept."""
        factor, bounds = self.patch_size * self.merge_size, self._bounds(kind, options)
        used = smart_resize(*size, factor=factor, bounds=bounds)
        budgets = []  # tokens of a frame
        if options.detail == "low":
            budgets.append(max(1, bounds.max_pixels // factor**2))
        if options.max_visual_tokens is not None:
            budgets.append(options.max_visual_tokens // steps)
        if budgets and min(budgets) < 1:
            raise InvalidParameter(
                f"max_visual_tokens is {options.max_visual_tokens}, the {kind} has at least {steps}, one for each "
                f"{self.temporal_patch_size} frames; raise it or take fewer frames",
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

    def _place(self, geometry: Geometry) -> Placement:
        time, rows, columns = geometry.grid_thw
        interval = 1.0
        if geometry.kind == "video" and self.tokens_per_second is not None:
            interval = float(np.float32(self.tokens_per_second) * np.float32(geometry.seconds_per_grid))
        return Placement(time, rows // self.merge_size, columns // self.merge_size, interval)


ProcessorFiles = dict[MediaKind, ConfigReader]


def _processor_files(directory: Path) -> ProcessorFiles:
    return {"image": read_settings(directory, "image"), "video": read_settings(directory, "video")}


_REQUIRED_VALUES: Mapping[str, object] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "do_center_crop": False,
    "do_pad": False,
    "resample": 3,  # bicubic
    "rescale_factor": 1 / 255,
    "cap_pixels_per_frame": False,
}


def _check_sizes(file: ConfigReader, sizes: Mapping[str, int]) -> None:
    check_switches(file, _REQUIRED_VALUES)
    for key, value in sizes.items():
        if file.integer(key, value) != value:
            raise ConfigError(f"{file.name}: {key} is {file.integer(key)}, but config.json says {value}")


_DEFAULT_BOUNDS: dict[MediaKind, tuple[int, int]] = {
    "image": (56 * 56, 28 * 28 * 1280),
    "video": (128 * 28 * 28, 28 * 28 * 768),
}


def _pixel_bounds(file: ConfigReader, kind: MediaKind) -> PixelBounds:
    """From `min_pixels`/`max_pixels`, or `size` with the names `shortest_edge`/`longest_edge` (areas, not edges)."""
    size = file.section("size")
    found = []
    for key, edge, default in zip(
        ("min_pixels", "max_pixels"), ("shortest_edge", "longest_edge"), _DEFAULT_BOUNDS[kind], strict=True
    ):
        for reader, name in ((file, key), (size, edge), (size, key)):
            if reader.has(name):
                found.append(reader.integer(name))
                break
        else:
            if not size.is_empty:
                raise ConfigError(f"{size.name}: {edge} is missing")
            found.append(default)
    return PixelBounds(*found)


def _sampling(file: ConfigReader, multiple: int) -> FrameSampling:
    """The numbers of transformers' `sample_frames`, with the defaults of its class."""
    return FrameSampling(
        fps=file.number("fps", DEFAULT_FPS),
        num_frames=file.integer("num_frames") if file.has("num_frames") else None,
        min_frames=file.integer("min_frames", 4),
        max_frames=file.integer("max_frames", 768),
        multiple=multiple,
    )


_CLIP: Normalisation = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def read_normalisation(directory: Path) -> Normalisation:
    """What the patch embedding is folded with; the same for pictures and clips, which share it."""
    return _normalisation(_processor_files(directory))


def _normalisation(files: ProcessorFiles) -> Normalisation:
    image, video = (settings.read_normalisation(files[kind], _CLIP) for kind in ("image", "video"))
    if image != video:
        raise ConfigError(
            f"{files['video'].name}: image_mean and image_std are {video!r}, but {image!r} for pictures; "
            "make them equal"
        )
    return image


_TOKEN_KEYS: tuple[tuple[MediaKind, Literal["image_token_id", "video_token_id"], int], ...] = (
    ("image", "image_token_id", 151655),
    ("video", "video_token_id", 151656),
)


def _media_tokens(config: Mapping[str, object]) -> dict[MediaKind, int]:
    reader = ConfigReader(config, "config.json")
    tokens = {kind: reader.integer(key, default, low=0) for kind, key, default in _TOKEN_KEYS}
    if tokens["image"] == tokens["video"]:
        raise ConfigError(f"config.json: image_token_id and video_token_id are both {tokens['image']}")
    return tokens


def _cells_of_window(vision: ConfigReader, factor: int) -> int:
    size = vision.integer("window_size", 112)
    if size < factor:
        raise ConfigError(f"{vision.name}: window_size is {size}, below patch x merge size {factor}")
    return size // factor
