"""The served processes without a model: a real API process, a real engine process, a device that speaks a script.

Run by server.py, never by hand: `python -m benchmarks.server_stage STEP_MS [FILE]` serves on a free port, whose number
is the first line it prints, until its standard input ends; with a FILE it then writes there what its main thread did.
`/lag` tells how late the event loop was since the last time it was asked.
"""

from __future__ import annotations

import asyncio
import atexit
import cProfile
import json
import os
import socket
import sys
import time

import uvicorn
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from tapetum.assets import MODEL_DIR
from tapetum.core.config import CacheConfig, EngineConfig, ServerConfig
from tapetum.core.model import ModelFacts
from tapetum.core.plan import BatchPlan, SampledToken, StepResult
from tapetum.engine.engine import Engine
from tapetum.engine.files import ModelFiles
from tapetum.engine.find import find_model
from tapetum.engine.remote import ProcessLink
from tapetum.engine.service import AsyncEngine
from tapetum.server.process import keep_loop_on_time
from tapetum.server.run import uvicorn_config
from tapetum.server.serving import Serving

PROFILE = "TAPETUM_BENCH_PROFILE"  # a file for the profile of the engine's loop
STEP = "TAPETUM_BENCH_STEP_S"  # how long the device takes for a step
TICK_S = 0.002
FACTS = ModelFacts(
    model_type="qwen2_vl",
    dtype="float32",
    device="cpu",
    vocab_size=json.loads((MODEL_DIR / "config.json").read_text())["vocab_size"],
    max_model_len=8192,
    num_blocks=4096,
    block_size=16,
    kv_bytes_per_token=64,
    feature_bytes_per_token=64,
    weights_fingerprint=b"weights",
    encoder_fingerprint=b"encoder",
)


class Script:
    """Executor: the next word of a text for each row that wants a token. A step costs time, but no processor."""

    def __init__(self, words: tuple[int, ...], step_s: float) -> None:
        self._words = words
        self._step_s = step_s
        self._is_watched = PROFILE in os.environ

    def execute(self, plan: BatchPlan) -> StepResult:
        if self._is_watched:
            self._is_watched = False
            watch(os.environ[PROFILE])  # here, for it is the loop's thread that is watched
        if self._step_s:
            time.sleep(self._step_s)
        words = self._words
        tokens = {
            row.request_id: SampledToken(token_id=words[row.end % len(words)])
            for row in plan.rows
            if row.has_sample
        }
        return StepResult(step=plan.step, tokens=tokens, encode_s=1e-6, forward_s=1e-6)


def build(config: EngineConfig) -> Engine:
    """Called in the engine process."""
    files = ModelFiles.load(find_model(config.model))
    words = files.tokenizer.encode_plain("one word after another, as a model would say them")
    return Engine(config, executor=Script(words, float(os.environ[STEP])), facts=FACTS, files=files)


class Lag:
    """How late the event loop comes to what is due, at every tick of a fixed grid."""

    def __init__(self) -> None:
        self._late_s: list[float] = []

    async def watch(self) -> None:
        due = time.perf_counter()
        while True:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            now = time.perf_counter()
            while due <= now:  # a long stall is late at every tick that it covers
                self._late_s.append(now - due)
                due += TICK_S

    def take(self) -> dict[str, float]:
        late_ms, self._late_s = [1000 * late for late in sorted(self._late_s)], []
        at = {name: late_ms[int(share * (len(late_ms) - 1))] for name, share in (("p50", 0.5), ("p99", 0.99))}
        return {**at, "max": late_ms[-1], "ticks": len(late_ms)}


def with_lag(app: ASGIApp, lag: Lag) -> ASGIApp:
    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/lag":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": json.dumps(lag.take()).encode()})
        else:
            await app(scope, receive, send)

    return wrapped


async def serve() -> None:
    config = EngineConfig(cache=CacheConfig(feature_cache_bytes=1 << 24))
    engine = AsyncEngine(ProcessLink(config, builder="benchmarks.server_stage:build"))
    await engine.start()
    settings = uvicorn_config(Serving(engine, ServerConfig(log_level="warning")))
    lag = Lag()
    settings.app = with_lag(settings.app, lag)
    server = uvicorn.Server(settings)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    tasks = [asyncio.create_task(server.serve(sockets=[listener])), asyncio.create_task(lag.watch())]
    print(listener.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await tasks[0]
    tasks[1].cancel()
    await engine.stop()


def watch(file: str) -> None:
    """Profile this thread from here until the process ends."""
    profile = cProfile.Profile()
    atexit.register(profile.dump_stats, file)
    profile.enable()


if __name__ == "__main__":
    os.environ[STEP] = str(float(sys.argv[1]) / 1000)
    if len(sys.argv) > 2:
        watch(sys.argv[2])
    keep_loop_on_time()
    uvloop.run(serve())
