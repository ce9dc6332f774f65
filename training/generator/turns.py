"""Task `turns`: one picture and talks about it, in which the second question follows an earlier one.

A second question is either any other about the picture, or says only what differs: "And in June?".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas, Run, Thing
from training.generator.charts import draw_chart
from training.generator.figures import SHAPES
from training.generator.forms import draw_form
from training.generator.receipts import draw_receipt
from training.generator.shapes import draw_shapes
from training.generator.tables import draw_table

DRAW: list[Callable[[Brief], Drawing]] = [
    draw_receipt,
    draw_receipt,
    draw_table,
    draw_table,
    draw_form,
    draw_chart,
    draw_shapes,
]


def draw_turns(brief: Brief) -> Drawing:
    random = brief.random
    drawing = random.choice(DRAW)(brief)
    # To read everything is a talk of its own, and descriptions need no earlier turn.
    fit = [question for question in drawing.questions if question.kind not in ("read", "desc")]
    wanted = random.randint(3, 4)
    turns: dict[str, Question] = {}
    for earlier in random.sample(fit, len(fit)):
        later = _follow(random, drawing.canvases[0], drawing.questions, earlier)
        if later and later.text not in turns and len(turns) < 3:
            turns[later.text] = later
    for _ in range(12):
        earlier, later = random.sample(fit, 2)
        if len(turns) < wanted and earlier.text != later.text:
            turns.setdefault(later.text, replace(later, kind="turn", before=earlier))
    return Drawing(canvases=drawing.canvases, questions=list(turns.values()))


def _follow(random: Random, canvas: Canvas, others: list[Question], earlier: Question) -> Question | None:
    """A question that says only what differs from the earlier one, None where there is none."""
    if len(earlier.source) != 1 or not earlier.keys or earlier.kind == "neg":
        return None
    spot = earlier.source[0]
    if earlier.how == "print" and isinstance(spot, Run) and spot.row:
        missing = _missing(random, canvas, others, earlier) if chance(random, 0.25) else None
        return missing or _next_value(random, canvas, earlier, spot)
    if earlier.kind == "color" and isinstance(spot, Thing):
        missing = _missing(random, canvas, others, earlier) if chance(random, 0.25) else None
        return missing or _next_color(random, canvas, earlier, spot)
    return None


def _next_value(random: Random, canvas: Canvas, earlier: Question, value: Run) -> Question | None:
    """The same of another row, or another column of the same row."""
    label, header = value.row, value.column
    asked = {spot: phrase for phrase, spots in earlier.keys for spot in spots}
    found = []  # value, what names it, what that takes the place of
    if label in asked:
        found += [
            (run, run.row, asked[label])
            for run in canvas.runs
            if run.row and run.row is not label and run.column is header and run.place == value.place
        ]
    if label in asked and header in asked:
        found += [
            (run, run.column, asked[header])
            for run in canvas.runs
            if run.row is label and run.column and run.column is not header
        ]
    texts = [run.text for run in canvas.runs]
    found = [item for item in found if texts.count(item[1].text) == 1 and _is_alike(item[0], value, earlier)]
    if not found:
        return None
    run, named, replaced = random.choice(found)
    name = named.text.rstrip(" :-")
    if replaced.islower():  # as the fields of a form are called in a question
        if f"the {replaced}" not in earlier.text:
            return None
        name = name.lower()
    text = _elliptic(random, earlier.text, replaced, name)
    return Question("turn", text, run.text, "print", (run,), ((name, (named,)),), earlier)


def _is_alike(run: Run, value: Run, earlier: Question) -> bool:
    """Can be asked for in the same words; on a receipt the text tells: a price has a point."""
    if value.column or earlier.kind == "field":
        return True
    return earlier.kind in ("price", "value", "qty") and ("." in run.text) == ("." in value.text)


def _next_color(random: Random, canvas: Canvas, earlier: Question, thing: Thing) -> Question | None:
    """The colour of another bar or shape."""
    shapes = [other.shape for other in canvas.things]
    if thing.label:
        others = [other for other in canvas.things if other.label and other is not thing]
    else:
        others = [other for other in canvas.things if other is not thing and shapes.count(other.shape) == 1]
    asked = thing.label.text if thing.label else str(thing.shape)
    if not others or asked not in dict(earlier.keys):
        return None
    other = random.choice(others)
    name, spot = (other.label.text, other.label) if other.label else (str(other.shape), other)
    text = _elliptic(random, earlier.text, asked, name)
    return Question("turn", text, other.color, "look", (other,), ((name, (spot,)),), earlier)


def _missing(random: Random, canvas: Canvas, others: list[Question], earlier: Question) -> Question | None:
    """The name of something that is not there, taken from a question about its absence."""
    headers = [run.column for run in canvas.runs if run.column]
    for other in others:
        names = [phrase for phrase, spots in other.keys if not spots]
        if other.kind != "neg" or len(names) != 1 or other.answer != absent(names[0]):
            continue
        name = names[0]
        if not name[0].isupper() and not (name in SHAPES and earlier.kind == "color"):
            continue  # "title", "date": these are asked for in other words
        # It takes the place of what is named in neither question: with a column, the row, and the other way round.
        is_row = any(spot in headers for _, spots in other.keys for spot in spots)
        asked = [
            phrase
            for phrase, spots in earlier.keys
            if len(earlier.keys) == 1 or (spots[0] in headers) != is_row
        ]
        if len(asked) == 1 and len(other.keys) == len(earlier.keys):
            text = _elliptic(random, earlier.text, asked[0], name)
            return Question("turn", text, other.answer, "look", (), ((name, ()),), earlier)
    return None


def _elliptic(random: Random, earlier: str, asked: str, name: str) -> str:
    """With the words that the earlier question had around the name, where these say what is meant."""
    if earlier.endswith("？"):
        return f"{name}呢？"
    if f"the {asked} bar" in earlier:
        phrase = f"the {name} bar"
    else:
        match = re.search(rf"\b(in|on|for|the) {re.escape(asked)}\b", earlier)
        phrase = f"{match[1]} {name}" if match else name
    if len(name) == 1:
        return f"What about {phrase}?"  # a single letter would be found inside "And"
    return random.choice([f"And {phrase}?", f"And {phrase}?", f"What about {phrase}?"])
