"""Task `receipt`: a store, a few items with prices, perhaps tax, and a total that is the sum."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas, Run
from training.generator.fonts import MIN_TYPE, fit_size, pick_face
from training.generator.palette import ink_and_ground, random_gray
from training.generator.vocabulary import DESCRIBE, ITEMS, NUM_FOODS, ORDINALS, STORE_KINDS, STORES
from training.generator.words import (
    MAX_TYPE,
    PITCH,
    Style,
    at_most,
    date,
    largest_size,
    money,
    phrase_in,
    print_words,
    reading,
)

STORE_HEIGHT = 1.3  # in lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What is printed, as text; the prices with their currency."""

    store: list[str]  # two words, or none
    date: str | None
    items: list[str]
    quantities: list[int]  # or none
    prices: list[str]
    tail: list[tuple[str, str]]  # subtotal and tax, perhaps, and the total


@dataclass(slots=True, kw_only=True)
class Printed:
    """The runs of a receipt, in its order; of the tail by name, label and value."""

    receipt: Receipt
    store: list[Run] = field(default_factory=list)
    date: Run | None = None
    quantities: list[Run] = field(default_factory=list)
    items: list[Run] = field(default_factory=list)
    prices: list[Run] = field(default_factory=list)
    tail: dict[str, tuple[Run, Run]] = field(default_factory=dict)

    def at_price(self, price: str) -> tuple[Run, ...]:
        """Wherever this price is printed: the total of a single item is its price."""
        values = [*self.prices, *(value for _, value in self.tail.values())]
        return tuple(run for run in values if run.text == price)


def draw_receipt(brief: Brief) -> Drawing:
    random = brief.random
    if chance(random, 0.4):
        ink, ground = ink_and_ground(random)
    else:
        ink, ground = random_gray(random, 0, 60), random_gray(random, 236, 255)
    canvas = Canvas(random, brief.grid, ground)
    face, margin = pick_face(random, brief.faces), random.randint(6, 12)
    free, height = canvas.width - 2 * margin, canvas.height - 2 * margin
    size = MIN_TYPE + int((largest_size(free, 18, height, 4) + 1 - MIN_TYPE) * random.random())
    style = Style(face, size, ink)
    receipt = _invent(brief, style, free, height / (PITCH * size))
    printed = _print(canvas, receipt, style, margin)
    questions = [
        *_about_total(random, printed),
        *_about_prices(random, printed),
        *_about_head(random, printed),
        *_about_items(random, printed),
        *_about_missing(random, printed),
    ]
    return Drawing(canvases=[canvas], questions=at_most(random, questions))


def _invent(brief: Brief, style: Style, free: float, lines: float) -> Receipt:
    """As much as so many lines hold: two items and the total before anything else."""
    random = brief.random
    lines -= 3
    store = [random.choice(STORES), random.choice(STORE_KINDS)]
    has_store = chance(random, 0.75) and lines >= STORE_HEIGHT and style.width(" ".join(store)) <= free
    lines -= STORE_HEIGHT if has_store else 0
    day = date(random)
    has_date = chance(random, 0.45) and lines >= 1 and style.width(day) <= free
    lines -= has_date
    has_tax = chance(random, 0.45) and lines >= 2 and style.width("Subtotal  $999.99") <= free
    lines -= 2 * has_tax
    wanted = random.randint(2, 7) if brief.level >= 0.5 else random.randint(2, 3)
    count = min(wanted, 2 + int(max(0, lines)))

    currency = random.choice(["", "$", "$", "", "€"])
    quantities = [random.randint(1, 9) for _ in range(count)] if chance(random, 0.25) else []
    largest = 29 if free > 12 * style.size else 9
    room = free - style.width(f"{currency}{largest}.00") - 0.7 * style.size
    if quantities and room < 8 * style.size:
        quantities = []
    room -= style.width("9x") + 0.5 * style.size if quantities else 0
    pool = random.choice([ITEMS, ITEMS, ITEMS[:NUM_FOODS], ITEMS[NUM_FOODS:]])
    fitting = [item for item in pool if style.width(item) <= room]
    items = random.sample(fitting, min(count, len(fitting)))
    cents = _distinct_prices(random, len(items), largest)
    return Receipt(
        store=store if has_store else [],
        date=day if has_date else None,
        items=items,
        quantities=quantities[: len(items)],
        prices=[_as_price(currency, price) for price in cents],
        tail=_tail(random, currency, sum(cents), has_tax=has_tax),
    )


def _distinct_prices(random: Random, count: int, largest: int) -> list[int]:
    prices: list[int] = []
    while len(prices) < count:
        price = round(float(money(random, largest)) * 100)
        if price not in prices:
            prices.append(price)
    return prices


def _tail(random: Random, currency: str, cents: int, *, has_tax: bool) -> list[tuple[str, str]]:
    tax = max(1, round(cents * random.choice([0.05, 0.07, 0.08, 0.1, 0.2]))) if has_tax else 0
    total = (random.choice(["Total", "Total", "TOTAL"]), _as_price(currency, cents + tax))
    if not has_tax:
        return [total]
    return [("Subtotal", _as_price(currency, cents)), ("Tax", _as_price(currency, tax)), total]


def _as_price(currency: str, cents: int) -> str:
    return f"{currency}{cents // 100}.{cents % 100:02d}"


def _print(canvas: Canvas, receipt: Receipt, style: Style, margin: int) -> Printed:
    random = canvas.random
    num_rows = len(receipt.items) + len(receipt.tail)
    num_lines = STORE_HEIGHT * bool(receipt.store) + (receipt.date is not None) + num_rows
    height = canvas.height - 2 * margin
    step = min(height / num_lines, style.size * random.uniform(PITCH, 1.7))
    y = margin + random.random() * 0.6 * max(0, height - step * num_lines)
    printed = Printed(receipt=receipt)
    y, line = _print_head(canvas, printed, style, margin, y, step)

    right = _right(canvas, receipt, style, margin)
    if chance(random, 0.4):
        canvas.line([(margin, y - 1), (right, y - 1)], style.ink)
    for i, (item, price) in enumerate(zip(receipt.items, receipt.prices, strict=True)):
        count = f"{receipt.quantities[i]}x" if receipt.quantities else None
        _print_item(canvas, printed, style, (margin, right, y, line), (count, item, price))
        y, line = y + step, line + 1
    if chance(random, 0.5):
        canvas.line([(margin, y - 1), (right, y - 1)], style.ink)
    for name, price in receipt.tail:
        label = canvas.text(margin, y, name, style.face, style.size, style.ink, line=line)
        value = canvas.text(
            right, y, price, style.face, style.size, style.ink, "right", line=line, place=1, row=label
        )
        printed.tail[name.capitalize()] = (label, value)
        y, line = y + step, line + 1
    return printed


def _print_head(
    canvas: Canvas, printed: Printed, style: Style, margin: int, y: float, step: float
) -> tuple[float, int]:
    """Store and date; returns where the rows begin and the number of their first line."""
    random, receipt, line = canvas.random, printed.receipt, 0
    free = canvas.width - 2 * margin
    if receipt.store:
        size = fit_size(
            style.face,
            " ".join(receipt.store),
            0.96 * free,
            min(MAX_TYPE, int(style.size * 1.25)),
            style.size,
        )
        title = Style(style.face, min(size, int(step * STORE_HEIGHT / 1.2)), style.ink)
        printed.store = print_words(canvas, canvas.width / 2, y, receipt.store, title, middle=True)
        y, line = y + step * STORE_HEIGHT, 1
    if receipt.date:
        is_centred = chance(random, 0.5)
        x, anchor = (canvas.width / 2, "middle") if is_centred else (margin, "left")
        printed.date = canvas.text(x, y, receipt.date, style.face, style.size, style.ink, anchor, line=line)
        y, line = y + step, line + 1
    return y, line


def _right(canvas: Canvas, receipt: Receipt, style: Style, margin: int) -> float:
    """Where the prices end: at the margin, or nearer where the rows leave room."""
    right = canvas.width - margin
    counts = style.width("9x") + 0.5 * style.size if receipt.quantities else 0
    goods = [
        (counts + style.width(item), price) for item, price in zip(receipt.items, receipt.prices, strict=True)
    ]
    rows = [*goods, *((style.width(name), price) for name, price in receipt.tail)]
    narrowest = margin + max(left + style.width(price) for left, price in rows) + 0.7 * style.size
    spare = max(0.0, right - narrowest)
    return right - spare * canvas.random.random() if chance(canvas.random, 0.4) else right


def _print_item(
    canvas: Canvas,
    printed: Printed,
    style: Style,
    at: tuple[float, float, float, int],
    row: tuple[str | None, str, str],
) -> None:
    """The quantity, if any, the item and its price, between left and right, at y, as a line of that number."""
    (left, right, y, line), (count, item, price) = at, row
    print_at = (style.face, style.size, style.ink)
    if count:
        quantity = canvas.text(left, y, count, *print_at, line=line)
        printed.quantities.append(quantity)
        left += style.width("9x") + 0.5 * style.size
    named = canvas.text(left, y, item, *print_at, line=line, place=1 if count else 0)
    if count:
        quantity.row = named
    printed.items.append(named)
    place = 2 if count else 1
    printed.prices.append(canvas.text(right, y, price, *print_at, "right", line=line, place=place, row=named))


def _about_total(random: Random, printed: Printed) -> list[Question]:
    wordings = [
        "What is the total?",
        "What's the total?",
        "Tell me the total.",
        "What does it cost in total?",
        "How much is the total?",
        "What is the total amount?",
        "What is the final amount?",
        "总计是多少？",
        "How much must be paid?",
    ]
    questions = [
        _labelled("total", text, "Total", printed)
        for text in random.sample(wordings, 2 if chance(random, 0.3) else 1)
    ]
    if chance(random, 0.2):
        count = len(printed.items)
        answer = f"A receipt with {count} item{'s' if count > 1 else ''}."
        questions.append(Question("desc", random.choice(DESCRIBE), answer, "count", tuple(printed.items)))
    return questions


def _labelled(kind: str, text: str, name: str, printed: Printed) -> Question:
    """A question about the value beside a label, which its wording may name."""
    label, value = printed.tail[name]
    keys = ((phrase_in(text, name), (label,)),) if name.lower() in text.lower() else ()
    return Question(kind, text, value.text, "print", (value,), keys)


def _price_wordings(item: str) -> list[str]:
    return [
        f"How much is the {item}?",
        f"What is the price of {item}?",
        f"What does the {item} cost?",
        f"How much does {item} cost?",
        f"{item}的价格是多少？",
    ]


def _about_prices(random: Random, printed: Printed) -> list[Question]:
    questions = []
    rows = list(zip(printed.items, printed.prices, strict=True))
    for item, price in random.sample(rows, min(3, len(rows))):
        text = random.choice(_price_wordings(item.text))
        questions.append(Question("price", text, price.text, "print", (price,), ((item.text, (item,)),)))
    for item, price in random.sample(rows, min(2, len(rows))):
        wordings = [
            f"Which item costs {price.text}?",
            f"What costs {price.text}?",
            f"Which item has the price {price.text}?",
        ]
        keys = ((price.text, printed.at_price(price.text)),)
        questions.append(Question("which", random.choice(wordings), item.text, "print", (item,), keys))
    return questions


def _about_head(random: Random, printed: Printed) -> list[Question]:
    questions = []
    if printed.store and chance(random, 0.7):
        wordings = [
            "What is the name of the store?",
            "Which store is this receipt from?",
            "What is the store called?",
        ]
        questions.append(reading("store", random.choice(wordings), *printed.store))
    if printed.date and chance(random, 0.7):
        wordings = ["What is the date?", "What is the date on the receipt?", "Which date is on the receipt?"]
        questions.append(reading("date", random.choice(wordings), printed.date))
    for name, probability in (("Tax", 0.8), ("Subtotal", 0.4)):
        if name in printed.tail and chance(random, probability):
            wordings = [f"How much is the {name.lower()}?", f"What is the {name.lower()}?"]
            questions.append(_labelled("tax", random.choice(wordings), name, printed))
    return questions


def _about_items(random: Random, printed: Printed) -> list[Question]:
    questions = []
    if chance(random, 0.3):
        wordings = ["How many items are listed?", "How many items are on the receipt?"]
        count, items = str(len(printed.items)), tuple(printed.items)
        questions.append(Question("count", random.choice(wordings), count, "count", items))
    if printed.quantities:
        i = random.randrange(len(printed.items))
        item, quantity = printed.items[i], printed.quantities[i]
        wordings = [f"How many {item.text} were bought?", f"What is the quantity of {item.text}?"]
        keys = ((item.text, (item,)),)
        answer = quantity.text.removesuffix("x")
        questions.append(Question("qty", random.choice(wordings), answer, "look", (quantity,), keys))
    if chance(random, 0.4):
        i = random.randrange(min(len(printed.items), len(ORDINALS)))
        wordings = [f"What is the {ORDINALS[i]} item?", f"Which item is listed {ORDINALS[i]}?"]
        questions.append(reading("row", random.choice(wordings), printed.items[i]))
    if chance(random, 0.35):
        item = random.choice(printed.items)
        text = random.choice(_presence_wordings(item.text))
        questions.append(Question("yesno", text, "Yes", "look", (item,), ((item.text, (item,)),)))
    return questions


def _presence_wordings(item: str) -> list[str]:
    return [
        f"Is there {item} on the receipt?",
        f"Is {item} on the receipt?",
        f"Does the receipt list {item}?",
    ]


def _about_missing(random: Random, printed: Printed) -> list[Question]:
    questions = []
    others = [item for item in ITEMS if item not in printed.receipt.items]
    asked, other = random.sample(others, 2)
    if chance(random, 0.6):
        text = random.choice(_price_wordings(asked))
        questions.append(Question("neg", text, absent(asked), "look", (), ((asked, ()),)))
    if chance(random, 0.35):
        text = random.choice(_presence_wordings(other))
        questions.append(Question("yesno", text, "No", "look", (), ((other, ()),)))
    if not printed.date and chance(random, 0.3):
        text = random.choice(["What is the date?", "What is the date on the receipt?"])
        questions.append(Question("neg", text, absent("date"), "look", (), (("date", ()),)))
    if "Tax" not in printed.tail and chance(random, 0.3):
        text = random.choice(["How much is the tax?", "What is the tax?"])
        questions.append(Question("neg", text, absent("tax"), "look", (), (("tax", ()),)))
    return questions
