"""Engines for an engine process of a test: the bundled files and a device that speaks from a script.

The process imports this file by name, as `tests.cpu.process_kit:build`, so each way to behave is a function.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tapetum.core.config import EngineConfig
from tapetum.core.errors import CheckpointError
from tapetum.core.plan import BatchPlan, StepResult
from tapetum.engine.build import open_tiers
from tapetum.engine.engine import Engine
from tests.cpu.engine_kit import SpeakingExecutor, facts, files, spoken

ANSWER = "Total: 12.50 €"


class Speaker(SpeakingExecutor):
    """Takes its time for a step and, in answer to a prompt with a picture, says the first byte of its patches, if it
    came with any."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__(lambda request_id: spoken(self._answers.get(request_id, ANSWER)))
        self._step_s = step_s
        self._answers: dict[str, str] = {}

    def execute(self, plan: BatchPlan) -> StepResult:
        for request in plan.admitted:
            for span in request.prompt.spans:
                is_seen = not span.item.is_reserved
                told = f"pixel {span.item.patches[0, 0]}" if is_seen else "features"
                self._answers[request.request_id] = told
        time.sleep(self._step_s)
        return super().execute(plan)


class Broken(Speaker):
    """Its loop ends with an exception that no request can be blamed for."""

    def execute(self, plan: BatchPlan) -> StepResult:
        if plan.rows:
            raise KeyboardInterrupt("the device is lost")
        return super().execute(plan)


def build(config: EngineConfig) -> Engine:
    return _engine(config, Speaker())


def build_slow(config: EngineConfig) -> Engine:
    return _engine(config, Speaker(0.05))


def build_stuck(config: EngineConfig) -> Engine:
    return _engine(config, Speaker(2.5))


def build_broken(config: EngineConfig) -> Engine:
    return _engine(config, Broken())


def build_nothing(config: EngineConfig) -> Engine:
    raise CheckpointError("the checkpoint is incomplete; fetch it again")


def build_badly(config: EngineConfig) -> Engine:
    raise ZeroDivisionError("nobody expected this")


def build_in_the_end(config: EngineConfig) -> Engine:
    """Fails once for each file in the folder that the environment names, and takes the file away."""
    for file in Path(os.environ["FAILURES"]).iterdir():
        file.unlink()
        raise CheckpointError("not this time")
    return build(config)


def build_late(config: EngineConfig) -> Engine:
    time.sleep(60)
    return build(config)


def _engine(config: EngineConfig, executor: Speaker) -> Engine:
    tiers = open_tiers(config.tiers)
    engine = Engine(config, executor=executor, facts=facts(), files=files(), tiers=tiers)
    if tiers is not None:
        engine.at_end.callback(tiers.close)
    return engine
