"""What marks the places of media in the template of the bundled model, and all with its tokenizer."""

from __future__ import annotations

from tapetum.core.media import MediaKind

SLOTS: dict[int | str, MediaKind] = {"<|image_pad|>": "image", "<|video_pad|>": "video"}
