"""What is done to pictures to see whether answers survive it. Nothing here is random."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageFilter

CONDITIONS = ("clean", "jpeg", "blur", "rotate", "fonts")
JPEG_QUALITY = 40
BLUR_RADIUS = 0.8  # pixels
DEGREES = 3.0


def damaged(image: Image.Image, condition: str, number: int) -> Image.Image:
    """The picture under a condition; unseen fonts are drawn, so there is nothing to do for them here.

    Pictures of even number are turned to the left, those of odd number to the right.
    """
    if condition == "jpeg":
        file = io.BytesIO()
        image.save(file, "JPEG", quality=JPEG_QUALITY)
        return Image.open(file).convert("RGB")
    if condition == "blur":
        return image.filter(ImageFilter.GaussianBlur(BLUR_RADIUS))
    if condition == "rotate":
        degrees = DEGREES if number % 2 == 0 else -DEGREES
        # Grows, so that nothing printed is cut off.
        return image.rotate(degrees, Image.Resampling.BICUBIC, expand=True, fillcolor=border_color(image))
    return image


def border_color(image: Image.Image) -> tuple[int, int, int]:
    """The median of the outermost pixels, channel by channel."""
    pixels = np.asarray(image.convert("RGB"))
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    red, green, blue = (int(value) for value in np.median(border, axis=0))
    return red, green, blue
