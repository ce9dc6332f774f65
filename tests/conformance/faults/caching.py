"""Caches: what may be shared, what never, what must be given up again."""

from __future__ import annotations

from collections.abc import Iterator

from PIL import Image

from tests.conformance.faults.form import ALIVE, BAD, Catalogue
from tests.conformance.faults.image_geometry import FACTOR
from tests.conformance.faults.pictures import enc, noise, scene, solid
from tests.conformance.faults.requests import ask, chat, img, text

CASES = Catalogue("caching")
case = CASES.case


def _same_prompt(i: int) -> dict:
    return ask(solid(112, 112, [(220, 20, 20), (20, 200, 20), (20, 20, 220)][i]), q="Which colour?")


@case(
    "R48a",
    "silent-wrong",
    "one question, three pictures of one size, twice round",
    {
        "checks": [
            {"equal": ["a1.logits", "a2.logits"]},
            {"equal": ["b1.logits", "b2.logits"]},
            {"differ": ["a2.logits", "b2.logits"]},
            {"differ": ["b2.logits", "c2.logits"]},
            {"equal": ["a2.text", "cold_a.text"]},
            {"equal": ["b2.text", "cold_b.text"]},
        ],
        **ALIVE,
    },
)
def _():
    order = ["a1", "b1", "c1", "a2", "b2", "c2"]
    return {
        "scenario": "prefix-cache-pictures",
        "config": {"prefix_cache": True},
        "steps": [{"do": "post", "body": _same_prompt("abc".index(n[0])), "save": n} for n in order]
        + [
            {"do": "reset_caches"},
            {"do": "post", "body": _same_prompt(0), "save": "cold_a"},
            {"do": "reset_caches"},
            {"do": "post", "body": _same_prompt(1), "save": "cold_b"},
        ],
    }


def _pair(first: dict, second: dict) -> dict:
    return {
        "scenario": "warm-then-cold",
        "config": {"prefix_cache": True, "encoder_cache": True},
        "steps": [
            {"do": "post", "body": first, "save": "first"},
            {"do": "post", "body": second, "save": "warm"},
            {"do": "reset_caches"},
            {"do": "post", "body": second, "save": "cold"},
        ],
    }


WARM = {
    "checks": [
        {"status_of": "warm", "in": [200]},
        {"equal": ["warm.text", "cold.text"]},
        {"equal": ["warm.usage.prompt_tokens", "cold.usage.prompt_tokens"]},
        {"equal": ["warm.logits", "cold.logits"]},
    ],
    **ALIVE,
}


@case("R49a", "security", "same pixel bytes, 120 x 80 and then 80 x 120", WARM)
def _():
    raw = noise(120, 80, 2).tobytes()
    return _pair(ask(Image.frombytes("RGB", (120, 80), raw)), ask(Image.frombytes("RGB", (80, 120), raw)))


@case(
    "R50a",
    "security",
    "600 unlike small pictures: no two may share a key",
    {
        "checks": [
            {"every_status": "r", "in": [200]},
            {"distinct_image_keys": ["r", 600]},
            {"sample_equal_to_cold": ["r", 20]},
        ],
        **ALIVE,
    },
)
def _():
    return {
        "scenario": "key-birthday",
        "config": {"prefix_cache": True, "encoder_cache": True},
        "steps": [{"do": "post_each", "gen": "solids", "args": {"n": 600}, "concurrency": 8, "save": "r"}],
    }


@case(
    "R51b",
    "security",
    "two pictures under one client-chosen uuid",
    {"any_of": [WARM, {"checks": [{"status_of": "warm", "in": BAD}]}], **ALIVE},
)
def _():
    def b(im):
        r = ask(im)
        r["messages"][0]["content"][0]["uuid"] = "item-1"
        return r

    return _pair(b(scene(112, 112)), b(scene(448, 224, 3)))


@case(
    "R52b",
    "engine-death",
    "the same picture twice in one request and again in the next",
    {"checks": [{"every_status": "r", "in": [200]}, {"every_equal": "r.text"}], **ALIVE},
)
def _():
    b = chat([img(scene(224, 224)), img(scene(224, 224)), text("Are they the same?")])
    return {
        "scenario": "same-picture-twice",
        "config": {"encoder_cache": "room for 1 picture"},
        "steps": [
            {"do": "parallel", "steps": [{"do": "post", "body": b, "save": "r"} for _ in range(3)]},
            {"do": "post", "body": b, "save": "r"},
        ],
    }


@case(
    "R53a",
    "leak",
    "300 unlike pictures: memory must level off",
    {
        "checks": [{"every_status": "r", "in": [200]}, {"rss_growth_second_half_percent_max": ["m", 5]}],
        **ALIVE,
    },
)
def _():
    steps = []
    for k in range(6):
        steps += [
            {
                "do": "post_each",
                "gen": "noises",
                "args": {"n": 50, "side": 448, "seed": 1000 * k},
                "concurrency": 4,
                "save": "r",
            },
            {"do": "measure", "what": "rss", "save": "m"},
        ]
    return {"scenario": "leak", "config": {"caches": "default sizes"}, "steps": steps}


def _solids(n: int) -> Iterator[dict]:
    for i in range(n):
        yield ask(
            solid(FACTOR, FACTOR, (i % 16 * 17, i // 16 % 16 * 17, i // 256 * 60)),
            q="Which colour?",
            max_tokens=2,
        )


def _noises(n: int, side: int, seed: int = 0) -> Iterator[dict]:
    for i in range(n):
        yield ask(enc(noise(side, side, seed + i), "JPEG", quality=80), "image/jpeg", max_tokens=1)


GENERATORS = {"solids": _solids, "noises": _noises}
