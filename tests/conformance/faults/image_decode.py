"""Files of pictures: orientation, transparency, channels, animations, broken and hostile ones."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from PIL import Image

from tests.conformance.faults.form import ALIVE, BAD, Catalogue
from tests.conformance.faults.pictures import dec, enc, noise, on_white, oriented, scene, solid, upright
from tests.conformance.faults.requests import ask

CASES = Catalogue("image-decode")
case = CASES.case


def _exif6() -> bytes:
    return oriented(scene(168, 112), 6, quality=95)


@case(
    "R01a",
    "silent-wrong",
    "JPEG with EXIF orientation 6 (phone portrait)",
    {"status": 200, "same_prompt_tokens_as": "R01a-ref", "same_output_as": "R01a-ref"},
)
def _():
    return ask(_exif6(), "image/jpeg")


@case("R01a-ref", "none", "the same pixels physically rotated", {"status": 200}, True)
def _():
    return ask(upright(_exif6()))


def _exif_other(o: int, fmt: str) -> bytes:
    kw = {"lossless": True} if fmt == "WEBP" else {}
    return oriented(scene(168, 84, 3), o, fmt, **kw)


for _cid, _o, _f in (("R01d", 3, "JPEG"),):

    @case(
        _cid,
        "silent-wrong",
        f"EXIF orientation {_o} inside {_f}",
        {"status": 200, "same_prompt_tokens_as": _cid + "-ref", "same_output_as": _cid + "-ref"},
    )
    def _(o=_o, f=_f):
        return ask(_exif_other(o, f), "image/" + f.lower())

    @case(_cid + "-ref", "none", "its upright pixels", {"status": 200}, True)
    def _(o=_o, f=_f):
        return ask(upright(_exif_other(o, f)))


def _rgba(fmt: str = "PNG") -> bytes:
    """A black disc on a see-through ground whose hidden colours are noise."""
    a = np.zeros((112, 112, 4), np.uint8)
    a[..., :3] = np.random.default_rng(5).integers(0, 256, (112, 112, 3))
    y, x = np.mgrid[0:112, 0:112]
    disc = (x - 56) ** 2 + (y - 56) ** 2 < 40**2
    a[disc] = (0, 0, 0, 255)
    kw = {"lossless": True, "exact": True} if fmt == "WEBP" else {}
    return enc(Image.fromarray(a), fmt, **kw)


@case(
    "R02a",
    "silent-wrong",
    "RGBA PNG, noise hidden under alpha 0",
    {"status": 200, "same_prompt_tokens_as": "R02a-ref", "same_output_as": "R02a-ref"},
)
def _():
    return ask(_rgba(), q="What is in this picture?")


@case("R02a-ref", "none", "the same over a white ground", {"status": 200}, True)
def _():
    return ask(on_white(_rgba()), q="What is in this picture?")


def _la() -> bytes:
    a = np.zeros((96, 96, 2), np.uint8)
    a[..., 0] = np.arange(96, dtype=np.uint8)[None] * 2
    a[30:70, 30:70, 1] = 255
    return enc(Image.fromarray(a))


for _cid, _fn, _t, _m in (("R02c", _la, "grey + alpha (LA) PNG", "png"),):

    @case(
        _cid,
        "silent-wrong",
        _t,
        {"status": 200, "same_prompt_tokens_as": _cid + "-ref", "same_output_as": _cid + "-ref"},
    )
    def _(fn=_fn, m=_m):
        return ask(fn(), "image/" + m, q="What is in this picture?")

    @case(_cid + "-ref", "none", "the same over white", {"status": 200}, True)
    def _(fn=_fn):
        return ask(on_white(fn()), q="What is in this picture?")


def _grey(fmt: str) -> bytes:
    return enc(scene(112, 112).convert("L"), fmt)


for _cid, _f in (("R04a", "JPEG"), ("R04b", "PNG")):

    @case(
        _cid,
        "engine-death",
        f"one-channel {_f}",
        {"status": 200, "same_prompt_tokens_as": _cid + "-ref", "same_output_as": _cid + "-ref", **ALIVE},
    )
    def _(f=_f):
        return ask(_grey(f), "image/" + f.lower())

    @case(_cid + "-ref", "none", "three equal channels", {"status": 200}, True)
    def _(f=_f):
        return ask(dec(_grey(f)).convert("RGB"))


@case("R04c", "engine-death", "1-bit black and white PNG", {"status": 200, **ALIVE})
def _():
    return ask(enc(scene(112, 112).convert("1")))


def _anim(fmt: str) -> bytes:
    frames = [solid(56, 56, (255, 0, 0)), solid(56, 56, (0, 0, 255))]
    kw = {"lossless": True} if fmt == "WEBP" else {}
    return enc(frames[0], fmt, save_all=True, append_images=frames[1:], duration=200, loop=0, **kw)


for _cid, _f in (("R06a", "GIF"),):

    @case(
        _cid,
        "unclear-rule",
        f"animated {_f} of two frames",
        {
            "any_of": [
                {"status": 200, "same_prompt_tokens_as": _cid + "-ref", "same_output_as": _cid + "-ref"},
                {"status": BAD, "error_contains_any": ["anim", "frame", "gif"]},
            ],
            **ALIVE,
        },
    )
    def _(f=_f):
        return ask(_anim(f), "image/" + f.lower(), q="Which colour is this?")

    @case(_cid + "-ref", "none", "its first frame", {"status": 200}, True)
    def _(f=_f):
        return ask(dec(_anim(f)).convert("RGB"), q="Which colour is this?")


@case(
    "R07a",
    "process-death",
    "still WebP",
    {
        "any_of": [
            {"status": 200, "same_output_as": "R07a-ref", "same_prompt_tokens_as": "R07a-ref"},
            {"status": BAD, "error_contains_any": ["webp", "format", "decode"]},
        ],
        "max_seconds": 10,
        **ALIVE,
    },
)
def _():
    return ask(enc(scene(112, 84), "WEBP", lossless=True), "image/webp")


@case("R07a-ref", "none", "the same pixels as PNG", {"status": 200}, True)
def _():
    return ask(scene(112, 84))


def _isobmff(brand: bytes) -> bytes:
    ftyp = b"ftyp" + brand + b"\0\0\0\0" + b"mif1" + brand
    return struct.pack(">I", 4 + len(ftyp)) + ftyp + b"\0\0\0\x10mdat" + b"\x5a" * 8


for _cid, _b in (("R07c", b"heic"),):

    @case(
        _cid,
        "hang",
        f"{_b.decode()} header that nobody can decode",
        {
            "status": [*BAD, 415],
            "error_contains_any": ["format", "decode", "image", "unsupported"],
            "max_seconds": 5,
            **ALIVE,
        },
    )
    def _(b=_b):
        return ask(_isobmff(b), "image/" + b.decode())


@case(
    "R08a",
    "wrong-status",
    "JPEG cut off after 60 % of its bytes",
    {
        "status": BAD,
        "error_contains_any": ["truncat", "corrupt", "decode", "image"],
        "max_seconds": 10,
        **ALIVE,
    },
)
def _():
    d = enc(noise(224, 224), "JPEG", quality=90)
    return ask(d[: len(d) * 6 // 10], "image/jpeg")


@case(
    "R08b",
    "wrong-status",
    "PNG whose data chunk is cut off",
    {
        "status": BAD,
        "error_contains_any": ["truncat", "corrupt", "decode", "image"],
        "max_seconds": 10,
        **ALIVE,
    },
)
def _():
    d = enc(noise(96, 96))
    return ask(d[: len(d) // 2])


for _cid, _u, _t in (
    ("R09a", "data:image/png;base64,", "no bytes at all"),
    ("R09c", "data:image/png;base64,@@@@****", "not base64"),
):

    @case(_cid, "hang", _t, {"status": BAD, "max_seconds": 5, "reply_and_log_without_base64": True, **ALIVE})
    def _(u=_u):
        return ask(u)


def bomb(side: int = 20000) -> bytes:
    """A valid 1-bit PNG of side x side pixels: about 50 kB, 1.2 GB once it is RGB."""

    def chunk(tag: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    z = zlib.compressobj(6)
    row = b"\0" * (1 + (side + 7) // 8)
    block, parts = row * 500, []
    for _i in range(side // 500):
        parts.append(z.compress(block))
    parts.append(z.flush())
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
        + chunk(b"IDAT", b"".join(parts))
        + chunk(b"IEND", b"")
    )


@case(
    "R10a",
    "resource",
    "PNG bomb: 50 kB that unfold to 400 Mpixel",
    {
        "status": [*BAD, 413],
        "error_contains_any": ["pixel", "large", "size", "limit", "bomb"],
        "max_seconds": 2,
        "rss_growth_mb_max": 100,
        "reply_and_log_without_base64": True,
        **ALIVE,
    },
)
def _():
    return ask(bomb())


@case(
    "R10b",
    "resource",
    "PNG header of 60000 x 60000, no data behind it",
    {"status": [*BAD, 413], "max_seconds": 2, "rss_growth_mb_max": 100, **ALIVE},
)
def _():
    d = bytearray(enc(solid(8, 8, (1, 2, 3))))
    d[16:24] = struct.pack(">II", 60000, 60000)
    d[29:33] = struct.pack(">I", zlib.crc32(bytes(d[12:29])))
    return ask(bytes(d))
