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
    ("text", 1, (196, 168), "e50394aeb536d2cf", "f1ebdbdae3f1f1f1e2d8f1f1e6d5dce1dbe0e4dcdedad5df"),
    ("text", 12, (288, 282), "5e289738652d2389", "f7f7f7eeebf7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7"),
    ("text", 5000003, (280, 112), "77ff4b9f84fc2dd5", "f0e2ddedf0f0f0d6cfe5f0f0f0d2c7cbbee6f0e9e5e7e6ef"),
    ("text", 5000077, (280, 280), "ff1e57ea637577d4", "40434b49404040465651544240434b4a4c40404040404040"),
    ("receipt", 1, (280, 168), "037ebbd92a8c3e61", "213f433f411c2d453e2d42364c552b1f5141191817171717"),
    ("receipt", 12, (280, 252), "1c50f020f0bfd515", "f3e5dbe3edfcd8eaf2f7e4e3dbe8f7fce2e4edf3fcfceef0"),
    ("receipt", 5200003, (252, 168), "ee7fe3e2e2fa84e4", "f6d0d7d4d8f6cbc9f4f6e4ccd0e3f1f1e2d6e8ecf6f6ece9"),
    ("receipt", 5200077, (385, 397), "c0cbc372009fc8d9", "f0ecd9d8ebf1d4eaf2f0d6e8d6e5f2f0d5e9dceaf2eedaea"),
    ("table", 1, (224, 224), "2d20fac58510a555", "1917171a17172d4a20532e1a2b431b4d3a1725361a393117"),
    ("table", 12, (344, 338), "33519a6f098b58a0", "dfdddad8dedfd7d4cad1caddd0c9cbdfbcd6d4d0ccdfc6d8"),
    ("table", 5300003, (272, 399), "649055ef931d61e6", "fffffffffffff5f2f6edf1f6f0f9f5ebebf5f0f5f6eeeff6"),
    ("table", 5300077, (344, 219), "c52a4636283ac90f", "354932443b3038473146482e394c3044472e343b2f424030"),
    ("form", 1, (224, 224), "a52d9b2fc8cec8bb", "d1d5d2e4deead8d9dcd5d3e6d7dbd8d2e0e9f1f1f1f1f1f1"),
    ("form", 12, (344, 338), "6e4a3f2f089cca96", "f7f7f6f7f7f7cad2d2c7f7f7e6e1e8e6f7f7f7f7f7f7f7f7"),
    ("form", 5100003, (448, 224), "892675da41c85e1e", "dfe0e9f6f6f6e2e0ebdbecf6e0eaeae2e4f6ddf3edf4f6f6"),
    ("form", 5100077, (288, 243), "a5ae6a6b153a998a", "cdcbceccced5c9cacdd2d3d5d5d5d5d5d5d5d5d5d5d5d5d5"),
    ("chart", 1, (226, 199), "85bbc0581f1cca0b", "ddbfbd8bcdeae5bcb082a5d1ccaeb2509ddbe8c3bf93d0e9"),
    ("chart", 12, (335, 199), "21c9aebed90ad122", "eeeeeeeeeecfceeee5ee9cb278d092e178b2a6c2aaa2a5bf"),
    ("chart", 5400003, (333, 198), "aa15a122cadcd7f7", "ffffe7e8fffffae4f9ffffffb3559ee1c0e9f0c4ececc4f0"),
    ("chart", 5400077, (282, 402), "86680b14743aeb90", "c5f4c7c8fbea87cfaeb8e587878387a7c0879f999d9e9a9e"),
    ("shapes", 1, (224, 140), "35f2f9460b332a2c", "d5d2f5f5f5f5d4d0f5f5f4f1cef0f5f5c7bbdbf3f5f5f3f3"),
    ("shapes", 12, (335, 227), "dd037080847e3e6d", "a1a1a18d9298a1a1a17697a1a1a1a1a1a1a1a1a1a1a1a1a1"),
    ("shapes", 5500003, (224, 112), "c214f3d04922d3d7", "e7d6dbe8e7e7e7c6cfe7e7e8c8a4a4d6e2e7ded2b3dee5e7"),
    ("shapes", 5500077, (386, 384), "27fe4d36e1bf67e9", "d3d3b1cdd3d3c59fceb2d2d3d3d3c794cfd3d3d3d3d3d3d3"),
    ("pair", 1, (163, 131), "5276a78e714ae5e1", "3d3d3d3d3d3d3d414040403f3f494d4a4c473d3d3d3d3d3d"),
    ("pair", 12, (231, 143), "418e0951e43c796d", "9f8e9f9f999f975b9f8f7c9f9f919f96839f9f9f9f9f9e9f"),
    ("pair", 5600003, (168, 140), "78752e25bc3cdbd4", "25252525252539473b4143362529453d292725262a2a2525"),
    ("pair", 5600077, (163, 109), "4a11b45d1ad5be16", "e492dddae4e4e4b2d0a5e3e4e4e4e4e4b5b7e4e4e4e4bbc1"),
    ("turns", 1, (283, 180), "92022ec823d9f744", "ebded3d7dcebd2e8eeeed6d4d1d4eaead4d7dbe3eeeedce0"),
    ("turns", 12, (282, 262), "b76f5f39cfe0bcd4", "baa4b9beadb3b99ebdc0b2adbca7bec3b7b5c8c8c8c8c8c8"),
    ("turns", 5700003, (443, 455), "579c2645a87d7ea8", "fffffffffffffbf6ebe9f6f9edfadae6edf4f6ffecf3f8fc"),
    ("turns", 5700077, (386, 276), "fd745cc4b8bc24e5", "e7d5c6d1d9efc8e1dddecaefc0cce8cebaefcbe5efd8beef"),
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
