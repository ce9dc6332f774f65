"""The words that the pictures show and the fixed wordings of questions. Data only.

The vocabulary is closed: the tokenizer knows each word as one token, so that a word is recognised as a whole. None has
more than eight letters, so that it fits into print that is large enough.

The order of every list counts: a seed picks by index.
"""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


ITEMS = _words(
    """
    Coffee Tea Bread Milk Butter Cheese Apple Banana Orange Lemon Rice Soup Salad Pizza Burger Cake
    Juice Water Soda Wine Eggs Ham Fish Chicken Beans Potato Tomato Onion Garlic Pepper Salt Sugar
    Sandwich Noodles Curry Pen Paper Glue Ruler Envelope Battery Cable Lamp Chair Desk Table Shelf Mouse
    Keyboard Monitor Printer Camera Phone Tablet Speaker Paint Brush Soap Towel Plate Bowl Fork Spoon
    Knife Shirt Jacket Hat Shoes Gloves Belt Ticket Book Magazine Ball Guitar Piano Plant Flower Mirror
    Clock Watch Ring
    """
)
NUM_FOODS = 35  # the first items; the others are wares

NAMES = _words(
    """
    Anna Ben Clara David Emma Frank Grace Henry Iris Jack Kate Leo Mia Noah Olivia Paul Quinn Rosa Sam
    Tina Uma Victor Wendy Yara Zoe Alice Bruno Carlos Diana Elena Felix Gina Hugo Ivan Julia Karl Lucas
    Maria Nina Oscar Peter Ruth Simon Theo Vera Walter Adam Beth Chris Daisy
    """
)
SURNAMES = _words("Smith Jones Brown Lee Khan Silva Meyer Rossi Novak")

CITIES = _words(
    """
    Paris London Berlin Madrid Rome Vienna Oslo Lisbon Dublin Prague Athens Cairo Delhi Tokyo Seoul Lima
    Boston Chicago Dallas Denver Miami Austin Sydney Toronto Geneva Munich Milan Porto Turin Lyon
    """
)
COUNTRIES = _words(
    """
    France Germany Spain Italy Japan China India Brazil Canada Mexico Kenya Egypt Norway Sweden Poland
    Greece Chile Peru
    """
)

MONTHS = _words("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec")
DAYS = _words("Mon Tue Wed Thu Fri Sat Sun")
QUARTERS = _words("Q1 Q2 Q3 Q4")

METRICS = _words(
    """
    Revenue Sales Profit Cost Orders Users Visits Units Tax Rent Income Budget Stock Price Score Age
    Weight Height Points Wins Goals Speed Rate Growth Clicks Views Calls Hours Salary Bonus Margin Total
    """
)
TEAMS = _words(
    """
    Finance Support Legal Design Research Security Training Retail Online Export Import North South East
    West
    """
)

WORDS = _words(
    """
    open close start stop exit enter welcome sale new free fresh daily special offer notice warning
    danger keep pull ready set home work school market station airport hotel garden river mountain
    forest ocean island bridge street road park bank office store kitchen window door floor roof wall
    light dark summer winter spring autumn morning evening night today tomorrow monday friday sunday
    happy quick slow early late first last north south east west left right down big small long short
    high low hot cold dry wet clean safe please you hello world team project report meeting agenda
    budget review draft final page chapter section table note letter invoice receipt order number date
    name address phone email total amount due paid balance account customer client member guest student
    teacher doctor driver artist player winner silver golden red green blue black white paper stone
    metal glass wood music movie game sport travel train bus bike boat ship planet star moon sun cloud
    rain snow wind storm fire ice best great good now here there where
    """
)

STORES = _words(
    """
    Corner Sunny Green Happy Royal Golden Urban River City Blue Star Village Harbor Central Lucky Fresh
    Metro Maple Ocean Hill
    """
)
STORE_KINDS = _words(
    """
    Cafe Market Store Shop Bakery Diner Books Foods Deli Grill Hardware Pharmacy Garden Bistro Kitchen
    Mart
    """
)

# What forms, tables and receipts call their parts.
LABELS = _words(
    """
    Code Country Day Full Gate Item Month No Quantity Quarter Room Seat Subtotal Time Year TOTAL INVOICE
    ORDER TICKET RECEIPT REPORT LETTER NOTICE by city day item month quarter year
    """
)

ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"]

DESCRIBE = [
    "Describe the image.",
    "What is in the image?",
    "What do you see?",
    "Describe what you see.",
    "Describe this image.",
    "What is shown in the image?",
    "What is this?",
    "What's in this image?",
    "What does the picture show?",
]


def known_words() -> list[str]:
    """Every word that is printed as it stands, once."""
    lists = [ITEMS, NAMES, SURNAMES, CITIES, COUNTRIES, MONTHS, DAYS, QUARTERS]
    lists += [METRICS, TEAMS, STORES, STORE_KINDS, LABELS]
    words = [word for pool in lists for word in pool]
    return list(dict.fromkeys([*words, *WORDS, *(word.capitalize() for word in WORDS)]))
