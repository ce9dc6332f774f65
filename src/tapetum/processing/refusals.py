"""What families refuse alike about a picture or clip before a pixel of it is decoded."""

from __future__ import annotations

from collections.abc import Collection

from tapetum.core.errors import InvalidParameter, MediaError
from tapetum.core.media import MediaKind
from tapetum.processing.options import ProcessorOptions


def check_shape(kind: MediaKind, size: tuple[int, int], frames: int, taken: Collection[MediaKind]) -> None:
    """Whether the family takes this kind, its size (width, height) and so many frames."""
    if kind not in taken:
        raise MediaError(f"{kind} was sent, the model takes {' and '.join(taken)} only; leave it out")
    if frames < 1 or (kind == "image" and frames != 1):
        raise MediaError(f"{kind} has {frames} frames; a picture has one, a clip at least one")
    if min(size) < 1:
        raise MediaError(f"{kind} is {size[0]}x{size[1]} pixels; both sides must be at least 1")


def check_budget(kind: MediaKind, least: int, options: ProcessorOptions) -> None:
    """Whether the budget of a request covers the visual tokens without which there is nothing to see."""
    budget = options.max_visual_tokens
    if budget is not None and budget < least:
        remedy = "raise it" if kind == "image" else "raise it or take fewer frames"
        raise InvalidParameter(
            f"max_visual_tokens is {budget}, the {kind} has at least {least}; {remedy}",
            param="max_visual_tokens",
        )
