"""Calls in an answer: found the same whatever the pieces it comes in, and nothing of an answer is lost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.text.tool_calls import ArgumentsDelta, CallBegin, TextDelta, ToolCallStream, ToolDelta
from tapetum.text.tools import ToolStyle

NAMES = ("look", "zoom-in", "f")
MARKERS: dict[ToolStyle, str] = {
    "hermes": "<tool_call>",
    "llama3_json": "<|python_tag|>",
    "mistral": "[TOOL_CALLS]",
}
STYLES = tuple(MARKERS)
Part = str | tuple[str, str]  # text, or the name and the arguments of a call


def stream(style: ToolStyle) -> ToolCallStream:
    ids = itertools.count()
    return ToolCallStream(style, names=NAMES, new_id=lambda: f"call_{next(ids)}")


def read(pieces: Iterable[str], style: ToolStyle = "hermes") -> list[Part]:
    """What an answer holds, in order."""
    calls = stream(style)
    return joined([*(delta for piece in pieces for delta in calls.push(piece)), *calls.flush()])


def joined(deltas: Sequence[ToolDelta]) -> list[Part]:
    parts: list[Part] = []
    num_calls = 0
    for delta in deltas:
        if isinstance(delta, TextDelta):
            assert delta.text
            parts.append(parts.pop() + delta.text if parts and isinstance(parts[-1], str) else delta.text)  # type: ignore[operator]
        elif isinstance(delta, CallBegin):
            assert (delta.index, delta.id) == (num_calls, f"call_{num_calls}")
            num_calls += 1
            parts.append((delta.name, ""))
        else:
            assert delta.index == num_calls - 1
            assert delta.text
            name, arguments = parts.pop()
            parts.append((name, arguments + delta.text))
    return parts


def cut(text: str, places: Iterable[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


PLACES = st.lists(st.integers(0, 400), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.builds(
    lambda value, ascii, indent: json.dumps(value, ensure_ascii=ascii, indent=indent),
    st.dictionaries(st.text(max_size=6), JSON, max_size=3),
    st.booleans(),
    st.sampled_from([None, 2]),
)
CALLS = st.tuples(st.sampled_from(NAMES), ARGUMENTS)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<[{ \t\r\n"), min_size=1, max_size=8)
SCRAPS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *MARKERS.values(),
                "</tool_call>",
                "<tool",
                '{"name": "f", "arguments": ',
                '{"name": "f", "parameters": ',
                '"name": "f"',
                '{"a": [1, "x"]}',
                "{}",
                "{",
                "}",
                "[",
                "]",
                ",",
                ";",
                '"',
                ":",
                "\n",
                " ",
                " " * 70,
                "x",
                "\\",
            ]
        ),
        st.text(max_size=2),
    ),
    max_size=12,
).map("".join)


@given(parts=st.lists(WORDS | CALLS, max_size=5), places=PLACES)
def test_every_text_and_every_call_comes_out_as_it_went_in(parts: list[Part], places: list[int]) -> None:
    text = "\n".join(part if isinstance(part, str) else hermes(*part) for part in parts)
    expected: list[Part] = []
    for before, part in zip([None, *parts], parts, strict=False):
        if isinstance(part, tuple):
            expected.append(part)
        elif isinstance(before, str):
            expected.append(f"{expected.pop()}\n{part}")
        else:
            expected.append(part if before is None else f"\n{part}")
    assert read(cut(text, places)) == expected


@given(text=SCRAPS, style=st.sampled_from(STYLES), places=PLACES)
def test_the_pieces_do_not_matter(text: str, style: ToolStyle, places: list[int]) -> None:
    whole = read([text], style)
    assert read(cut(text, places), style) == whole
    assert read(text, style) == whole


@given(text=SCRAPS, style=st.sampled_from(STYLES))
def test_text_and_arguments_stand_in_the_answer_in_their_order(text: str, style: ToolStyle) -> None:
    """Only markers, names and white space around calls are not handed on."""
    rest = text
    for part in read([text], style):
        said = part if isinstance(part, str) else part[1]
        assert said in rest
        rest = rest[rest.index(said) + len(said) :]
    if MARKERS[style] not in text and (style == "hermes" or text.strip()[:1] not in ("{", "[")):
        assert read([text], style) == ([text] if text else [])


@given(arguments=ARGUMENTS, style=st.sampled_from(STYLES), places=PLACES, is_first=st.booleans())
def test_several_calls_in_the_form_of_each_style(
    arguments: str, style: ToolStyle, places: list[int], is_first: bool
) -> None:
    key = "parameters" if style == "llama3_json" else "arguments"
    calls = [f'{{"name": "{name}", "{key}": {arguments}}}' for name in ("f", "look")]
    written = {
        "hermes": "\n".join(f"<tool_call>{call}</tool_call>" for call in calls),
        "llama3_json": "; ".join(calls),
        "mistral": f"[{', '.join(calls)}]",
    }[style]
    if not is_first:
        written = f"Let me see. {'' if style == 'hermes' else MARKERS[style]}{written}"
    text: list[Part] = [] if is_first else ["Let me see."]
    assert read(cut(written, places), style) == [*text, ("f", arguments), ("look", arguments)]


def test_arguments_are_handed_out_as_they_come() -> None:
    calls = stream("hermes")
    assert calls.push('Hm. <tool_call>{"name": "look", "argum') == [TextDelta("Hm.")]
    assert calls.push('ents": {"at') == [CallBegin(0, "call_0", "look"), ArgumentsDelta(0, '{"at')]
    assert calls.push('": [1') == [ArgumentsDelta(0, '": [1')]
    assert calls.is_cut
    assert calls.push(", 2]}}") == [ArgumentsDelta(0, ", 2]}")]
    assert not calls.is_cut
    assert calls.push("</tool_call>\n") == []
    assert calls.flush() == []
    assert calls.num_calls == 1


def test_only_what_may_become_a_marker_is_held_back() -> None:
    calls = stream("hermes")
    assert calls.push("a < b <tool") == [TextDelta("a < b")]
    assert calls.push("box> c") == [TextDelta(" <toolbox> c")]


@pytest.mark.parametrize(
    "answer",
    [
        "<tool_call>",
        "<tool_call>\n",
        " <tool_call> look",
        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
        '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "name": "f", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "colour": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}, "name": "fly"}</tool_call>',
        '<tool_call>{"name": "f", "argume',
        "<tool_call><tool_call",
        '<tool_call>{"arguments": ' + '{"a":' * 300,
        "</tool_call>",
        '{"name": "f", "arguments": {}}',
    ],
)
def test_what_is_no_call_is_text(answer: str) -> None:
    assert read(answer) == [answer]


def test_a_name_may_come_after_the_arguments() -> None:
    answer = '<tool_call>{"id": "7", "arguments": {"a": "}"}, "name": "f"}</tool_call>'
    assert read(answer) == [("f", '{"a": "}"}')]


def test_a_call_after_one_that_is_none_is_found() -> None:
    assert read("<tool_call>no " + hermes("f", "{}")) == ["<tool_call>no", ("f", "{}")]
    assert read("<tool_call>{" + hermes("f", "{}")) == ["<tool_call>{", ("f", "{}")]
    assert read('<tool_call>{"id": "' + hermes("f", "{}")) == ['<tool_call>{"id": "', ("f", "{}")]


def test_white_space_at_the_end_is_dropped_behind_a_call_only() -> None:
    assert read(hermes("f", "{}") + " \n") == [("f", "{}")]
    assert read(hermes("f", "{}") + " word \n") == [("f", "{}"), " word \n"]


def test_a_call_that_was_cut_short_keeps_what_came_of_its_arguments() -> None:
    answer = hermes("f", '{"a": [1, 2]}')
    calls = stream("hermes")
    assert joined([*calls.push(answer[: answer.index("2")]), *calls.flush()]) == [("f", '{"a": [1, ')]
    assert calls.is_cut
    for end in range(answer.index("]}") + 2, len(answer)):
        calls = stream("hermes")
        assert joined([*calls.push(answer[:end]), *calls.flush()]) == [("f", '{"a": [1, 2]}')]
        assert not calls.is_cut


def test_arguments_that_stop_being_json_end_and_the_rest_is_text() -> None:
    calls = stream("hermes")
    parts = joined([*calls.push('<tool_call>{"name": "f", "arguments": {"a": nil}}'), *calls.flush()])
    assert parts == [("f", '{"a": n'), "il}}"]
    assert calls.is_cut


def test_the_second_of_two_calls_may_fail_alone() -> None:
    assert read('[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]', "mistral") == [
        ("f", "{}"),
        ', {"name": "g", "arguments": {}}]',
    ]
    assert read('{"name": "f", "parameters": {}}; and so on', "llama3_json") == [("f", "{}"), "; and so on"]


def test_an_answer_in_json_is_text_where_it_is_no_call() -> None:
    for style in STYLES:
        assert read('{"answer": [1, 2]}', style) == ['{"answer": [1, 2]}']
        assert read("[1, 2]", style) == ["[1, 2]"]


def test_a_long_answer_takes_no_longer_per_character() -> None:
    """Quadratic work on a megabyte would not end within the time of a test."""
    long = '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 10**6 + '"}}</tool_call>'
    parts = read([long[start : start + 1000] for start in range(0, len(long), 1000)])
    assert [len(part[1]) for part in parts] == [10**6 + 9]
