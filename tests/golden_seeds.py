"""Samples of the generator that must stay what they are: of these seeds the bundled model is made and measured.

    python -m tests.golden_seeds

prints the rows as the generator draws them now.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from hashlib import sha256

import numpy as np
from PIL import Image

from tapetum.evaluation.cases import FIRST_SEEDS
from training.generator import TASKS, Question, Sample, make

Row = tuple[str, int, tuple[int, int], str, str]

# Task, seed, size of the last picture, SHA-256 of the questions, the picture's mean grey on a 6 x 4 grid. Pixels
# themselves may differ in the last bits between versions of FreeType, libjpeg and Pillow; the means may not by much.
# fmt: off
GOLDEN: list[Row] = [
    ("text", 1, (196, 168), "97dd6153a4c73d72", "dbd5ded1d3e2d5d6ddf1f1f1dcd3dfd4d3e3dcd1f0f1f1f1"),
    ("text", 12, (288, 282), "8820829d6b990cbd", "f7f7f7f7f7f7f7f7f7f7f7f7e4e1e7e5eef7f7f7f7f7f7f7"),
    ("text", 5000003, (280, 112), "69059d7a7373f6d6", "f0e8e1e7dedff0e6c2ded4e0f0f0e8bcd4f0f0f0f0f0f0f0"),
    ("text", 5000077, (280, 280), "f00371a77d8ded97", "4340414040404c5d584d4d4a4c514f544c40464c4b4a4a40"),
    ("receipt", 1, (280, 224), "0e3fbf6965270c4f", "2d3d393b3b27504e33164548443a291b43413d2b161b403a"),
    ("receipt", 12, (308, 308), "da220eb795074360", "fde7dbdee7fde1f5fdfde8e7dee4f6fae2e6e3f6fdfde3e5"),
    ("receipt", 5200003, (308, 168), "41ac7a46075887f8", "f5b8c8c3c6f4d1cbe7f0e3d6c9d4f0f0dbd0dae1f5f5e3db"),
    ("receipt", 5200077, (385, 285), "62707103dcf3bc1c", "f2e7dcd2ecf2e0eae4eae3d8d3e2f2f2e1d6d7dcedf2e2dc"),
    ("table", 1, (280, 224), "2d20fac58510a555", "2d3b23452a1a334a194f35172c471c5248172a4718443f17"),
    ("table", 12, (316, 310), "fbab5eb4575b9a0e", "dac9c6c5cadbbbb5d5d3bebbbdbbd5d8cbbbbdbad5d9c9bd"),
    ("table", 5300003, (440, 231), "2414cbef2782c089", "f9f6f3f6f6f9f4f6dee8e8e5eeefd2e2e4def7fae8eeedee"),
    ("table", 5300077, (456, 387), "c52a4636283ac90f", "292c2b2d2b2b29453c3b422d29443239452c29382d343a2d"),
    ("form", 1, (280, 224), "a52d9b2fc8cec8bb", "d6e2d2efecf1c4c4d2c9bfe2d8e1dbd4dcdddadfd8dbe5f1"),
    ("form", 12, (316, 310), "6e4a3f2f089cca96", "e7e9e8e0e6f7d4dae9dad3f1d1cccfd8c6edf7f7f7f7f7f7"),
    ("form", 5100003, (336, 280), "e1f86f11c9252269", "e3e6e2eff6f6d8d6dbd3cff5d9e2e2f6f6f6e2e0e3ddf6f6"),
    ("form", 5100077, (344, 215), "a5ae6a6b153a998a", "cbc7cdc8c7d5c2c6c6d0d1d5d5d5d5d5d5d5d5d5d5d5d5d5"),
    ("chart", 1, (282, 171), "09d038da4d0feedd", "debcc1b5bbc5eac3c2d2cdeaeabcbac1dbeacac3b0508fda"),
    ("chart", 12, (279, 255), "90c7d38e4af25103", "edededee9db9d8c9eae9467ccabba4a3477ccec3b3b499b1"),
    ("chart", 5400003, (277, 254), "91ee822bc0435f04", "ffffe9e9ffffeabde0ffffffb95598e3c4ebe4a7d9d8a7e4"),
    ("chart", 5400077, (450, 290), "053329be735986e8", "d6fad5d6fff97ed6aeb6ec7e7e8787a2ba7eb0b3b4b5b5af"),
    ("shapes", 1, (224, 140), "35f2f9460b332a2c", "d5d2f5f5f5f5d4d0f5f5f4f1cef0f5f5c7bbdbf3f5f5f3f3"),
    ("shapes", 12, (335, 227), "dd037080847e3e6d", "a1a1a18d9298a1a1a17697a1a1a1a1a1a1a1a1a1a1a1a1a1"),
    ("shapes", 5500003, (224, 112), "c214f3d04922d3d7", "e7d6dbe8e7e7e7c6cfe7e7e8c8a4a4d6e2e7ded2b3dee5e7"),
    ("shapes", 5500077, (386, 384), "27fe4d36e1bf67e9", "d3d3b1cdd3d3c59fceb2d2d3d3d3c794cfd3d3d3d3d3d3d3"),
    ("pair", 1, (163, 131), "3f07c7169a48e90c", "3d3d3d3d3d3d3d3d4b5150493d3d3e3f3f3f3d3d3d3d3d3d"),
    ("pair", 12, (231, 143), "418e0951e43c796d", "9f8e9f9f999f975b9f8f7c9f9f919f96839f9f9f9f9f9e9f"),
    ("pair", 5600003, (168, 140), "a52a79194a33009e", "25342f2b252525353e332525254549342525252525252525"),
    ("pair", 5600077, (163, 109), "4a11b45d1ad5be16", "e490d9dae4e4e4b9d0a3e2e4e4e4e4e4b9bee4e4e4e4b2bf"),
    ("turns", 1, (283, 236), "698ac31295d22569", "ecd8d5d9d8ecd7e2eeeed6d4d2d7e4ebd1d4e2dfeeeee1e4"),
    ("turns", 12, (310, 318), "b76f5f39cfe0bcd4", "b5a3b7bbabb0b59dbcc2b3acb7a4bdc4b3b1c8c8c8c8c8c8"),
    ("turns", 5700003, (275, 259), "e272a3c2e4e3fa33", "ffe3e4dbe9ffe7d0dcd8cee9e5d7f6d6c9d6e7d4f6dcccd6"),
    ("turns", 5700077, (442, 332), "fd745cc4b8bc24e5", "e9dfcdd6e2efc3dddeddc8efbfd1e9d0b8efd7e7efded1ef"),
    ("clip", 1, (168, 112), "aaa3317e56550ac0", "d2c2e2d3d2e2cb9ae2a2a0e2e2e2e2e2e2e2e2e2e2e2e2e2"),
    ("clip", 12, (168, 168), "1946658de6c09dac", "efef85adefefefefcdddefefefefefefefefefefefefefef"),
    ("clip", 5800003, (168, 224), "0a23a7c74b36f7df", "f2f2f2f2f2f2f2f2f2f2f2f2c2b5f2f2f2f2f2f2f2f2f2f2"),
    ("clip", 5800077, (168, 112), "1e3280b857403b0e", "f2f2f2f2f2f2efe2c1a4f2f2f0d8f2eff2f2f2f2f2f2f2f2"),
]
# fmt: on


def digest(drawn: Sample) -> str:
    """Of kinds, texts and answers, with those of earlier turns before them."""
    told = [turn for question in drawn.questions for turn in _turns(question)]
    return sha256(json.dumps(told, ensure_ascii=False).encode()).hexdigest()[:16]


def _turns(question: Question) -> Iterator[tuple[str, str, str]]:
    if question.before:
        yield from _turns(question.before)
    yield question.kind, question.text, question.answer


def grey(image: Image.Image) -> np.ndarray:
    """The mean of each of 6 x 4 fields, row by row."""
    return np.asarray(image.convert("L").resize((6, 4), Image.Resampling.BOX), np.uint8).ravel()


def row(task: str, seed: int) -> Row:
    drawn = make(seed, task)
    return task, seed, drawn.images[-1].size, digest(drawn), grey(drawn.images[-1]).tobytes().hex()


def main() -> None:
    for task in TASKS:
        for seed in (1, 12, FIRST_SEEDS[task] + 3, FIRST_SEEDS[task] + 77):
            line = json.dumps(row(task, seed)).replace("[", "(").replace("]", ")")
            sys.stdout.write(f"    {line},\n")


if __name__ == "__main__":
    main()
