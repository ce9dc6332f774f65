"""Task `form`: two to five labelled fields, as on invoices, tickets and cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas
from training.generator.fonts import MIN_TYPE, Face, fit_size, pick_face, text_width
from training.generator.palette import RGB, ink_and_ground
from training.generator.vocabulary import CITIES, COUNTRIES, DESCRIBE, ITEMS, NAMES, SURNAMES, TEAMS
from training.generator.words import code, date, price, pseudo

LINE_HEIGHT = 20  # pixels that a field needs at least

TITLES = [
    "INVOICE",
    "Invoice",
    "Order form",
    "Ticket",
    "Booking",
    "Report",
    "Delivery note",
    "Boarding pass",
    "Member card",
]


def _full_name(random: Random) -> str:
    name = random.choice(NAMES)
    if chance(random, 0.6):
        name += " " + random.choice([*SURNAMES, pseudo(random).capitalize()])
    return name


def _phone(random: Random) -> str:
    short = f"555-{random.randint(0, 9999):04d}"
    return random.choice([short, f"0{random.randint(100, 999)} {random.randint(1000, 99999)}"])


def _time(random: Random) -> str:
    return f"{random.randint(0, 23):02d}:{random.randint(0, 59):02d}"


def _gate(random: Random) -> str:
    number_first = f"{random.randint(1, 40)}{random.choice('ABCDEF')}"
    return random.choice([number_first, f"{random.choice('ABCDEF')}{random.randint(1, 40)}"])


def _one_of(pool: list[str]) -> Callable[[Random], str]:
    return lambda random: random.choice(pool)


def _quantity(random: Random) -> str:
    return str(random.randint(1, 99))


@dataclass(frozen=True, slots=True)
class Field:
    """`noun` names the field in answers about its absence; None where a question would be unfair."""

    label: str
    value: Callable[[Random], str]
    wordings: list[str]
    noun: str | None


FIELDS = [
    Field("Name", _full_name, ["What is the name?", "Whose name is on the form?", "Who is it for?"], None),
    Field("Customer", _full_name, ["Who is the customer?", "What is the name of the customer?"], None),
    Field("Invoice No", code, ["What is the invoice number?", "Which invoice is it?"], "invoice number"),
    Field("Order", code, ["What is the order number?", "What is the order?"], "order number"),
    Field("Date", date, ["What is the date?", "What date is on the form?"], "date"),
    Field("Due", date, ["When is it due?", "What is the due date?"], "due date"),
    Field("Amount", price, ["What is the amount?", "How much is the amount?"], None),
    Field("Total", price, ["What is the total?", "How much is the total?"], None),
    Field("City", _one_of(CITIES), ["What is the city?", "Which city is given?"], "city"),
    Field("Country", _one_of(COUNTRIES), ["What is the country?", "Which country is given?"], "country"),
    Field("Phone", _phone, ["What is the phone number?", "Which phone number is given?"], "phone number"),
    Field("Room", code, ["What is the room?", "Which room is it?"], "room"),
    Field("Time", _time, ["What is the time?", "At what time is it?"], "time"),
    Field("Team", _one_of(TEAMS), ["What is the team?", "Which team is given?"], "team"),
    Field("Gate", _gate, ["What is the gate?", "Which gate is it?"], "gate"),
    Field("Seat", _gate, ["What is the seat?", "Which seat is it?"], "seat"),
    Field("Item", _one_of(ITEMS), ["What is the item?", "Which item is it?"], "item"),
    Field("Quantity", _quantity, ["What is the quantity?", "How many are there?"], "quantity"),
]


def draw_form(brief: Brief) -> Drawing:
    random = brief.random
    ink, ground = ink_and_ground(random)
    canvas = Canvas(random, brief.grid, ground)
    face, margin = pick_face(random, brief.faces), random.randint(5, 11)
    title = random.choice(TITLES) if chance(random, 0.6) else None
    lines = int((canvas.height - 2 * margin) / LINE_HEIGHT) - (title is not None)
    fields = random.sample(FIELDS, max(2, min(random.randint(2, 5), lines)))
    values = [field.value(random) for field in fields]
    separator = random.choice([":", ":", "", " -"])
    labels = [field.label + separator for field in fields]
    _print(canvas, title, labels, values, face, margin, ink)
    return Drawing(canvases=[canvas], questions=_questions(random, title, fields, values))


def _print(
    canvas: Canvas,
    title: str | None,
    labels: list[str],
    values: list[str],
    face: Face,
    margin: int,
    ink: RGB,
) -> None:
    random = canvas.random
    free, height = canvas.width - 2 * margin, canvas.height - 2 * margin
    has_columns = chance(random, 0.4)
    num_rows = len(labels) + (1.3 if title else 0)
    largest_step = height / num_rows
    size = min(fit_size(face, _longest(labels, values, has_columns), free, 26, 11), int(largest_step / 1.15))
    size = max(MIN_TYPE, size)
    size = size if chance(random, 0.5) else random.randint(min(14, size), size)
    step = min(largest_step, size * random.uniform(1.15, 1.8))
    y = margin + random.random() * max(0, height - step * num_rows)
    if title:
        title_size = min(30, fit_size(face, title, free, int(size * 1.4), 11))
        canvas.text(margin, y, title, face, title_size, ink)
        y += step * 1.3
    column = margin + max(text_width(face, size, label) for label in labels) + size * 0.6
    for label, value in zip(labels, values, strict=True):
        end = canvas.text(margin, y, label, face, size, ink)
        canvas.text(column if has_columns else end + size * 0.35, y, value, face, size, ink)
        y += step


def _longest(labels: list[str], values: list[str], has_columns: bool) -> str:
    if has_columns:
        return "x" * (max(map(len, labels)) + 1) + max(values, key=len)
    return max((f"{label} {value}" for label, value in zip(labels, values, strict=True)), key=len)


def _questions(random: Random, title: str | None, fields: list[Field], values: list[str]) -> list[Question]:
    questions = []
    if chance(random, 0.25):
        answer = f"A form with {len(fields)} fields."
        questions.append(Question("desc", random.choice(DESCRIBE), answer))
    order = list(range(len(fields)))
    random.shuffle(order)
    for i in order[:4]:
        questions.append(Question("field", random.choice(fields[i].wordings), values[i]))
    first = order[0]
    label = fields[first].label
    text = f'What does "{label}" say?' if chance(random, 0.5) else f"What is the value of {label}?"
    questions.append(Question("field", text, values[first]))
    if title and chance(random, 0.5):
        wordings = ["What is the title?", "What kind of document is this?"]
        questions.append(Question("title", random.choice(wordings), title))
    if chance(random, 0.55):
        missing = random.choice([field for field in FIELDS if field not in fields])
        if missing.noun:
            questions.append(Question("neg", missing.wordings[0], absent(missing.noun)))
    if chance(random, 0.3):
        j = random.randrange(len(fields))
        questions.append(Question("which", f'Which field says "{values[j]}"?', fields[j].label))
    return questions
