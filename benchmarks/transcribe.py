"""Transcription with the page's text given: decode speed with guesses over plain greedy decoding, token for token.

    python benchmarks/transcribe.py [--items 32] [--repeats 3] [--dtype bfloat16] [--out transcribe.json]

  page    the bundled model reads generated pictures of text, the longest answers of the first seeds. The text layer is
          what the generator wrote; the bundled model misreads more than half of it, so little of it comes true
  close   the same pictures, as a model would that reads well: the text layer is the answer that plain decoding gives,
          with --slips of its tokens changed for others
  long    a model of 148 M parameters with random weights, 256 tokens an answer, drawn from a seed so that nothing
          repeats, and such a text layer. No page is read: it shows what verifying costs where steps wait for memory
  new     the same without any text layer: what looking for guesses costs where there are none

Decode time runs from the first token to the last, summed over the items, the best of the repeats, which take turns.
One request runs at a time.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint import write_checkpoint

from tapetum import SamplingParams
from tapetum.assets import MODEL_DIR
from tapetum.engine.build import build_engine
from tapetum.engine.front import Front
from tapetum.engine.inputs import chat_input
from tapetum.engine.options import config_from
from tapetum.engine.prompts import Terms
from training.generator import make

FIRST_SEED = 5_000_000  # held out, as in `tapetum evaluate`
SEEDS = 400
LONG_TOKENS = 256


@dataclass(frozen=True)
class Item:
    content: object
    sampling: SamplingParams
    page: tuple[int, ...] = ()


@dataclass(frozen=True)
class Run:
    token_ids: tuple[tuple[int, ...], ...]  # of each item
    decode_s: float
    num_steps: int  # of decoding
    num_guessed: int
    num_accepted: int


class Reader:
    def __init__(self, directory: Path, speculate: str, arguments: argparse.Namespace) -> None:
        options = {
            "dtype": arguments.dtype,
            "threads": arguments.threads,
            "device": "cpu",
            "speculate": speculate,
        }
        self._engine = build_engine(config_from(directory, options))
        self._front = Front(self._engine.files, self._engine.config, self._engine.facts)
        self._count = 0

    def encode(self, text: str) -> tuple[int, ...]:
        return self._engine.tokenizer.encode_plain(text)

    def read(self, items: Sequence[Item]) -> Run:
        before = self._engine.stats
        answers = [self._answer(item) for item in items]
        after = self._engine.stats
        return Run(
            token_ids=tuple(token_ids for token_ids, _, _ in answers),
            decode_s=sum(seconds for _, seconds, _ in answers),
            num_steps=sum(steps for _, _, steps in answers),
            num_guessed=after.num_guessed_tokens - before.num_guessed_tokens,
            num_accepted=after.num_accepted_tokens - before.num_accepted_tokens,
        )

    def close(self) -> None:
        self._front.close()

    def _answer(self, item: Item) -> tuple[tuple[int, ...], float, int]:
        """(tokens, seconds from the first to the last, steps in between)."""
        self._count += 1
        terms = Terms(request_id=str(self._count), arrival_s=self._engine.clock())
        prompt = chat_input([{"role": "user", "content": item.content}])
        request = self._front.prompts.build(prompt, item.sampling, terms)
        self._engine.add(replace(request, prediction=item.page))
        token_ids: list[int] = []
        times: list[float] = []
        while self._engine.has_work:
            news = self._engine.step()
            for delta in news.values():
                assert delta.error is None, delta.error
                if delta.tokens:
                    times.append(time.perf_counter())
                    token_ids += [token.token_id for token in delta.tokens]
        return tuple(token_ids), times[-1] - times[0], len(times) - 1


def pages(reader: Reader, count: int) -> list[Item]:
    found = []
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        sample = make(seed, "text")
        found += [
            Item(
                [{"type": "image", "image": sample.images[0]}, {"type": "text", "text": question.text}],
                SamplingParams(temperature=0.0, max_tokens=96),
                reader.encode(question.answer),
            )
            for question in sample.questions
            if question.kind == "read"
        ]
    return sorted(found, key=lambda item: -len(item.page))[:count]


def letters(count: int) -> list[Item]:
    """Without a text layer."""
    choices = {"temperature": 1.0, "max_tokens": LONG_TOKENS, "ignore_eos": True}
    return [Item(f"Page {index}", SamplingParams(seed=index, **choices)) for index in range(count)]


def closely(reader: Reader, items: list[Item], slips: float) -> list[Item]:
    """With text layers that plain decoding agrees with but for a share of the tokens."""
    source = random.Random(1)
    answers = reader.read([replace(item, page=()) for item in items]).token_ids
    return [
        replace(item, page=tuple(t if source.random() >= slips else source.choice(answer) for t in answer))
        for item, answer in zip(items, answers, strict=True)
    ]


def compare(
    name: str, plain: Reader, quick: Reader, make_items: Callable[[Reader], list[Item]], repeats: int
) -> dict[str, object]:
    items = make_items(plain)
    runs: dict[str, list[Run]] = {"plain": [], "quick": []}
    for reader in (plain, quick):
        reader.read(items[:4])  # warm up
    for _ in range(repeats):
        runs["plain"].append(plain.read(items))
        runs["quick"].append(quick.read(items))
    slow, fast = (min(runs[kind], key=lambda run: run.decode_s) for kind in ("plain", "quick"))
    num_decoded = sum(len(token_ids) - 1 for token_ids in slow.token_ids)
    return {
        "case": name,
        "items": len(items),
        "decoded_tokens": num_decoded,
        "equal_items": sum(a == b for a, b in zip(slow.token_ids, fast.token_ids, strict=True)),
        "tokens_per_step": round(num_decoded / max(fast.num_steps, 1), 2),
        "accepted_of_guessed": f"{fast.num_accepted} of {fast.num_guessed}",
        "plain_tokens_per_s": round(num_decoded / slow.decode_s, 1),
        "quick_tokens_per_s": round(num_decoded / fast.decode_s, 1),
        "ratio": round(slow.decode_s / fast.decode_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=32)
    parser.add_argument("--long-items", type=int, default=4)
    parser.add_argument("--slips", type=float, default=0.03)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    count, long_count, slips = arguments.items, arguments.long_items, arguments.slips
    with tempfile.TemporaryDirectory() as folder:
        long = write_checkpoint("mini", Path(folder))
        cases: list[tuple[str, Path, Callable[[Reader], list[Item]]]] = [
            ("page", MODEL_DIR, lambda reader: pages(reader, count)),
            ("close", MODEL_DIR, lambda reader: closely(reader, pages(reader, count), slips)),
            ("long", long, lambda reader: closely(reader, letters(long_count), slips)),
            ("new", long, lambda _: letters(long_count)),
        ]
        rows = []
        for name, directory, make_items in cases:
            plain, quick = (Reader(directory, speculate, arguments) for speculate in ("off", "auto"))
            rows.append(compare(name, plain, quick, make_items, arguments.repeats))
            print(json.dumps(rows[-1]))
            plain.close()
            quick.close()
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
