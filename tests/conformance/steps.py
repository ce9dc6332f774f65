"""The steps of a scenario, one after the other or side by side, and the observation they leave.

Owns the order of things and their times. Does not own servers (fleet), the wire (client) or what is right (expect).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from tests.conformance.client import CHAT, JSON
from tests.conformance.fill import filled
from tests.conformance.observation import Observation, Unmet
from tests.conformance.process import Start
from tests.conformance.reply import Reply
from tests.conformance.server import LiveServer

_PARAMETERS: dict[str, frozenset[str]] = {
    "post": frozenset(("body", "path", "headers", "save", "abort_after_chunks", "abort_after_s")),
    "post_raw": frozenset(("body", "path", "headers", "save")),
    "post_each": frozenset(("gen", "args", "concurrency", "save")),
    "parallel": frozenset(("steps", "stagger_ms")),
    "get": frozenset(("path", "save")),
    "poll": frozenset(("path", "save", "every_ms", "for_s", "background")),
    "derive_stop": frozenset(("from", "at")),
    "signal": frozenset(("target", "sig", "after_s")),
    "start": frozenset(("args",)),
    "reset_caches": frozenset(),
    "sleep": frozenset(("s",)),
    "measure": frozenset(("what", "save")),
}
_POLL_EVERY_MS = 100
_POLL_FOR_S = 10.0
_LEAST_POLLS = 20  # from here on a 95th percentile says something
_SIGNALS = ("TERM", "KILL", "INT")


class Stage(Protocol):
    """Where steps happen."""

    @property
    def server(self) -> LiveServer: ...

    async def start(self, flags: tuple[str, ...]) -> Start: ...

    def bodies_of(self, step: dict) -> Iterator[dict]: ...


def form_problems(steps: Sequence[dict]) -> list[str]:
    """What is wrong with steps as they are written."""
    problems = []
    for step in steps:
        known = _PARAMETERS.get(step["do"])
        if known is None:
            problems.append(f"there is no step {step['do']}; known are {', '.join(_PARAMETERS)}")
            continue
        unknown = step.keys() - known - {"do", "note"}
        problems += [f"step {step['do']} has the unknown entry {name}" for name in sorted(unknown)]
        problems += form_problems(step.get("steps", ()))
    return problems


def needs_process(steps: Sequence[dict]) -> bool:
    """Whether steps signal, start or measure a server, so it must be a process of ours."""
    return any(
        step["do"] in ("signal", "start", "measure") or needs_process(step.get("steps", ())) for step in steps
    )


class Steps:
    def __init__(self, stage: Stage, seen: Observation) -> None:
        self._stage = stage
        self._seen = seen
        self._do: dict[str, Callable[[dict], Awaitable[None]]] = {
            "post": self._post,
            "post_raw": self._post_raw,
            "post_each": self._post_each,
            "parallel": self._parallel,
            "get": self._get,
            "poll": self._poll,
            "derive_stop": self._derive_stop,
            "signal": self._signal,
            "start": self._start,
            "reset_caches": self._reset_caches,
            "sleep": self._sleep,
            "measure": self._measure,
        }

    async def run(self, steps: Sequence[dict]) -> None:
        """A poll in the background ends with the step beside it, or, where a signal is sent, when its time is over."""
        began_s = time.monotonic()
        has_signal = "signal" in {inner["do"] for step in steps for inner in (step, *step.get("steps", ()))}
        beside: list[asyncio.Task[None]] = []
        is_enough = asyncio.Event()  # for the polls that run
        try:
            for step in steps:
                if step["do"] == "poll" and step.get("background"):
                    beside.append(asyncio.create_task(self._poll(step, is_enough)))
                    continue
                await self._do[step["do"]](step)
                if not has_signal:
                    is_enough.set()
                    is_enough = asyncio.Event()
            await asyncio.gather(*beside)
        finally:
            for task in beside:
                task.cancel()
        self._seen.ended_s = time.monotonic()
        self._seen.seconds = self._seen.ended_s - began_s

    async def _post(self, step: dict) -> None:
        body = filled(step["body"], {"{STOP}": self._seen.stop})
        limits = {name: step[name] for name in ("abort_after_chunks", "abort_after_s") if name in step}
        reply = await self._stage.server.client.post(
            body, path=step.get("path", CHAT), headers=step.get("headers", {}), **limits
        )
        self._keep(step, reply)

    async def _post_raw(self, step: dict) -> None:
        reply = await self._stage.server.client.post_raw(
            step["body"], path=step.get("path", CHAT), headers=step.get("headers", JSON)
        )
        self._keep(step, reply)

    async def _post_each(self, step: dict) -> None:
        bodies = self._stage.bodies_of(step)
        replies: dict[int, Reply] = {}

        async def take_turns() -> None:
            for index, body in numbered:
                replies[index] = await self._stage.server.client.post(body)

        numbered = enumerate(bodies)
        await asyncio.gather(*(take_turns() for _ in range(step.get("concurrency", 1))))
        for index in sorted(replies):
            self._keep(step, replies[index])

    async def _parallel(self, step: dict) -> None:
        """All at once, or one after the other by `stagger_ms`; what is saved keeps the order of the steps."""
        tasks = []
        branches = []
        for index, inner in enumerate(step["steps"]):
            branch = Steps(self._stage, Observation(stop=self._seen.stop, stop_source=self._seen.stop_source))
            branches.append(branch)
            delay_s = index * step.get("stagger_ms", 0) / 1000
            tasks.append(asyncio.create_task(branch._after(delay_s, inner)))
        await asyncio.gather(*tasks)
        for branch in branches:
            self._seen.take(branch._seen)

    async def _after(self, delay_s: float, step: dict) -> None:
        await asyncio.sleep(delay_s)
        await self._do[step["do"]](step)

    async def _get(self, step: dict) -> None:
        self._seen.keep(step.get("save"), await self._stage.server.client.get(step["path"]))

    async def _poll(self, step: dict, is_enough: asyncio.Event | None = None) -> None:
        """Each turn begins on time, however long the last answer took; ends early once `is_enough`."""
        every_s, for_s = step.get("every_ms", _POLL_EVERY_MS) / 1000, step.get("for_s", _POLL_FOR_S)
        began_s = turn_s = time.monotonic()
        num_polls = 0
        while turn_s < began_s + for_s and not (
            is_enough and is_enough.is_set() and num_polls >= _LEAST_POLLS
        ):
            self._seen.keep(step.get("save"), await self._stage.server.client.get(step["path"]))
            num_polls += 1
            turn_s = max(turn_s + every_s, time.monotonic())
            await asyncio.sleep(turn_s - time.monotonic())

    async def _derive_stop(self, step: dict) -> None:
        """A text that is shorter than wanted gives its last piece of the wanted length."""
        text = self._seen.texts(step["from"])[0]
        start, end = step["at"]
        if end > len(text):
            start, end = max(len(text) - (end - start), 0), len(text)
        if start >= end:
            raise Unmet(f"the text of {step['from']} has a stop string in it; seen: {text!r}")
        self._seen.stop, self._seen.stop_source = text[start:end], text

    async def _signal(self, step: dict) -> None:
        await asyncio.sleep(step.get("after_s", 0))
        process = self._stage.server.process
        assert process is not None, "a scenario with a signal runs on a process of ours"
        self._stage.server.is_spent = True
        process.send(step["target"], step["sig"].removeprefix("SIG"))
        self._seen.signals.append(time.monotonic())

    async def _start(self, step: dict) -> None:
        self._seen.start = await self._stage.start(step["flags"])

    async def _reset_caches(self, step: dict) -> None:
        await self._stage.server.reset_caches()

    async def _sleep(self, step: dict) -> None:
        await asyncio.sleep(step["s"])

    async def _measure(self, step: dict) -> None:
        process = self._stage.server.process
        assert process is not None, "a scenario with a measure runs on a process of ours"
        if step.get("what", "rss") != "rss":
            raise Unmet(f"nobody knows how to measure {step['what']}")
        self._seen.keep(step.get("save"), process.resident_bytes())

    def _keep(self, step: dict, reply: Reply) -> None:
        self._seen.replies.append(reply)
        self._seen.keep(step.get("save"), reply)
