"""What a decode step costs beside its kernels, and tokens a second through the engine process.

    python benchmarks/steps.py [CHECKPOINT] [--rows 8] [--tokens 128] [--repeats 5] [--out FILE]

Rows that decode at the same time, greedy; without a checkpoint the bundled model. First an engine on a thread of this
process, whose executor and model note the time:
  between   from the end of one execution to the beginning of the next: nothing is computed meanwhile
  within    of an execution, all but the model's layers and head: inputs, embedding, choice of tokens
  host      the sum of both, which is what a step takes longer than its kernels
  kernels   the model's layers and head
Medians over the steps, and the tenth part that took least: what others do on the machine is in the rest. Then an
engine in a process of its own, as a server has it, with the news counted here: the best and the median of repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tapetum import SamplingParams
from tapetum.core.config import EngineConfig
from tapetum.core.model import ModelFacts
from tapetum.core.plan import BatchPlan, StepResult
from tapetum.core.request import Request
from tapetum.engine.build import build_engine
from tapetum.engine.files import ModelFiles
from tapetum.engine.front import Front
from tapetum.engine.inputs import chat_input
from tapetum.engine.link import Link, LocalLink
from tapetum.engine.options import config_from
from tapetum.engine.output import Delta
from tapetum.engine.prompts import Terms
from tapetum.engine.remote import ProcessLink

PROMPT = "Say what stands in row {} of the list, and what follows from it for the other rows."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--speculate", choices=("auto", "off"), default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    options = {"device": "cpu", "max_model_len": 2048, "speculate": arguments.speculate}
    config = config_from(arguments.checkpoint, options)
    figures = {**steps(config, arguments), **rates(config, arguments)}
    print(", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(figures, indent=1))


def steps(config: EngineConfig, arguments: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of the steps in which all rows decode."""
    engine = build_engine(config)
    watched = Watched(engine._executor)
    engine._executor = watched
    with Clients(LocalLink(engine), config) as clients:
        clients.run(arguments.rows, arguments.tokens)
        watched.steps.clear()
        for _ in range(arguments.repeats):
            clients.run(arguments.rows, arguments.tokens)
    whole = [step.num_decodes == arguments.rows for step in watched.steps]
    pairs = [
        (one, two)
        for one, two, is_whole, goes_on in zip(
            watched.steps, watched.steps[1:], whole, whole[1:], strict=False
        )
        if is_whole and goes_on
    ]
    times = {
        "between": [two.start - one.end for one, two in pairs],
        "within": [one.end - one.start - one.kernels for one, _ in pairs],
        "host": [two.start - one.start - one.kernels for one, two in pairs],
        "kernels": [one.kernels for one, _ in pairs],
    }
    figures = {f"{name}_ms": 1e3 * statistics.median(values) for name, values in times.items()}
    return figures | {
        f"{name}_least_ms": 1e3 * statistics.quantiles(values, n=10)[0] for name, values in times.items()
    }


def rates(config: EngineConfig, arguments: argparse.Namespace) -> dict[str, float]:
    """Tokens a second of all rows, from their first tokens to the last."""
    with Clients(ProcessLink(config), config) as clients:
        clients.run(arguments.rows, arguments.tokens)
        found = [clients.run(arguments.rows, arguments.tokens) for _ in range(arguments.repeats)]
    return {"tokens_per_s": statistics.median(found), "best_tokens_per_s": max(found)}


@dataclass(slots=True)
class Step:
    num_decodes: int
    start: float
    end: float = 0.0
    kernels: float = 0.0


@dataclass(slots=True, eq=False)
class Watched:
    """An executor that notes the times of its steps, and of the model's in them."""

    executor: object
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = self.executor._runner._model
        model.forward, model.head = self._timed(model.forward), self._timed(model.head)

    def execute(self, plan: BatchPlan) -> StepResult:
        is_pure = all(row.is_decode and not row.guess for row in plan.rows)
        self.steps.append(Step(len(plan.rows) if is_pure else 0, time.perf_counter()))
        result = self.executor.execute(plan)
        self.steps[-1].end = time.perf_counter()
        return result

    def _timed(self, work: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object) -> object:
            start = time.perf_counter()
            result = work(*arguments)
            self.steps[-1].kernels += time.perf_counter() - start
            return result

        return run


class Clients:
    """As many requests at a time as there are rows, over a link."""

    def __init__(self, link: Link, config: EngineConfig) -> None:
        self._link, self._config = link, config
        self._count = 0
        self._ended = threading.Semaphore(0)
        self._times: dict[str, list[tuple[float, int]]] = {}

    def __enter__(self) -> Clients:
        started: tuple[ModelFacts, ModelFiles] = self._link.start(self._hear, self._die)
        facts, files = started
        self._front = Front(files, self._config, facts, forecast=self._link.forecast, clock=self._link.clock)
        return self

    def __exit__(self, *_: object) -> None:
        self._link.stop(0.0)
        self._front.close()

    def run(self, rows: int, tokens: int) -> float:
        """Tokens a second once all rows have begun."""
        self._times.clear()
        requests = [self._request(index, tokens) for index in range(rows)]
        for request in requests:
            self._link.prepare(request)
            self._link.add(request)
        for _ in requests:
            assert self._ended.acquire(timeout=300), "the answers do not end"
        start = max(times[0][0] for times in self._times.values())
        last = max(times[-1][0] for times in self._times.values())
        count = sum(num for times in self._times.values() for at_s, num in times if at_s > start)
        return count / (last - start)

    def _request(self, index: int, tokens: int) -> Request:
        self._count += 1
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        terms = Terms(request_id=f"steps-{self._count}", arrival_s=self._link.clock())
        prompt = chat_input([{"role": "user", "content": PROMPT.format(index)}])
        return self._front.prompts.build(prompt, sampling, terms)

    def _hear(self, news: Mapping[str, Delta]) -> None:
        now = time.perf_counter()
        for name, delta in news.items():
            assert delta.error is None, delta.error
            if delta.tokens:
                self._times.setdefault(name, []).append((now, len(delta.tokens)))
            if delta.finish_reason is not None:
                self._ended.release()

    def _die(self, death: Exception) -> None:
        raise death


if __name__ == "__main__":
    main()
