"""Task `table`: two to five rows under a header, one or two columns of values."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas
from training.generator.fonts import MIN_TYPE, Face, fit_size, pick_face, text_width
from training.generator.palette import RGB, ink_and_ground, random_gray
from training.generator.vocabulary import (
    CITIES,
    COUNTRIES,
    DAYS,
    DESCRIBE,
    ITEMS,
    METRICS,
    MONTHS,
    NAMES,
    ORDINALS,
    QUARTERS,
    TEAMS,
)
from training.generator.words import code, money

LINE_HEIGHT = 19  # pixels that a row needs at least
TITLE_HEIGHT = 22


@dataclass(frozen=True, slots=True)
class Subject:
    """What the rows are about: header of the first column, its values, the preposition before one of them."""

    header: str
    pool: list[str]
    preposition: str
    is_series: bool = False  # neighbours in the pool stay neighbours in the table


SUBJECTS = [
    Subject("Quarter", QUARTERS, "in", is_series=True),
    Subject("Month", MONTHS, "in", is_series=True),
    Subject("Name", NAMES, "for"),
    Subject("Item", ITEMS, "for"),
    Subject("City", CITIES, "in"),
    Subject("Team", TEAMS, "for"),
    Subject("Year", [str(year) for year in range(2010, 2030)], "in", is_series=True),
    Subject("Country", COUNTRIES, "in"),
    Subject("Day", DAYS, "on", is_series=True),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    subject: Subject
    title: str | None
    keys: list[str]
    columns: list[str]
    values: list[list[str]]  # by column

    @property
    def rows(self) -> list[list[str]]:
        """All cells as printed, the header first."""
        body = [list(row) for row in zip(self.keys, *self.values, strict=True)]
        return [[self.subject.header, *self.columns], *body]


def draw_table(brief: Brief) -> Drawing:
    random = brief.random
    if chance(random, 0.5):
        ink, ground = ink_and_ground(random)
    else:
        ink, ground = random_gray(random, 0, 60), (255, 255, 255)
    canvas = Canvas(random, brief.grid, ground)
    face, margin = pick_face(random, brief.faces), random.randint(4, 10)
    table = _invent(random, brief.grid[0], canvas.height - 2 * margin)
    _print(canvas, table, face, margin, ink)
    questions = [
        *_about_cells(random, table),
        *_about_size(random, table),
        *_about_headers(random, table),
        *_about_missing(random, table),
    ]
    if chance(random, 0.3):
        i = random.randrange(len(table.keys))
        questions.append(Question("readrow", f"Read row {i + 1} of the table.", " ".join(table.rows[i + 1])))
    return Drawing(canvases=[canvas], questions=questions)


def _invent(random: Random, grid_width: int, height: int) -> Table:
    subject = random.choice(SUBJECTS)
    title = None
    if chance(random, 0.25):
        metric, year = random.choice(METRICS), random.randint(2015, 2030)
        title = f"{metric} {random.choice(['report', 'summary', 'table', 'overview', str(year)])}"
    num_columns = _num_columns(random, grid_width)
    height -= TITLE_HEIGHT if title else 0
    count = max(2, min(random.randint(2, 5), len(subject.pool), int(height / LINE_HEIGHT) - 1))
    if subject.is_series:
        first = random.randint(0, len(subject.pool) - count)
        keys = subject.pool[first : first + count]
    else:
        keys = random.sample(subject.pool, count)
    columns, formats = _headers(random, num_columns)
    values = [_distinct_values(random, form, count) for form in formats]
    return Table(subject=subject, title=title, keys=keys, columns=columns, values=values)


def _num_columns(random: Random, grid_width: int) -> int:
    if grid_width < 8:
        return 1
    return random.choice([1, 1, 2] if grid_width < 10 else [1, 2, 2])


def _headers(random: Random, count: int) -> tuple[list[str], list[str]]:
    """Names of the columns and the format of their values, names distinct."""
    metrics = random.sample(METRICS, count)
    formats = [random.choice(["int", "int", "money", "pct", "big", "code"]) for _ in metrics]
    columns = []
    for metric, form in zip(metrics, formats, strict=True):
        # Both are drawn, whichever is used: seeds keep their pictures.
        rate = random.choice(["Rate", "Growth", "Margin", "Share"])
        reference = random.choice(["Code", "Ref", "ID", "Room"])
        columns.append({"pct": rate, "code": reference}.get(form, metric))
    for j in range(1, count):
        while columns[j] in columns[:j]:
            columns[j], formats[j] = random.choice(METRICS), "int"
    return columns, formats


def _distinct_values(random: Random, form: str, count: int) -> list[str]:
    values: list[str] = []
    while len(values) < count:
        value = _value(random, form)
        if value not in values:
            values.append(value)
    return values


def _value(random: Random, form: str) -> str:
    if form == "int":
        return str(random.randint(1, 999))
    if form == "money":
        return random.choice(["", "$"]) + money(random, 99)
    if form == "pct":
        return f"{random.randint(1, 99)}%"
    if form == "big":
        return f"{random.randint(1000, 99999):,}"
    return code(random).replace(" ", "")


def _print(canvas: Canvas, table: Table, face: Face, margin: int, ink: RGB) -> None:
    random, rows = canvas.random, table.rows
    free = canvas.width - 2 * margin
    height = canvas.height - 2 * margin - (TITLE_HEIGHT if table.title else 0)
    size = _pick_size(random, rows, free, height / len(rows))
    widths = _column_widths(random, rows, face, size, free)
    step = min(height / len(rows), size * random.uniform(1.2, 2.0))
    step = max(step, size * 1.1)
    x = margin + random.random() * max(0, free - sum(widths))
    y: float = margin
    if table.title:
        title_size = min(20, fit_size(face, table.title, free, size + 3, 11))
        canvas.text(canvas.width / 2, y, table.title, face, title_size, ink, "middle")
        y += TITLE_HEIGHT
    y += random.random() * max(0, canvas.height - margin - y - step * len(rows))
    _rule(canvas, x, y, widths, step, len(rows), ink)

    anchor = random.choice(["left", "right", "middle"])
    for i, row in enumerate(rows):
        left, top = x, y + i * step + (step - size * 1.17) / 2
        for j, (text, width) in enumerate(zip(row, widths, strict=True)):
            right = left + width
            kind = "left" if j == 0 else anchor
            at = {"left": left + size * 0.35, "right": right - size * 0.35, "middle": left + width / 2}
            canvas.text(at[kind], top, text, face, size, ink, kind)
            left = right


def _pick_size(random: Random, rows: list[list[str]], free: int, step: float) -> int:
    letters = sum(max(len(row[j]) for row in rows) + 1.6 for j in range(len(rows[0])))
    size = max(MIN_TYPE, min(int(free / (letters * 0.62)), int(step / 1.15), 22))
    return random.randint(min(14, size), size) if chance(random, 0.5) else size


def _column_widths(random: Random, rows: list[list[str]], face: Face, size: int, free: int) -> list[float]:
    widths = [max(text_width(face, size, row[j]) for row in rows) + size * 0.9 for j in range(len(rows[0]))]
    stretch = free / sum(widths)
    if stretch >= 1:
        stretch = random.uniform(1.0, min(stretch, 1.6))
    return [width * stretch for width in widths]


def _rule(
    canvas: Canvas, x: float, y: float, widths: list[float], step: float, num_rows: int, ink: RGB
) -> None:
    """Stripes, a line below the header, or a grid, or nothing."""
    random = canvas.random
    has_grid, has_stripes = chance(random, 0.45), chance(random, 0.3)
    right, bottom = x + sum(widths), y + step * num_rows
    if has_stripes:
        tint = tuple(int(g + (i - g) * 0.12) for g, i in zip(canvas.ground, ink, strict=True))
        for i in range(0, num_rows, 2):
            canvas.pen.rectangle([x, y + i * step, right, y + (i + 1) * step], fill=tint)
    elif chance(random, 0.4):
        canvas.line([(x, y + step), (right, y + step)], ink)
    if has_grid:
        for i in range(num_rows + 1):
            canvas.line([(x, y + i * step), (right, y + i * step)], ink)
        for width in [*widths, 0]:
            canvas.line([(x, y), (x, bottom)], ink)
            x += width


def _about_cells(random: Random, table: Table) -> list[Question]:
    questions = []
    if chance(random, 0.25):
        size = f"A table with {len(table.keys)} rows and {len(table.columns) + 1} columns."
        questions.append(Question("desc", random.choice(DESCRIBE), size))
    for _ in range(4):
        i, j = random.randrange(len(table.keys)), random.randrange(len(table.columns))
        column, key, preposition = table.columns[j], table.keys[i], table.subject.preposition
        wordings = [
            f"What was the {column} {preposition} {key}?",
            f"What is the {column} {preposition} {key}?",
            f"What is the value of {column} for {key}?",
            f"What is the {column} of {key}?",
            f"{key}的{column}是多少？",
        ]
        questions.append(Question("cell", random.choice(wordings), table.values[j][i]))
    noun = table.subject.header.lower()
    for _ in range(2):
        i, j = random.randrange(len(table.keys)), random.randrange(len(table.columns))
        column, value = table.columns[j], table.values[j][i]
        wordings = [
            f"Which {noun} has {column} {value}?",
            f"Which {noun} has a {column} of {value}?",
            f"For which {noun} is the {column} {value}?",
        ]
        questions.append(Question("which", random.choice(wordings), table.keys[i]))
    return questions


def _about_size(random: Random, table: Table) -> list[Question]:
    questions = []
    if chance(random, 0.35):
        wordings = [
            "How many rows of data are there?",
            "How many rows does the table have without the header?",
        ]
        questions.append(Question("count", random.choice(wordings), str(len(table.keys))))
    if chance(random, 0.2):
        answer = str(len(table.columns) + 1)
        questions.append(Question("count", "How many columns does the table have?", answer))
    return questions


def _about_headers(random: Random, table: Table) -> list[Question]:
    questions = []
    if chance(random, 0.35):
        i, noun = random.randrange(len(table.keys)), table.subject.header.lower()
        wordings = [f"What is the {ORDINALS[i]} {noun} in the table?", f"Which {noun} is in row {i + 1}?"]
        questions.append(Question("row", random.choice(wordings), table.keys[i]))
    if chance(random, 0.35):
        j = random.randrange(len(table.columns) + 1)
        questions.append(Question("col", f"What is the header of column {j + 1}?", table.rows[0][j]))
    if chance(random, 0.3):
        wordings = ["What is the title of the table?", "What is the title?"]
        questions.append(Question("title", random.choice(wordings), table.title or absent("title")))
    return questions


def _about_missing(random: Random, table: Table) -> list[Question]:
    if not chance(random, 0.5):
        return []
    preposition = table.subject.preposition
    others = [key for key in table.subject.pool if key not in table.keys]
    if others and chance(random, 0.6):
        key = random.choice(others)
        text = f"What was the {random.choice(table.columns)} {preposition} {key}?"
        return [Question("neg", text, absent(key))]
    column = random.choice([metric for metric in METRICS if metric not in table.columns])
    text = f"What is the {column} {preposition} {random.choice(table.keys)}?"
    return [Question("neg", text, absent(column))]
