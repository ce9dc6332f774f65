"""Task `chart`: two to six bars, upright or lying, mostly with their values printed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas
from training.generator.fonts import Face, fit_size, pick_face, text_width
from training.generator.palette import COLOR_NAMES, COLORS, RGB, luminance, random_gray, random_rgb
from training.generator.vocabulary import CITIES, DAYS, DESCRIBE, ITEMS, METRICS, MONTHS, NAMES, QUARTERS

SERIES = ("month", "day", "quarter", "year", "bar")  # neighbours in the pool stay neighbours in the chart
SUBJECTS = [
    (MONTHS, "month"),
    (QUARTERS, "quarter"),
    (DAYS, "day"),
    (ITEMS, "item"),
    (CITIES, "city"),
    (NAMES, "name"),
    (list("ABCDEF"), "bar"),
    ([str(year) for year in range(2015, 2030)], "year"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    pool: list[str]
    noun: str  # what a bar stands for
    title: str | None
    is_lying: bool
    keys: list[str]
    values: list[int]
    limit: int  # largest possible value
    has_values: bool  # printed at the bars
    has_colors: bool  # one per bar
    colors: list[str]

    @property
    def top(self) -> int:
        """Pixels above the bars."""
        return _top(self.title)

    @property
    def highest(self) -> str:
        return self.keys[self.values.index(max(self.values))]

    @property
    def lowest(self) -> str:
        return self.keys[self.values.index(min(self.values))]


def draw_chart(brief: Brief) -> Drawing:
    random = brief.random
    ground = (255, 255, 255) if chance(random, 0.5) else random_rgb(random, 225, 255)
    ink = random_gray(random, 0, 60)
    canvas = Canvas(random, brief.grid, ground)
    face = pick_face(random, brief.faces)
    chart = _invent(canvas)
    if chart.title:
        size = fit_size(face, chart.title, canvas.width - 10, 17, 11)
        canvas.text(canvas.width / 2, 3, chart.title, face, size, ink, "middle")
    if chart.is_lying:
        _print_lying(canvas, chart, face, ink)
    else:
        _print_upright(canvas, chart, face, ink)
    questions = [
        *_about_extremes(random, chart),
        *_about_values(random, chart),
        *_about_bars(random, chart),
        *_about_title(random, chart),
    ]
    return Drawing(canvases=[canvas], questions=questions)


def _invent(canvas: Canvas) -> Chart:
    random = canvas.random
    pool, noun = random.choice(SUBJECTS)
    is_lying = chance(random, 0.35)
    title = None
    if canvas.grid[0] >= 7 and chance(random, 0.35):
        title = f"{random.choice(METRICS)} by {noun}"
    elif chance(random, 0.3):
        title = random.choice(METRICS)
    if is_lying:
        room = int((canvas.height - _top(title) - 8) / 20)
    else:
        room = int((canvas.width - 16) / (34 if all(len(key) <= 4 for key in pool) else 56))
    count = max(2, min(random.randint(2, 6), room, len(pool)))
    if noun in SERIES:
        first = random.randint(0, len(pool) - count)
        keys = pool[first : first + count]
    else:
        keys = random.sample(pool, count)
    limit = random.choice([10, 50, 100, 100, 500, 1000])
    values = _values(random, count, limit)
    has_values, has_colors = chance(random, 0.8), chance(random, 0.55)
    visible = [name for name in COLOR_NAMES if _contrast(COLORS[name], canvas.ground) > 25]
    return Chart(
        pool=pool,
        noun=noun,
        title=title,
        is_lying=is_lying,
        keys=keys,
        values=values,
        limit=limit,
        has_values=has_values,
        has_colors=has_colors,
        colors=random.sample(visible, count) if has_colors else [random.choice(visible)] * count,
    )


def _top(title: str | None) -> int:
    return 6 + (20 if title else 0)


def _contrast(color: RGB, ground: RGB) -> float:
    return abs(luminance(color) - luminance(ground))


def _values(random: Random, count: int, limit: int) -> list[int]:
    """Values that differ enough to be told apart by the length of the bars."""
    values: list[int] = []
    while len(values) < count:
        value = random.randint(max(1, limit // 10), limit)
        if all(abs(value - other) >= max(1, limit * 0.06) for other in values):
            values.append(value)
    return values


def _print_lying(canvas: Canvas, chart: Chart, face: Face, ink: RGB) -> None:
    pitch = (canvas.height - chart.top - 8) / len(chart.keys)
    longest = max(chart.keys, key=len)
    size = max(11, min(int(pitch * 0.75), 16, fit_size(face, longest, canvas.width * 0.34, 16, 11)))
    left = max(text_width(face, size, key) for key in chart.keys) + 10
    right_margin = text_width(face, size, str(chart.limit)) + 8 if chart.has_values else 8
    scale = (canvas.width - left - right_margin) / chart.limit
    canvas.line([(left, chart.top), (left, canvas.height - 6)], ink)
    thickness = pitch * canvas.random.uniform(0.5, 0.8)
    for i, (key, value, color) in enumerate(zip(chart.keys, chart.values, chart.colors, strict=True)):
        y = chart.top + pitch * (i + 0.5)
        canvas.bar(left + 1, y - thickness / 2, left + 1 + value * scale, y + thickness / 2, color)
        canvas.text(left - 4, y - size * 0.6, key, face, size, ink, "right")
        if chart.has_values:
            canvas.text(left + 4 + value * scale, y - size * 0.6, str(value), face, size, ink)


def _print_upright(canvas: Canvas, chart: Chart, face: Face, ink: RGB) -> None:
    pitch = (canvas.width - 16) / len(chart.keys)
    size = max(11, min(15, *(fit_size(face, key, pitch - 3, 15, 11) for key in chart.keys)))
    base = canvas.height - size * 1.3 - 6
    headroom = size * 1.25 if chart.has_values else 4
    scale = (base - chart.top - headroom) / chart.limit
    canvas.line([(8, base), (canvas.width - 8, base)], ink)
    thickness = pitch * canvas.random.uniform(0.45, 0.8)
    for i, (key, value, color) in enumerate(zip(chart.keys, chart.values, chart.colors, strict=True)):
        x = 8 + pitch * (i + 0.5)
        canvas.bar(x - thickness / 2, base - value * scale, x + thickness / 2, base - 1, color)
        canvas.text(x, base + 3, key, face, size, ink, "middle")
        if chart.has_values:
            canvas.text(x, base - value * scale - size * 1.2, str(value), face, size, ink, "middle")


def _about_extremes(random: Random, chart: Chart) -> list[Question]:
    highest = [
        "Which bar is the highest?",
        f"Which {chart.noun} has the highest value?",
        "Which bar is the longest?" if chart.is_lying else "Which bar is the tallest?",
        "What is the label of the largest bar?",
        "哪个最高？",
    ]
    lowest = [
        "Which bar is the lowest?",
        f"Which {chart.noun} has the lowest value?",
        "What is the label of the smallest bar?",
        "Which bar is the shortest?",
    ]
    questions = [
        Question("high", random.choice(highest), chart.highest),
        Question("low", random.choice(lowest), chart.lowest),
    ]
    if chance(random, 0.25):
        answer = f"A bar chart with {len(chart.keys)} bars. The highest is {chart.highest}."
        questions.append(Question("desc", random.choice(DESCRIBE), answer))
    return questions


def _about_values(random: Random, chart: Chart) -> list[Question]:
    if not chart.has_values:
        return []
    questions, count = [], len(chart.keys)
    for i in random.sample(range(count), min(count, 3)):
        key = chart.keys[i]
        wordings = [
            f"What is the value of {key}?",
            f"What is the value for {key}?",
            f"How much is {key}?",
            f"What value does {key} have?",
        ]
        questions.append(Question("value", random.choice(wordings), str(chart.values[i])))
    i = random.randrange(count)
    value = chart.values[i]
    wordings = [f"Which {chart.noun} has the value {value}?", f"Which bar shows {value}?"]
    questions.append(Question("which", random.choice(wordings), chart.keys[i]))
    if chance(random, 0.4):
        wordings = ["What is the highest value?", "What is the largest value?"]
        questions.append(Question("max", random.choice(wordings), str(max(chart.values))))
    return questions


def _about_bars(random: Random, chart: Chart) -> list[Question]:
    questions, count = [], len(chart.keys)
    if chance(random, 0.4):
        wordings = ["How many bars are there?", "How many bars does the chart have?"]
        questions.append(Question("count", random.choice(wordings), str(count)))
    if chart.has_colors and chance(random, 0.7):
        i = random.randrange(count)
        key = chart.keys[i]
        wordings = [f"What color is the bar for {key}?", f"What is the color of the {key} bar?"]
        questions.append(Question("color", random.choice(wordings), chart.colors[i]))
        i = random.randrange(count)
        color = chart.colors[i]
        wordings = [f"Which {chart.noun} has the {color} bar?", f"What is the label of the {color} bar?"]
        questions.append(Question("bycolor", random.choice(wordings), chart.keys[i]))
    if chance(random, 0.6):
        i, j = random.sample(range(count), 2)
        one, other = chart.keys[i], chart.keys[j]
        wordings = [
            f"Is {one} higher than {other}?",
            f"Is the bar for {one} larger than the bar for {other}?",
        ]
        answer = "Yes" if chart.values[i] > chart.values[j] else "No"
        questions.append(Question("cmp", random.choice(wordings), answer))
    return questions


def _about_title(random: Random, chart: Chart) -> list[Question]:
    questions = []
    if chance(random, 0.3):
        wordings = ["What is the title of the chart?", "What is the title?"]
        questions.append(Question("title", random.choice(wordings), chart.title or absent("title")))
    missing = [key for key in chart.pool if key not in chart.keys]
    if missing and chance(random, 0.45):
        key = random.choice(missing)
        questions.append(Question("neg", f"What is the value of {key}?", absent(key)))
    return questions
