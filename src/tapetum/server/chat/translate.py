"""From the words of the wire to those of the engine: messages, media references, sampling, priority.

Owns no validation of types (schema) and none of ranges (core); references of clients are never trusted.
"""

from __future__ import annotations

from tapetum.core.chat import ChatInput, MediaPart, Message
from tapetum.core.errors import InvalidParameter
from tapetum.core.request import SamplingParams
from tapetum.server.chat.schema import (
    ChatMessage,
    ChatRequest,
    ImageUrl,
    ImageUrlPart,
    MediaContent,
    TextPart,
    VideoPart,
)

_PRIORITIES = {"interactive": -1, "standard": 0, "economy": 1, "background": 2}


def chat_input_of(request: ChatRequest) -> ChatInput:
    options = request.mm_processor_kwargs or {}
    return ChatInput(
        messages=tuple(_message(message, options) for message in request.messages),
        template_kwargs=request.chat_template_kwargs or {},
        add_generation_prompt=request.add_generation_prompt,
    )


def sampling_of(request: ChatRequest) -> SamplingParams:
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidParameter(
            "top_logprobs is set without logprobs; set logprobs to true", param="top_logprobs"
        )
    wanted = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    return SamplingParams(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=request.seed,
        stop=request.stop or (),
        stop_token_ids=request.stop_token_ids or (),
        max_tokens=wanted,
        ignore_eos=request.ignore_eos,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )


def priority_of(request: ChatRequest) -> int:
    """Lower is earlier."""
    return request.priority if isinstance(request.priority, int) else _PRIORITIES[request.priority]


def _message(message: ChatMessage, options: dict[str, object]) -> Message:
    content = message.content
    if content is None:
        return Message(role=message.role, content=())
    if isinstance(content, str):
        return Message(role=message.role, content=(content,))
    return Message(
        role=message.role,
        content=tuple(part.text if isinstance(part, TextPart) else _media(part, options) for part in content),
    )


def _media(part: MediaContent, options: dict[str, object]) -> MediaPart:
    own: dict[str, object] = {"min_pixels": part.min_pixels, "max_pixels": part.max_pixels}
    if isinstance(part, VideoPart):
        own["fps"] = part.fps
        frames = tuple(_reference(frame) for frame in part.video)
        return MediaPart(kind="video", source=frames, options=_merged(options, own))
    source = _reference(part.image_url) if isinstance(part, ImageUrlPart) else part.image
    return MediaPart(kind="image", source=source, options=_merged(options, own))


def _reference(value: ImageUrl | str) -> str:
    return value if isinstance(value, str) else value.url


def _merged(options: dict[str, object], own: dict[str, object]) -> dict[str, object]:
    """The request's options, with those that a part sets for itself on top."""
    return options | {name: value for name, value in own.items() if value is not None}
