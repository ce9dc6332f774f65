"""Now and then a line in the log while the server is busy: how much it does, how full it is. Else memory goes back.

Counts nothing: it reads the engine's numbers and says how they have changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from tapetum.core.errors import TapetumError
from tapetum.engine.meters import Distribution, Metric
from tapetum.engine.service import AsyncEngine
from tapetum.server.process import give_back_memory

_log = logging.getLogger(__name__)
EVERY_S = 10.0
Numbers = Mapping[str, float]


async def report(engine: AsyncEngine, every_s: float = EVERY_S) -> None:
    """Without end."""
    before: Numbers = {}
    while True:
        await asyncio.sleep(every_s)
        try:
            now = numbers_of(await engine.metrics())
        except TapetumError:  # the model is still loading
            continue
        if line := busy_line(before, now, every_s):
            _log.info(line)
        else:
            await asyncio.to_thread(give_back_memory)
        before = now


def numbers_of(metrics: Iterable[Metric]) -> Numbers:
    return {
        metric.name: sum(value for value in metric.values.values() if not isinstance(value, Distribution))
        for metric in metrics
    }


def busy_line(before: Numbers, now: Numbers, seconds: float) -> str | None:
    """What has happened in `seconds`; None when that is nothing."""
    change = {name: value - before.get(name, 0.0) for name, value in now.items()}
    running, waiting = now["num_requests_running"], now["num_requests_waiting"]
    if not (running or waiting or change["prompt_tokens"] or change["generation_tokens"]):
        return None
    looked_up = change["prefix_cache_queries"]
    hits = f", {change['prefix_cache_hits'] / looked_up:.0%} of prompts cached" if looked_up else ""
    return (
        f"{change['prompt_tokens'] / seconds:.1f} prompt and {change['generation_tokens'] / seconds:.1f} output "
        f"tokens/s, {change['mm_cache_queries'] / seconds:.1f} media/s, {running:.0f} running, {waiting:.0f} "
        f"waiting, {now['kv_cache_usage_perc']:.1%} of KV in use{hits}"
    )
