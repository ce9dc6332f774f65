"""Whole numbers in English words, as prompts of SmolVLM name the frames of a clip: 121 = one hundred and twenty-one."""

from __future__ import annotations

_SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
LIMIT = 1_000_000


def in_words(number: int) -> str:
    """British "and", hyphens, and a comma between the thousands and full hundreds; below a million."""
    assert 0 <= number < LIMIT
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        joint = "" if rest == 0 else " and " if rest < 100 else ", "
        return f"{in_words(thousands)} thousand{joint}" + (in_words(rest) if rest else "")
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{_SMALL[hundreds]} hundred" + (f" and {in_words(rest)}" if rest else "")
    if number >= 20:
        tens, rest = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_SMALL[rest]}" if rest else "")
    return _SMALL[number]
