"""A real server on a free port: true HTTP, true engine, but tokens come from a script instead of a model."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from functools import cache

import httpx2
import uvicorn

from tapetum.assets import MODEL_DIR
from tapetum.core.config import CacheConfig, EngineConfig, ScheduleConfig, ServerConfig
from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.model import ModelFacts
from tapetum.core.plan import BatchPlan, Row, SampledToken, StepResult
from tapetum.core.request import Request
from tapetum.engine.engine import Engine
from tapetum.engine.files import ModelFiles
from tapetum.engine.service import AsyncEngine
from tapetum.server.run import uvicorn_config
from tapetum.server.serving import Serving
from tests.mini import EOS, VOCAB_SIZE

FACTS = ModelFacts(
    model_type="qwen2_vl",
    dtype="float32",
    device="cpu",
    vocab_size=VOCAB_SIZE,
    max_model_len=2048,
    num_blocks=256,
    block_size=16,
    kv_bytes_per_token=64,
    feature_bytes_per_token=64,
    weights_fingerprint=b"weights",
    encoder_fingerprint=b"encoder",
)


@cache
def files() -> ModelFiles:
    return ModelFiles.load(MODEL_DIR)


class Script:
    """Executor: every request gets the tokens of `answer`, then the end of sequence.

    `fail_at`: index of the token at which a request fails. `step_s`: how long a step takes. `death` ends the loop.
    """

    def __init__(self, answer: str = "Total: 12.50 €") -> None:
        self.answer = answer
        self.step_s = 0.0
        self.fail_at: int | None = None
        self.death: BaseException | None = None
        self.requests: dict[str, Request] = {}
        self.seen: list[Request] = []

    def execute(self, plan: BatchPlan) -> StepResult:
        if self.death is not None:
            raise self.death
        time.sleep(self.step_s)
        for request_id in plan.released:
            self.requests.pop(request_id, None)
        for request in plan.admitted:
            self.requests[request.request_id] = request
            self.seen.append(request)
        tokens: dict[str, tuple[SampledToken, ...]] = {}
        failed: dict[str, TapetumError] = {}
        for row in plan.rows:
            request = self.requests[row.request_id]
            index = row.end - len(row.guess) - request.num_prompt_tokens
            if row.has_sample and index == self.fail_at:
                failed[row.request_id] = EngineError("the script fails here")
            elif row.has_sample:
                tokens[row.request_id] = self._taken(row, request)
        return StepResult(
            step=plan.step,
            tokens=tokens,
            failed=failed,
            encoded={job.item.key: job.end for job in plan.encodes},
            encode_s=1e-4,
            forward_s=1e-4,
        )

    def _taken(self, row: Row, request: Request) -> tuple[SampledToken, ...]:
        """The next token, and one more for each that was guessed rightly."""
        start = row.end - len(row.guess) - request.num_prompt_tokens
        taken = [self._token(request, start)]
        for guessed in row.guess:
            if taken[-1].token_id != guessed or start + len(taken) == self.fail_at:
                break
            taken.append(self._token(request, start + len(taken)))
        return tuple(taken)

    def _token(self, request: Request, index: int) -> SampledToken:
        spoken = files().tokenizer.encode_plain(self.answer)
        token_id = spoken[index % len(spoken)] if index < len(spoken) or request.sampling.ignore_eos else EOS
        num_top = request.sampling.logprobs
        if num_top is None:
            return SampledToken(token_id=token_id)
        top = tuple((candidate, -1.0 - candidate) for candidate in range(num_top))
        return SampledToken(token_id=token_id, logprob=-0.5, top_logprobs=top)


class TestServer:
    """Starts on entry, stops on exit. `url` has no path; `client` speaks to it."""

    __test__ = False

    def __init__(self, script: Script, config: ServerConfig | None = None, **schedule: object) -> None:
        self.script = script
        self.engine = Engine(
            EngineConfig(cache=CacheConfig(feature_cache_bytes=1 << 20), schedule=ScheduleConfig(**schedule)),
            executor=script,
            facts=FACTS,
            files=files(),
        )
        self._config = config or ServerConfig()
        self._listener = socket.create_server(("127.0.0.1", 0))
        # The plain event loop waits with small writes on a socket that does not say it is TCP; uvloop does not.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.client = httpx2.Client(base_url=self.url, timeout=30)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> TestServer:
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self.client.close()
        assert not self._thread.is_alive(), "the server does not stop"

    async def _serve(self) -> None:
        engine = AsyncEngine(self.engine)
        self.serving = Serving(engine, self._config)
        self._server = uvicorn.Server(uvicorn_config(self.serving))
        self.loop = asyncio.get_running_loop()
        await engine.start()
        self._started.set()
        await self._server.serve(sockets=[self._listener])
        await engine.stop()

    @property
    def is_at_rest(self) -> bool:
        """Nothing runs, nothing waits, no block is held."""
        stats = self.engine.stats
        held = (stats.num_running, stats.num_waiting, stats.num_held_blocks, len(self.script.requests))
        return held == (0, 0, 0, 0) and not self.engine.has_work

    def chat(self, **fields: object) -> httpx2.Response:
        return self.client.post("/v1/chat/completions", json=chat_body(**fields))


def chat_body(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "What is the total?"}], **fields}


def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
