"""Pictures as the vision tower takes them while training: normalised float patches in Qwen2-VL's order.

Owns the limits and the normalisation that the export writes down. The engine has its own way from pixels to patches
(`tapetum.processing`); this one stays apart so that training needs none of it.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from training.generator import MAX_CELLS, MAX_CELLS_OF_SEVERAL
from training.generator.canvas import CELL

PATCH = 14  # pixels per side; 2 x 2 patches make a cell
MIN_PIXELS, MAX_PIXELS = 5 * 4 * CELL * CELL, MAX_CELLS * CELL * CELL
MAX_PIXELS_OF_FRAME = MAX_CELLS_OF_SEVERAL * CELL * CELL
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)


def still_patches(image: Image.Image, grid: tuple[int, int]) -> np.ndarray:
    """[cells * 4, 3 * 196]: cells row by row, the 2 x 2 patches of each together; values are channel, y, x."""
    width, height = grid
    if image.size != (width * CELL, height * CELL):
        image = image.resize((width * CELL, height * CELL), Image.Resampling.BICUBIC)
    pixels = (np.asarray(image, np.float32) / 255 - MEAN) / STD
    pixels = pixels.reshape(height, 2, PATCH, width, 2, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    return pixels.reshape(height * width * 4, 3 * PATCH * PATCH)


def clip_patches(frames: list[Image.Image], grid: tuple[int, int]) -> list[np.ndarray]:
    """One array [cells * 4, 3 * 2 * 196] for every two frames; values are channel, time, y, x."""
    stills = [still_patches(frame, grid).reshape(-1, 3, PATCH * PATCH) for frame in frames]
    pairs = zip(stills[::2], stills[1::2], strict=True)
    return [np.stack(pair, axis=2).reshape(len(pair[0]), -1) for pair in pairs]
