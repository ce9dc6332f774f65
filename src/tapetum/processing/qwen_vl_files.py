"""What the files of a Qwen-VL checkpoint say about its pictures and clips: sizes, bounds, frames, colours, tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tapetum.core.errors import ConfigError
from tapetum.core.files import ConfigReader
from tapetum.core.media import MediaKind
from tapetum.processing import settings
from tapetum.processing.base import PixelBounds
from tapetum.processing.sampling import DEFAULT_FPS, FrameSampling
from tapetum.processing.settings import IGNORED_KEYS, Normalisation, check_switches, read_settings

NEWEST = ("qwen3_vl", "qwen3_vl_moe")
ProcessorFiles = Mapping[MediaKind, ConfigReader]
Sizes = Mapping[str, int]
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
_PICTURE_AREA = (56 * 56, 28 * 28 * 1280)
_FRAME_AREA = (128 * 28 * 28, 28 * 28 * 768)
_CLIP_AREA = (128 * 32 * 32, 32 * 32 * 768)  # of Qwen3-VL, all frames together
_CLIP_COLOURS: Normalisation = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
_TOKEN_KEYS: tuple[tuple[MediaKind, str, int], ...] = (
    ("image", "image_token_id", 151655),
    ("video", "video_token_id", 151656),
)


def read_sizes(vision: ConfigReader, *, is_newest: bool) -> Sizes:
    """From config.json."""
    return {
        "patch_size": vision.integer("patch_size", 16 if is_newest else 14),
        "merge_size": vision.integer("spatial_merge_size", 2),
        "temporal_patch_size": vision.integer("temporal_patch_size", 2),
    }


def read_files(directory: Path, sizes: Sizes) -> ProcessorFiles:
    """The settings of pictures and of clips, which agree with config.json and with each other."""
    files = _settings(directory)
    for file in files.values():
        check_switches(file, _REQUIRED_VALUES)
        for key, value in sizes.items():
            if file.integer(key, value) != value:
                raise ConfigError(f"{file.name}: {key} is {file.integer(key)}, but config.json says {value}")
    _normalisation(files)
    return files


def finish(files: ProcessorFiles) -> None:
    """Reports what nobody asked for."""
    for file in files.values():
        file.finish(IGNORED_KEYS)


def read_bounds(files: ProcessorFiles, *, is_newest: bool) -> dict[MediaKind, PixelBounds]:
    return {
        "image": _bounds(files["image"], _PICTURE_AREA),
        "video": _bounds(files["video"], _CLIP_AREA if is_newest else _FRAME_AREA),
    }


def _bounds(file: ConfigReader, defaults: tuple[int, int]) -> PixelBounds:
    """From `min_pixels`/`max_pixels`, or `size` with the names `shortest_edge`/`longest_edge` (areas, not edges)."""
    size = file.section("size")
    found = []
    names = ("min_pixels", "max_pixels"), ("shortest_edge", "longest_edge")
    for key, edge, default in zip(*names, defaults, strict=True):
        for reader, name in ((file, key), (size, edge), (size, key)):
            if reader.has(name):
                found.append(reader.integer(name))
                break
        else:
            if not size.is_empty:
                raise ConfigError(f"{size.name}: {edge} is missing")
            found.append(default)
    return PixelBounds(*found)


def read_sampling(files: ProcessorFiles, sizes: Sizes, *, is_newest: bool) -> FrameSampling:
    """The numbers of transformers' `sample_frames`, with the defaults of its class."""
    file = files["video"]
    return FrameSampling(
        fps=file.number("fps", DEFAULT_FPS),
        num_frames=file.integer("num_frames") if file.has("num_frames") else None,
        min_frames=file.integer("min_frames", 4),
        max_frames=file.integer("max_frames", 768),
        multiple=1 if is_newest else sizes["temporal_patch_size"],
        has_last=is_newest,
    )


def read_normalisation(directory: Path) -> Normalisation:
    """What the patch embedding is folded with; the same for pictures and clips, which share it."""
    return _normalisation(_settings(directory))


def _normalisation(files: ProcessorFiles) -> Normalisation:
    image, video = (settings.read_normalisation(files[kind], _CLIP_COLOURS) for kind in ("image", "video"))
    if image != video:
        raise ConfigError(
            f"{files['video'].name}: image_mean and image_std are {video!r}, but {image!r} for pictures; "
            "make them equal"
        )
    return image


def _settings(directory: Path) -> ProcessorFiles:
    return {"image": read_settings(directory, "image"), "video": read_settings(directory, "video")}


def read_media_tokens(config: Mapping[str, object]) -> dict[MediaKind, int]:
    reader = ConfigReader(config, "config.json")
    tokens = {kind: reader.integer(key, default, low=0) for kind, key, default in _TOKEN_KEYS}
    if tokens["image"] == tokens["video"]:
        raise ConfigError(f"config.json: image_token_id and video_token_id are both {tokens['image']}")
    return tokens
