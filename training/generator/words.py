"""Pieces of text: invented (words, prices, dates, codes, numbers), measured, printed, and found again in a question."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from training.generator.brief import Question, chance
from training.generator.canvas import Canvas, Run
from training.generator.fonts import MIN_TYPE, Face, text_width
from training.generator.palette import RGB
from training.generator.vocabulary import CITIES, COUNTRIES, ITEMS, METRICS, MONTHS, NAMES, TEAMS, WORDS

MAX_TYPE = 34
PITCH = 1.25  # from one line to the next, in sizes, at least

_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
_LETTERS, _DIGITS = "ABCDEFGHJKLMNPRSTUVWXYZ", "0123456789"  # no letter that looks like a digit
_CODES = ["A99", "A-99", "AA99", "AA-99", "A999", "A-999", "AAA99", "AA-999", "AAA999", "99A", "#9999"]


@dataclass(frozen=True, slots=True)
class Style:
    """How a text is printed."""

    face: Face
    size: int
    ink: RGB

    def width(self, text: str) -> float:
        return text_width(self.face, self.size, text)


def print_words(
    canvas: Canvas, x: float, y: float, words: list[str], style: Style, *, line: int = 0, middle: bool = False
) -> list[Run]:
    """Print words, each a run of its own, with the face's space between; x is the left end, or the middle."""
    space = style.width(" ")
    if middle:
        x -= (sum(map(style.width, words)) + space * (len(words) - 1)) / 2
    runs = []
    for place, word in enumerate(words):
        runs.append(canvas.text(x, y, word, style.face, style.size, style.ink, line=line, place=place))
        x = runs[-1].end + space
    return runs


def largest_size(free: float, letters: float, height: float, lines: float) -> int:
    """The size in which about so many letters and lines still find room."""
    return max(MIN_TYPE, min(MAX_TYPE, int(free / (0.62 * letters)), int(height / (PITCH * lines))))


def phrase_in(text: str, name: str) -> str:
    """A printed name (its colon aside) as a question says it, in the question's own case."""
    name = name.removesuffix(":")
    start = text.lower().index(name.lower())
    return text[start : start + len(name)]


def joined(runs: tuple[Run, ...] | list[Run]) -> str:
    return " ".join(run.text for run in runs)


def reading(kind: str, text: str, *runs: Run) -> Question:
    """A question whose answer is what the runs say."""
    return Question(kind, text, joined(runs), "print", source=runs)


def at_most(random: Random, questions: list[Question], most: int = 10) -> list[Question]:
    """As many of the questions, in their order; the first always stays."""
    if len(questions) <= most:
        return questions
    kept = sorted([0, *random.sample(range(1, len(questions)), most - 1)])
    return [questions[i] for i in kept]


def pseudo(random: Random) -> str:
    """Two syllables that mean nothing, of three to six letters in all, capitalised."""
    letters = "".join(
        random.choice(_CONSONANTS)
        + random.choice(_VOWELS)
        + (random.choice("nrlstm") if chance(random, 0.45) else "")
        for _ in range(random.choice([1, 2, 2, 2]))
    )
    return (letters if len(letters) > 2 else letters + random.choice("nrlstm")).capitalize()


def word(random: Random) -> str:
    """A known word as it is printed."""
    if chance(random, 0.55):
        known = random.choice(WORDS)
        return known.capitalize() if chance(random, 0.55) else known
    return random.choice(random.choice([ITEMS, ITEMS, NAMES, CITIES, METRICS, COUNTRIES, TEAMS]))


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
    return random.choice(
        [
            f"{year}-{month:02d}-{day:02d}",
            f"{day:02d}/{month:02d}/{year}",
            f"{day} {MONTHS[month - 1]} {year}",
        ]
    )


def clock(random: Random) -> str:
    return f"{random.randint(0, 23)}:{random.randint(0, 59):02d}"


def percent(random: Random) -> str:
    return random.choice([f"{random.randint(1, 100)}%", f"{random.randint(0, 99)}.{random.randint(0, 9)}%"])


def code(random: Random) -> str:
    """Three to six letters and digits."""
    pools = {"A": _LETTERS, "9": _DIGITS}
    return "".join(
        random.choice(pools.get(sign, sign)) if sign in pools else sign for sign in random.choice(_CODES)
    )


def number(random: Random) -> str:
    digits = random.randint(1, 6)
    value = random.randint(1, 9) if digits == 1 else random.randint(10 ** (digits - 1), 10**digits - 1)
    return f"{value:,}" if digits > 3 and chance(random, 0.5) else str(value)
