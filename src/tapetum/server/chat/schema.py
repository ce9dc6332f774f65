"""The chat request as clients send it, and its validation.

Owns field names and types; ranges of sampling values are SamplingParams' business. Fields nobody knows are ignored,
as OpenAI's clients expect; fields that are known but not yet served are refused by name, never silently dropped.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from tapetum.core.errors import InvalidParameter, RequestError
from tapetum.server.errors import NotSupported

MAX_TIMEOUT_S = 86_400  # a day


class ImageUrl(Struct, frozen=True):
    url: str
    detail: str | None = None  # pictures are always seen in full; their size is bounded in pixels


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ImageUrlPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="image_url"):
    image_url: ImageUrl | str
    min_pixels: int | None = None
    max_pixels: int | None = None


class ImagePart(Struct, frozen=True, kw_only=True, tag_field="type", tag="image"):
    image: str
    min_pixels: int | None = None
    max_pixels: int | None = None


class VideoPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="video"):
    """A clip as its frames in order; `fps` is the rate at which they were taken."""

    video: Annotated[list[ImageUrl | str], Meta(min_length=1)]
    min_pixels: int | None = None
    max_pixels: int | None = None
    fps: float | None = None


MediaContent = ImageUrlPart | ImagePart | VideoPart


class ChatMessage(Struct, frozen=True, kw_only=True):
    role: str
    content: str | list[TextPart | ImageUrlPart | ImagePart | VideoPart] | None = None
    tool_calls: list[object] | None = None
    function_call: object = None


class StreamOptions(Struct, frozen=True):
    include_usage: bool = False


PriorityClass = Literal["interactive", "standard", "economy", "background"]


class ChatRequest(Struct, frozen=True, kw_only=True):
    """What is served of OpenAI's fields, then what goes beyond them."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    return_token_ids: bool = False
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, object] | None = None
    mm_processor_kwargs: dict[str, object] | None = None
    cache_salt: str | None = None
    priority: PriorityClass | Annotated[int, Meta(ge=-1000, le=1000)] = 0
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None


# Known fields that this version does not serve, with the values that ask for nothing.
_UNSERVED: dict[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "max_visual_tokens": (),
    "media_io_kwargs": ({},),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "on_vision_timeout": (),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "reuse": ({},),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "store": (False,),
    "structured_outputs": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_DETAILS = (None, "auto", "high")  # what asks for no less than a picture in full
_decode_request = msgspec.json.Decoder(ChatRequest).decode
_decode_unserved = msgspec.json.Decoder(
    msgspec.defstruct("UnservedFields", [(name, object, None) for name in _UNSERVED])
).decode
_PLACE = re.compile(r" - at `\$\.?(.*)`$")


def parse_chat(body: bytes) -> ChatRequest:
    """Validate a request body; raises RequestError and its children."""
    try:
        request = _decode_request(body)
        unserved = msgspec.structs.asdict(_decode_unserved(body))
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply; flatten it") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is no JSON object: {error}") from error
    for name, value in unserved.items():
        if value is not None and value not in _UNSERVED[name]:
            raise NotSupported(f"{name} is not supported by this version; leave it out", param=name)
    for index, message in enumerate(request.messages):
        _check_message(message, f"messages[{index}]")
    return request


def _check_message(message: ChatMessage, place: str) -> None:
    if message.tool_calls or message.function_call:
        raise NotSupported(
            "tool calls in messages are not supported by this version; leave them out",
            param=f"{place}.tool_calls",
        )
    parts = message.content if isinstance(message.content, list) else []
    pictures = [part.image_url for part in parts if isinstance(part, ImageUrlPart)]
    frames = [frame for part in parts if isinstance(part, VideoPart) for frame in part.video]
    for picture in (*pictures, *frames):
        if isinstance(picture, ImageUrl) and picture.detail not in _DETAILS:
            raise NotSupported(
                f"detail is {picture.detail!r}, pictures are always seen in full; leave it out, and bound the size "
                "of a picture by min_pixels and max_pixels",
                param=f"{place}.content",
            )


def _invalid(reason: str) -> InvalidParameter:
    """msgspec says where as a path; the field's name is what clients look for."""
    match = _PLACE.search(reason)
    if match is None:
        return InvalidParameter(f"the request is invalid: {reason}")
    param, what = match[1], reason[: match.start()]
    if param.endswith(".type") and what.startswith("Invalid value"):
        what += "; parts may be text, image_url, image or video"
    return InvalidParameter(f"{param or 'body'}: {what}", param=param or None)
