"""The output of a response while the model speaks: its items, one after the other, and their events.

Owns which item a piece of the answer belongs to: a new one begins where the model turns from thinking to speaking or
to calling, or calls once more. An answer that says nothing is a message without words.
"""

from __future__ import annotations

from collections.abc import Iterator

from tapetum.server.chat.wire import AnswerMessage, Call
from tapetum.server.responses.drafts import CallDraft, Draft, TextDraft
from tapetum.server.responses.wire import Event, OutputItem, Status


class Output:
    def __init__(self, request_id: str) -> None:
        self.items: list[OutputItem] = []  # that have ended
        self._request_id = request_id
        self._draft: Draft | None = None
        self._what: object = None  # what the draft is of: "reasoning", "message" or the index of a call

    def read(self, piece: AnswerMessage) -> Iterator[Event]:
        """The events of what is new, reasoning before words before calls."""
        if piece.reasoning_content:
            yield from self._text("reasoning", piece.reasoning_content)
        if piece.content:
            yield from self._text("message", piece.content)
        for call in piece.tool_calls or ():
            yield from self._call(call)

    def end(self, status: Status) -> Iterator[Event]:
        """The last item ends as the response does; those before it are complete."""
        if self._draft is None and not self.items:
            yield from self._begin("message", TextDraft(0, self._id("msg"), is_reasoning=False))
        yield from self._end(status)

    def _text(self, what: str, text: str) -> Iterator[Event]:
        if self._draft is None or self._what != what:
            yield from self._end("completed")
            is_reasoning = what == "reasoning"
            draft = TextDraft(
                len(self.items), self._id("rs" if is_reasoning else "msg"), is_reasoning=is_reasoning
            )
            yield from self._begin(what, draft)
        assert self._draft is not None, "it has begun"
        yield self._draft.grow(text)

    def _call(self, call: Call) -> Iterator[Event]:
        if self._draft is None or self._what != call.index:
            yield from self._end("completed")
            name, call_id = call.function.name, call.id
            assert isinstance(name, str) and isinstance(call_id, str), "a call begins with its name"
            draft = CallDraft(len(self.items), self._id("fc"), call_id=call_id, name=name)
            yield from self._begin(call.index, draft)
        assert self._draft is not None, "it has begun"
        if call.function.arguments:
            yield self._draft.grow(call.function.arguments)

    def _begin(self, what: object, draft: Draft) -> Iterator[Event]:
        self._what, self._draft = what, draft
        yield from draft.begin()

    def _end(self, status: Status) -> Iterator[Event]:
        if self._draft is not None:
            draft, self._draft = self._draft, None
            self.items.append(draft.item(status))
            yield from draft.end(status)

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._request_id}_{len(self.items)}"
