"""Sizes of pictures: tiny, thin, huge, and those where tokens and encoder rows may disagree."""

from __future__ import annotations

from PIL import Image

from tests.conformance.faults.form import ALIVE, BAD, Catalogue
from tests.conformance.faults.pictures import enc, scene, solid
from tests.conformance.faults.requests import ask

FACTOR = 28  # side of the square of pixels behind one visual token
CASES = Catalogue("image-geometry")
case = CASES.case

for _cid, (_w, _h) in (
    ("R12a", (1, 1)),
    ("R12b", (64, 1)),
    ("R12c", (3, 3)),
):

    @case(
        _cid,
        "engine-death",
        f"{_w} x {_h} pixels",
        {
            "any_of": [
                {"status": 200, "image_spans": 1},
                {"status": BAD, "error_contains_any": ["small", "size", "dimension"]},
            ],
            **ALIVE,
        },
    )
    def _(w=_w, h=_h):
        return ask(solid(w, h, (200, 30, 30)), q="Which colour?")


for _cid, (_w, _h) in (
    ("R13a", (257, 27)),
    ("R13b", (27, 257)),
):

    @case(
        _cid,
        "process-death",
        f"{_w} x {_h}: a side below the patch square of {FACTOR}",
        {"status": 200, "image_spans": 1, **ALIVE},
    )
    def _(w=_w, h=_h):
        return ask(scene(w, h))


RATIO_RULE = {"any_of": [{"status": 200}, {"status": BAD, "error_contains_any": ["aspect", "ratio"]}]}


@case("R14a", "wrong-status", "1093 x 5 (ratio 218.6)", {**RATIO_RULE, **ALIVE})
def _():
    return ask(scene(1093, 5))


@case(
    "R14b",
    "wrong-status",
    "the same as a stream: the refusal must be a status, not a broken stream",
    {**RATIO_RULE, "same_status_as": "R14a", **ALIVE},
)
def _():
    return ask(scene(1093, 5), stream=True)


@case(
    "R16a",
    "process-death",
    "24 Mpixel photograph",
    {
        "any_of": [
            {"status": 200},
            {"status": [*BAD, 413], "error_contains_any": ["large", "pixel", "size", "token"]},
        ],
        "max_seconds": 60,
        **ALIVE,
    },
)
def _():
    im = scene(1500, 1000).resize((6000, 4000), Image.NEAREST)
    return ask(enc(im, "JPEG", quality=80), "image/jpeg")


for _cid, (_w, _h) in (
    ("R17a", (300, 900)),
    ("R17b", (700, 840)),
):

    @case(
        _cid,
        "engine-death",
        f"{_w} x {_h}: tokens reserved must equal rows the encoder gives",
        {"status": 200, "image_spans": 1, **ALIVE},
    )
    def _(w=_w, h=_h):
        return ask(scene(w, h))
