"""Task `text`: one to four lines of words, prices, dates, codes, times, percentages, numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas, Run
from training.generator.fonts import MIN_TYPE, pick_face
from training.generator.palette import RGB, ink_and_ground, vary
from training.generator.vocabulary import ORDINALS, WORDS
from training.generator.words import (
    PITCH,
    Style,
    at_most,
    clock,
    code,
    date,
    joined,
    largest_size,
    number,
    percent,
    phrase_in,
    price,
    reading,
    word,
)

READ = [
    "What does the text say?",
    "Read the text.",
    "What is written in the image?",
    "Transcribe the text.",
    "What text is shown?",
    "Read the text in the image.",
    "What does the image say?",
    "Please transcribe the text in this image.",
    "OCR",
    "What is written here?",
    "What does this say?",
    "What does it say?",
    "Read this.",
    "What is the text?",
    "Extract the text.",
    "Can you read this?",
    "Transcribe the image.",
    "What words are in the image?",
]
ASK_VALUE = {
    "price": ["What price is shown?", "What is the price?", "Which price is written?"],
    "date": ["What date is shown?", "What is the date?", "Which date is written?"],
    "code": ["What code is shown?", "What is the code?", "Read the code."],
    "time": ["What time is shown?", "What is the time?", "Which time is written?"],
    "percent": ["What percentage is shown?", "What is the percentage?"],
    "number": ["What number is shown?", "What is the number?", "Read the number."],
}
_VALUES: dict[str, Callable[[Random], str]] = {
    "price": price,
    "date": date,
    "code": code,
    "time": clock,
    "percent": percent,
    "number": number,
}
_CAPTIONS = {
    "price": ["Price", "Total", "Cost", "Rent"],
    "date": ["Date", "Due"],
    "code": ["Code", "Room", "Order"],
    "time": ["Time", "Open", "Close"],
    "percent": ["Rate", "Growth", "Margin"],
    "number": ["Number", "Page", "Score"],
}


@dataclass(frozen=True, slots=True)
class Line:
    """The pieces of a line as printed; of a value also its sort (it is the last piece) and its caption."""

    pieces: list[str]
    sort: str = "words"
    caption: str | None = None


@dataclass(frozen=True, slots=True)
class Printed:
    """The lines and their runs, piece by piece."""

    lines: list[Line]
    runs: list[list[Run]]

    @property
    def all(self) -> list[Run]:
        return [run for runs in self.runs for run in runs]

    @property
    def lower(self) -> str:
        return joined(self.all).lower()

    def has(self, asked: str) -> bool:
        return asked.lower() in self.lower


def draw_text(brief: Brief) -> Drawing:
    random = brief.random
    ink, ground = ink_and_ground(random)
    canvas = Canvas(random, brief.grid, ground)
    if chance(random, 0.12):
        _two_tone(canvas, ground)
    printed = _print_lines(brief, canvas, ink)
    questions = [
        *_about_all(random, printed),
        *_about_lines(random, printed),
        *_about_words(random, printed),
        *_about_values(random, printed),
        *_contains(random, printed),
        *_about_missing(random, printed),
    ]
    return Drawing(canvases=[canvas], questions=at_most(random, questions))


def _two_tone(canvas: Canvas, ground: RGB) -> None:
    top = canvas.random.randint(0, canvas.height)
    canvas.pen.rectangle([0, top, canvas.width, canvas.height], fill=vary(canvas.random, ground, 14))


def _print_lines(brief: Brief, canvas: Canvas, ink: RGB) -> Printed:
    random = brief.random
    margin, face = random.randint(6, 12), pick_face(random, brief.faces)
    free, height = canvas.width - 2 * margin, canvas.height - 2 * margin
    weights = [4, 5, 3, 2] if brief.level >= 0.5 else [4, 4, 0, 0]
    count = max(1, min(random.choices([1, 2, 3, 4], weights)[0], int(height / (PITCH * MIN_TYPE))))
    largest = largest_size(free, 8, height, count)
    style = Style(face, random.randint(MIN_TYPE, largest), ink)
    lines = _invent_lines(brief, style, free, count)

    pitch = style.size * random.uniform(PITCH, 1.7)
    if count > 1:
        pitch = min(pitch, (height - PITCH * style.size) / (count - 1))
    block = pitch * (count - 1) + PITCH * style.size
    widths = [_width(style, line.pieces) for line in lines]
    x = margin + random.random() * max(0, free - max(widths))
    y = margin + random.random() * max(0, height - block)
    if chance(random, 0.1):
        gap = random.randint(2, 5)
        canvas.pen.rectangle([x - gap, y - gap, x + max(widths) + gap, y + block + gap], outline=ink)
    is_centred = chance(random, 0.33)
    runs = []
    for i, (line, width) in enumerate(zip(lines, widths, strict=True)):
        left = x + (max(widths) - width) / 2 if is_centred else x
        runs.append(_print_line(canvas, left, y + i * pitch, line, style, i))
    return Printed(lines, runs)


def _width(style: Style, pieces: list[str]) -> float:
    return sum(map(style.width, pieces)) + style.width(" ") * (len(pieces) - 1)


def _print_line(canvas: Canvas, x: float, y: float, line: Line, style: Style, i: int) -> list[Run]:
    runs: list[Run] = []
    for place, piece in enumerate(line.pieces):
        row = runs[0] if line.caption and runs else None
        run = canvas.text(x, y, piece, style.face, style.size, style.ink, line=i, place=place, row=row)
        runs.append(run)
        x = run.end + style.width(" ")
    return runs


def _invent_lines(brief: Brief, style: Style, free: float, count: int) -> list[Line]:
    """Lines that fit; no word comes twice in them."""
    random = brief.random
    used: set[str] = set()
    lines = []
    for _ in range(count):
        line = _invent_value(random, style, free, used) if chance(random, 0.42) else None
        lines.append(line or Line(_invent_words(brief, style, free, used)))
        used.update(piece.lower().removesuffix(":") for piece in lines[-1].pieces)
    return lines


def _invent_value(random: Random, style: Style, free: float, used: set[str]) -> Line | None:
    """A value with or without a caption, or None where none fits."""
    for _ in range(8):
        sort = random.choice(list(_VALUES))
        value, caption = _VALUES[sort](random), random.choice(_CAPTIONS[sort])
        end = random.choice(["", ":", ":"])
        has_caption = chance(random, 0.65) and caption.lower() not in used
        if has_caption and _width(style, [caption + end, value]) <= free:
            return Line([caption + end, value], sort, caption)
        if style.width(value) <= free and value not in used:
            return Line([value], sort)
    return None


def _invent_words(brief: Brief, style: Style, free: float, used: set[str]) -> list[str]:
    random = brief.random
    wanted = random.choices([1, 2, 3], [3, 4, 3] if brief.level >= 0.5 else [3, 3, 0])[0]
    words: list[str] = []
    for _ in range(30):
        new = word(random)
        taken = used | {known.lower() for known in words}
        if new.lower() in taken or _width(style, [*words, new]) > free:
            continue
        words.append(new)
        if len(words) == wanted:
            break
    random.shuffle(words)
    short = [known for known in WORDS if known not in used]
    return words or [min(short, key=style.width)]


def _about_all(random: Random, printed: Printed) -> list[Question]:
    full = "\n".join(joined(runs) for runs in printed.runs)
    has_little = len(printed.all) < 4
    wordings = random.sample(READ, 2 if has_little or chance(random, 0.3) else 1)
    questions = [Question("read", text, full, "print", tuple(printed.all)) for text in wordings]
    if has_little or chance(random, 0.25):
        wordings = [
            "How many lines of text are there?",
            "How many lines does the text have?",
            "Count the lines of text.",
        ]
        questions.append(Question("count", random.choice(wordings), str(len(printed.lines))))
    return questions


def _about_lines(random: Random, printed: Printed) -> list[Question]:
    rows = printed.runs
    questions = []
    for i in random.sample(range(len(rows)), min(len(rows), 2)):
        wordings = [
            f"What is written on line {i + 1}?",
            f"Read the {ORDINALS[i]} line.",
            f"What does the {ORDINALS[i]} line say?",
            f"Read line {i + 1}.",
        ]
        questions.append(reading("line", random.choice(wordings), *rows[i]))
    if len(rows) > 1 and chance(random, 0.5):
        wordings = ["What does the last line say?", "Read the last line.", "What is on the bottom line?"]
        questions.append(reading("line", random.choice(wordings), *rows[-1]))
    if len(rows) > 1 and chance(random, 0.4):
        i = random.randrange(len(rows) - 1)
        asked = joined(rows[i])
        wordings = [f'Which line comes after "{asked}"?', f'What is written below "{asked}"?']
        keys = ((asked, tuple(rows[i])),)
        for text in _once(random, wordings, asked):
            questions.append(Question("next", text, joined(rows[i + 1]), "print", tuple(rows[i + 1]), keys))
    return questions


def _once(random: Random, wordings: list[str], asked: str) -> list[str]:
    """One wording in which the phrase asked for stands once only, or none: "here" is a part of "where" too."""
    clear = [text for text in wordings if text.count(asked) == 1]
    return [random.choice(clear)] if clear else []


def _is_word(run: Run) -> bool:
    return run.text.isalpha()


def _about_words(random: Random, printed: Printed) -> list[Question]:
    runs, questions = printed.all, []
    if _is_word(runs[0]) and chance(random, 0.35):
        text = random.choice(["What is the first word?", "Read the first word.", "Which word comes first?"])
        questions.append(reading("word", text, runs[0]))
    if _is_word(runs[-1]) and chance(random, 0.35):
        text = random.choice(["What is the last word?", "Read the last word.", "Which word comes last?"])
        questions.append(reading("word", text, runs[-1]))
    if len(printed.runs) > 1 and chance(random, 0.35):
        i = random.randrange(len(printed.runs))
        if _is_word(printed.runs[i][0]):
            wordings = [
                f"What is the first word of line {i + 1}?",
                f"Which word is first on line {i + 1}?",
                f"Read the first word of the {ORDINALS[i]} line.",
            ]
            questions.append(reading("word", random.choice(wordings), printed.runs[i][0]))
    pairs = [(a, b) for a, b in pairwise(runs) if _is_word(a) and _is_word(b)]
    for a, b in random.sample(pairs, min(len(pairs), 2)):
        for text in _once(random, _next_wordings(a.text), a.text):
            questions.append(Question("next", text, b.text, "print", (b,), ((a.text, (a,)),)))
    return questions


def _next_wordings(asked: str) -> list[str]:
    return [
        f'Which word comes after "{asked}"?',
        f'What is the next word after "{asked}"?',
        f'What stands after "{asked}"?',
    ]


def _about_values(random: Random, printed: Printed) -> list[Question]:
    """A value is asked for where there is one of its sort, by the sort or by its caption."""
    questions = []
    sorts = [line.sort for line in printed.lines]
    for line, runs in zip(printed.lines, printed.runs, strict=True):
        is_clear = sorts.count(line.sort) == 1
        if line.sort == "number":  # what else is made of digits may be called a number too
            is_clear = is_clear and not set(sorts) - {"words", "number"}
        if line.sort != "words" and is_clear and chance(random, 0.85):
            questions.append(_ask_value(random.choice(ASK_VALUE[line.sort]), line, runs))
        if line.caption and chance(random, 0.7):
            name = line.caption
            wordings = [f"What is the {name.lower()}?", f"What is the {name}?", f'What does "{name}" say?']
            questions.append(
                _ask_value(random.choice(wordings[: 2 if name not in ("Open", "Close") else 3]), line, runs)
            )
    return list({question.text: question for question in questions}.values())


def _ask_value(text: str, line: Line, runs: list[Run]) -> Question:
    is_named = line.caption is not None and line.caption.lower() in text.lower()
    keys = ((phrase_in(text, line.caption or ""), (runs[0],)),) if is_named else ()
    return Question("kind", text, runs[-1].text, "print", (runs[-1],), keys)


def _contains(random: Random, printed: Printed) -> list[Question]:
    questions = []
    known = [run for run in printed.all if _is_word(run)]
    wordings = [
        'Does the text contain "{}"?',
        'Is the word "{}" in the image?',
        'Does the image say "{}"?',
        'Is "{}" written here?',
    ]
    if known and chance(random, 0.6):
        run = random.choice(known)
        for text in _once(random, [wording.format(run.text) for wording in wordings], run.text):
            questions.append(Question("yesno", text, "Yes", "look", (run,), ((run.text, (run,)),)))
    if chance(random, 0.7) and (asked := _missing_word(random, printed)):
        for text in _once(random, [wording.format(asked) for wording in wordings], asked):
            questions.append(Question("yesno", text, "No", "look", (), ((asked, ()),)))
    return questions


def _missing_word(random: Random, printed: Printed) -> str | None:
    asked = word(random)
    return None if printed.has(asked) else asked


def _about_missing(random: Random, printed: Printed) -> list[Question]:
    questions = []
    sorts = [line.sort for line in printed.lines]
    missing = [sort for sort in ("price", "date", "time", "percent", "code") if sort not in sorts]
    sort = random.choice(missing)
    name = "percentage" if sort == "percent" else sort
    if not printed.has(name) and chance(random, 0.5):
        text = random.choice(ASK_VALUE[sort])
        questions.append(Question("neg", text, absent(name), "look", (), ((name, ()),)))
    if chance(random, 0.4) and (asked := _missing_word(random, printed)):
        for text in _once(random, _next_wordings(asked), asked):
            questions.append(Question("neg", text, absent(asked), "look", (), ((asked, ()),)))
    if chance(random, 1 if len(printed.all) < 3 else 0.06):
        i = random.randrange(len(sorts), len(ORDINALS))
        text = random.choice([f"What is written on line {i + 1}?", f"Read line {i + 1}."])
        questions.append(Question("neg", text, absent(f"line {i + 1}"), "look"))
    return questions
