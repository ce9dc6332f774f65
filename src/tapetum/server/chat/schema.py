"""The chat request as clients send it, and its validation.

Owns the messages and the fields that only chat has; what a part, a tool, a format or a sampling value looks like is
said beside what is made of it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from tapetum.core.errors import InvalidParameter
from tapetum.server.chat.parts import PART_TYPES, Part, check_parts
from tapetum.server.chat.sampling import SamplingFields
from tapetum.server.chat.tools import CallEntry
from tapetum.server.chat.unserved import refuse_unserved, unserved
from tapetum.server.parse import parsed


class ChatMessage(Struct, frozen=True, kw_only=True):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[CallEntry] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same by its newer name
    function_call: object = None
    audio: object = None


class MediaIO(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How media are read, by their kind."""

    image: dict[str, object] | None = None
    video: dict[str, object] | None = None


class PredictedText(Struct, frozen=True, kw_only=True):
    type: Literal["text"]
    text: str


class Prediction(Struct, frozen=True, kw_only=True):
    """A text that the answer will largely follow."""

    type: Literal["content"]
    content: str | list[PredictedText]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    prediction: Prediction | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    mm_processor_kwargs: dict[str, object] | None = None
    media_io_kwargs: MediaIO | None = None
    max_visual_tokens: Annotated[int, Meta(ge=1)] | None = None


_decoder = msgspec.json.Decoder(ChatRequest)
_REMEDIES = {
    r"content\[\d+\]\.type": "parts may be " + PART_TYPES,
    r"detail": "pictures may be seen in detail auto, low or high; min_pixels and max_pixels bound them freely",
}


def parse_chat(body: bytes) -> ChatRequest:
    """Validate a request body; raises RequestError and its children."""
    request = parsed(_decoder, body, _REMEDIES)
    check_chat(request)
    return request


def check_chat(request: ChatRequest) -> None:
    """What the types of the fields do not say; raises InvalidParameter and its children."""
    refuse_unserved(request, but=("prediction",))
    if request.stream_options and request.stream_options.continuous_usage_stats:
        raise unserved("stream_options.continuous_usage_stats")
    for index, message in enumerate(request.messages):
        _check_message(message, f"messages[{index}]")
    if request.continue_final_message and request.add_generation_prompt:
        raise InvalidParameter(
            "continue_final_message and add_generation_prompt are both true, and an answer either goes on or begins; "
            "set one of them",
            param="continue_final_message",
        )
    if request.top_logprobs and not request.logprobs:
        raise InvalidParameter(
            "top_logprobs is set without logprobs; set logprobs to true", param="top_logprobs"
        )


def _check_message(message: ChatMessage, place: str) -> None:
    for name in ("function_call", "audio"):
        if getattr(message, name):
            raise unserved(f"{place}.{name}")
    if message.tool_calls and message.role != "assistant":
        raise InvalidParameter(
            f"{place} is of role {message.role!r:.40} and has tool_calls, only the assistant calls; leave them out",
            param=f"{place}.tool_calls",
        )
    if isinstance(message.content, list):
        check_parts(message.content, message.role, f"{place}.content")
