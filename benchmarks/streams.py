"""How far text streams feel large pictures: the time between tokens with and without them, on one live server.

    python benchmarks/streams.py CHECKPOINT [--schedule interactive] [--texts 12] [--pictures 2] [--side 1344]

Questions of text come about one a second, `--texts` of them alone first; then again for as long as pictures are asked
about, one after another. Prints p50, p99 and the longest gap of both, the ratio of the two p99, and the time to first
token of either kind; exit code 1 if the ratio is above `--limit` (1.5 for `interactive`, none otherwise). Needs a
machine on which nothing else runs, and says how much else did.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tapetum.bench.figures import quantile
from tapetum.bench.guard import cpu_times, use_between
from tapetum.bench.launch import Launched
from tapetum.bench.load import Answer, Outcome, Target, run_script
from tapetum.bench.peers import Ground, peers_of
from tapetum.bench.workloads import Script, Sizes, looks, script_of, warm_up

LIMIT = 1.5


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument(
        "--schedule", choices=("balanced", "interactive", "throughput"), default="interactive"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--pictures", type=int, default=2)
    parser.add_argument("--side", type=int, default=1344)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--limit", type=float)
    arguments = parser.parse_args()
    ratio = asyncio.run(measure(arguments))
    limit = arguments.limit or (LIMIT if arguments.schedule == "interactive" else None)
    return int(limit is not None and ratio > limit)


async def measure(arguments: argparse.Namespace) -> float:
    """Prints, and answers with the ratio of the two p99."""
    words = {"tapetum": ("--schedule", arguments.schedule, "--max-model-len", str(arguments.max_model_len))}
    ground = Ground(checkpoint=arguments.checkpoint, threads=arguments.threads, more_words=words)
    (peer,) = peers_of((), ground)
    with tempfile.TemporaryDirectory() as folder:
        server = Launched(peer, Path(folder) / "log")
        try:
            await server.first_token()
            async with server.client() as client:
                target = server.target(client)
                await run_script(target, warm_up("streams"))
                alone = await _watched("alone", target, _texts(arguments.texts), server.pid)
                beside = await _watched("beside", target, _with_pictures(arguments), server.pid)
        finally:
            server.stop()
    ratio = beside / alone
    print(f"{arguments.schedule}: p99 between tokens beside pictures {ratio:.2f} of that without")
    return ratio


def _texts(count: int) -> Script:
    script = script_of("W4", "streams-alone", Sizes(max_paced=count))
    return replace(script, lanes=(), lead_s=0.0)


def _with_pictures(arguments: argparse.Namespace) -> Script:
    script = script_of("W4", "streams-beside", Sizes(max_paced=10_000))
    return replace(script, lanes=(looks("streams-beside", arguments.pictures, arguments.side, 16),))


async def _watched(name: str, target: Target, script: Script, pid: int) -> float:
    before = cpu_times(pid, os.getpid())
    outcome = await run_script(target, script)
    use = use_between(before, cpu_times(pid, os.getpid()))
    return _report(name, outcome, use.foreign_cores)


def _report(name: str, outcome: Outcome, others: float) -> float:
    """The p99 of the gaps of text."""
    faults = [answer.fault for answer in outcome.answers if answer.fault is not None]
    if faults:
        sys.exit(f"{len(faults)} questions failed, the first with {faults[0]}")
    gaps = [gap for answer in outcome.paced for gap in answer.gaps_s]
    if not gaps:
        sys.exit(f"{name}: no text was streamed piece by piece; ask about more or larger pictures")
    p50, p99, longest = (1e3 * value for value in (quantile(gaps, 0.5), quantile(gaps, 0.99), max(gaps)))
    large = [answer for lane in outcome.lanes for answer in lane]
    print(
        f"{name}: gaps p50 {p50:.1f}, p99 {p99:.1f}, longest {longest:.0f} ms; "
        f"TTFT of text {_ttft(outcome.paced)}, of pictures {_ttft(large)}; {others:.2f} cores of others"
    )
    return p99


def _ttft(answers: list[Answer] | tuple[Answer, ...]) -> str:
    return f"{quantile((answer.ttft_s for answer in answers), 0.5):.3f} s" if answers else "-"


if __name__ == "__main__":
    sys.exit(main())
