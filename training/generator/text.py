"""Task `text`: one to four lines of words, prices, dates, codes, times, percentages, numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas
from training.generator.fonts import MIN_TYPE, fit_size, pick_face, text_width
from training.generator.palette import RGB, ink_and_ground, vary
from training.generator.vocabulary import DESCRIBE, ORDINALS
from training.generator.words import clock, code, date, number, percent, price, word

MAX_TYPE = 28
LINE_HEIGHT = 22  # pixels that a line needs at least

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
    "price": ["What price is shown?", "What is the price?", "How much does it cost?"],
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
    "price": ["Price", "Total", "Only", "Now"],
    "date": ["Date", "Due", "On"],
    "code": ["Code", "Ref", "Room", "Gate"],
    "time": ["Time", "At", "Open"],
    "percent": ["Off", "Rate", "Up"],
    "number": ["No", "Page", "Total"],
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line as printed; of a value also its sort and the value without its caption."""

    text: str
    sort: str = "words"
    value: str | None = None

    def upper(self) -> Line:
        return Line(self.text.upper(), self.sort, self.value and self.value.upper())


def draw_text(brief: Brief) -> Drawing:
    random = brief.random
    ink, ground = ink_and_ground(random)
    canvas = Canvas(random, brief.grid, ground)
    if chance(random, 0.12):
        _two_tone(canvas, ground)
    lines = _print_lines(brief, canvas, ink)
    full = "\n".join(line.text for line in lines)
    questions = [
        *_about_lines(random, lines, full),
        *_about_words(random, full.split()),
        *_about_values(random, lines),
        *_contains(random, full.split()),
    ]
    return Drawing(canvases=[canvas], questions=questions)


def _two_tone(canvas: Canvas, ground: RGB) -> None:
    top = canvas.random.randint(0, canvas.height)
    canvas.pen.rectangle([0, top, canvas.width, canvas.height], fill=vary(canvas.random, ground, 14))


def _print_lines(brief: Brief, canvas: Canvas, ink: RGB) -> list[Line]:
    random = brief.random
    margin, face = random.randint(4, 12), pick_face(random, brief.faces)
    free = canvas.width - 2 * margin
    height = canvas.height - 2 * margin
    weights = [4, 4, 3, 1] if brief.level > 0.5 else [5, 3, 0, 0]
    count = max(1, min(random.choices([1, 2, 3, 4], weights)[0], height // LINE_HEIGHT))
    usual = random.choice([14, 15, 16, 18, 20])
    room = max(4, min(int(free / (usual * 0.6)), int(10 + 12 * brief.level)))
    lines = [_invent_line(random, room) for _ in range(count)]
    if chance(random, 0.15):
        lines = [line.upper() for line in lines]

    spacing = random.uniform(1.15, 1.6)
    fitting = min(fit_size(face, line.text, free, MAX_TYPE, MIN_TYPE) for line in lines)
    size = _pick_size(random, min(fitting, int(height / (count * spacing))), usual)
    block = count * size * spacing
    y = margin + random.random() * max(0, height - block)
    anchor = random.choice(["left", "left", "middle"])
    width = max(text_width(face, size, line.text) for line in lines)
    x = margin + random.random() * max(0, free - width)
    if chance(random, 0.1):
        gap = random.randint(2, 5)
        canvas.pen.rectangle([x - gap, y - gap, x + width + gap, y + block + gap], outline=ink)
    for line in lines:
        canvas.text(x if anchor == "left" else x + width / 2, y, line.text, face, size, ink, anchor)
        y += size * spacing
    return lines


def _pick_size(random: Random, largest: int, usual: int) -> int:
    if chance(random, 0.45):
        size = largest
    else:
        size = random.randint(min(usual, largest), largest) if largest > usual else largest
    return max(MIN_TYPE, size)


def _invent_line(random: Random, room: int) -> Line:
    """Words up to `room` characters, or a value with or without a caption."""
    if chance(random, 0.55):
        return Line(" ".join(_words(random, room)))
    sort = random.choice(list(_VALUES))
    value = _VALUES[sort](random)
    text = value
    if chance(random, 0.4):
        caption = random.choice(_CAPTIONS[sort])
        if len(caption) + 2 + len(value) <= room:
            text = f"{caption}{random.choice(['', ':'])} {value}"
    return Line(text, sort, value)


def _words(random: Random, room: int) -> list[str]:
    words: list[str] = []
    while True:
        new = word(random)
        if sum(map(len, words)) + len(words) + len(new) > room:
            return words or [new[:room]]
        words.append(new)
        if chance(random, 0.38):
            return words


def _about_lines(random: Random, lines: list[Line], full: str) -> list[Question]:
    questions = [Question("read", random.choice(READ), full)]
    if chance(random, 0.15):
        questions.append(Question("desc", random.choice(DESCRIBE), f"Text: {full}"))
    if len(lines) > 1:
        questions += _nth_line(random, [line.text for line in lines])
    if chance(random, 0.4):
        wording = random.choice(
            [
                "How many lines of text are there?",
                "How many lines does the text have?",
                "Count the lines of text.",
            ]
        )
        questions.append(Question("count", wording, str(len(lines))))
    return questions


def _nth_line(random: Random, texts: list[str]) -> list[Question]:
    i = random.randrange(len(texts))
    wordings = [
        f"What is written on line {i + 1}?",
        f"Read the {ORDINALS[i]} line.",
        f"What does the {ORDINALS[i]} line say?",
        f"Read line {i + 1}.",
    ]
    questions = [Question("line", random.choice(wordings), texts[i])]
    if chance(random, 0.5):
        wordings = ["What does the last line say?", "Read the last line.", "What is on the bottom line?"]
        questions.append(Question("line", random.choice(wordings), texts[-1]))
    if chance(random, 0.5):
        i = random.randrange(len(texts) - 1)
        if texts.count(texts[i]) == 1:
            wordings = [f'Which line comes after "{texts[i]}"?', f'What is written below "{texts[i]}"?']
            questions.append(Question("next", random.choice(wordings), texts[i + 1]))
    return questions


def _about_words(random: Random, words: list[str]) -> list[Question]:
    questions = []
    if chance(random, 0.4):
        wording = random.choice(["What is the first word?", "Read the first word."])
        questions.append(Question("word", wording, words[0]))
    if chance(random, 0.4):
        wording = random.choice(["What is the last word?", "Read the last word."])
        questions.append(Question("word", wording, words[-1]))
    if len(words) > 1 and chance(random, 0.5):
        i = random.randrange(len(words) - 1)
        if words.count(words[i]) == 1:
            questions.append(Question("next", f'Which word comes after "{words[i]}"?', words[i + 1]))
    return questions


def _about_values(random: Random, lines: list[Line]) -> list[Question]:
    """A value is asked for where there is one of its sort; now and then where there is none."""
    questions = []
    sorts = [line.sort for line in lines]
    for sort, wordings in ASK_VALUE.items():
        if sorts.count(sort) == 1 and chance(random, 0.8):
            value = lines[sorts.index(sort)].value or ""
            questions.append(Question("kind", random.choice(wordings), value))
    if chance(random, 0.35):
        missing = [sort for sort in ("price", "date", "time", "percent") if sort not in sorts]
        sort = random.choice(missing or [""])
        if sort:
            name = "percentage" if sort == "percent" else sort
            questions.append(Question("neg", random.choice(ASK_VALUE[sort]), absent(name)))
    return questions


def _contains(random: Random, words: list[str]) -> list[Question]:
    if not chance(random, 0.5):
        return []
    if chance(random, 0.5):
        asked, answer = random.choice(words), "Yes"
    else:
        asked = word(random)
        answer = "Yes" if asked in words else "No"
    wordings = [
        f'Does the text contain "{asked}"?',
        f'Is the word "{asked}" in the image?',
        f'Does the image say "{asked}"?',
    ]
    return [Question("yesno", random.choice(wordings), answer)]
