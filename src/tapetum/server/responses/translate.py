"""A request of /v1/responses as the chat request it amounts to."""

from __future__ import annotations

from typing import Any

from tapetum.server.chat import formats
from tapetum.server.chat.sampling import SamplingFields, StreamOptions
from tapetum.server.chat.schema import ChatMessage, ChatRequest, check_chat
from tapetum.server.responses.items import messages_of
from tapetum.server.responses.schema import (
    FunctionChoice,
    FunctionTool,
    JsonSchemaFormat,
    ResponsesRequest,
)


def chat_request_of(asked: ResponsesRequest) -> ChatRequest:
    """With usage and token ids told in any case: the response is made of them. Raises InvalidParameter."""
    chosen: dict[str, Any] = {name: getattr(asked, name) for name in SamplingFields.__struct_fields__}
    chosen |= {
        "store": None,
        "max_tokens": asked.max_output_tokens,
        "stream_options": StreamOptions(include_usage=True),
        "return_token_ids": True,
    }
    if asked.text is not None:
        chosen["response_format"] = _format(asked) or asked.response_format
    told = [] if asked.instructions is None else [ChatMessage(role="system", content=asked.instructions)]
    request = ChatRequest(
        messages=told + messages_of(asked.input),
        tools=[_tool(tool) for tool in asked.tools or ()] or None,
        tool_choice=_choice(asked.tool_choice),
        parallel_tool_calls=asked.parallel_tool_calls,
        chat_template_kwargs=asked.chat_template_kwargs,
        mm_processor_kwargs=asked.mm_processor_kwargs,
        max_visual_tokens=asked.max_visual_tokens,
        **chosen,
    )
    check_chat(request)
    return request


def _format(asked: ResponsesRequest) -> formats.ResponseFormat | None:
    match asked.text and asked.text.format:
        case formats.JsonObjectFormat() as any_object:
            return any_object
        case JsonSchemaFormat(name=name, schema=schema, strict=strict):
            named = formats.NamedSchema(name=name, schema=schema, strict=strict)
            return formats.JsonSchemaFormat(json_schema=named)
    return None


def _tool(tool: FunctionTool) -> dict[str, object]:
    fields = ("name", "description", "parameters", "strict")
    given = {name: getattr(tool, name) for name in fields}
    return {
        "type": "function",
        "function": {name: value for name, value in given.items() if value is not None},
    }


def _choice(choice: str | FunctionChoice | None) -> str | dict[str, object] | None:
    if isinstance(choice, FunctionChoice):
        return {"type": "function", "function": {"name": choice.name}}
    return choice
