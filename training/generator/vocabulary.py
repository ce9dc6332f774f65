"""The words that the pictures show and the fixed wordings of questions. Data only.

The order of every list counts: a seed picks by index.
"""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


ITEMS = _words(
    """
    Coffee Tea Bread Milk Butter Cheese Apple Banana Orange Lemon Rice Pasta Soup Salad Pizza Burger Cake
    Cookie Juice Water Soda Beer Wine Eggs Bacon Ham Fish Shrimp Steak Chicken Tofu Beans Corn Potato
    Tomato Onion Garlic Pepper Salt Sugar Honey Jam Yogurt Cream Muffin Bagel Donut Waffle Sandwich Taco
    Burrito Noodles Sushi Curry Pen Pencil Paper Notebook Folder Stapler Tape Glue Ruler Eraser Marker
    Envelope Stamp Battery Cable Lamp Bulb Chair Desk Table Shelf Mouse Keyboard Monitor Printer Camera
    Phone Tablet Charger Speaker Router Hammer Nails Screws Paint Brush Ladder Rope Bucket Soap Shampoo
    Towel Candle Basket Mug Plate Bowl Fork Spoon Knife Shirt Jacket Hat Socks Shoes Gloves Scarf Belt
    Ticket Poster Map Book Magazine Toy Ball Puzzle Drum Guitar Piano Plant Flower Seeds Vase Mirror
    Clock Watch Ring
    """
)
NUM_FOODS = 54  # the first items; the others are wares

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
    Marketing Finance Support Legal Design Research Logistics Security Training Retail Online Export
    Import North South East West
    """
)

WORDS = _words(
    """
    open close start stop exit enter welcome sale new free fresh daily special offer notice warning
    danger keep out push pull ready set go home work school market station airport hotel garden river
    mountain forest ocean island bridge street avenue road park museum library theater hospital bank
    office store kitchen window door floor roof wall light dark summer winter spring autumn morning
    evening night today tomorrow monday friday sunday happy lucky quick slow early late first last north
    south east west left right up down big small long short high low hot cold dry wet clean safe please
    thank you hello world team project report meeting agenda minutes budget review draft final version
    page chapter section figure table note memo letter invoice receipt order number date name address
    phone email total amount due paid balance account customer client member guest student teacher doctor
    driver pilot artist writer singer player winner silver golden red green blue black white paper stone
    metal glass wood cotton leather music movie game sport travel train bus taxi bike plane boat ship
    rocket planet star moon sun cloud rain snow wind storm fire ice the of and to in is for on with at by
    from this that all no not only one two three four five six seven eight nine ten best great good more
    less than now here there where when why how every each both other same next
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
