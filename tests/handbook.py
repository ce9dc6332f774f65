"""A handbook of 500 pages about towns that share their names, words and numbers, and questions with one page each.

Owns the facts and two wordings of every question: the one that the search was tried with while it was written, and
another that was written afterwards, from the facts alone. A town stands on about seven pages, and every kind of fact on
about eighty, so neither finds the page alone. Lines are broken as in print, some in the middle of a word.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

NUM_PAGES = 500
NUM_QUESTIONS = 100
_STARTS = ("Or", "Kes", "Vel", "Nar", "Tam", "Bry", "Sol", "Wex", "Lun", "Far", "Dro", "Pel")
_ENDS = ("vala", "torp", "mora", "vik", "bury", "dale")
_FIRST = ("Ilse", "Amadou", "Petra", "Jun", "Rosa", "Viktor", "Leila", "Tomas", "Ingrid", "Kofi")
_LAST = (
    "Marchetti",
    "Okafor",
    "Lindqvist",
    "Tanaka",
    "Baumann",
    "Costa",
    "Hassan",
    "Novak",
    "Byrne",
    "Ferrari",
)
_PLACES = (
    "turbine laboratory",
    "grain depot",
    "ferry terminal",
    "seed archive",
    "tram workshop",
    "weather station",
)
_MONTHS = {
    "January": 1,
    "March": 3,
    "April": 4,
    "June": 6,
    "July": 7,
    "September": 9,
    "October": 10,
    "December": 12,
}
_FILLER = (
    "the report of the year shows that most of the work was done as it had been planned by the council",
    "people of the region know the roads and the rivers well and travel on them in every season",
    "costs are given without tax and were checked by the office before this page was written",
    "the next chapter tells more about the towns of the coast and about what they trade with each other",
    "a number of visitors came to see the harbour while the market and the museum stayed open",
    "employees were trained and new rules for the store of goods were approved in the same month",
    "the station was repaired and the bridge was painted after the winter had damaged both of them",
)
_KANJI = "東西南北山川海空森石田島浜橋谷原松竹梅桜"


@dataclass(frozen=True, slots=True)
class Fact:
    page: int  # from 1
    told: str
    asked: tuple[str, str]  # in the two wordings


def handbook(seed: int) -> tuple[list[str], list[Fact]]:
    """The text of each page, and a fact that stands on each."""
    rng = random.Random(seed)
    facts = []
    for page in range(1, NUM_PAGES + 1):
        told, *asked = rng.choice(_KINDS)(rng)
        facts.append(Fact(page, told, (asked[0], asked[1])))
    return [_page(rng, fact) for fact in facts], facts


def questions(seed: int, wording: int) -> list[tuple[str, int]]:
    """One hundred questions to the handbook of a seed, with the page that holds what is asked."""
    _, facts = handbook(seed)
    chosen = random.Random(seed + 1).sample(facts, NUM_QUESTIONS)
    return [(fact.asked[wording], fact.page) for fact in chosen]


def _page(rng: random.Random, fact: Fact) -> str:
    sentences = [rng.choice(_FILLER).capitalize() + "." for _ in range(9)]
    towns = [
        f"{_town(rng)} counted {rng.randrange(2, 90)} new houses in {rng.randrange(1950, 2020)}."
        for _ in range(3)
    ]
    lines = sentences + towns
    rng.shuffle(lines)
    lines.insert(rng.randrange(len(lines)), fact.told)
    return "\n".join([f"Handbook, page {fact.page}", *(_broken(rng, line) for line in lines)])


def _broken(rng: random.Random, sentence: str) -> str:
    """In lines of some 40 letters; a word at the end of one may be cut."""
    lines, line = [], ""
    for word in sentence.split(" "):
        if len(line) + len(word) < 42:
            line = f"{line} {word}".strip()
        elif len(word) > 6 and word.isalpha() and word.isascii() and rng.random() < 0.5:
            lines.append(f"{line} {word[:3]}-")
            line = word[3:]
        else:
            lines.append(line)
            line = word
    return "\n".join((*lines, line))


def _town(rng: random.Random) -> str:
    return rng.choice(_STARTS) + rng.choice(_ENDS)


def _head(rng: random.Random) -> tuple[str, str, str]:
    person, place, town = f"{rng.choice(_FIRST)} {rng.choice(_LAST)}", rng.choice(_PLACES), _town(rng)
    return (
        f"Since {rng.randrange(1970, 2020)} {person} has headed the {place} of {town}.",
        f"Who heads the {place} in {town}?",
        f"Name the person at the head of {town}'s {place}.",
    )


def _litres(rng: random.Random) -> tuple[str, str, str]:
    litres, town = rng.randrange(1_000_000, 9_999_999), _town(rng)
    return (
        f"The reservoir above {town} holds {litres:,} litres when it is full.",
        f"Which reservoir holds {litres} litres?",
        f"Where is there room for {litres:_} l of water?".replace("_", "\u202f"),
    )


def _opening(rng: random.Random) -> tuple[str, str, str]:
    day, month, year = rng.randrange(1, 29), rng.choice(list(_MONTHS)), rng.randrange(1900, 2020)
    return (
        f"The bridge of {_town(rng)} was opened on {day} {month} {year}.",
        f"Which bridge was opened on {year}-{_MONTHS[month]:02}-{day:02}?",
        f"What happened on {month} {day}, {year}?",
    )


def _sensor(rng: random.Random) -> tuple[str, str, str]:
    letters, digits = rng.choice("QXZKW") + rng.choice("QXZKW"), rng.randrange(1000, 9999)
    grams = rng.randrange(100, 999) / 10
    return (
        f"Sensor {letters}-{digits} weighs {grams} kg and is read twice a day.",
        f"How many kg does sensor {letters}{digits} weigh?",
        f"What is the weight of the {letters} {digits}?",
    )


def _training(rng: random.Random) -> tuple[str, str, str]:
    town, place = _town(rng), rng.choice(_PLACES)
    return (
        f"Workers at the {place} of {town} are granted {rng.randrange(3, 30)} days of paid training.",
        f"How many training days are granted to a worker of the {town} {place}?",
        f"For how long does the {place} at {town} pay somebody to be trained?",
    )


def _station(rng: random.Random) -> tuple[str, str, str]:
    name = "".join(rng.sample(_KANJI, 3))
    year = rng.randrange(1900, 2000)
    return (
        f"{name}駅は{year}年に開業した。",
        f"{name}駅はいつ開業しましたか。",
        f"{name}の駅ができた年を教えてください",
    )


_KINDS: tuple[Callable[[random.Random], tuple[str, str, str]], ...] = (
    _head,
    _litres,
    _opening,
    _sensor,
    _training,
    _station,
)
