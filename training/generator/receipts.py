"""Task `receipt`: a store, a few items with prices, perhaps tax, and a total that is the sum."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas
from training.generator.fonts import MIN_TYPE, Face, fit_size, pick_face, text_width
from training.generator.palette import RGB, ink_and_ground, random_gray
from training.generator.vocabulary import DESCRIBE, ITEMS, NUM_FOODS, ORDINALS, STORE_KINDS, STORES
from training.generator.words import date, money

LINE_HEIGHT = 19  # pixels that a row needs at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What is printed, as text; `extra` is the height, in rows, of all that is neither item nor total."""

    store: str | None
    date: str | None
    currency: str
    items: list[str]
    quantities: list[int] | None
    prices: list[str]
    tax: str | None
    tail: list[tuple[str, str]]
    extra: float

    @property
    def rows(self) -> list[tuple[str, str]]:
        counts = [f"{count}x " for count in self.quantities] if self.quantities else [""] * len(self.items)
        goods = zip(counts, self.items, self.prices, strict=True)
        return [(count + item, self.currency + price) for count, item, price in goods] + self.tail

    @property
    def total(self) -> str:
        return self.tail[-1][1]

    @property
    def num_rows(self) -> float:
        # In this order: another one may differ in the last bit, and with it the picture.
        return len(self.items) + len(self.tail) + self.extra - len(self.tail)

    def lacks(self, item: str) -> bool:
        return item not in [known.capitalize() for known in self.items]


def draw_receipt(brief: Brief) -> Drawing:
    random = brief.random
    if chance(random, 0.4):
        ink, ground = ink_and_ground(random)
    else:
        ink, ground = random_gray(random, 0, 60), random_gray(random, 236, 255)
    canvas = Canvas(random, brief.grid, ground)
    face, margin = pick_face(random, brief.faces), random.randint(5, 11)
    receipt = _invent(random, canvas.height - 2 * margin)
    _print(canvas, receipt, face, margin, ink)
    questions = [
        *_about_total(random, receipt),
        *_about_prices(random, receipt),
        *_about_head(random, receipt),
        *_about_tax(random, receipt),
        *_about_items(random, receipt),
    ]
    return Drawing(canvases=[canvas], questions=questions)


def _invent(random: Random, height: int) -> Receipt:
    store = f"{random.choice(STORES)} {random.choice(STORE_KINDS)}" if chance(random, 0.75) else None
    day = date(random) if chance(random, 0.4) else None
    currency = random.choice(["", "$", "$", "", "€"])
    has_tax = chance(random, 0.4)
    extra = 1.2 * (store is not None) + (day is not None) + 1.2 + 2 * has_tax
    count = max(1, min(random.randint(2, 5), int(height / LINE_HEIGHT - extra)))
    items = random.sample(random.choice([ITEMS, ITEMS, ITEMS[:NUM_FOODS], ITEMS[NUM_FOODS:]]), count)
    if chance(random, 0.12):
        items = [item.upper() for item in items]
    quantities = [random.randint(1, 9) for _ in items] if chance(random, 0.25) else None
    prices: list[str] = []
    while len(prices) < count:
        price = money(random, 29)
        if price not in prices:
            prices.append(price)
    cents = sum(round(float(price) * 100) for price in prices)
    tax = round(cents * random.choice([0.05, 0.07, 0.08, 0.1, 0.2])) if has_tax else 0
    name = random.choice(["Total", "TOTAL", "Total", "Amount due", "Total due"])
    tail = [(name, currency + _as_price(cents + tax))]
    if has_tax:
        tail = [("Subtotal", currency + _as_price(cents)), ("Tax", currency + _as_price(tax)), *tail]
    return Receipt(
        store=store,
        date=day,
        currency=currency,
        items=items,
        quantities=quantities,
        prices=prices,
        tax=currency + _as_price(tax) if has_tax else None,
        tail=tail,
        extra=extra,
    )


def _as_price(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def _print(canvas: Canvas, receipt: Receipt, face: Face, margin: int, ink: RGB) -> None:
    random = canvas.random
    free, height = canvas.width - 2 * margin, canvas.height - 2 * margin
    rows, num_rows = receipt.rows, receipt.num_rows
    largest_step = height / (num_rows + 0.1)
    longest = max((f"{left}  {right}" for left, right in rows), key=len)
    size = min(fit_size(face, "  " + longest, free, 24, MIN_TYPE), int(largest_step / 1.12), 24)
    size = max(MIN_TYPE, size if chance(random, 0.5) else random.randint(min(14, size), size))
    step = max(min(largest_step, size * random.uniform(1.12, 1.5)), 13)
    y = margin + random.random() * 0.6 * max(0, height - step * num_rows)
    y = _print_head(canvas, receipt, face, margin, size, step, y, ink)

    right = canvas.width - margin
    if chance(random, 0.3):
        right -= random.randint(0, max(0, canvas.width // 6))
    if chance(random, 0.4):
        canvas.line([(margin, y), (right, y)], ink)
    y += 2
    for number, (name, price) in enumerate(rows):
        if number == len(receipt.items) and chance(random, 0.5):
            canvas.line([(margin, y), (right, y)], ink)
        canvas.text(margin, y, name, face, size, ink)
        canvas.text(right, y, price, face, size, ink, "right")
        y += step


def _print_head(
    canvas: Canvas, receipt: Receipt, face: Face, margin: int, size: int, step: float, y: float, ink: RGB
) -> float:
    """Store and date; returns where the rows begin."""
    random = canvas.random
    if receipt.store:
        fitting = fit_size(face, receipt.store, canvas.width - 2 * margin, int(size * 1.3), 11)
        canvas.text(canvas.width / 2, y, receipt.store, face, min(fitting, 28), ink, "middle")
        y += step * 1.2
    if receipt.date:
        x: float = margin
        if text_width(face, size, receipt.date) < canvas.width / 2:
            x = canvas.width / 2 if chance(random, 0.5) else margin
            random.random()  # not used any more; drawn so that seeds keep their pictures
        canvas.text(x, y, receipt.date, face, size, ink)
        y += step
    return y


def _about_total(random: Random, receipt: Receipt) -> list[Question]:
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
    questions = [Question("total", random.choice(wordings), receipt.total)]
    if chance(random, 0.25):
        count = len(receipt.items)
        noun = "items" if count > 1 else "item"
        answer = f"A receipt with {count} {noun} and a total of {receipt.total}."
        questions.append(Question("desc", random.choice(DESCRIBE), answer))
    return questions


def _about_prices(random: Random, receipt: Receipt) -> list[Question]:
    questions = []
    order = list(range(len(receipt.items)))
    random.shuffle(order)
    for i in order[:3]:
        item, price = receipt.items[i], receipt.currency + receipt.prices[i]
        wordings = [
            f"How much is the {item}?",
            f"What is the price of {item}?",
            f"What does the {item} cost?",
            f"How much does {item} cost?",
            f"{item}的价格是多少？",
        ]
        questions.append(Question("price", random.choice(wordings), price))
    for i in order[:2]:
        item, price = receipt.items[i], receipt.currency + receipt.prices[i]
        wordings = [
            f"Which item costs {price}?",
            f"What costs {price}?",
            f"Which item has the price {price}?",
        ]
        questions.append(Question("which", random.choice(wordings), item))
    return questions


def _about_head(random: Random, receipt: Receipt) -> list[Question]:
    questions = []
    if receipt.store and chance(random, 0.7):
        wordings = [
            "What is the name of the store?",
            "Which store is this receipt from?",
            "What is the store called?",
        ]
        questions.append(Question("store", random.choice(wordings), receipt.store))
    if chance(random, 0.3):
        wordings = ["How many items are listed?", "How many items are on the receipt?"]
        questions.append(Question("count", random.choice(wordings), str(len(receipt.items))))
    if receipt.quantities and chance(random, 0.8):
        i = random.randrange(len(receipt.items))
        item = receipt.items[i]
        wordings = [f"How many {item} were bought?", f"What is the quantity of {item}?"]
        questions.append(Question("qty", random.choice(wordings), str(receipt.quantities[i])))
    if chance(random, 0.5):
        wordings = ["What is the date?", "What is the date on the receipt?"]
        questions.append(Question("date", random.choice(wordings), receipt.date or absent("date")))
    return questions


def _about_tax(random: Random, receipt: Receipt) -> list[Question]:
    if not chance(random, 0.5):
        return []
    wording = random.choice(["How much is the tax?", "What is the tax?"])
    return [Question("tax", wording, receipt.tax or absent("tax"))]


def _about_items(random: Random, receipt: Receipt) -> list[Question]:
    questions = []
    if chance(random, 0.45):
        item = random.choice([item for item in ITEMS if receipt.lacks(item)])
        wordings = [
            f"How much is the {item}?",
            f"What is the price of {item}?",
            f"What does the {item} cost?",
        ]
        questions.append(Question("neg", random.choice(wordings), absent(item)))
    if chance(random, 0.3):
        i = random.randrange(len(receipt.items))
        wordings = [f"What is the {ORDINALS[i]} item?", f"Which item is listed {ORDINALS[i]}?"]
        questions.append(Question("row", random.choice(wordings), receipt.items[i]))
    if chance(random, 0.3):
        if chance(random, 0.5):
            item, answer = random.choice(receipt.items), "Yes"
        else:
            item, answer = random.choice([item for item in ITEMS if receipt.lacks(item)]), "No"
        questions.append(Question("yesno", f"Is there {item} on the receipt?", answer))
    return questions
