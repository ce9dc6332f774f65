"""Numbers in words, as num2words writes them."""

from __future__ import annotations

import pytest

from tapetum.processing.number_words import LIMIT, in_words

WORDS = {
    0: "zero",
    1: "one",
    13: "thirteen",
    20: "twenty",
    64: "sixty-four",
    90: "ninety",
    100: "one hundred",
    101: "one hundred and one",
    768: "seven hundred and sixty-eight",
    1000: "one thousand",
    1001: "one thousand and one",
    1100: "one thousand, one hundred",
    12345: "twelve thousand, three hundred and forty-five",
    999999: "nine hundred and ninety-nine thousand, nine hundred and ninety-nine",
}


@pytest.mark.parametrize(("number", "words"), WORDS.items())
def test_known_numbers(number: int, words: str) -> None:
    assert in_words(number) == words


def test_every_number_has_its_own_words() -> None:
    assert len({in_words(number) for number in range(3000)}) == 3000


@pytest.mark.parametrize("number", [-1, LIMIT])
def test_other_numbers_are_a_fault_of_the_caller(number: int) -> None:
    with pytest.raises(AssertionError):
        in_words(number)
