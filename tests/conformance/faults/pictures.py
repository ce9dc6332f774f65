"""Small pictures to ask about, made when they are needed, and their files and data URLs."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image, ImageOps


def scene(w: int, h: int, seed: int = 0) -> Image.Image:
    """An RGB picture without any symmetry: gradients, four unlike corners, a bar."""
    y, x = np.mgrid[0:h, 0:w].astype(np.float32)
    fx, fy = x / max(w - 1, 1), y / max(h - 1, 1)
    a = np.stack([60 + 150 * fx, 60 + 150 * fy, 120 + 90 * fx * (1 - fy)], -1)
    ch, cw = max(h // 4, 1), max(w // 4, 1)
    a[:ch, :cw] = (230, 20, 20)
    a[:ch, -cw:] = (20, 200, 40)
    a[-ch:, :cw] = (30, 60, 230)
    a[h // 2 : h // 2 + max(h // 10, 1), : max(w // 3, 1)] = (250, 240, 30)
    if seed:
        rng = np.random.default_rng(seed)
        bx, by = rng.integers(0, max(w - cw, 1)), rng.integers(0, max(h - ch, 1))
        a[by : by + ch, bx : bx + cw] = rng.integers(0, 256, 3)
    return Image.fromarray(a.clip(0, 255).astype(np.uint8))


def solid(w: int, h: int, rgb: tuple[int, int, int]) -> Image.Image:
    return Image.new("RGB", (w, h), rgb)


def noise(w: int, h: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8))


def enc(im: Image.Image, fmt: str = "PNG", **kw) -> bytes:
    buf = io.BytesIO()
    im.save(buf, fmt, **kw)
    return buf.getvalue()


def dec(data: bytes) -> Image.Image:
    im = Image.open(io.BytesIO(data))
    im.load()
    return im


def oriented(im: Image.Image, orientation: int, fmt: str = "JPEG", **kw) -> bytes:
    ex = Image.Exif()
    ex[0x0112] = orientation
    return enc(im, fmt, exif=ex.tobytes(), **kw)


def upright(data: bytes) -> bytes:
    """The pixels a picture viewer shows for these bytes, as a plain RGB PNG."""
    return enc(ImageOps.exif_transpose(dec(data)).convert("RGB"))


def on_white(data: bytes) -> bytes:
    im = dec(data).convert("RGBA")
    back = Image.new("RGBA", im.size, (255, 255, 255, 255))
    return enc(Image.alpha_composite(back, im).convert("RGB"))


def url(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64," + base64.b64encode(data).decode()
