"""Three questions about three bundled pictures, answered by the bundled model: `make demo`.

The pictures and questions come from samples.json beside them; the model was not trained on these pictures.
"""

from __future__ import annotations

import json
import os
import sys
import time

from tapetum import LLM, SamplingParams
from tapetum.assets import MODEL_DIR, SAMPLES_DIR

PICTURES = ("ok-03-receipt.jpg", "ok-06-table.jpg", "ok-11-shapes.png")


def main() -> int:
    samples = {sample["image"]: sample for sample in json.loads((SAMPLES_DIR / "samples.json").read_text())}
    started = time.perf_counter()
    llm = LLM(MODEL_DIR)
    print(
        f"{MODEL_DIR.name} loaded in {time.perf_counter() - started:.1f} s ({llm.facts.device}, {llm.facts.dtype})"
    )
    print(f"How often it is right, and in what: {os.path.relpath(MODEL_DIR / 'MODEL_CARD.md')}\n")
    num_empty = 0
    for name in PICTURES:
        picture, question = SAMPLES_DIR / name, samples[name]["question"]
        content = [{"type": "image", "image": picture}, {"type": "text", "text": question}]
        started = time.perf_counter()
        (output,) = llm.chat(
            [{"role": "user", "content": content}], SamplingParams(temperature=0, max_tokens=64)
        )
        seconds = time.perf_counter() - started
        answer = output.outputs[0]
        num_visual = sum(report.visual_tokens for report in output.media)
        print(f"picture   {os.path.relpath(picture)}")
        print(f"question  {question}")
        print(f"answer    {answer.text}")
        print(
            f"tokens    {len(output.prompt_token_ids)} in, {num_visual} of them visual; {len(answer.token_ids)} out"
        )
        print(f"seconds   {seconds:.3f}, first token after {output.timing.ttft_s:.3f}\n")
        num_empty += not answer.text.strip()
    llm.close()
    if num_empty:
        print(f"{num_empty} of {len(PICTURES)} answers are empty", file=sys.stderr)
    return 1 if num_empty else 0


if __name__ == "__main__":
    sys.exit(main())
