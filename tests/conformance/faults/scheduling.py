"""Schedules: budgets of the encoder, edges of chunks, neighbours in a batch."""

from __future__ import annotations

from tests.conformance.faults.form import ALIVE, BAD, Catalogue
from tests.conformance.faults.pictures import enc, noise, scene
from tests.conformance.faults.requests import Q, ask, chat, img, text

BUDGET_SIDE = 1344  # two pictures of this side exceed the encoder budget under test
CASES = Catalogue("scheduling")
case = CASES.case


def _big(seed: int, side: int = BUDGET_SIDE) -> dict:
    return img(enc(scene(side, side, seed), "JPEG", quality=85), "image/jpeg")


@case(
    "R54a",
    "hang",
    "one picture larger than the encoder budget",
    {
        "any_of": [
            {"checks": [{"every_status": "r", "in": BAD}, {"max_seconds_each": 10}]},
            {"checks": [{"every_status": "r", "in": [200]}]},
        ],
        "max_seconds": 120,
        **ALIVE,
    },
)
def _():
    return {
        "scenario": "over-budget",
        "config": {"encoder_budget_tokens": "half of this picture"},
        "steps": [{"do": "post", "body": chat([_big(1), text(Q)]), "save": "r"}],
    }


@case(
    "R54b",
    "hang",
    "two pictures that fit one by one but not together",
    {"checks": [{"every_status": "r", "in": [200]}], "max_seconds": 120, **ALIVE},
)
def _():
    return {
        "scenario": "budget-of-two",
        "config": {"encoder_budget_tokens": "1.5 of one picture", "prefill_chunk": "0.7 of one picture"},
        "steps": [{"do": "post", "body": chat([_big(1), text("and"), _big(2), text(Q)]), "save": "r"}],
    }


@case(
    "R55a",
    "silent-wrong",
    "the edge of a prefill chunk inside a picture",
    {"checks": [{"pairwise_equal_text": ["small", "whole"]}, {"pairwise_equal_logits": ["small", "whole"]}]},
)
def _():
    def b(k):
        return chat([text("word " * k), img(scene(252, 252)), text(Q)])

    pads = [0, 7, 20, 33, 46, 61, 90, 120]
    return {
        "scenario": "chunk-edge",
        "steps": [{"do": "start", "args": {"prefill_chunk": 64, "prefix_cache": False}}]
        + [{"do": "post", "body": b(k), "save": "small"} for k in pads]
        + [{"do": "start", "args": {"prefill_chunk": "unlimited", "prefix_cache": False}}]
        + [{"do": "post", "body": b(k), "save": "whole"} for k in pads],
    }


@case(
    "R57a",
    "engine-death",
    "one bad and one large request among good ones",
    {
        "checks": [
            {"every_status": "good", "in": [200]},
            {"status_of": "bad", "in": BAD},
            {"status_of": "large", "in": [200]},
            {"pairwise_equal_text": ["good", "solo"]},
        ],
        **ALIVE,
    },
)
def _():
    good = [ask(scene(56 + 56 * i, 84, i)) for i in range(4)]
    d = enc(noise(224, 224), "JPEG")
    return {
        "scenario": "mixed-batch",
        "steps": [{"do": "post", "body": g, "save": "solo"} for g in good]
        + [
            {
                "do": "parallel",
                "steps": [{"do": "post", "body": g, "save": "good"} for g in good]
                + [
                    {"do": "post", "body": ask(d[: len(d) // 2], "image/jpeg"), "save": "bad"},
                    {
                        "do": "post",
                        "body": chat(
                            [
                                img(scene(336, 252, 1)),
                                img(scene(252, 336, 2)),
                                img(scene(84, 420, 3)),
                                text(Q),
                            ]
                        ),
                        "save": "large",
                    },
                ],
            }
        ],
    }
