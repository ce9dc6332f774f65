"""One process of a run: draws its own samples, adds its gradients, updates its share of the weights.

All processes meet three times a step: to agree on the time, when all gradients are there, when all weights are new.
Process 0 keeps the clock, the log and the checkpoint.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import TextIO

import torch
from torch import Tensor

from training.generator.fonts import default_faces, extra_faces
from training.generator.vocabulary import known_words
from training.network import Network
from training.tokenizer import Tokenizer
from training.train.batch import Batch, make_batch
from training.train.losses import Report, loss_of
from training.train.optimizer import Optimizer
from training.train.schedule import StepPlan, averaging, guidance, learning_rate, plan_step
from training.train.settings import Settings
from training.train.shared import SharedWeights


@dataclass(frozen=True, slots=True)
class Team:
    """What the processes of a run share."""

    weights: SharedWeights
    barrier: Barrier
    clock: Tensor  # float64 [1]: seconds since the start, written by process 0
    first_step: int


def work(rank: int, settings: Settings, team: Team) -> None:
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed * 10 + rank)
    _Worker(rank, settings, team).run()


class _Worker:
    def __init__(self, rank: int, settings: Settings, team: Team) -> None:
        self.rank, self.settings, self.team = rank, settings, team
        self.tokenizer = Tokenizer(settings.tokenizer)
        self.faces = default_faces() + (extra_faces(settings.fonts) if settings.fonts else ())
        self.network = Network(settings.network)
        team.weights.bind(self.network, rank)
        self.optimizer = Optimizer(team.weights, rank, settings.processes, settings.lr_muon, settings.lr_adam)
        self.forms = tuple(
            torch.tensor([self.tokenizer.word(space + word) for word in known_words()]) for space in ("", " ")
        )
        self.started = time.monotonic()
        self.step = team.first_step

    def run(self) -> None:
        settings = self.settings
        log = _Log(settings) if self.rank == 0 else None
        saved = time.monotonic()
        while True:
            seconds = self._agree_on_time()
            progress = settings.start + (1 - settings.start) * seconds / (settings.minutes * 60)
            done = self.step - self.team.first_step
            if progress >= 1 or (settings.max_steps and done >= settings.max_steps):
                break
            plan = plan_step(settings, self.step, progress, seconds > settings.seconds_of_vision)
            batch, report = self._train(plan, done, progress)
            self.step += 1
            if log:
                log.add(self.step, progress, batch, report)
                if time.monotonic() - saved > settings.save_seconds:
                    saved = time.monotonic()
                    self._save(progress)
        if log:
            log.close()
            self._save(progress)

    def _agree_on_time(self) -> float:
        if self.rank == 0:
            self.team.clock[0] = time.monotonic() - self.started
        self.team.barrier.wait()
        return float(self.team.clock[0])

    def _train(self, plan: StepPlan, done: int, progress: float) -> tuple[Batch, Report]:
        settings, team = self.settings, self.team
        batch = make_batch(
            f"{settings.seed}-{self.rank}-{self.step}",
            plan,
            self.tokenizer,
            faces=self.faces,
            max_text=settings.text_tokens,
            dtype=torch.bfloat16,
        )
        team.weights.gradients[self.rank].zero_()
        words = self.forms[self.step % 2]  # with and without the space before it
        loss, report = loss_of(self.network, batch, words, guidance(settings, progress), plan.relations)
        loss.backward()
        team.barrier.wait()
        rate = learning_rate(settings, done, progress)
        skip = None if plan.is_joint else "model.layers"
        self.optimizer.step(rate, averaging(settings, done, progress), skip)
        team.barrier.wait()
        return batch, report

    def _save(self, progress: float) -> None:
        self.team.weights.save(self.settings.folder / "last.pt", self.step, progress)


class _Log:
    """Means over `log_steps` steps of process 0, one JSON object a line."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.file: TextIO = (settings.folder / "log.jsonl").open("a")
        self._clear()

    def _clear(self) -> None:
        self.since = time.monotonic()
        self.num_pictures = self.num_questions = self.num_steps = 0
        self.figures: dict[str, list[float]] = defaultdict(list)
        self.answers: dict[str, list[bool]] = defaultdict(list)

    def add(self, step: int, progress: float, batch: Batch, report: Report) -> None:
        self.num_steps += 1
        self.num_pictures += len(batch.patches) * self.settings.processes
        self.num_questions += len(report.answers) * self.settings.processes
        for name, value in report.figures.items():
            self.figures[name].append(value)
        for name, is_right in report.answers:
            self.answers[name.split("/")[0]].append(is_right)
            self.answers[name].append(is_right)
        if self.num_steps == self.settings.log_steps:
            self._write(step, progress)
            self._clear()

    def _write(self, step: int, progress: float) -> None:
        seconds = time.monotonic() - self.since
        record = {
            "step": step,
            "progress": round(progress, 3),
            "step_s": round(seconds / self.num_steps, 3),
            "pictures_per_s": round(self.num_pictures / seconds, 1),
            "questions_per_s": round(self.num_questions / seconds, 1),
            **{name: round(sum(values) / len(values), 4) for name, values in self.figures.items()},
            "exact": {
                name: (round(sum(values) / len(values), 3), len(values))
                for name, values in sorted(self.answers.items())
            },
        }
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()
