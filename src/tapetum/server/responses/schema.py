"""The request of /v1/responses as clients send it, and its validation.

Owns the fields that only this API has, and which of them are refused by name: nothing is stored here, so a request
brings its whole conversation, and no tool runs on this side.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from tapetum.core.errors import InvalidParameter
from tapetum.server.chat.formats import JsonObjectFormat, TextFormat
from tapetum.server.chat.sampling import SamplingFields
from tapetum.server.chat.unserved import refuse, refuse_unserved, unserved
from tapetum.server.errors import NotSupported
from tapetum.server.parse import parsed


class JsonSchemaFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    name: str
    schema: dict[str, object]
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, frozen=True, kw_only=True):
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat = TextFormat()
    verbosity: Literal["low", "medium", "high"] | None = None


class FunctionTool(Struct, frozen=True, kw_only=True):
    """A function the client can call. `type` is looked at by hand: other types are tools that run elsewhere."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class FunctionChoice(Struct, frozen=True, kw_only=True):
    type: str
    name: str = ""


class Reasoning(Struct, frozen=True, kw_only=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesRequest(SamplingFields, frozen=True, kw_only=True):
    input: str | Annotated[list[Raw], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextConfig | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    user: str | None = None
    truncation: Literal["auto", "disabled"] | None = None  # nothing is ever cut out of a prompt
    chat_template_kwargs: dict[str, object] | None = None
    mm_processor_kwargs: dict[str, object] | None = None
    max_visual_tokens: Annotated[int, Meta(ge=1)] | None = None

    background: object = None
    context_management: object = None
    conversation: object = None
    include: object = None
    moderation: object = None
    previous_response_id: object = None
    prompt: object = None
    top_logprobs: object = None


# Known fields that are not served, with the values that ask for nothing.
_UNSERVED: dict[str, tuple[object, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "include": ([],),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "top_logprobs": (0,),
}
_decoder = msgspec.json.Decoder(ResponsesRequest)


def parse_responses(body: bytes) -> ResponsesRequest:
    """Validate a request body; raises RequestError and its children."""
    asked = parsed(_decoder, body)
    refuse_unserved(asked, but=("store",))  # which the answer denies
    refuse(asked, _UNSERVED)
    if asked.reasoning is not None and asked.reasoning != Reasoning():
        raise unserved("reasoning")
    if asked.text is not None and asked.text.verbosity not in (None, "medium"):
        raise unserved("text.verbosity")
    if asked.num_choices > 1:
        raise unserved("n")
    if asked.max_tokens is not None:
        raise InvalidParameter("max_tokens is called max_output_tokens here; rename it", param="max_tokens")
    for index, tool in enumerate(asked.tools or ()):
        if tool.type != "function":
            raise NotSupported(
                f"tools[{index}] is of type {tool.type!r:.60}, no tools run on this server; send functions",
                param=f"tools[{index}].type",
            )
    if isinstance(asked.tool_choice, FunctionChoice) and asked.tool_choice.type != "function":
        raise NotSupported(
            f"tool_choice is of type {asked.tool_choice.type!r:.60}; choose none, auto, required or a function",
            param="tool_choice",
        )
    return asked
