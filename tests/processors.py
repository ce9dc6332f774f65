"""Processor files of a checkpoint, without weights, and the processors read from them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tapetum.core.media import MediaItem
from tapetum.core.request import Prompt
from tapetum.processing import load_processor
from tapetum.processing.base import Processor
from tapetum.processing.layout import Insert, Placement

MEAN = [0.48145466, 0.4578275, 0.40821073]
STD = [0.26862954, 0.26130258, 0.27577711]


def write_files(
    directory: Path,
    *,
    model_type: str = "qwen2_vl",
    vision: dict[str, object] | None = None,
    image: dict[str, object] | None = None,
    video: dict[str, object] | None = None,
) -> Path:
    """config.json and the processor files that are given; `image` None writes the usual bounds."""
    config = {
        "model_type": model_type,
        "image_token_id": 7,
        "video_token_id": 8,
        "vision_config": {
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            **(vision or {}),
        },
    }
    image = {"min_pixels": 3136, "max_pixels": 1003520} if image is None else image
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "preprocessor_config.json").write_text(json.dumps(image))
    if video is not None:
        (directory / "video_preprocessor_config.json").write_text(json.dumps(video))
    return directory


def make_processor(model_type: str = "qwen2_vl", **files: dict[str, object]) -> Processor:
    with tempfile.TemporaryDirectory() as directory:
        return load_processor(write_files(Path(directory), model_type=model_type, **files))


def laid_out(processor: Processor, parts: Sequence[tuple[int, ...] | MediaItem]) -> Prompt:
    """The prompt of tokens and items, for a family whose items are nothing but placeholders."""
    return processor.layout(
        [
            Insert(
                part,
                tuple(piece for piece in processor.expand(part.geometry) if isinstance(piece, Placement)),
            )
            if isinstance(part, MediaItem)
            else part
            for part in parts
        ]
    )
