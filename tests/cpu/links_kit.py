"""Pictures that move from prompt to prompt, and answers to the last bit, for tests of links."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from tapetum import LLM, SamplingParams
from tapetum.engine.output import RequestOutput

EXACT = {"dtype": "float32", "device": "cpu", "threads": 1, "kv_cache_bytes": 64 << 20}
REUSE = {"position_independent": True}
SAMPLING = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=3)
ANY = 1e9  # a tolerance that every link meets


def picture(seed: int, width: int = 224, height: int = 168) -> Image.Image:
    source = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), tuple(source.integers(150, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(12):
        x, y = source.integers(0, width), source.integers(0, height)
        pen.ellipse((x, y, x + 60, y + 40), fill=tuple(source.integers(0, 256, 3).tolist()))
    return image


def chat(pictures: list[Image.Image], question: str = "What is this?", *before: dict[str, object]):
    parts = [*({"type": "image", "image": image} for image in pictures), {"type": "text", "text": question}]
    return [*before, {"role": "user", "content": parts}]


def system(text: str) -> dict[str, object]:
    return {"role": "system", "content": text}


def ask(llm: LLM, messages: object, *, may_link: bool = True) -> RequestOutput:
    (output,) = llm.chat(messages, SAMPLING, reuse=REUSE if may_link else None, use_tqdm=False)
    return output


def reasons(output: RequestOutput) -> list[str | None]:
    return [report.degraded.reason if report.degraded else None for report in output.media]


def said(output: RequestOutput) -> list[tuple[int, dict[int, float]]]:
    """Tokens with all their log-probabilities, to the last bit."""
    (completion,) = output.outputs
    assert completion.logprobs is not None
    return [
        (token, {candidate: value.logprob for candidate, value in found.items()})
        for token, found in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
