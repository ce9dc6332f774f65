"""One choice of an answer while it is said: what came of it so far, and each piece of news in the words of the wire.

Owns which part of a text is reasoning, content or a call; the stream and the whole answer are read off the same
pieces, so they agree.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from tapetum.core.errors import CapacityError
from tapetum.core.plan import SampledToken
from tapetum.engine.output import Delta
from tapetum.server.chat.wire import AnswerMessage, Call, CalledFunction
from tapetum.text.reasoning import ReasoningStream, Thought
from tapetum.text.tool_calls import ArgumentsDelta, CallBegin, TextDelta, ToolCallStream, ToolDelta


class Voice:
    """`reasoning` and `calls` read the text where the model may think or call, else all of it is content.

    `max_calls`: calls beyond so many are not told.
    """

    def __init__(
        self,
        reasoning: ReasoningStream | None = None,
        calls: ToolCallStream | None = None,
        *,
        max_calls: int | None = None,
    ) -> None:
        self.tokens: list[SampledToken] = []
        self.stop_reason: int | str | None = None
        self.finish_reason: str | None = None
        self._reasoning = reasoning
        self._calls = calls
        self._max_calls = max_calls
        self._said: list[AnswerMessage] = []

    def read(self, delta: Delta) -> AnswerMessage:
        """The news as a piece of a message; raises CapacityError where the server cut the answer off."""
        refuse_abort(delta)
        is_last = delta.finish_reason is not None
        thought = self._think(delta.text, is_last)
        piece = self._piece(thought, self._listen(thought.content, is_last))
        self.tokens += delta.tokens
        self._said.append(piece)
        if is_last:
            self.stop_reason, self.finish_reason = delta.stop_reason, delta.finish_reason
            if delta.finish_reason == "stop" and self._has_called:
                self.finish_reason = "tool_calls"
        return piece

    def message(self) -> AnswerMessage:
        """All that was said."""
        calls: dict[int, list[Call]] = {}
        for piece in self._said:
            for call in piece.tool_calls or ():
                calls.setdefault(call.index or 0, []).append(call)
        content = _joined(piece.content for piece in self._said)
        return AnswerMessage(
            role="assistant",
            content=content or (None if calls else ""),
            reasoning_content=_joined(piece.reasoning_content for piece in self._said) or UNSET,
            tool_calls=[_whole(pieces) for pieces in calls.values()] or UNSET,
        )

    @property
    def _has_called(self) -> bool:
        """Whether a call was made, and the last one to its end."""
        return self._calls is not None and self._calls.num_calls > 0 and not self._calls.is_cut

    def _think(self, text: str, is_last: bool) -> Thought:
        if self._reasoning is None:
            return Thought(content=text)
        new = self._reasoning.push(text)
        rest = self._reasoning.flush() if is_last else Thought()
        return Thought(new.reasoning + rest.reasoning, new.content + rest.content)

    def _listen(self, text: str, is_last: bool) -> list[ToolDelta]:
        if self._calls is None:
            return [TextDelta(text)] if text else []
        news = self._calls.push(text)
        return news + self._calls.flush() if is_last else news

    def _piece(self, thought: Thought, news: Iterable[ToolDelta]) -> AnswerMessage:
        texts: list[str] = []
        calls: dict[int, Call] = {}
        for each in news:
            if isinstance(each, TextDelta):
                texts.append(each.text)
            elif self._max_calls is None or each.index < self._max_calls:
                calls[each.index] = _grown(calls.get(each.index), each)
        return AnswerMessage(
            content="".join(texts) or UNSET,
            reasoning_content=thought.reasoning or UNSET,
            tool_calls=[*calls.values()] or UNSET,
        )


def refuse_abort(delta: Delta) -> None:
    """Only a server that shuts down aborts a request whose client is still there."""
    if delta.finish_reason == "abort":
        raise CapacityError("the server ended the request before it was done; send it again")


def _grown(call: Call | None, news: CallBegin | ArgumentsDelta) -> Call:
    """The piece of a call with what came next of it."""
    if isinstance(news, CallBegin):
        function = CalledFunction(name=news.name, arguments="")
        return Call(index=news.index, id=news.id, type="function", function=function)
    if call is None:
        return Call(index=news.index, function=CalledFunction(arguments=news.text))
    function = CalledFunction(name=call.function.name, arguments=call.function.arguments + news.text)
    return Call(index=call.index, id=call.id, type=call.type, function=function)


def _whole(pieces: list[Call]) -> Call:
    first = pieces[0]
    arguments = "".join(piece.function.arguments for piece in pieces)
    return Call(
        id=first.id,
        type=first.type,
        function=CalledFunction(name=first.function.name, arguments=arguments),
    )


def _joined(texts: Iterable[object]) -> str:
    return "".join(text for text in texts if isinstance(text, str))
