"""`GET /props`: what this server takes and how much of it, for user interfaces and for people.

Owns the shape of the answer; every number is read where it is enforced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum import __version__
from tapetum.core.config import MediaConfig
from tapetum.core.media import MediaKind, ProcessorMode
from tapetum.processing.base import Processor
from tapetum.processing.options import ProcessorOptions
from tapetum.server.serving import Serving, json_response
from tapetum.text.abilities import TemplateAbilities


class Modalities(Struct, frozen=True, kw_only=True):
    """What may stand in a message besides text. A clip is a video file or a list of pictures."""

    vision: bool
    video: bool
    audio: bool = False


class MediaLimits(Struct, frozen=True, kw_only=True):
    """Of each file, but for `per_prompt`: of all together, or of each kind."""

    per_prompt: int | Mapping[MediaKind, int]
    max_bytes: int
    max_pixels: int
    max_frames: int
    timeout_s: float
    allowed_domains: Sequence[str]
    has_local_files: bool
    processor: ProcessorMode


class Limits(Struct, frozen=True, kw_only=True):
    """`visual_tokens`: the fewest and the most of one picture that a request does not size itself."""

    max_model_len: int
    max_num_seqs: int
    max_body_bytes: int
    max_queue_s: float | None
    visual_tokens: tuple[int, int]
    media: MediaLimits


class Props(Struct, frozen=True, kw_only=True):
    model: str
    served_model_names: Sequence[str]
    build_info: str
    modalities: Modalities
    limits: Limits
    chat_template_caps: TemplateAbilities


def routes(serving: Serving) -> list[Route]:
    async def props(request: Request) -> Response:
        return json_response(props_of(serving))

    return [Route("/props", props)]


def props_of(serving: Serving) -> Props:
    engine, config = serving.engine, serving.config
    kinds = engine.files.processor.media_tokens
    return Props(
        model=engine.model_names[0],
        served_model_names=engine.model_names,
        build_info=f"tapetum {__version__}",
        modalities=Modalities(vision="image" in kinds, video="video" in kinds),
        limits=Limits(
            max_model_len=engine.facts.max_model_len,
            max_num_seqs=engine.config.schedule.max_num_seqs,
            max_body_bytes=config.max_body_bytes,
            max_queue_s=config.max_queue_s,
            visual_tokens=_visual_tokens(engine.files.processor, engine.config.media),
            media=_media_limits(engine.config.media),
        ),
        chat_template_caps=engine.files.template.abilities,
    )


def _media_limits(media: MediaConfig) -> MediaLimits:
    return MediaLimits(
        per_prompt=media.limit_per_prompt,
        max_bytes=media.max_bytes,
        max_pixels=media.max_pixels,
        max_frames=media.max_frames,
        timeout_s=media.timeout_s,
        allowed_domains=media.allowed_domains,
        has_local_files=media.allowed_local_path is not None,
        processor=media.mm_processor,
    )


def _visual_tokens(processor: Processor, media: MediaConfig) -> tuple[int, int]:
    """Of the smallest and of the largest square; none where the model takes no pictures."""
    if "image" not in processor.media_tokens:
        return 0, 0
    fewest, most = (
        processor.geometry("image", side, side, options=ProcessorOptions()).num_tokens
        for side in (1, isqrt(media.max_pixels))
    )
    return fewest, most
