"""Messages: placeholders written by users, order and roles of pictures, empty and unknown parts."""

from __future__ import annotations

from tests.conformance.faults.form import ALIVE, BAD, Catalogue
from tests.conformance.faults.pictures import enc, scene, solid, url
from tests.conformance.faults.requests import Q, chat, img, text

PLACEHOLDERS = (
    "<image>",
    "<|image_pad|>",
    "<|image|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "[IMG]",
    "<image_soft_token>",
    "<|video_pad|>",
)
CASES = Catalogue("messages")
case = CASES.case

NEUTRAL = "In the documentation the word QQQQ is mentioned. " + Q


@case("R28-ref", "none", "the question with a harmless word", {"status": 200}, True)
def _():
    return chat([text(NEUTRAL), img(scene(112, 84))])


for _i, _p in enumerate(PLACEHOLDERS):
    _cid = f"R28{chr(97 + _i)}"
    if _i % 2:
        continue

    @case(
        _cid,
        "engine-death",
        f"user text holds {_p} before a picture",
        {"status": 200, "image_spans": 1, "prompt_tokens_within": ["R28-ref", 24], **ALIVE},
    )
    def _(p=_p):
        return chat([text(NEUTRAL.replace("QQQQ", p)), img(scene(112, 84))])


RED, BLUE = (230, 10, 10), (10, 10, 230)


def _ab(a, b) -> dict:
    return chat(
        [
            text("First:"),
            img(solid(84, 84, a)),
            text("Second:"),
            img(solid(84, 84, b)),
            text("Which colour is the second picture?"),
        ]
    )


@case(
    "R29a",
    "silent-wrong",
    "two pictures between texts: red, blue",
    {"status": 200, "image_spans": 2, "different_output_from": "R29b", "same_prompt_tokens_as": "R29b"},
)
def _():
    return _ab(RED, BLUE)


@case("R29b", "silent-wrong", "the other way round", {"status": 200}, True)
def _():
    return _ab(BLUE, RED)


SEEN = {
    "any_of": [{"status": 200, "image_spans": 1}, {"status": BAD, "error_contains_any": ["image", "role"]}]
}


@case("R30b", "silent-wrong", "picture in an assistant turn", {**SEEN, **ALIVE})
def _():
    m = [
        {"role": "user", "content": "Draw."},
        {"role": "assistant", "content": [img(scene(112, 84))]},
        {"role": "user", "content": Q},
    ]
    return chat(None, messages=m)


@case("R30c", "wrong-status", "system message plus a picture", {"status": 200, "image_spans": 1, **ALIVE})
def _():
    return chat(
        None,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [img(scene(112, 84)), text(Q)]},
        ],
    )


@case(
    "R30e",
    "silent-wrong",
    "a picture must never be dropped without a word",
    {"status": 200, "prompt_tokens_greater_than": "C01", "image_spans": 1},
)
def _():
    return chat([text(Q), img(scene(224, 224))])


OK_OR_400 = {"any_of": [{"status": 200}, {"status": BAD}]}

for _cid, _t, _m, _e in (
    (
        "R31a",
        "a picture and no text",
        [{"role": "user", "content": [img(scene(112, 84))]}],
        {"status": 200, "image_spans": 1},
    ),
    (
        "R31b",
        "a picture and empty text",
        [{"role": "user", "content": [img(scene(112, 84)), text("")]}],
        {"status": 200, "image_spans": 1},
    ),
    (
        "R31d",
        "assistant content empty",
        [
            {"role": "user", "content": "A"},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "B"},
        ],
        {"status": 200},
    ),
    ("R31e", "user content empty string", [{"role": "user", "content": ""}], OK_OR_400),
    ("R31h", "no messages", [], {"status": BAD}),
):

    @case(_cid, "wrong-status", _t, {**_e, **ALIVE})
    def _(m=_m):
        b = chat("x")
        b["messages"] = m
        return b


_U = url(enc(scene(112, 84)))
for _cid, _t, _part, _e in (
    (
        "R32a",
        "image_url as a plain string",
        {"type": "image_url", "image_url": _U},
        {
            "any_of": [
                {"status": 200, "same_output_as": "C00"},
                {"status": BAD, "error_contains_any": ["image_url"]},
            ]
        },
    ),
    (
        "R32c",
        "unknown part type",
        {"type": "hologram", "hologram": {"url": _U}},
        {"status": BAD, "error_contains_any": ["hologram", "type"]},
    ),
    (
        "R32e",
        "url is a number",
        {"type": "image_url", "image_url": {"url": 5}},
        {"status": BAD, "error_contains_any": ["url"]},
    ),
    (
        "R32g",
        "detail low",
        {"type": "image_url", "image_url": {"url": _U, "detail": "low"}},
        {"status": 200, "image_spans": 1},
    ),
):

    @case(_cid, "silent-wrong", _t, {**_e, **ALIVE})
    def _(p=_part):
        return chat([p, text(Q)])


def _turns(n: int) -> list:
    m = []
    for i in range(n):
        m += [
            {"role": "user", "content": [img(solid(28, 28, (i * 9 % 256, 50, 90))), text(f"Picture {i}.")]},
            {"role": "assistant", "content": "ok"},
        ]
    return [*m, {"role": "user", "content": "How many pictures did you get?"}]


@case(
    "R33a",
    "wrong-status",
    "a conversation with 12 pictures",
    {
        "any_of": [
            {"status": 200, "image_spans": 12},
            {"status": BAD, "error_contains_any": ["at most", "limit", "maximum"]},
        ],
        **ALIVE,
    },
)
def _():
    return chat(None, messages=_turns(12))
