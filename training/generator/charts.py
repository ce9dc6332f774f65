"""Task `chart`: two to six bars, upright or lying, mostly with their values printed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas, Run, Thing
from training.generator.fonts import MIN_TYPE, Face, pick_face, text_width
from training.generator.palette import COLOR_NAMES, COLORS, RGB, luminance, random_gray, random_rgb, stand_out
from training.generator.vocabulary import CITIES, DAYS, DESCRIBE, ITEMS, METRICS, MONTHS, NAMES, QUARTERS

MAX_TYPE = 30
MAX_QUESTIONS = 11
EDGE = 8  # pixels kept free at the borders
SERIES = ("month", "day", "quarter", "year", "bar")  # neighbours in the pool stay neighbours in the chart
LETTERS = list("ABCDEF")
SUBJECTS = [
    (MONTHS, "month"),
    (QUARTERS, "quarter"),
    (DAYS, "day"),
    (ITEMS, "item"),
    (CITIES, "city"),
    (NAMES, "name"),
    (LETTERS, "bar"),
    ([str(year) for year in range(2015, 2030)], "year"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a chart is to show, and the size of type in which all of it has room."""

    pool: list[str]
    noun: str  # what a bar stands for
    title: str | None
    is_lying: bool
    keys: list[str]
    values: list[int]
    axis: int  # value of a bar over the whole length
    has_values: bool  # printed at the bars
    colors: list[str]
    face: Face
    size: int

    @property
    def top(self) -> float:
        """Pixels above the bars."""
        return self.size * 1.35 + 4 if self.title else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    label: Run
    thing: Thing
    number: int
    value: Run | None  # None where values are not printed

    @property
    def key(self) -> str:
        return self.label.text

    @property
    def spots(self) -> list[Run | Thing]:
        return [self.thing, self.label, *([self.value] if self.value else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A plan as drawn."""

    plan: Plan
    title: Run | None
    bars: list[Bar]

    @property
    def things(self) -> tuple[Thing, ...]:
        return tuple(bar.thing for bar in self.bars)

    @property
    def highest(self) -> Bar:
        return max(self.bars, key=lambda bar: bar.number)

    @property
    def lowest(self) -> Bar:
        return min(self.bars, key=lambda bar: bar.number)


def draw_chart(brief: Brief) -> Drawing:
    random = brief.random
    if chance(random, 0.88):
        ground = (255, 255, 255) if chance(random, 0.5) else random_rgb(random, 225, 255)
        ink = random_gray(random, 0, 60)
    else:
        ground, ink = random_rgb(random, 0, 45), random_gray(random, 215, 255)
    canvas = Canvas(random, brief.grid, ground)
    chart = _draw(canvas, _plan(canvas, pick_face(random, brief.faces)), ink)
    questions = [
        *_about_extremes(random, chart),
        *_about_values(random, chart),
        *_about_bars(random, chart),
        *_about_title(random, chart),
        *_about_missing(random, chart),
    ]
    questions = random.sample(questions, min(len(questions), MAX_QUESTIONS))
    return Drawing(canvases=[canvas], questions=questions)


def _plan(canvas: Canvas, face: Face) -> Plan:
    """The first plan drawn that has room. Single letters have room everywhere."""
    random = canvas.random
    while True:
        pool, noun = random.choice(SUBJECTS)
        is_lying, has_values = chance(random, 0.4), chance(random, 0.85)
        title = _title(random, noun) if canvas.height >= 160 and chance(random, 0.5) else None
        limit = random.choice([10, 50, 100, 100, 500, 1000])
        for count in range(min(random.randint(2, 6), len(pool)), 1, -1):
            keys = _keys(random, pool, noun, count)
            values = _values(random, count, limit)
            largest = _largest_type(canvas, face, keys, values if has_values else [], title, is_lying)
            if largest >= MIN_TYPE:
                break
        else:
            continue
        return Plan(
            pool=pool,
            noun=noun,
            title=title,
            is_lying=is_lying,
            keys=keys,
            values=values,
            axis=limit if chance(random, 0.4) else max(values),
            has_values=has_values,
            colors=_colors(canvas, count),
            face=face,
            size=largest if chance(random, 0.4) else random.randint(MIN_TYPE, largest),
        )


def _title(random: Random, noun: str) -> str:
    metric = random.choice(METRICS)
    return f"{metric} by {noun}" if noun != "bar" and chance(random, 0.4) else metric


def _keys(random: Random, pool: list[str], noun: str, count: int) -> list[str]:
    if noun not in SERIES:
        return random.sample(pool, count)
    first = random.randint(0, len(pool) - count)
    return pool[first : first + count]


def _values(random: Random, count: int, limit: int) -> list[int]:
    """Values that differ enough to be told apart by the length of the bars."""
    values: list[int] = []
    while len(values) < count:
        value = random.randint(max(1, limit // 10), limit)
        if all(abs(value - other) >= max(1, limit * 0.08) for other in values):
            values.append(value)
    return values


def _largest_type(
    canvas: Canvas, face: Face, keys: list[str], values: list[int], title: str | None, is_lying: bool
) -> int:
    """The largest size in which nothing touches and bars keep a good part of the room; less than MIN_TYPE for none."""
    texts = [str(value) for value in values]
    top = 1.35 if title else 0.0
    for size in range(MAX_TYPE, MIN_TYPE - 1, -1):
        pad = size * 0.5
        if title and text_width(face, size, title) > canvas.width - 2 * EDGE:
            continue
        labels = max(text_width(face, size, key) for key in keys)
        printed = max((text_width(face, size, text) for text in texts), default=0.0)
        if is_lying:
            length = canvas.width - 2 * EDGE - labels - printed - 2 * pad
            pitch = (canvas.height - 2 * EDGE - top * size) / len(keys)
            if length >= canvas.width * 0.3 and pitch >= size * 1.3:
                return size
        else:
            pitch = (canvas.width - 2 * EDGE) / len(keys)
            length = canvas.height - 2 * EDGE - (top + 1.3 + (1.3 if texts else 0)) * size
            if length >= max(40, canvas.height * 0.3) and max(labels, printed) + pad <= pitch:
                return size
    return MIN_TYPE - 1


def _colors(canvas: Canvas, count: int) -> list[str]:
    random = canvas.random
    clear = stand_out(canvas.ground, 110)
    visible = [name for name in COLOR_NAMES if name in clear and _contrast(COLORS[name], canvas.ground) > 25]
    return random.sample(visible, count) if chance(random, 0.55) else [random.choice(visible)] * count


def _contrast(color: RGB, ground: RGB) -> float:
    return abs(luminance(color) - luminance(ground))


def _draw(canvas: Canvas, plan: Plan, ink: RGB) -> Chart:
    title = None
    if plan.title:
        title = canvas.text(canvas.width / 2, 3, plan.title, plan.face, plan.size, ink, "middle")
    first = 1 if title else 0  # line below the title
    bars = _draw_lying(canvas, plan, first, ink) if plan.is_lying else _draw_upright(canvas, plan, first, ink)
    chart = Chart(plan=plan, title=title, bars=bars)
    for bar in bars:
        for spot in bar.spots:
            spot.share = bar.number / chart.highest.number
    for bar, flag in ((chart.highest, "highest"), (chart.lowest, "lowest")):
        for spot in bar.spots:
            spot.flags.add(flag)
    return chart


def _draw_lying(canvas: Canvas, plan: Plan, first: int, ink: RGB) -> list[Bar]:
    face, size = plan.face, plan.size
    pitch = (canvas.height - plan.top - EDGE) / len(plan.keys)
    left = EDGE + max(text_width(face, size, key) for key in plan.keys) + size * 0.5
    printed = max(text_width(face, size, str(value)) for value in plan.values) + size * 0.5
    scale = (canvas.width - left - EDGE - (printed if plan.has_values else 0)) / plan.axis
    canvas.line([(left, plan.top), (left, canvas.height - EDGE)], ink)
    thickness = pitch * canvas.random.uniform(0.5, 0.8)
    bars = []
    for i, (key, number, color) in enumerate(zip(plan.keys, plan.values, plan.colors, strict=True)):
        y, line = plan.top + pitch * (i + 0.5), first + i
        top, end = y - size * 0.6, left + 1 + number * scale
        label = canvas.text(left - size * 0.3, top, key, face, size, ink, "right", line=line)
        thing = canvas.bar(left + 1, y - thickness / 2, end, y + thickness / 2, color, label)
        value = None
        if plan.has_values:
            x = end + size * 0.3
            value = canvas.text(x, top, str(number), face, size, ink, line=line, place=1, row=label)
        bars.append(Bar(label=label, thing=thing, number=number, value=value))
    return bars


def _draw_upright(canvas: Canvas, plan: Plan, first: int, ink: RGB) -> list[Bar]:
    face, size = plan.face, plan.size
    pitch = (canvas.width - 2 * EDGE) / len(plan.keys)
    base = canvas.height - size * 1.25 - 4
    headroom = size * 1.25 if plan.has_values else 4
    scale = (base - plan.top - headroom) / plan.axis
    canvas.line([(EDGE, base), (canvas.width - EDGE, base)], ink)
    thickness = pitch * canvas.random.uniform(0.45, 0.8)
    below = first + 1 if plan.has_values else first  # values are a line above the labels
    bars = []
    for i, (key, number, color) in enumerate(zip(plan.keys, plan.values, plan.colors, strict=True)):
        x, end = EDGE + pitch * (i + 0.5), base - number * scale
        label = canvas.text(x, base + 2, key, face, size, ink, "middle", line=below, place=i)
        thing = canvas.bar(x - thickness / 2, end, x + thickness / 2, base - 1, color, label)
        value = None
        if plan.has_values:
            top = end - size * 1.2
            value = canvas.text(
                x, top, str(number), face, size, ink, "middle", line=first, place=i, row=label
            )
        bars.append(Bar(label=label, thing=thing, number=number, value=value))
    return bars


def _about_extremes(random: Random, chart: Chart) -> list[Question]:
    noun, is_lying = chart.plan.noun, chart.plan.is_lying
    highest = [
        "Which bar is the highest?",
        f"Which {noun} has the highest value?",
        "Which bar is the longest?" if is_lying else "Which bar is the tallest?",
        "What is the label of the largest bar?",
        "哪个最高？",
    ]
    lowest = [
        "Which bar is the lowest?",
        f"Which {noun} has the lowest value?",
        "What is the label of the smallest bar?",
        "Which bar is the shortest?",
        "哪个最低？",
    ]
    top, bottom = chart.highest, chart.lowest
    questions = [
        Question("high", random.choice(highest), top.key, "print", (top.label,)),
        Question("low", random.choice(lowest), bottom.key, "print", (bottom.label,)),
    ]
    if chance(random, 0.25):
        answer = f"A bar chart with {len(chart.bars)} bars."
        questions.append(Question("desc", random.choice(DESCRIBE), answer, "count", chart.things))
    if top.value and chance(random, 0.4):
        wordings = ["What is the highest value?", "What is the largest value?"]
        questions.append(Question("max", random.choice(wordings), top.value.text, "print", (top.value,)))
    if bottom.value and chance(random, 0.3):
        wordings = ["What is the lowest value?", "What is the smallest value?"]
        questions.append(
            Question("min", random.choice(wordings), bottom.value.text, "print", (bottom.value,))
        )
    return questions


def _ask_value(random: Random, key: str) -> str:
    wordings = [
        f"What is the value of {key}?",
        f"What is the value for {key}?",
        f"How much is {key}?",
        f"What value does {key} have?",
        f"{key}的数值是多少？",
    ]
    return random.choice(wordings)


def _about_values(random: Random, chart: Chart) -> list[Question]:
    questions = []
    for bar in random.sample(chart.bars, min(len(chart.bars), 4)):
        if bar.value:
            text, keys = _ask_value(random, bar.key), ((bar.key, (bar.label,)),)
            questions.append(Question("value", text, bar.value.text, "print", (bar.value,), keys))
    bar = random.choice(chart.bars)
    if bar.value and chance(random, 0.8):
        number = bar.value.text
        wordings = [f"Which {chart.plan.noun} has the value {number}?", f"Which bar shows {number}?"]
        keys = ((number, (bar.value,)),)
        questions.append(Question("which", random.choice(wordings), bar.key, "print", (bar.label,), keys))
    return questions


def _about_bars(random: Random, chart: Chart) -> list[Question]:
    questions, count = [], str(len(chart.bars))
    if chance(random, 0.4):
        wordings = ["How many bars are there?", "How many bars does the chart have?", "Count the bars."]
        keys = (("bars", chart.things),)
        questions.append(Question("count", random.choice(wordings), count, "count", chart.things, keys))
    questions += _about_colors(random, chart)
    for _ in range(1 if chart.plan.has_values else 3):
        if chance(random, 0.7) or not chart.plan.has_values:
            questions.append(_compare(random, chart))
    return list({question.text: question for question in questions}.values())


def _about_colors(random: Random, chart: Chart) -> list[Question]:
    bar, other = random.choice(chart.bars), random.choice(chart.bars)
    if not chance(random, 0.75):
        return []
    wordings = [f"What color is the bar for {bar.key}?", f"What is the color of the {bar.key} bar?"]
    color, keys = bar.thing.color, ((bar.key, (bar.label,)),)
    questions = [Question("color", random.choice(wordings), color, "look", (bar.thing,), keys)]
    color = other.thing.color
    if chart.plan.colors.count(color) == 1:
        noun, named = chart.plan.noun, ((color, (other.thing,)),)
        wordings = [f"Which {noun} has the {color} bar?", f"What is the label of the {color} bar?"]
        text = random.choice(wordings)
        questions.append(Question("bycolor", text, other.key, "print", (other.label,), named))
    return questions


def _compare(random: Random, chart: Chart) -> Question:
    """The look goes to the one of the two that the answer hangs on."""
    one, other = random.sample(chart.bars, 2)
    is_higher = chance(random, 0.7)
    higher, lower = (one, other) if one.number > other.number else (other, one)
    found = higher if is_higher else lower
    keys = ((one.key, (one.label,)), (other.key, (other.label,)))
    if chance(random, 0.6):
        text = f"Which is {'higher' if is_higher else 'lower'}, {one.key} or {other.key}?"
        return Question("cmp", text, found.key, "print", (found.label,), keys)
    wordings = [
        f"Is {one.key} higher than {other.key}?",
        f"Is the bar for {one.key} larger than the bar for {other.key}?",
        f"Is the value of {one.key} higher than that of {other.key}?",
    ]
    text = random.choice(wordings) if is_higher else f"Is {one.key} lower than {other.key}?"
    answer = "Yes" if found is one else "No"
    return Question("cmp", text, answer, "look", (found.label,), keys)


def _about_title(random: Random, chart: Chart) -> list[Question]:
    wordings = ["What is the title of the chart?", "What is the title?"]
    if chart.title:
        if not chance(random, 0.6):
            return []
        return [Question("title", random.choice(wordings), chart.title.text, "print", (chart.title,))]
    if not chance(random, 0.15):
        return []
    return [Question("neg", random.choice(wordings), absent("title"), "look", (), (("title", ()),))]


def _about_missing(random: Random, chart: Chart) -> list[Question]:
    present = [bar.key for bar in chart.bars]
    missing = [key for key in chart.plan.pool if key not in present]
    if not missing or not chance(random, 0.8):
        return []
    key = random.choice(missing)
    if chart.plan.has_values and chance(random, 0.8):
        text = _ask_value(random, key)
    else:
        text = f"What color is the bar for {key}?"
    return [Question("neg", text, absent(key), "look", (), ((key, ()),))]
