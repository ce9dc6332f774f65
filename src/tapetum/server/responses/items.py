"""The items of an input: messages, calls and their outputs, as the turns of a chat.

Owns which items there are, and how what one turn of the assistant brought forth comes together again: its reasoning,
its words and its calls are items of their own here, and one message there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from tapetum.core.errors import InvalidParameter, RequestError
from tapetum.server.chat.parts import (
    Detail,
    InputFilePart,
    InputImagePart,
    Part,
    RefusalPart,
    TextPart,
    check_file,
)
from tapetum.server.chat.schema import ChatMessage
from tapetum.server.chat.tools import CallEntry, FunctionCall
from tapetum.server.errors import NotSupported
from tapetum.server.parse import invalid
from tapetum.text.tools import read_arguments


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str


class Refusal(Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class InputImage(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="input_image"
):
    image_url: str | None = None
    detail: Detail | None = None
    file_id: str | None = None
    uuid: str | None = None  # not looked at, as in chat


Content = InputText | OutputText | Refusal | InputImage | InputFilePart


class MessageItem(Struct, frozen=True, kw_only=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Content]


class CallItem(Struct, frozen=True, kw_only=True):
    call_id: str
    name: str
    arguments: str


class CallOutputItem(Struct, frozen=True, kw_only=True):
    call_id: str
    output: str | list[InputText | InputImage | InputFilePart]


class ReasoningText(Struct, frozen=True):
    text: str


class ReasoningItem(Struct, frozen=True, kw_only=True):
    summary: list[ReasoningText] = []
    content: list[ReasoningText] | None = None


class _Kind(Struct, frozen=True):
    type: str | None = None


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem
_kind_decoder = msgspec.json.Decoder(_Kind)
_DECODERS: dict[str, msgspec.json.Decoder[Item]] = {
    "message": msgspec.json.Decoder(MessageItem),
    "function_call": msgspec.json.Decoder(CallItem),
    "function_call_output": msgspec.json.Decoder(CallOutputItem),
    "reasoning": msgspec.json.Decoder(ReasoningItem),
}
_REMEDIES = {r"\.type": "parts may be input_text, input_image, input_file, output_text or refusal"}


def messages_of(given: str | Sequence[Raw]) -> list[ChatMessage]:
    """The turns of an input, in order; raises InvalidParameter with the item at fault."""
    if isinstance(given, str):
        return [ChatMessage(role="user", content=given)]
    turns = _Turns()
    for index, raw in enumerate(given):
        place = f"input[{index}]"
        turns.take(_item(raw, place), place)
    return turns.finished()


def _item(raw: Raw, place: str) -> Item:
    decoder: msgspec.json.Decoder[_Kind] | msgspec.json.Decoder[Item] = _kind_decoder
    try:
        name = _kind_decoder.decode(raw).type or "message"
        if name not in _DECODERS:
            raise NotSupported(
                f"{place} is of type {name!r:.60}; send {', '.join(_DECODERS)}", param=f"{place}.type"
            )
        decoder = _DECODERS[name]
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise invalid(error, decoder.type, raw, place, remedies=_REMEDIES) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"{place} is no JSON object: {error}", param=place) from error


@dataclass(slots=True)
class _Assistant:
    """A turn of the assistant as far as its items have come."""

    reasoning: list[str] = field(default_factory=list)
    content: str | list[Part] | None = None
    calls: list[CallEntry] = field(default_factory=list)

    def message(self) -> ChatMessage:
        return ChatMessage(
            role="assistant",
            content=self.content,
            reasoning_content="\n".join(self.reasoning) or None,
            tool_calls=self.calls or None,
        )


class _Turns:
    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._assistant: _Assistant | None = None

    def take(self, item: Item, place: str) -> None:
        match item:
            case CallItem():
                read_arguments(item.arguments, f"{place}.arguments")
                call = FunctionCall(name=item.name, arguments=item.arguments)
                self._turn().calls.append(CallEntry(id=item.call_id, function=call))
            case ReasoningItem():
                self._unspoken().reasoning += [part.text for part in item.content or item.summary]
            case MessageItem(role="assistant"):
                self._unspoken().content = _content(item.content, item.role, f"{place}.content")
            case MessageItem():
                self._end()
                content = _content(item.content, item.role, f"{place}.content")
                self._messages.append(ChatMessage(role=item.role, content=content))
            case CallOutputItem():
                self._end()
                content = _content(item.output, "tool", f"{place}.output")
                self._messages.append(ChatMessage(role="tool", content=content, tool_call_id=item.call_id))

    def finished(self) -> list[ChatMessage]:
        self._end()
        return self._messages

    def _turn(self) -> _Assistant:
        """The assistant's turn that is going on, or a new one."""
        if self._assistant is None:
            self._assistant = _Assistant()
        return self._assistant

    def _unspoken(self) -> _Assistant:
        """The same, if it has not come to words or calls: reasoning and words come before those of their turn."""
        if self._assistant is not None and (self._assistant.content is not None or self._assistant.calls):
            self._end()
        return self._turn()

    def _end(self) -> None:
        if self._assistant is not None:
            self._messages.append(self._assistant.message())
            self._assistant = None


def _content(content: str | Sequence[Content], role: str, place: str) -> str | list[Part]:
    if isinstance(content, str):
        return content
    return [_part(part, role, f"{place}[{index}]") for index, part in enumerate(content)]


def _part(part: Content, role: str, place: str) -> Part:
    if isinstance(part, (OutputText, Refusal)) and role != "assistant":
        raise InvalidParameter(
            f"{place} is something the assistant said, in a message of role {role}; send input_text",
            param=f"{place}.type",
        )
    match part:
        case InputText(text=text) | OutputText(text=text):
            return TextPart(text=text)
        case Refusal(refusal=refusal):
            return RefusalPart(refusal=refusal)
        case InputFilePart():
            check_file(part, place)
            return part
    if part.image_url is None:
        name = "image_url" if part.file_id is None else "file_id"
        raise NotSupported(
            f"{place} has {'no image_url' if part.file_id is None else 'a file_id, and no files are kept here'}; "
            "send the picture as an image_url, which may be a data: URL",
            param=f"{place}.{name}",
        )
    return InputImagePart(image_url=part.image_url, detail=part.detail)
