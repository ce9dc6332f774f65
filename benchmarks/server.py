"""What the server itself costs: no model, the real two processes, clients in a third.

    python benchmarks/server.py [--seconds 10] [--repeats 3] [--out server.json] [--profile FOLDER]

Measures
  streams   streamed chats of 8 tokens by 32 clients that never pause: requests per second. The device takes no time, so
            tokens may come faster than they are read, and then go out together; `apart`, with 64 clients and steps
            of 5 ms, each has the time to be an event of its own
  pictures  chats with a JPEG of 5 MB in base64, each another one: how late the event loop of the API process comes to
            what is due, at every tick of 2 ms; by 2 clients that pause for 0.4 s, and `pressed` by 2 that do not

The processor that all processes together used is told beside each figure, for a machine with other work to do says
little. --profile runs each measurement once, far slower, and leaves profiles of the event loop and of the engine's.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pstats
import random
import statistics
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
STAGE, LOAD, PROFILE = "benchmarks.server_stage", "benchmarks.server_load", "TAPETUM_BENCH_PROFILE"
MARK = "TAPETUM00000"  # behind the end of a picture, where each request has a number of its own
ENGINE = "tapetum.engine.process"
NUM_TOKENS = 8
NUM_PICTURES, PICTURE_BYTES = 12, 3_750_000  # 5 MB in base64
Figures = dict[str, float]


@dataclass(frozen=True)
class Measurement:
    name: str
    num_clients: int
    bodies: Callable[[], list[str]]
    step_ms: float = 0.0
    pause_s: float = 0.0


class Stage:
    """The served processes of one measurement."""

    def __init__(self, what: Measurement, profiles: Path | None) -> None:
        name = what.name
        self._profiles = (
            [] if profiles is None else [profiles / f"{name}-{part}.pstats" for part in ("api", "engine")]
        )
        files = [str(file) for file in self._profiles]
        environment = {**os.environ, **({PROFILE: files[1]} if files else {})}
        self._process = subprocess.Popen(
            [sys.executable, "-m", STAGE, str(what.step_ms), *files[:1]],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def load(self, what: Measurement, bodies: list[str], seconds: float) -> Figures:
        words = [str(self.port), str(what.num_clients), str(what.pause_s), str(seconds)]
        done = subprocess.run(
            [sys.executable, "-m", LOAD, *words],
            cwd=ROOT,
            input=json.dumps(bodies),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        figures: Figures = json.loads(done.stdout)
        return figures

    def cpu_s(self) -> tuple[float, float]:
        """Processor seconds that the API process and the engine process have used."""
        api = Path("/proc") / str(self._process.pid)
        children = [child for task in api.glob("task/*/children") for child in task.read_text().split()]
        engine = next(
            Path("/proc") / child
            for child in children
            if ENGINE in (Path("/proc") / child / "cmdline").read_text()
        )
        return _cpu_s(api), _cpu_s(engine)

    def close(self) -> None:
        self._process.communicate("")
        for file in self._profiles:
            print(f"\n{file.name}")
            pstats.Stats(str(file)).sort_stats("tottime").print_stats(25)


def _cpu_s(process: Path) -> float:
    user, system = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def chat(content: object, **fields: object) -> str:
    messages = [{"role": "user", "content": content}]
    return json.dumps(
        {"messages": messages, "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True, **fields}
    )


def picture(seed: int) -> str:
    """A data: URL of a JPEG of the wanted size, of about 6 megapixels, such as a telephone makes."""
    source = random.Random(seed)
    small = Image.frombytes("RGB", (750, 500), source.randbytes(750 * 500 * 3))
    file = io.BytesIO()
    small.resize((3000, 2000)).save(file, "JPEG", quality=90)
    data = file.getvalue()
    assert len(data) <= PICTURE_BYTES, len(data)
    encoded = b64encode(data.ljust(PICTURE_BYTES, bytes(1))).decode()
    return f"data:image/jpeg;base64,{encoded[: -len(MARK)]}{MARK}"


def look(seed: int) -> str:
    parts = [
        {"type": "image_url", "image_url": {"url": picture(seed)}},
        {"type": "text", "text": "What is it?"},
    ]
    return chat(parts, mm_processor_kwargs={"max_pixels": 1_003_520})


def questions() -> list[str]:
    return [chat(f"Question {number}: what is the total?") for number in range(500)]


def looks() -> list[str]:
    return [look(number) for number in range(NUM_PICTURES)]


MEASUREMENTS = (
    Measurement("streams", 32, questions),
    Measurement("apart", 64, questions, step_ms=5.0),
    Measurement("pictures", 2, looks, pause_s=0.4),
    Measurement("pressed", 2, looks),
)


def measured(what: Measurement, seconds: float, profiles: Path | None) -> Figures:
    stage = Stage(what, profiles)
    bodies = what.bodies()
    stage.load(what, bodies[:1], min(1.0, seconds))  # warm up
    started_s, busy, api, engine = time.perf_counter(), busy_s(), *stage.cpu_s()
    figures = stage.load(what, bodies, seconds)
    busy_cores = (busy_s() - busy) / (time.perf_counter() - started_s)
    api, engine = (after - before for after, before in zip(stage.cpu_s(), (api, engine), strict=True))
    stage.close()
    costs = {
        f"{name}_cpu_ms": 1000 * used / figures["requests"]
        for name, used in (("api", api), ("engine", engine))
    }
    return {**figures, **costs, "busy_cores": busy_cores}


def busy_s() -> float:
    """CPU seconds of the whole machine, idle and waiting excluded."""
    fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
    user, nice, system, _, _, irq, softirq = fields
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


# what, of which measurement, key, whether more is better, goal
ROWS = (
    ("streamed requests of 8 tokens per second", "streams", "requests_per_s", True, 400.0),
    ("  events of a request", "streams", "events_per_request", True, None),
    ("  processor ms of a request, API process", "streams", "api_cpu_ms", False, None),
    ("  processor ms of a request, engine process", "streams", "engine_cpu_ms", False, None),
    ("  ms to the first bytes, median", "streams", "first_ms_p50", False, None),
    ("  ms to the end, 99 of 100", "streams", "whole_ms_p99", False, None),
    ("the same, every token an event", "apart", "requests_per_s", True, 400.0),
    ("  events of a request", "apart", "events_per_request", True, None),
    ("  processor ms of a request, API process", "apart", "api_cpu_ms", False, None),
    ("  processor ms of a request, engine process", "apart", "engine_cpu_ms", False, None),
    ("  ms to the end, 99 of 100", "apart", "whole_ms_p99", False, None),
    ("5 MB pictures: event loop late, ms, 99 of 100", "pictures", "lag_ms_p99", False, 5.0),
    ("  median", "pictures", "lag_ms_p50", False, None),
    ("  processor ms of a picture, API process", "pictures", "api_cpu_ms", False, None),
    ("  pictures per second", "pictures", "requests_per_s", True, None),
    ("5 MB pictures without a pause: late, ms, 99 of 100", "pressed", "lag_ms_p99", False, 5.0),
    ("  median", "pressed", "lag_ms_p50", False, None),
    ("  pictures per second", "pressed", "requests_per_s", True, None),
)


def show(results: dict[str, list[Figures]]) -> list[dict[str, object]]:
    table: list[dict[str, object]] = []
    for what, measurement, key, is_more_better, goal in ROWS:
        values = [figures[key] for figures in results[measurement]]
        value = statistics.median(values)
        mark = ""
        if goal is not None:
            is_met = value >= goal if is_more_better else value <= goal
            mark = f"goal {goal:g}: {'met' if is_met else 'NOT MET'}"
        busy = statistics.median(figures["busy_cores"] for figures in results[measurement])
        print(
            f"{what:52} {value:9.2f}  ({min(values):.2f} to {max(values):.2f}; {busy:.1f} cores busy)  {mark}"
        )
        table.append({"what": what, "median": value, "values": values, "goal": goal})
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.profile:
        arguments.profile.mkdir(parents=True, exist_ok=True)
    folder = arguments.profile and arguments.profile.resolve()
    repeats = 1 if folder else arguments.repeats
    results: dict[str, list[Figures]] = {what.name: [] for what in MEASUREMENTS}
    for _ in range(repeats):
        for what in MEASUREMENTS:
            results[what.name].append(measured(what, arguments.seconds, folder))
    table = show(results)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        setup = {
            "seconds": arguments.seconds,
            "cores": len(os.sched_getaffinity(0)),
            "profiled": bool(folder),
        }
        arguments.out.write_text(json.dumps({"setup": setup, "table": table, "raw": results}, indent=1))
        print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
