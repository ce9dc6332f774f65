"""What a model thinks, split from what it says, whatever the pieces its answer comes in."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.text.reasoning import ReasoningStream, opens_reasoning, thinking_after

SCRAPS = st.lists(
    st.one_of(
        st.sampled_from(["<think>", "</think>", "<thi", "</", "nk>", "<", " ", "\n\n", "so"]),
        st.text(max_size=2),
    ),
    max_size=10,
).map("".join)
PLACES = st.lists(st.integers(0, 60), max_size=6)
# Words in which no marker begins.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=12).map(str.strip)


def split(pieces: list[str], *, is_open: bool = False) -> tuple[str, str]:
    stream = ReasoningStream(is_open=is_open)
    thoughts = [*map(stream.push, pieces), stream.flush()]
    said = [bool(thought.content) for thought in thoughts]
    assert not any(
        thought.reasoning for thought, has_said in zip(thoughts[1:], said, strict=False) if has_said
    )
    return "".join(each.reasoning for each in thoughts), "".join(each.content for each in thoughts)


def cut(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


@given(text=SCRAPS, places=PLACES, is_open=st.booleans())
def test_the_pieces_do_not_matter(text: str, places: list[int], is_open: bool) -> None:
    whole = split([text], is_open=is_open)
    assert split(cut(text, places), is_open=is_open) == whole
    assert split(list(text), is_open=is_open) == whole


@given(thought=WORDS, answer=WORDS, places=PLACES, is_open=st.booleans())
def test_thought_and_answer_come_out_as_they_went_in(
    thought: str, answer: str, places: list[int], is_open: bool
) -> None:
    text = f"{'' if is_open else '<think>'}\n{thought}\n</think>\n\n{answer}"
    assert split(cut(text, places), is_open=is_open) == (thought, answer)


@given(text=SCRAPS)
def test_nothing_but_white_space_and_one_pair_of_markers_is_lost(text: str) -> None:
    reasoning, content = split([text])
    if text.lstrip().startswith("<think>"):
        inside, _, after = text.lstrip().removeprefix("<think>").partition("</think>")
        assert (reasoning, content) == (inside.strip(), after.lstrip())
    else:
        assert (reasoning, content) == ("", text)


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("plain <think>x</think>", False, ("", "plain <think>x</think>")),
        ("<think>cut short", False, ("cut short", "")),
        ("cut </thi", True, ("cut </thi", "")),
        ("<think>a</think>b</think>c", False, ("a", "b</think>c")),
        ("</think>at once", True, ("", "at once")),
        (" <thi", False, ("", " <thi")),
        ("<think> \n", False, ("", "")),
        ("", True, ("", "")),
    ],
)
def test_unusual_answers(text: str, is_open: bool, expected: tuple[str, str]) -> None:
    assert split([text], is_open=is_open) == expected


def test_reasoning_is_told_as_it_comes() -> None:
    stream = ReasoningStream()
    told = [stream.push(piece) for piece in ("<think>\nfirst", " then", " </th", "ink>\n", "so")]
    assert [(each.reasoning, each.content) for each in told] == [
        ("first", ""),
        (" then", ""),
        ("", ""),
        ("", ""),
        ("", "so"),
    ]


def test_how_an_answer_goes_on() -> None:
    assert opens_reasoning("assistant\n<think>\n")
    assert not opens_reasoning("<think></think>")
    assert thinking_after("assistant\n<think>\n") == "open"
    assert thinking_after("assistant\n<think>\n\n</think>\n\n") == "never"
    assert thinking_after("say <think> first. assistant\n") == "perhaps"
    assert thinking_after("<think>half a tho", is_answer=True) == "open"
    assert thinking_after("<think>done</think>The", is_answer=True) == "never"
    assert thinking_after("The", is_answer=True) == "never"
    assert thinking_after("", is_answer=True) == "perhaps"
