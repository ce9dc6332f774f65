"""Tapetum beside transformers' generate: same checkpoint, same threads, one run, interleaved repeats.

    python benchmarks/engine.py [--shape mini] [--repeats 5] [--out bench.json]

Measures in bfloat16, or as --dtype says:
  one     one 448x448 JPEG and a short question, 32 tokens: time to first token, time per output token
  eight   eight such requests, all different: transformers one after another, Tapetum together
  again   a second question about the same picture: its time to first token over that of the first

Every time starts at the bytes of the file. A repeat in which other processes used more than a tenth of a core is
dropped (and kept, marked, if all were).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from checkpoint import SHAPES, write_checkpoint
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, Qwen2VLForConditionalGeneration

from tapetum import SamplingParams
from tapetum.engine.build import build_engine
from tapetum.engine.engine import Engine
from tapetum.engine.front import Front
from tapetum.engine.inputs import chat_input
from tapetum.engine.options import config_from
from tapetum.engine.prompts import Terms

TOKENS = 32
SIDE = 448
NOISE_LIMIT = 0.1  # cores
WORDS = "river stone window garden market signal copper bridge total color name date".split()  # noqa: SIM905


@dataclass(frozen=True)
class Question:
    picture: bytes
    text: str


@dataclass(frozen=True)
class Timing:
    ttft_s: float
    tpot_s: float


@dataclass
class Samples:
    """Values of one measurement by repeat, with the cores that others used meanwhile."""

    values: list[float] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)

    def add(self, value: float, foreign: float) -> None:
        self.values.append(value)
        self.foreign.append(foreign)

    def median(self) -> float:
        quiet = [v for v, cores in zip(self.values, self.foreign, strict=True) if cores <= NOISE_LIMIT]
        return statistics.median(quiet or self.values)

    @property
    def num_quiet(self) -> int:
        return sum(cores <= NOISE_LIMIT for cores in self.foreign)


class Tapetum:
    name = "tapetum"

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        options = {"dtype": dtype, "threads": threads, "device": "cpu", "max_model_len": 4096}
        self._engine: Engine = build_engine(config_from(directory, {**options, "schedule": "throughput"}))
        self._front = Front(self._engine.files, self._engine.config, self._engine.facts)
        self._count = 0

    def ask(self, question: Question) -> Timing:
        started = time.perf_counter()
        name = self._add(question)
        times = [now for request, now in self._tokens() if request == name]
        return Timing(times[0] - started, (times[-1] - times[0]) / (len(times) - 1))

    def ask_all(self, questions: list[Question]) -> float:
        started = time.perf_counter()
        for question in questions:
            self._add(question)
        count = sum(1 for _ in self._tokens())
        assert count == TOKENS * len(questions), count
        return time.perf_counter() - started

    def _add(self, question: Question) -> str:
        self._count += 1
        name = f"bench-{self._count}"
        parts = [{"type": "image", "image": question.picture}, {"type": "text", "text": question.text}]
        sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
        terms = Terms(request_id=name, arrival_s=self._engine.clock())
        prompt = chat_input([{"role": "user", "content": parts}])
        self._engine.add(self._front.prompts.build(prompt, sampling, terms))
        return name

    def _tokens(self) -> Iterator[tuple[str, float]]:
        """(request, time) of each token until nothing is left to do."""
        while self._engine.has_work:
            news = self._engine.step()
            now = time.perf_counter()
            for name, delta in news.items():
                assert delta.error is None, delta.error
                for _ in delta.tokens:
                    yield name, now


class Transformers:
    name = "transformers"

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = Qwen2VLForConditionalGeneration.from_pretrained(
            directory, dtype=getattr(torch, dtype)
        ).eval()
        self._model.generation_config.eos_token_id = None
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self._images = AutoImageProcessor.from_pretrained(directory)

    @torch.inference_mode()
    def ask(self, question: Question) -> Timing:
        started = time.perf_counter()
        stamps = _Stamps()
        self._model.generate(
            **self._inputs(question), max_new_tokens=TOKENS, do_sample=False, streamer=stamps
        )
        times = stamps.times[1:]  # the first call gives back the prompt
        assert len(times) == TOKENS, len(times)
        return Timing(times[0] - started, (times[-1] - times[0]) / (len(times) - 1))

    def ask_all(self, questions: list[Question]) -> float:
        started = time.perf_counter()
        for question in questions:
            self.ask(question)
        return time.perf_counter() - started

    def _inputs(self, question: Question) -> dict[str, torch.Tensor]:
        image = Image.open(io.BytesIO(question.picture)).convert("RGB")
        pixels = self._images(images=[image], return_tensors="pt")
        content = [{"type": "image"}, {"type": "text", "text": question.text}]
        messages = [{"role": "user", "content": content}]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        pad = "<|image_pad|>"
        text = text.replace(pad, pad * (int(pixels["image_grid_thw"].prod()) // 4))
        encoded = self._tokenizer(text, return_tensors="pt")
        kinds = (encoded["input_ids"] == self._model.config.image_token_id).int()
        return {
            "input_ids": encoded["input_ids"],
            "attention_mask": encoded["attention_mask"],
            "mm_token_type_ids": kinds,
            "pixel_values": pixels["pixel_values"],
            "image_grid_thw": pixels["image_grid_thw"],
        }


class _Stamps:
    """A streamer that only notes when each token came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def make_question(seed: str) -> Question:
    source = random.Random(seed)
    small = Image.frombytes("RGB", (24, 24), source.randbytes(24 * 24 * 3))
    file = io.BytesIO()
    small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return Question(file.getvalue(), " ".join(source.choices(WORDS, k=10)))


def run(engines: list[Tapetum | Transformers], repeats: int) -> dict[str, Samples]:
    """All measurements, repeats outermost, the engines in turn within each."""
    results: dict[str, Samples] = {}

    def measure(name: str, work: Callable[[], dict[str, float]]) -> None:
        values, foreign = watched(work)
        for key, value in values.items():
            results.setdefault(f"{name}.{key}", Samples()).add(value, foreign)

    for repeat in range(repeats + 1):
        for engine in engines:
            if repeat == 0:  # warm up
                engine.ask(make_question(f"warm-{engine.name}"))
                continue
            measure(engine.name, lambda: one(engine, f"one-{repeat}"))  # noqa: B023 - called at once
            measure(engine.name, lambda: eight(engine, f"eight-{repeat}"))  # noqa: B023
            measure(engine.name, lambda: again(engine, f"again-{repeat}"))  # noqa: B023
    return results


def one(engine: Tapetum | Transformers, seed: str) -> dict[str, float]:
    timings = [engine.ask(make_question(f"{seed}-{index}")) for index in range(4)]
    return {
        "one.ttft_s": statistics.median(timing.ttft_s for timing in timings),
        "one.tpot_s": statistics.median(timing.tpot_s for timing in timings),
    }


def eight(engine: Tapetum | Transformers, seed: str) -> dict[str, float]:
    seconds = engine.ask_all([make_question(f"{seed}-{index}") for index in range(8)])
    return {"eight.requests_per_s": 8 / seconds}


def again(engine: Tapetum | Transformers, seed: str) -> dict[str, float]:
    first = make_question(seed)
    second = Question(first.picture, make_question(seed + "-second").text)
    before, after = engine.ask(first).ttft_s, engine.ask(second).ttft_s
    return {"again.first_ttft_s": before, "again.second_ttft_s": after}


def watched(work: Callable[[], dict[str, float]]) -> tuple[dict[str, float], float]:
    """The result of `work` and the cores that other processes used meanwhile."""
    started, busy, own = time.perf_counter(), busy_s(), time.process_time()
    values = work()
    seconds = time.perf_counter() - started
    return values, max(0.0, (busy_s() - busy) - (time.process_time() - own)) / seconds


def busy_s() -> float:
    """CPU seconds of the whole machine, idle and waiting excluded."""
    fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
    user, nice, system, _, _, irq, softirq = fields
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


GOALS = (
    ("time to first token, one request", "one.ttft_s", False, 1.0),
    ("time per output token, one request", "one.tpot_s", False, 0.8),
    ("requests per second, eight at once", "eight.requests_per_s", True, 2.0),
)


def table(results: dict[str, Samples]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for title, key, is_higher_better, goal in GOALS:
        ours, theirs = results[f"tapetum.{key}"].median(), results[f"transformers.{key}"].median()
        rows.append(
            row(title, ours, theirs, goal, is_higher_better) | {"quiet": results[f"tapetum.{key}"].num_quiet}
        )
    first, second = (results[f"tapetum.again.{name}_ttft_s"] for name in ("first", "second"))
    title = "time to first token, second question over first"
    rows.append(row(title, second.median(), first.median(), 0.25, False) | {"quiet": second.num_quiet})
    return rows


def row(title: str, ours: float, theirs: float, goal: float, is_higher_better: bool) -> dict[str, object]:
    ratio = ours / theirs
    is_met = ratio >= goal if is_higher_better else ratio <= goal
    return {"what": title, "tapetum": ours, "other": theirs, "ratio": ratio, "goal": goal, "is_met": is_met}


def show(rows: list[dict[str, object]]) -> None:
    print(f"{'':48} {'tapetum':>9} {'other':>9} {'ratio':>7} {'goal':>6}")
    for entry in rows:
        mark = "met" if entry["is_met"] else "NOT MET"
        print(
            f"{entry['what']:48} {entry['tapetum']:9.4f} {entry['other']:9.4f} {entry['ratio']:7.2f} "
            f"{entry['goal']:6.2f}  {mark} ({entry['quiet']} quiet repeats)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="mini")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = write_checkpoint(arguments.shape, Path(scratch))
        engines = [kind(directory, arguments.dtype, arguments.threads) for kind in (Tapetum, Transformers)]
        results = run(engines, arguments.repeats)
    rows = table(results)
    show(rows)
    if arguments.out:
        raw = {key: {"values": item.values, "foreign_cores": item.foreign} for key, item in results.items()}
        setup = {key: getattr(arguments, key) for key in ("shape", "dtype", "repeats", "threads")}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"setup": setup, "table": rows, "raw": raw}, indent=1))
        print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
