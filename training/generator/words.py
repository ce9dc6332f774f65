"""Pieces of text: words real and made up, prices, dates, codes, numbers."""

from __future__ import annotations

from random import Random

from training.generator.brief import chance
from training.generator.vocabulary import CITIES, COUNTRIES, ITEMS, METRICS, MONTHS, NAMES, WORDS

_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
_LETTERS, _DIGITS = "ABCDEFGHJKLMNPQRSTUVWXYZ", "0123456789"
_CODES = ["A9-999", "AA-9999", "AAA-9999", "AA999", "AAA999", "99-AA-99", "#99999", "AA 9999"]


def pseudo(random: Random) -> str:
    """One to three syllables that mean nothing."""
    return "".join(
        random.choice(_CONSONANTS)
        + random.choice(_VOWELS)
        + (random.choice("nrlstm") if chance(random, 0.35) else "")
        for _ in range(random.randint(1, 3))
    )


def cased(random: Random, word: str) -> str:
    style = random.random()
    if style < 0.5:
        return word.capitalize()
    return word.upper() if style < 0.72 else word


def word(random: Random) -> str:
    source = random.random()
    if source < 0.55:
        return cased(random, random.choice(WORDS))
    if source < 0.75:
        return cased(random, random.choice(random.choice([ITEMS, NAMES, CITIES, METRICS, COUNTRIES])))
    if source < 0.93:
        return cased(random, pseudo(random))
    return "".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(random.randint(3, 7)))


def price(random: Random) -> str:
    whole = random.randint(0, 99) if chance(random, 0.8) else random.randint(100, 999)
    if chance(random, 0.4):
        cents = random.choice(["00", "50", "99", "95", "25", "75"])
    else:
        cents = f"{random.randint(0, 99):02d}"
    return f"{random.choice(['$', '$', '€', '£', ''])}{whole}.{cents}"


def money(random: Random, largest: int) -> str:
    """A price without its currency, in shops' favourite cents more often than not."""
    whole = random.randint(1, largest)
    if chance(random, 0.6):
        return f"{whole}.{random.choice(['00', '50', '99', '95', '25', '75', '49', '20', '80'])}"
    return f"{whole}.{random.randint(0, 99):02d}"


def date(random: Random) -> str:
    year, month, day = random.randint(1990, 2031), random.randint(1, 12), random.randint(1, 28)
    name = MONTHS[month - 1]
    return random.choice(
        [
            f"{year}-{month:02d}-{day:02d}",
            f"{day:02d}/{month:02d}/{year}",
            f"{day} {name} {year}",
            f"{name} {day}, {year}",
            f"{day:02d}.{month:02d}.{year}",
        ]
    )


def clock(random: Random) -> str:
    return f"{random.randint(0, 23)}:{random.randint(0, 59):02d}" + random.choice(["", "", " AM", " PM"])


def percent(random: Random) -> str:
    return random.choice([f"{random.randint(1, 100)}%", f"{random.randint(0, 99)}.{random.randint(0, 9)}%"])


def code(random: Random) -> str:
    pools = {"A": _LETTERS, "9": _DIGITS}
    return "".join(
        random.choice(pools.get(sign, sign)) if sign in pools else sign for sign in random.choice(_CODES)
    )


def number(random: Random) -> str:
    digits = random.randint(1, 6)
    value = random.randint(1, 9) if digits == 1 else random.randint(10 ** (digits - 1), 10**digits - 1)
    return f"{value:,}" if digits > 3 and chance(random, 0.5) else str(value)
