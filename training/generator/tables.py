"""Task `table`: two to seven rows under a header, one to three columns of values."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas, Run
from training.generator.fonts import MIN_TYPE, fit_size, pick_face
from training.generator.palette import ink_and_ground, random_gray
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
from training.generator.words import (
    MAX_TYPE,
    PITCH,
    Style,
    at_most,
    code,
    joined,
    largest_size,
    money,
    print_words,
    reading,
)

TITLE_HEIGHT = 1.4  # in lines
PADDING = 0.9  # of a column, both sides together, in sizes


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
NARROWEST = Subject("Day", DAYS, "on", is_series=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The texts. No two of its values are equal, and no word of the title is a header or key."""

    subject: Subject
    title: list[str]
    keys: list[str]
    columns: list[str]
    values: list[list[str]]  # by column

    @property
    def rows(self) -> list[list[str]]:
        """All cells as printed, the header first."""
        body = [list(row) for row in zip(self.keys, *self.values, strict=True)]
        return [[self.subject.header, *self.columns], *body]


@dataclass(frozen=True, slots=True)
class Printed:
    """A table with the runs of its cells, the header first, and those of its title."""

    table: Table
    title: list[Run]
    header: list[Run]
    body: list[list[Run]]


def draw_table(brief: Brief) -> Drawing:
    random = brief.random
    if chance(random, 0.5):
        ink, ground = ink_and_ground(random)
    else:
        ink, ground = random_gray(random, 0, 60), (255, 255, 255)
    canvas = Canvas(random, brief.grid, ground)
    face, margin = pick_face(random, brief.faces), random.randint(6, 10)
    free, height = canvas.width - 2 * margin, canvas.height - 2 * margin
    largest = largest_size(free, 17, height, 3)
    style = Style(face, MIN_TYPE + int((largest + 1 - MIN_TYPE) * random.random() ** 2), ink)
    table = _invent(brief, style, free, height / (PITCH * style.size))
    printed = _print(canvas, table, style, margin)
    questions = [
        *_about_cells(random, printed),
        *_about_keys(random, printed),
        *_about_size(random, printed),
        *_about_headers(random, printed),
        *_about_missing(random, printed),
    ]
    return Drawing(canvases=[canvas], questions=at_most(random, questions))


def _invent(brief: Brief, style: Style, free: float, lines: float) -> Table:
    """A table that so many lines and so much width hold."""
    random = brief.random
    has_title = chance(random, 0.3) and lines >= 3 + TITLE_HEIGHT
    most = int(lines - (TITLE_HEIGHT if has_title else 0)) - 1
    for _ in range(20):
        subject = random.choice(SUBJECTS)
        count = max(2, min(random.randint(2, 6 if brief.level >= 0.5 else 3), len(subject.pool), most))
        columns = _headers(random, random.choice([1, 1, 2, 2, 3] if brief.level >= 0.5 else [1, 1, 2]))
        keys = _keys(random, subject, count)
        while columns and not _fits(table := _fill(random, subject, keys, columns), style, free):
            columns = columns[:-1]
        if columns:
            return _entitle(random, table, style, free) if has_title else table
    keys = _keys(random, NARROWEST, max(2, min(3, most)))
    return _fill(random, NARROWEST, keys, [("Cost", "int")])


def _keys(random: Random, subject: Subject, count: int) -> list[str]:
    if not subject.is_series:
        return random.sample(subject.pool, count)
    first = random.randint(0, len(subject.pool) - count)
    return subject.pool[first : first + count]


def _headers(random: Random, count: int) -> list[tuple[str, str]]:
    """Names of the columns, all distinct, each with the format of its values."""
    headers: list[tuple[str, str]] = []
    for metric in random.sample(METRICS, count):
        form = random.choice(["int", "int", "money", "pct", "big", "code"])
        names = {"pct": ["Rate", "Growth", "Margin", "Score"], "code": ["Code", "Room", "Order"]}
        name = random.choice(names.get(form, [metric]))
        if name in (known for known, _ in headers):
            continue
        headers.append((name, form))
    return headers


def _fill(random: Random, subject: Subject, keys: list[str], columns: list[tuple[str, str]]) -> Table:
    used: set[str] = set(keys)
    values = []
    for _, form in columns:
        currency = random.choice(["", "$"])
        column: list[str] = []
        while len(column) < len(keys):
            value = _value(random, form, currency)
            if value not in used:
                column.append(value)
                used.add(value)
        values.append(column)
    return Table(subject=subject, title=[], keys=keys, columns=[name for name, _ in columns], values=values)


def _value(random: Random, form: str, currency: str) -> str:
    if form == "int":
        return str(random.randint(1, 999))
    if form == "money":
        return currency + money(random, 99)
    if form == "pct":
        return f"{random.randint(1, 99)}%"
    if form == "big":
        return f"{random.randint(1000, 99999):,}"
    return code(random)


def _fits(table: Table, style: Style, free: float) -> bool:
    """In width; and no key is part of a header ("Mar", "Margin"), as a question could not tell them apart."""
    is_clear = not any(key in column for key in table.keys for column in table.columns)
    return is_clear and sum(_natural_widths(table.rows, style)) <= free


def _entitle(random: Random, table: Table, style: Style, free: float) -> Table:
    taken = {*table.columns, *table.keys}
    first = random.choice([metric for metric in METRICS if metric not in taken])
    last = random.choice(["Report", "Table", "Review", "Section"])
    if last == table.subject.header or last in taken or style.width(f"{first} {last}") > free:
        return table
    return Table(
        subject=table.subject,
        title=[first, last],
        keys=table.keys,
        columns=table.columns,
        values=table.values,
    )


def _natural_widths(rows: list[list[str]], style: Style) -> list[float]:
    return [max(style.width(row[j]) for row in rows) + PADDING * style.size for j in range(len(rows[0]))]


def _print(canvas: Canvas, table: Table, style: Style, margin: int) -> Printed:
    random, rows, size = canvas.random, table.rows, style.size
    free, height = canvas.width - 2 * margin, canvas.height - 2 * margin
    widths = _natural_widths(rows, style)
    stretch = random.uniform(1.0, max(1.0, min(free / sum(widths), 1.6)))
    widths = [width * stretch for width in widths]
    num_lines = len(rows) + (TITLE_HEIGHT if table.title else 0)
    step = min(height / num_lines, size * random.uniform(PITCH, 2.0))
    x = margin + random.random() * max(0, free - sum(widths))
    y = margin + random.random() * max(0, height - step * num_lines)
    title: list[Run] = []
    if table.title:
        fitting = fit_size(
            style.face, " ".join(table.title), 0.96 * free, min(MAX_TYPE, int(size * 1.2)), size
        )
        large = Style(style.face, min(fitting, int(step * TITLE_HEIGHT / 1.2)), style.ink)
        title = print_words(canvas, canvas.width / 2, y, table.title, large, middle=True)
        y += step * TITLE_HEIGHT
    _rule(canvas, x, y, widths, step, len(rows), style)
    header, *body = _print_cells(canvas, table, style, (x, y, step), widths)
    return Printed(table, title, header, body)


def _print_cells(
    canvas: Canvas, table: Table, style: Style, at: tuple[float, float, float], widths: list[float]
) -> list[list[Run]]:
    x, y, step = at
    size = style.size
    anchor = canvas.random.choice(["left", "right", "middle"])
    printed: list[list[Run]] = []
    for i, row in enumerate(table.rows):
        left, top = x, y + i * step + (step - size * 1.17) / 2
        cells: list[Run] = []
        for j, (text, width) in enumerate(zip(row, widths, strict=True)):
            right, side = left + width, PADDING / 2 * size
            kind = "left" if j == 0 else anchor
            edge = {"left": left + side, "right": right - side, "middle": left + width / 2}[kind]
            run = canvas.text(edge, top, text, style.face, size, style.ink, kind, place=j)
            run.line = i + bool(table.title)
            run.row = cells[0] if i and cells else None
            run.column = printed[0][j] if i else None
            cells.append(run)
            left = right
        printed.append(cells)
    return printed


def _rule(
    canvas: Canvas, x: float, y: float, widths: list[float], step: float, num_rows: int, style: Style
) -> None:
    """Stripes, a line below the header, or a grid, or nothing."""
    random = canvas.random
    has_grid, has_stripes = chance(random, 0.45), chance(random, 0.3)
    right, bottom = x + sum(widths), y + step * num_rows
    if has_stripes:
        tint = tuple(int(g + (i - g) * 0.12) for g, i in zip(canvas.ground, style.ink, strict=True))
        for i in range(0, num_rows, 2):
            canvas.pen.rectangle([x, y + i * step, right, y + (i + 1) * step], fill=tint)
    elif chance(random, 0.4):
        canvas.line([(x, y + step), (right, y + step)], style.ink)
    if has_grid:
        for i in range(num_rows + 1):
            canvas.line([(x, y + i * step), (right, y + i * step)], style.ink)
        for width in [*widths, 0]:
            canvas.line([(x, y), (x, bottom)], style.ink)
            x += width


def _about_cells(random: Random, printed: Printed) -> list[Question]:
    questions = []
    cells = [(row, j) for row in printed.body for j in range(1, len(row))]
    for row, j in random.sample(cells, min(4, len(cells))):
        text = random.choice(_cell_wordings(printed.table.subject, printed.header[j].text, row[0].text))
        keys = ((printed.header[j].text, (printed.header[j],)), (row[0].text, (row[0],)))
        questions.append(Question("cell", text, row[j].text, "print", (row[j],), keys))
    return questions


def _cell_wordings(subject: Subject, column: str, key: str) -> list[str]:
    return [
        f"What was the {column} {subject.preposition} {key}?",
        f"What is the {column} {subject.preposition} {key}?",
        f"What is the value of {column} for {key}?",
        f"What is the {column} of {key}?",
        f"Tell me the {column} {subject.preposition} {key}.",
        f"{key}的{column}是多少？",
    ]


def _about_keys(random: Random, printed: Printed) -> list[Question]:
    questions = []
    cells = [(row, j) for row in printed.body for j in range(1, len(row))]
    noun = printed.table.subject.header.lower()
    for row, j in random.sample(cells, 2):
        column, value = printed.header[j], row[j].text
        wordings = [
            f"Which {noun} has {column.text} {value}?",
            f"Which {noun} has a {column.text} of {value}?",
            f"For which {noun} is the {column.text} {value}?",
            f"哪一行的{column.text}是{value}？",
        ]
        text = random.choice(wordings)
        keys = [(column.text, (column,)), (value, (row[j],))]
        if noun in text:
            keys.insert(0, (noun, (printed.header[0],)))
        questions.append(Question("which", text, row[0].text, "print", (row[0],), tuple(keys)))
    return questions


def _about_size(random: Random, printed: Printed) -> list[Question]:
    questions = []
    rows, headers = tuple(row[0] for row in printed.body), tuple(printed.header)
    if chance(random, 0.3):
        wordings = [
            "How many rows of data are there?",
            "How many rows does the table have without the header?",
        ]
        questions.append(Question("count", random.choice(wordings), str(len(rows)), "count", rows))
    if chance(random, 0.2):
        wordings = ["How many columns does the table have?", "How many columns are there?"]
        questions.append(Question("count", random.choice(wordings), str(len(headers)), "count", headers))
    if chance(random, 0.2):
        answer = f"A table with {len(rows)} rows and {len(headers)} columns."
        questions.append(Question("desc", random.choice(DESCRIBE), answer))
    return questions


def _about_headers(random: Random, printed: Printed) -> list[Question]:
    questions = []
    if chance(random, 0.4):
        i, noun = random.randrange(min(len(printed.body), len(ORDINALS))), printed.header[0].text.lower()
        text = random.choice(
            [f"What is the {ORDINALS[i]} {noun} in the table?", f"Which {noun} is in row {i + 1}?"]
        )
        key = printed.body[i][0]
        questions.append(Question("row", text, key.text, "print", (key,), ((noun, (printed.header[0],)),)))
    is_small = len(printed.body) * len(printed.header) < 6
    if is_small or chance(random, 0.35):
        j = random.randrange(len(printed.header))
        wordings = [f"What is the header of column {j + 1}?", f"What is the {ORDINALS[j]} column called?"]
        questions.append(reading("col", random.choice(wordings), printed.header[j]))
    if printed.title and chance(random, 0.7):
        text = random.choice(["What is the title of the table?", "What is the title?"])
        questions.append(reading("title", text, *printed.title))
    if chance(random, 0.35):
        i = random.randrange(len(printed.body))
        text = random.choice([f"Read row {i + 1} of the table.", f"What does row {i + 1} say?"])
        questions.append(Question("readrow", text, joined(printed.body[i]), "print", tuple(printed.body[i])))
    return questions


def _about_missing(random: Random, printed: Printed) -> list[Question]:
    table, questions = printed.table, []
    subject = table.subject
    taken = {subject.header, *table.title, *table.columns, *table.keys}
    others = [key for key in subject.pool if key not in taken]
    if others and chance(random, 0.6):
        column = random.choice(printed.header[1:])
        key = random.choice([key for key in others if key not in column.text] or others[:1])
        text = random.choice(_cell_wordings(subject, column.text, key))
        asked = ((column.text, (column,)), (key, ()))
        questions.append(Question("neg", text, absent(key), "look", (), asked))
    if chance(random, 0.45):
        row = random.choice(printed.body)
        name = random.choice(
            [metric for metric in METRICS if metric not in taken and row[0].text not in metric]
        )
        text = random.choice(_cell_wordings(subject, name, row[0].text))
        keys = ((name, ()), (row[0].text, (row[0],)))
        questions.append(Question("neg", text, absent(name), "look", (), keys))
    if not table.title and chance(random, 0.15):
        text = random.choice(["What is the title of the table?", "What is the title?"])
        questions.append(Question("neg", text, absent("title"), "look"))
    return questions
