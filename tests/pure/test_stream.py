"""The incremental detokeniser: deltas join to the decoded whole, cut exactly at stop strings."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.assets import MODEL_DIR
from tapetum.text.stream import TextStream
from tapetum.text.tokenizer import Tokenizer
from tests.slots import SLOTS

TOKENIZER = Tokenizer.load(MODEL_DIR, SLOTS)
TEXT_IDS = st.integers(0, TOKENIZER.vocab_size - 1)  # every single byte is a token of this vocabulary
BYTES_OF = {
    TOKENIZER.token_bytes(token_id): token_id
    for token_id in range(TOKENIZER.vocab_size)
    if token_id not in TOKENIZER.special_ids
}


def run(
    ids: list[int], stop: tuple[str, ...] = (), tail: tuple[int, ...] = ()
) -> tuple[list[str], str | None]:
    stream = TextStream(TOKENIZER, tail, stop)
    deltas = [stream.push(token_id) for token_id in ids]
    return [*deltas, stream.flush()], stream.stopped


def byte_ids(text: str) -> list[int]:
    """The text as one token per byte: the worst borders there are."""
    return [BYTES_OF[bytes([byte])] for byte in text.encode()]


def naive_cut(text: str, stop: tuple[str, ...]) -> tuple[str, str | None]:
    """Character by character: the first stop string to become complete ends the text."""
    for end in range(1, len(text) + 1):
        found = [word for word in stop if text[:end].endswith(word)]
        if found:
            word = max(found, key=len)
            return text[: end - len(word)], word
    return text, None


@given(ids=st.lists(TEXT_IDS, max_size=40))
def test_deltas_join_to_the_whole_decode_for_any_tokens(ids: list[int]) -> None:
    deltas, _ = run(ids)
    assert "".join(deltas) == TOKENIZER.decode(ids)


@given(text=st.text(st.characters(codec="utf-8"), max_size=20), tail=st.lists(TEXT_IDS, max_size=3))
def test_no_delta_holds_half_a_character(text: str, tail: list[int]) -> None:
    clean_tail = TOKENIZER.encode_plain(TOKENIZER.decode(tail))
    deltas, _ = run(byte_ids(text), tail=clean_tail)
    assert "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas) or "\ufffd" in text


@given(
    text=st.text("ab\n é🙂", max_size=24),
    stop=st.lists(st.text("ab\n é🙂", min_size=1, max_size=4), max_size=3).map(tuple),
    cuts=st.sets(st.integers(0, 60), max_size=8),
)
def test_stop_strings_cut_the_same_wherever_the_token_borders_lie(
    text: str, stop: tuple[str, ...], cuts: set[int]
) -> None:
    whole = naive_cut(text, stop)
    tokenised = [byte_ids(text), list(TOKENIZER.encode_plain(text))]
    borders = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    tokenised.append([token_id for piece in pieces for token_id in TOKENIZER.encode_plain(piece)])
    for ids in tokenised:
        deltas, stopped = run(ids, stop)
        assert ("".join(deltas), stopped) == whole


def test_text_comes_as_soon_as_it_is_certain() -> None:
    stream = TextStream(TOKENIZER, (), ("END",))
    pushed = [stream.push(token_id) for token_id in byte_ids("xE y EN!END z")]
    assert pushed == ["x", "", "E ", "y", " ", "", "", "EN!", "", "", "", "", ""]
    assert stream.stopped == "END"
    assert stream.flush() == ""


def test_the_first_token_is_written_as_after_the_prompt() -> None:
    """In vocabularies of words with a space before them, the first word of a text loses its space."""

    class Words:
        special_ids = frozenset()

        def decode(self, ids, skip_special=True) -> str:
            return "".join((" how", " are", " you")[index] for index in ids).removeprefix(" ")

    for tail, expected in (((0,), [" are", " you"]), ((), ["are", " you"])):
        stream = TextStream(Words(), tail)
        assert [stream.push(1), stream.push(2)] == expected


def test_flush_releases_what_a_stop_string_held_back() -> None:
    stream = TextStream(TOKENIZER, (), ("END",))
    assert [stream.push(token_id) for token_id in byte_ids("xEN")] == ["x", "", ""]
    assert stream.flush() == "EN"
    assert stream.stopped is None


def test_an_unfinished_character_is_replaced_at_the_end_only() -> None:
    stream = TextStream(TOKENIZER, ())
    first, second, third = byte_ids("€")
    assert [stream.push(first), stream.push(second)] == ["", ""]
    assert stream.flush() == "\ufffd"
    whole = TextStream(TOKENIZER, ())
    assert [whole.push(token_id) for token_id in (first, second, third)] == ["", "", "€"]


def test_special_tokens_write_nothing_and_split_no_character() -> None:
    first, second, third = byte_ids("€")
    end = TOKENIZER.special_tokens["<|im_end|>"]
    deltas, _ = run([end, first, end, second, third, end])
    assert "".join(deltas) == "€"


def test_endless_garbage_is_let_out() -> None:
    continuation = BYTES_OF[b"\x80"]
    stream = TextStream(TOKENIZER, ())
    deltas = [stream.push(continuation) for _ in range(200)]
    assert sum(map(len, deltas)) >= 128
    assert "".join(deltas) + stream.flush() == "\ufffd" * 200


@pytest.mark.parametrize("text", ["a", "é", "🙂", " \n", "<|im_end|>"])
def test_token_bytes_join_to_the_text(text: str) -> None:
    ids = TOKENIZER.encode_plain(text)
    assert b"".join(TOKENIZER.token_bytes(token_id) for token_id in ids) == text.encode()
