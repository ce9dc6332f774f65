"""Task `form`: two to six labelled fields, as on invoices, tickets and cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas, Run
from training.generator.fonts import MIN_TYPE, fit_size, pick_face
from training.generator.palette import ink_and_ground
from training.generator.vocabulary import CITIES, COUNTRIES, DESCRIBE, ITEMS, NAMES, SURNAMES, TEAMS
from training.generator.words import (
    MAX_TYPE,
    PITCH,
    Style,
    at_most,
    clock,
    code,
    date,
    largest_size,
    phrase_in,
    price,
    print_words,
    reading,
)

TITLE_HEIGHT = 1.4  # in lines
GAP = 0.6  # between label and value, in sizes

TITLES = [
    *("INVOICE", "ORDER", "TICKET", "RECEIPT", "REPORT", "LETTER", "NOTICE"),
    *("Invoice", "Order", "Ticket", "Receipt", "Report", "Letter", "Notice"),
    *(
        "Guest Ticket",
        "Bus Ticket",
        "Train Ticket",
        "Boat Ticket",
        "Movie Ticket",
        "Special Offer",
        "Meeting Note",
    ),
    *("Travel Report", "Project Report", "Draft Report", "Daily Report", "Final Report"),
]


def _full_name(random: Random) -> str:
    name = random.choice(NAMES)
    return f"{name} {random.choice(SURNAMES)}" if chance(random, 0.5) else name


def _phone(random: Random) -> str:
    return f"555-{random.randint(0, 9999):04d}"


def _gate(random: Random) -> str:
    letter, number = random.choice("ABCDEF"), random.randint(1, 40)
    return random.choice([f"{number}{letter}", f"{letter}{number}"])


def _one_of(pool: list[str]) -> Callable[[Random], str]:
    return lambda random: random.choice(pool)


def _quantity(random: Random) -> str:
    return str(random.randint(1, 99))


@dataclass(frozen=True, slots=True)
class Field:
    """Two fields of a group would answer the same question, so a form has one of each at most."""

    label: str
    value: Callable[[Random], str]
    group: str
    more: tuple[str, ...] = ()  # wordings beside those that all fields share


FIELDS = [
    Field("Name", _full_name, "person", ("Whose name is on the form?", "Who is it for?")),
    Field("Full Name", _full_name, "person", ("Who is it for?",)),
    Field("Customer", _full_name, "person", ("Who is the customer?",)),
    Field("Guest", _full_name, "person", ("Who is the guest?",)),
    Field("Invoice", code, "invoice", ("Which invoice is it?",)),
    Field("Order No", code, "order"),
    Field("Order", code, "order", ("Which order is it?",)),
    Field("Date", date, "date", ("What date is on the form?",)),
    Field("Due Date", date, "date", ("When is the due date?", "When is it due?")),
    Field("Amount", price, "money", ("How much is the amount?",)),
    Field("Total", price, "money", ("How much is the total?",)),
    Field("Price", price, "money", ("How much is the price?",)),
    Field("City", _one_of(CITIES), "city", ("Which city is given?",)),
    Field("Country", _one_of(COUNTRIES), "country", ("Which country is given?",)),
    Field("Phone", _phone, "phone", ("What is the phone number?",)),
    Field("Room", code, "room", ("Which room is it?",)),
    Field("Time", clock, "time", ("At what time is it?",)),
    Field("Team", _one_of(TEAMS), "team", ("Which team is given?",)),
    Field("Gate", _gate, "gate", ("Which gate is it?",)),
    Field("Seat", _gate, "seat", ("Which seat is it?",)),
    Field("Item", _one_of(ITEMS), "item", ("Which item is it?",)),
    Field("Quantity", _quantity, "quantity", ("What quantity is given?",)),
    Field("Account", code, "account", ("Which account is it?",)),
]


_LABELS = {field.label.lower() for field in FIELDS}


@dataclass(frozen=True, slots=True)
class Filled:
    """A field with what is printed of it."""

    field: Field
    label: Run
    value: Run


def draw_form(brief: Brief) -> Drawing:
    random = brief.random
    ink, ground = ink_and_ground(random)
    canvas = Canvas(random, brief.grid, ground)
    face, margin = pick_face(random, brief.faces), random.randint(6, 12)
    free, height = canvas.width - 2 * margin, canvas.height - 2 * margin
    size = MIN_TYPE + int((largest_size(free, 17, height, 3) + 1 - MIN_TYPE) * random.random())
    style = Style(face, size, ink)
    lines = height / (PITCH * size)
    title = random.choice(TITLES).split() if chance(random, 0.6) and lines >= 2 + TITLE_HEIGHT else []
    if style.width(" ".join(title)) > free:
        title = []
    wanted = random.randint(2, 6) if brief.level >= 0.5 else random.randint(2, 3)
    count = max(2, min(wanted, int(lines - (TITLE_HEIGHT if title else 0))))
    separator = random.choice([":", ":", ""])
    texts = _invent(random, style, free, count, (title, separator))
    titles, fields = _print(canvas, title, texts, style, margin)
    return Drawing(canvases=[canvas], questions=at_most(random, _questions(random, titles, fields)))


def _invent(
    random: Random, style: Style, free: float, count: int, around: tuple[list[str], str]
) -> list[tuple[Field, str, str]]:
    """Fields with label and value as printed, that fit; none shares a word with the title."""
    title, separator = around
    taken = {word.lower() for word in title}
    chosen: list[tuple[Field, str, str]] = []
    for field in random.sample(FIELDS, len(FIELDS)):
        words = set(field.label.lower().split())
        if len(chosen) == count or words & taken or field.group in (known.group for known, _, _ in chosen):
            continue
        for _ in range(4):
            label, value = field.label + separator, field.value(random)
            room = free - style.width(label) - GAP * style.size
            is_clear = value not in (known for _, _, known in chosen) and value.lower() not in _LABELS | taken
            if is_clear and style.width(value) <= room:
                chosen.append((field, label, value))
                break
    return chosen


def _print(
    canvas: Canvas, title: list[str], texts: list[tuple[Field, str, str]], style: Style, margin: int
) -> tuple[list[Run], list[Filled]]:
    random, size = canvas.random, style.size
    free, height = canvas.width - 2 * margin, canvas.height - 2 * margin
    num_lines = len(texts) + (TITLE_HEIGHT if title else 0)
    step = min(height / num_lines, size * random.uniform(PITCH, 1.9))
    y = margin + random.random() * max(0, height - step * num_lines)
    titles: list[Run] = []
    if title:
        fitting = fit_size(style.face, " ".join(title), 0.96 * free, min(MAX_TYPE, int(size * 1.4)), size)
        large = Style(style.face, min(fitting, int(step * TITLE_HEIGHT / 1.2)), style.ink)
        titles = print_words(canvas, margin, y, title, large)
        y += step * TITLE_HEIGHT
    column = max(style.width(label) for _, label, _ in texts) + GAP * size
    longest = max(style.width(value) for _, _, value in texts)
    is_aligned = chance(random, 0.5) and column + longest <= free
    spare = free - column - longest
    if is_aligned and chance(random, 0.4):
        column += spare * random.random()
    fields = []
    for i, (field, text, filling) in enumerate(texts):
        line, top = i + bool(title), y + i * step
        label = canvas.text(margin, top, text, style.face, size, style.ink, line=line)
        x = margin + column if is_aligned else label.end + GAP * size
        value = canvas.text(x, top, filling, style.face, size, style.ink, line=line, place=1, row=label)
        fields.append(Filled(field, label, value))
    return titles, fields


def _questions(random: Random, titles: list[Run], fields: list[Filled]) -> list[Question]:
    questions = [_ask(random, filled) for filled in random.sample(fields, min(4, len(fields)))]
    for filled in fields[: 2 if len(fields) < 4 else 1]:
        label = filled.field.label
        wordings = [
            f'What does "{label}" say?',
            f"What is the value of {label}?",
            f"What is written beside {label}?",
        ]
        questions.append(_asked(random.choice(wordings), filled))
    if titles and chance(random, 0.6):
        wordings = ["What is the title?", "What kind of document is this?", "What is the title of the form?"]
        questions.append(reading("title", random.choice(wordings), *titles))
    for filled in random.sample(fields, 2 if len(fields) < 4 or chance(random, 0.3) else 1):
        questions.append(_which(random, filled))
    if chance(random, 0.2):
        labels = tuple(filled.label for filled in fields)
        answer = f"A form with {len(fields)} fields."
        questions.append(Question("desc", random.choice(DESCRIBE), answer, "count", labels))
    if chance(random, 0.35):
        filled = random.choice(fields)
        text = random.choice(_presence_wordings(filled.field.label))
        keys = ((phrase_in(text, filled.field.label), (filled.label,)),)
        questions.append(Question("yesno", text, "Yes", "look", (filled.label,), keys))
    return questions + _about_missing(random, titles, fields)


def _wordings(field: Field) -> list[str]:
    label = field.label.lower()
    return [
        f"What is the {label}?",
        f"What is the {label} on the form?",
        f"Tell me the {label}.",
        *field.more,
    ]


def _ask(random: Random, filled: Filled) -> Question:
    return _asked(random.choice(_wordings(filled.field)), filled)


def _asked(text: str, filled: Filled) -> Question:
    label = filled.field.label
    keys = ((phrase_in(text, label), (filled.label,)),) if label.lower() in text.lower() else ()
    return Question("field", text, filled.value.text, "print", (filled.value,), keys)


def _which(random: Random, filled: Filled) -> Question:
    value = filled.value.text
    text = random.choice(
        [f'Which field says "{value}"?', f'In which field is "{value}"?', f'What is the label of "{value}"?']
    )
    return Question("which", text, filled.field.label, "look", (filled.label,), ((value, (filled.value,)),))


def _presence_wordings(label: str) -> list[str]:
    asked = label.lower()
    article = "an" if asked[0] in "aeio" else "a"
    return [
        f"Is there {article} {asked}?",
        f"Is there {article} {asked} on the form?",
        f"Does the form say {label}?",
    ]


def _about_missing(random: Random, titles: list[Run], fields: list[Filled]) -> list[Question]:
    groups = {filled.field.group for filled in fields}
    shown = {word.lower() for run in titles for word in run.text.split()}
    missing = [
        field
        for field in FIELDS
        if field.group not in groups and not shown & set(field.label.lower().split())
    ]
    asked, other, third = random.sample(missing, 3)
    questions = []
    for field, probability in ((asked, 0.6), (third, 0.35)):
        if chance(random, probability):
            name = field.label.lower()
            text = random.choice([text for text in _wordings(field) if name in text])
            questions.append(Question("neg", text, absent(name), "look", (), ((name, ()),)))
    if chance(random, 0.35):
        text = random.choice(_presence_wordings(other.label))
        keys = ((phrase_in(text, other.label), ()),)
        questions.append(Question("yesno", text, "No", "look", (), keys))
    return questions
