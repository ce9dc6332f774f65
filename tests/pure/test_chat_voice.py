"""What one choice says: the pieces of a stream, joined, are the whole, wherever the news were cut."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from tapetum.core.errors import CapacityError
from tapetum.core.plan import SampledToken
from tapetum.engine.output import Delta
from tapetum.server.chat.voice import Voice
from tapetum.server.chat.wire import AnswerMessage
from tapetum.text.reasoning import ReasoningStream
from tapetum.text.tool_calls import ToolCallStream

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "ü"]}}\n</tool_call>'
OTHER = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
TEXTS = [
    "plain words",
    "",
    "<think>\nhm\n</think>\n\nso",
    f"<think>hm</think>I call: {CALL}",
    CALL + OTHER,
    f"{CALL} and then {OTHER} words",
    "<think>never done",
    '<tool_call>{"name": "f", "arguments": {"a": 1',
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    "a < b <tool",
]


def voice(*, max_calls: int | None = None) -> Voice:
    ids = count()
    calls = ToolCallStream(names=["f", "g"], new_id=lambda: f"call_{next(ids)}")
    return Voice(ReasoningStream(), calls, max_calls=max_calls)


def said(
    text: str, cuts: list[int], reason: str = "stop", **fields: int
) -> tuple[Voice, list[AnswerMessage]]:
    """The text, cut where told, with the end in a piece of its own or with the last one."""
    speaker = voice(**fields)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    deltas = [Delta(text=piece, tokens=(SampledToken(token_id=1),)) for piece in pieces[:-1]]
    deltas.append(Delta(text=pieces[-1], tokens=(SampledToken(token_id=2),), finish_reason=reason))
    return speaker, [speaker.read(delta) for delta in deltas]


def joined(pieces: list[AnswerMessage]) -> dict[str, object]:
    """As a client joins the deltas of a stream."""
    calls: dict[int, dict[str, str]] = {}
    for piece in pieces:
        for call in piece.tool_calls or ():
            if call.id is not UNSET:
                assert call.index not in calls, "a call begins once"
                calls[call.index] = {"id": call.id, "name": call.function.name, "arguments": ""}
            calls[call.index]["arguments"] += call.function.arguments
    assert list(calls) == list(range(len(calls)))
    return {
        "content": "".join(piece.content or "" for piece in pieces),
        "reasoning": "".join(piece.reasoning_content or "" for piece in pieces),
        "calls": list(calls.values()),
    }


def as_plain(message: AnswerMessage) -> dict[str, object]:
    return {
        "content": message.content or "",
        "reasoning": message.reasoning_content or "",
        "calls": [
            {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            for call in message.tool_calls or ()
        ],
    }


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 120), max_size=8))
def test_the_stream_joined_is_the_whole_however_it_is_cut(text: str, cuts: list[int]) -> None:
    speaker, pieces = said(text, cuts)
    alone, _ = said(text, [])
    assert joined(pieces) == as_plain(speaker.message()) == as_plain(alone.message())
    assert speaker.finish_reason == alone.finish_reason
    assert len(speaker.tokens) == len(pieces)


def test_reasoning_content_and_calls_are_told_apart() -> None:
    speaker, _ = said(TEXTS[3], [])
    message = speaker.message()
    assert (message.role, message.reasoning_content, message.content) == ("assistant", "hm", "I call:")
    (call,) = message.tool_calls
    assert (call.type, call.function.name, call.function.arguments) == ("function", "f", '{"a": [1, "ü"]}')
    assert speaker.finish_reason == "tool_calls"


def test_an_answer_of_calls_alone_has_no_content_and_one_of_nothing_has_an_empty_one() -> None:
    assert said(CALL, [])[0].message().content is None
    empty = said("", [])[0].message()
    assert (empty.content, empty.tool_calls, empty.reasoning_content) == ("", UNSET, UNSET)


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        ("words", "stop", "stop"),
        (CALL, "stop", "tool_calls"),
        (CALL, "length", "length"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1', "stop", "stop"),
        (TEXTS[8], "stop", "stop"),
    ],
)
def test_an_answer_ends_with_calls_where_they_are_complete(text: str, reason: str, expected: str) -> None:
    assert said(text, [], reason)[0].finish_reason == expected


def test_calls_beyond_those_allowed_are_not_told() -> None:
    speaker, pieces = said(CALL + OTHER, [3, 40, 70], max_calls=1)
    (call,) = speaker.message().tool_calls
    assert call.function.name == "f"
    assert len(joined(pieces)["calls"]) == 1
    assert speaker.finish_reason == "tool_calls"


def test_without_readers_all_is_content() -> None:
    speaker = Voice()
    piece = speaker.read(Delta(text=TEXTS[3], finish_reason="stop", stop_reason=7))
    assert piece == AnswerMessage(content=TEXTS[3])
    assert speaker.message().content == TEXTS[3]
    assert (speaker.finish_reason, speaker.stop_reason) == ("stop", 7)


def test_an_answer_that_the_server_cuts_off_is_an_error() -> None:
    speaker = Voice()
    with pytest.raises(CapacityError):
        speaker.read(Delta(text="half", finish_reason="abort"))
    assert speaker.finish_reason is None
