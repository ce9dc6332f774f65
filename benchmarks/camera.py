"""What near-duplicate reuse saves of a static camera, and what it costs in answers.

Each scene is a picture of the generator's shapes, taken by a camera that adds grain to every frame. Each frame is asked
the scene's question twice: exactly, and with `reuse={"near_duplicate": True}`. `encoded` is the share of frames that
went through the encoder, `equal` the share of answers that are those of the exact mode. Frames without grain are asked
once more: what is truly unchanged costs the exact mode nothing either. `moved` counts frames of which a sixteenth of
the picture was painted over, and of these the hits, which there must be none of.

    python benchmarks/camera.py [--scenes 3] [--frames 100] [--grain 2]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from tapetum.core.request import SamplingParams
from tapetum.engine.llm import LLM
from tapetum.engine.output import RequestOutput
from tapetum.evaluate import Case, draw_cases

SAMPLING = SamplingParams(temperature=0.0, max_tokens=32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenes", type=int, default=3)
    parser.add_argument("--frames", type=int, default=100, help="of each scene")
    parser.add_argument("--grain", type=float, default=2.0, help="standard deviation, of 255 levels")
    options = parser.parse_args()
    print(
        f"{'scene':>5} {'encoded':>8} {'equal':>6} {'exact, no grain':>16} {'moved':>6} {'of these hits':>14}"
    )
    for number, case in enumerate(draw_cases(("shapes",), options.scenes)):
        rng = np.random.default_rng(number)
        frames = [_grained(case.images[0], options.grain, rng) for _ in range(options.frames)]
        moved = [_painted(frame, rng) for frame in frames[::10]]
        with LLM() as llm:
            exact = [_ask(llm, case, frame, is_near=False) for frame in frames]
        with LLM() as llm:
            near = [_ask(llm, case, frame, is_near=True) for frame in frames]
            strangers = [_ask(llm, case, frame, is_near=True) for frame in moved]
        with LLM() as llm:
            still = [_ask(llm, case, case.images[0], is_near=False) for _ in frames]
        equal = np.mean(
            [one.outputs[0].text == other.outputs[0].text for one, other in zip(exact, near, strict=True)]
        )
        hits = sum(output.media[0].degraded is not None for output in strangers)
        print(
            f"{number:5} {_encoded(near):8.1%} {equal:6.1%} {_encoded(still):16.1%} {len(moved):6} {hits:14}"
        )


def _ask(llm: LLM, case: Case, frame: Image.Image, *, is_near: bool) -> RequestOutput:
    content = [{"type": "image", "image": frame}, {"type": "text", "text": case.question}]
    messages = [{"role": "user", "content": content}]
    (output,) = llm.chat(messages, SAMPLING, reuse={"near_duplicate": is_near}, use_tqdm=False)
    return output


def _encoded(outputs: Sequence[RequestOutput]) -> float:
    return sum(output.media[0].cache == "miss" for output in outputs) / len(outputs)


def _grained(picture: Image.Image, deviation: float, rng: np.random.Generator) -> Image.Image:
    pixels = np.asarray(picture.convert("RGB"), np.float32)
    grain = rng.normal(0, deviation, pixels.shape)
    return Image.fromarray(np.clip(pixels + grain, 0, 255).round().astype(np.uint8))


def _painted(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    painted = picture.copy()
    width, height = (side // 4 for side in picture.size)
    x, y = int(rng.integers(0, 3 * width)), int(rng.integers(0, 3 * height))
    color = tuple(int(level) for level in rng.integers(0, 256, 3))
    ImageDraw.Draw(painted).rectangle((x, y, x + width, y + height), fill=color)
    return painted


if __name__ == "__main__":
    main()
