"""The records of OpenAI's Responses API as they go over the wire: the response, its items, its events.

Owns shapes only. Fields left UNSET are not written; those that are None are, as OpenAI writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from tapetum.server.disclosure import Disclosure
from tapetum.server.responses.schema import FunctionChoice, FunctionTool, TextConfig

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: Sequence[object] = ()
    logprobs: Sequence[object] = ()


class ReasoningText(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: Status
    content: Sequence[OutputText]
    role: Literal["assistant"] = "assistant"


class FunctionCallItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


class ReasoningItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    content: Sequence[ReasoningText]
    summary: Sequence[object] = ()


OutputItem = MessageItem | FunctionCallItem | ReasoningItem


class InputDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int
    visual_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class NoReasoning(Struct, frozen=True):
    """Nobody said how to reason."""

    effort: None = None
    summary: None = None


class IncompleteDetails(Struct, frozen=True):
    reason: Literal["max_output_tokens"]


class Failure(Struct, frozen=True, kw_only=True):
    """Why a response failed; of OpenAI's codes only this one speaks of the server."""

    message: str
    code: Literal["server_error"] = "server_error"


class Response(Struct, frozen=True, kw_only=True):
    """A response at some moment; what the request said comes back in it."""

    id: str
    created_at: int
    model: str
    status: Status
    output: Sequence[OutputItem]
    instructions: str | None
    max_output_tokens: int | None
    parallel_tool_calls: bool
    temperature: float | None
    top_p: float | None
    text: TextConfig
    tool_choice: str | FunctionChoice
    tools: Sequence[FunctionTool]
    metadata: Mapping[str, str]
    user: str | None
    error: Failure | None = None
    incomplete_details: IncompleteDetails | None = None
    completed_at: int | None = None
    usage: Usage | None = None
    object: Literal["response"] = "response"
    background: Literal[False] = False
    store: Literal[False] = False
    previous_response_id: None = None
    reasoning: NoReasoning = NoReasoning()
    service_tier: Literal["default"] = "default"
    truncation: Literal["disabled"] = "disabled"
    tapetum: Disclosure | UnsetType = UNSET


class Event(Struct, frozen=True, kw_only=True):
    """One event of a stream; `type` says which of the fields it has."""

    type: str
    sequence_number: int = 0
    response: Response | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: Sequence[object] | UnsetType = UNSET
    message: str | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    param: str | UnsetType | None = UNSET
