"""Qwen2-VL and Qwen2.5-VL: pictures at their own resolution, clips as pairs of frames, M-RoPE positions.

The two differ in three places. Attention segments: one per frame of the grid in Qwen2-VL; in Qwen2.5-VL the windows
of 4x4 merged cells that all but a few layers of its encoder use (fewer cells at the right and lower edge), so that
the sum of squares over segments follows the cost of most layers. Clock: Qwen2.5-VL spaces the time axis of a clip by
seconds x tokens per second, Qwen2-VL counts steps. Defaults of some numbers.

A still picture is folded once ([P, 3*p*p]); the model adds up its temporal kernels instead of seeing it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tapetum.core.errors import CheckpointError, ConfigError, MediaError
from tapetum.core.media import Geometry, MediaKind
from tapetum.core.request import Prompt
from tapetum.processing.base import (
    Picture,
    PixelBounds,
    Placement,
    ProcessorOptions,
    Segment,
    fold_patches,
    lay_out,
    resize,
    smart_resize,
)
from tapetum.processing.files import Table, read_json

DEFAULT_FPS = 2.0  # the rate the family was trained at; used for frames that come without one


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVLProcessor:
    """Implements `processing.base.Processor` with the numbers of one checkpoint."""

    media_tokens: Mapping[MediaKind, int]
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    bounds: Mapping[MediaKind, PixelBounds]
    window: int | None = None  # merged cells per side of an attention window; None = whole frames
    tokens_per_second: int | None = None  # None = the time axis counts steps

    @classmethod
    def load(cls, directory: Path, config: Mapping[str, object]) -> QwenVLProcessor:
        """From config.json (already read) and the processor files beside it."""
        vision = Table("config.json", config).table("vision_config")
        patch_size = vision.integer("patch_size", 14)
        merge_size = vision.integer("spatial_merge_size", 2)
        sizes = {
            "patch_size": patch_size,
            "merge_size": merge_size,
            "temporal_patch_size": vision.integer("temporal_patch_size", 2),
        }
        files = _processor_files(directory)
        for file in files.values():
            _check_switches(file, sizes)
        _check_normalisation(files)
        has_windows = config.get("model_type") == "qwen2_5_vl"
        return cls(
            media_tokens=_media_tokens(config),
            bounds={kind: _pixel_bounds(file, kind) for kind, file in files.items()},
            window=_cells_of_window(vision, patch_size * merge_size) if has_windows else None,
            tokens_per_second=vision.integer("tokens_per_second", 4) if has_windows else None,
            **sizes,
        )

    @property
    def parameters(self) -> Mapping[str, int]:
        return {
            "patch_size": self.patch_size,
            "merge_size": self.merge_size,
            "temporal_patch_size": self.temporal_patch_size,
        }

    def geometry(
        self, kind: MediaKind, width: int, height: int, *, frames: int = 1, options: ProcessorOptions
    ) -> Geometry:
        if frames < 1 or (kind == "image" and frames != 1):
            raise MediaError(f"{kind} has {frames} frames; a picture has one, a clip at least one")
        used = smart_resize(
            width,
            height,
            factor=self.patch_size * self.merge_size,
            bounds=self.bounds[kind].chosen(options),
        )
        time = -(-frames // self.temporal_patch_size)
        rows, columns = used[1] // self.patch_size, used[0] // self.patch_size
        has_clock = kind == "video" and self.tokens_per_second is not None
        return Geometry(
            kind=kind,
            original=(width, height),
            used=used,
            frames=frames,
            grid_thw=(time, rows, columns),
            num_tokens=time * rows * columns // self.merge_size**2,
            segments=self._segments(rows, columns) * time,
            seconds_per_grid=self.temporal_patch_size / (options.fps or DEFAULT_FPS) if has_clock else 0.0,
        )

    def patches(self, frames: Iterable[Picture], geometry: Geometry) -> NDArray[np.uint8]:
        return fold_patches(
            (resize(frame, geometry.used) for frame in frames),
            geometry,
            patch_size=self.patch_size,
            merge_size=self.merge_size,
            fold=1 if geometry.kind == "image" else self.temporal_patch_size,
        )

    def layout(self, segments: Sequence[Segment]) -> Prompt:
        return lay_out(segments, self.media_tokens, self._place)

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


ProcessorFiles = dict[MediaKind, Table]
_NESTED_NAMES: tuple[tuple[MediaKind, str], ...] = (
    ("image", "image_processor"),
    ("video", "video_processor"),
)
_FILE_NAMES: dict[MediaKind, tuple[str, ...]] = {
    "image": ("preprocessor_config.json",),
    "video": ("video_preprocessor_config.json", "preprocessor_config.json"),
}


def _processor_files(directory: Path) -> ProcessorFiles:
    """The settings of each kind, found in the order of transformers: the joint file, then one file per kind.

    A checkpoint without a file for clips uses the picture's settings for them.
    """
    joint = Table("processor_config.json", read_json(directory / "processor_config.json") or {})
    files: ProcessorFiles = {}
    for kind, nested in _NESTED_NAMES:
        if nested in joint.values:
            files[kind] = joint.table(nested)
            continue
        for name in _FILE_NAMES[kind]:
            values = read_json(directory / name)
            if values is not None:
                files[kind] = Table(name, values)
                break
        else:
            raise CheckpointError(
                f"{directory} has no {_FILE_NAMES[kind][-1]}; copy it from the checkpoint's source"
            )
    return files


_REQUIRED_VALUES: tuple[tuple[str, object], ...] = (
    ("do_resize", True),
    ("do_rescale", True),
    ("do_normalize", True),
    ("do_convert_rgb", True),
    ("do_center_crop", False),
    ("do_pad", False),
    ("resample", 3),  # bicubic
    ("rescale_factor", 1 / 255),
    ("cap_pixels_per_frame", False),
)
_READ_KEYS = ("size", "min_pixels", "max_pixels", "image_mean", "image_std")
_IGNORED_KEYS = (  # names of classes, ways of returning, and the choice of frames, which is the caller's here
    "image_processor_type", "video_processor_type", "feature_extractor_type", "processor_class", "auto_map",
    "crop_size", "data_format", "input_data_format", "default_to_square", "device", "disable_grouping",
    "return_tensors", "return_metadata", "pad_size", "size_divisor", "video_metadata", "image_seq_length",
    "do_sample_frames", "fps", "num_frames", "min_frames", "max_frames", "max_video_tokens",
)  # fmt: skip


def _check_switches(file: Table, sizes: Mapping[str, int]) -> None:
    for key, only in _REQUIRED_VALUES:
        file.require(key, only)
    for key, value in sizes.items():
        if file.integer(key, value) != value:
            raise ConfigError(f"{file.name}: {key} is {file.integer(key)}, but config.json says {value}")
    file.report_unknown({*_READ_KEYS, *_IGNORED_KEYS, *sizes, *(key for key, _ in _REQUIRED_VALUES)})


_DEFAULT_BOUNDS: dict[MediaKind, tuple[int, int]] = {
    "image": (56 * 56, 28 * 28 * 1280),
    "video": (128 * 28 * 28, 28 * 28 * 768),
}


def _pixel_bounds(file: Table, kind: MediaKind) -> PixelBounds:
    """From `min_pixels`/`max_pixels`, or `size` with the names `shortest_edge`/`longest_edge` (areas, not edges)."""
    size = file.table("size")
    found = []
    for key, edge, default in zip(
        ("min_pixels", "max_pixels"), ("shortest_edge", "longest_edge"), _DEFAULT_BOUNDS[kind], strict=True
    ):
        for table, name in ((file, key), (size, edge), (size, key)):
            if table.values.get(name) is not None:
                found.append(table.integer(name))
                break
        else:
            if size.values:
                raise ConfigError(f"{size.name}: {edge} is missing")
            found.append(default)
    return PixelBounds(*found)


def _check_normalisation(files: ProcessorFiles) -> None:
    """Pictures and clips go through one patch embedding, so what is folded into it must be the same for both."""
    for key, default in (
        ("image_mean", [0.48145466, 0.4578275, 0.40821073]),
        ("image_std", [0.26862954, 0.26130258, 0.27577711]),
    ):
        image, video = (files[kind].values.get(key) or default for kind in ("image", "video"))
        if image != video:
            raise ConfigError(
                f"{files['video'].name}: {key} is {video!r}, but {image!r} for pictures; make them equal"
            )


_TOKEN_KEYS: tuple[tuple[MediaKind, Literal["image_token_id", "video_token_id"], int], ...] = (
    ("image", "image_token_id", 151655),
    ("video", "video_token_id", 151656),
)


def _media_tokens(config: Mapping[str, object]) -> dict[MediaKind, int]:
    table = Table("config.json", config)
    tokens = {kind: table.integer(key, default, low=0) for kind, key, default in _TOKEN_KEYS}
    if tokens["image"] == tokens["video"]:
        raise ConfigError(f"config.json: image_token_id and video_token_id are both {tokens['image']}")
    return tokens


def _cells_of_window(vision: Table, factor: int) -> int:
    size = vision.integer("window_size", 112)
    if size < factor:
        raise ConfigError(f"{vision.name}: window_size is {size}, below patch x merge size {factor}")
    return size // factor
