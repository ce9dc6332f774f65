"""One item of an output while it grows: the events it begins and ends with, and one for each piece.

Owns the order of the events of an item. Sequence numbers are given by whoever sends them.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import UNSET, UnsetType

from tapetum.server.responses.wire import (
    Event,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
)


class Draft(Protocol):
    def begin(self) -> list[Event]: ...

    def grow(self, text: str) -> Event: ...

    def end(self, status: Status) -> list[Event]: ...

    def item(self, status: Status) -> OutputItem: ...


class TextDraft:
    """What the model says, or thinks: an item with one part of text."""

    def __init__(self, output_index: int, item_id: str, *, is_reasoning: bool) -> None:
        self._output_index = output_index
        self._item_id = item_id
        self._is_reasoning = is_reasoning
        self._name = "response.reasoning_text" if is_reasoning else "response.output_text"
        self._texts: list[str] = []

    def begin(self) -> list[Event]:
        added = Event(
            type="response.output_item.added",
            output_index=self._output_index,
            item=self._with_parts("in_progress", has_parts=False),
        )
        return [added, self._part_event("response.content_part.added")]

    def grow(self, text: str) -> Event:
        self._texts.append(text)
        return self._text_event(".delta", delta=text)

    def end(self, status: Status) -> list[Event]:
        return [
            self._text_event(".done", text="".join(self._texts)),
            self._part_event("response.content_part.done"),
            Event(type="response.output_item.done", output_index=self._output_index, item=self.item(status)),
        ]

    def item(self, status: Status) -> OutputItem:
        return self._with_parts(status, has_parts=True)

    def _with_parts(self, status: Status, *, has_parts: bool) -> OutputItem:
        text = "".join(self._texts)
        if self._is_reasoning:
            thoughts = [ReasoningText(text=text)] if has_parts else []
            return ReasoningItem(id=self._item_id, status=status, content=thoughts)
        return MessageItem(
            id=self._item_id, status=status, content=[OutputText(text=text)] if has_parts else []
        )

    def _part_event(self, name: str) -> Event:
        text = "".join(self._texts)
        return Event(
            type=name,
            item_id=self._item_id,
            output_index=self._output_index,
            content_index=0,
            part=ReasoningText(text=text) if self._is_reasoning else OutputText(text=text),
        )

    def _text_event(
        self, suffix: str, *, delta: str | UnsetType = UNSET, text: str | UnsetType = UNSET
    ) -> Event:
        return Event(
            type=self._name + suffix,
            item_id=self._item_id,
            output_index=self._output_index,
            content_index=0,
            delta=delta,
            text=text,
            logprobs=UNSET if self._is_reasoning else (),
        )


class CallDraft:
    """A call of a function; it grows by pieces of the JSON text of its arguments."""

    def __init__(self, output_index: int, item_id: str, *, call_id: str, name: str) -> None:
        self._output_index = output_index
        self._item_id = item_id
        self._call_id = call_id
        self._name = name
        self._arguments: list[str] = []

    def begin(self) -> list[Event]:
        item = self.item("in_progress")
        return [Event(type="response.output_item.added", output_index=self._output_index, item=item)]

    def grow(self, text: str) -> Event:
        self._arguments.append(text)
        return Event(
            type="response.function_call_arguments.delta",
            item_id=self._item_id,
            output_index=self._output_index,
            delta=text,
        )

    def end(self, status: Status) -> list[Event]:
        done = Event(
            type="response.function_call_arguments.done",
            item_id=self._item_id,
            output_index=self._output_index,
            name=self._name,
            arguments="".join(self._arguments),
        )
        item = self.item(status)
        return [done, Event(type="response.output_item.done", output_index=self._output_index, item=item)]

    def item(self, status: Status) -> OutputItem:
        return FunctionCallItem(
            id=self._item_id,
            status=status,
            call_id=self._call_id,
            name=self._name,
            arguments="".join(self._arguments),
        )
