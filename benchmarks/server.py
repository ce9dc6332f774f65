"""What the server itself costs: no model, the real two processes, clients in a third.

    python benchmarks/server.py [--seconds 10] [--repeats 3] [--out server.json] [--profile FOLDER]

Measures
  streams   streamed chats of 8 tokens by 32 clients that never pause: requests per second
  pictures  chats with a JPEG of 5 MB in base64, each another one, by 2 clients: how late the event loop of the API
            process comes to what is due, at every tick of 2 ms

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
import urllib.request
from base64 import b64encode
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
STAGE, LOAD, PROFILE = "benchmarks.server_stage", "benchmarks.server_load", "TAPETUM_BENCH_PROFILE"
NUM_TOKENS = 8
STREAM_CLIENTS, PICTURE_CLIENTS = 32, 2
NUM_PICTURES, PICTURE_BYTES = 12, 3_750_000  # 5 MB in base64
Figures = dict[str, float]


class Stage:
    """The served processes; `name` is of the files that a profile goes to."""

    def __init__(self, name: str, profiles: Path | None) -> None:
        self._profiles = (
            [] if profiles is None else [profiles / f"{name}-{part}.pstats" for part in ("api", "engine")]
        )
        files = [str(file) for file in self._profiles]
        environment = {**os.environ, **({PROFILE: files[1]} if files else {})}
        self._process = subprocess.Popen(
            [sys.executable, "-m", STAGE, *files[:1]],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def lag(self) -> Figures:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/lag") as answer:
            figures: Figures = json.load(answer)
        return figures

    def load(self, bodies: list[str], num_clients: int, seconds: float) -> Figures:
        words = [str(self.port), str(num_clients), str(seconds)]
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

    def close(self) -> None:
        self._process.communicate("")
        for file in self._profiles:
            print(f"\n{file.name}")
            pstats.Stats(str(file)).sort_stats("tottime").print_stats(25)


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
    return f"data:image/jpeg;base64,{b64encode(data.ljust(PICTURE_BYTES, bytes(1))).decode()}"


def look(seed: int) -> str:
    parts = [
        {"type": "image_url", "image_url": {"url": picture(seed)}},
        {"type": "text", "text": "What is it?"},
    ]
    return chat(parts, mm_processor_kwargs={"max_pixels": 1_003_520})


def streams(seconds: float, profiles: Path | None) -> Figures:
    stage = Stage("streams", profiles)
    bodies = [chat(f"Question {number}: what is the total?") for number in range(500)]
    stage.load(bodies, STREAM_CLIENTS, min(1.0, seconds))  # warm up
    return measured(stage, bodies, STREAM_CLIENTS, seconds)


def pictures(seconds: float, profiles: Path | None) -> Figures:
    stage = Stage("pictures", profiles)
    stage.load([look(0)], 1, min(1.0, seconds))
    return measured(stage, [look(1 + number) for number in range(NUM_PICTURES)], PICTURE_CLIENTS, seconds)


def measured(stage: Stage, bodies: list[str], num_clients: int, seconds: float) -> Figures:
    stage.lag()
    busy = busy_s()
    figures = stage.load(bodies, num_clients, seconds)
    busy = busy_s() - busy
    lag = {f"lag_ms_{name}": value for name, value in stage.lag().items()}
    stage.close()
    return {**figures, **lag, "busy_cores": busy / seconds}


def busy_s() -> float:
    """CPU seconds of the whole machine, idle and waiting excluded."""
    fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
    user, nice, system, _, _, irq, softirq = fields
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


# what, of which measurement, unit of print, whether more is better, goal
ROWS = (
    ("streamed requests of 8 tokens per second", "streams", "requests_per_s", True, 400.0),
    ("  events of a request", "streams", "events_per_request", True, None),
    ("  time to the first bytes, ms, median", "streams", "first_ms_p50", False, None),
    ("  time to the end, ms, 99 of 100", "streams", "whole_ms_p99", False, None),
    ("event loop late with 5 MB pictures, ms, median", "pictures", "lag_ms_p50", False, None),
    ("event loop late with 5 MB pictures, ms, 99 of 100", "pictures", "lag_ms_p99", False, 5.0),
    ("  pictures per second", "pictures", "requests_per_s", True, None),
    ("busy cores of the machine, streams", "streams", "busy_cores", False, None),
    ("busy cores of the machine, pictures", "pictures", "busy_cores", False, None),
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
        print(f"{what:52} {value:9.2f}  ({min(values):.2f} to {max(values):.2f})  {mark}")
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
    results: dict[str, list[Figures]] = {"streams": [], "pictures": []}
    for _ in range(repeats):
        results["streams"].append(streams(arguments.seconds, folder))
        results["pictures"].append(pictures(arguments.seconds, folder))
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
