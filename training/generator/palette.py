"""Colours by name, and pairs of ink and ground that can be read."""

from __future__ import annotations

from random import Random

RGB = tuple[int, int, int]

COLORS: dict[str, RGB] = {
    "red": (215, 35, 35),
    "green": (35, 150, 50),
    "blue": (35, 75, 215),
    "yellow": (240, 210, 30),
    "orange": (245, 135, 20),
    "purple": (130, 45, 165),
    "pink": (245, 130, 185),
    "brown": (125, 75, 35),
    "black": (20, 20, 20),
    "white": (248, 248, 248),
    "gray": (130, 130, 130),
    "cyan": (60, 200, 220),
}
COLOR_NAMES = list(COLORS)


def random_rgb(random: Random, low: int, high: int) -> RGB:
    return (random.randint(low, high), random.randint(low, high), random.randint(low, high))


def vary(random: Random, color: RGB, by: int) -> RGB:
    """A colour near the given one."""
    red, green, blue = (max(0, min(255, value + random.randint(-by, by))) for value in color)
    return (red, green, blue)


def random_gray(random: Random, low: int, high: int) -> RGB:
    return (random.randint(low, high),) * 3


def luminance(color: RGB) -> float:
    return 0.3 * color[0] + 0.59 * color[1] + 0.11 * color[2]


def stand_out(ground: RGB, difference: int) -> list[str]:
    """The named colours that differ enough from a ground, summed over the channels."""
    return [
        name
        for name, color in COLORS.items()
        if sum(abs(a - b) for a, b in zip(color, ground, strict=True)) > difference
    ]


def ink_and_ground(random: Random) -> tuple[RGB, RGB]:
    """Mostly dark on light, some light on dark, some of any two colours with contrast."""
    kind = random.random()
    if kind < 0.5:
        ground = random_rgb(random, 235, 255)
        return random_rgb(random, 0, 70), ground
    if kind < 0.75:
        ground = random_rgb(random, 170, 255)
        return random_rgb(random, 0, 90), ground
    if kind < 0.92:
        ground = random_rgb(random, 0, 80)
        return random_rgb(random, 190, 255), ground
    while True:
        ground, ink = random_rgb(random, 0, 255), random_rgb(random, 0, 255)
        if abs(luminance(ground) - luminance(ink)) > 100:
            return ink, ground
