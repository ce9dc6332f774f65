"""One question about each of many pictures, in one batch: python examples/offline.py QUESTION PICTURE..."""

from __future__ import annotations

import sys

from tapetum import LLM, SamplingParams


def main(question: str, pictures: list[str]) -> None:
    conversations = [
        [
            {
                "role": "user",
                "content": [{"type": "image", "image": picture}, {"type": "text", "text": question}],
            }
        ]
        for picture in pictures
    ]
    with LLM() as llm:  # the bundled model; LLM("path/to/Qwen2-VL-2B-Instruct") takes another
        outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=64))
    for picture, output in zip(pictures, outputs, strict=True):
        print(f"{picture}: {output.outputs[0].text}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
