"""From the start of a server to its first token: without packed weights from an earlier start, and with them.

    python benchmarks/start.py CHECKPOINT [--repeats 3] [--pack-cache DIR] [--out FILE]

Each start is `tapetum serve` in a process of its own and one text request once it serves. Printed are the seconds since
the process began at which each thing was there: the model in memory (imports of torch and the engine included), what
its steps cost (measured by the first start), the golden answer, the first token; and the processor time of all of it up
to the end of the server. The first start reads the checkpoint once before, so that it is in the page cache for all.
Packs are kept in a folder that is deleted afterwards, if none is given.
"""

from __future__ import annotations

import argparse
import http.client
import json
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# name, logger, beginning of the line that says it is there
STAGES = (
    ("model", "tapetum.runtime.executor", ""),
    ("costs", "tapetum.engine.build", "loaded in"),
    ("ready", "tapetum.server.run", "serving"),
)
_WRITTEN_S = 120.0  # for packs to be written; there are none on torch, or of a model that is too small


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--repeats", type=int, default=3, help="starts with packs")
    parser.add_argument("--pack-cache", type=Path, help="folder for packs, empty at first")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    for file in arguments.checkpoint.glob("*.safetensors"):
        warm(file)
    with packs_in(arguments.pack_cache) as folder:
        cold = start(arguments.checkpoint, folder, wait_for_packs=True)
        show("no packs", cold)
        repeats = [start(arguments.checkpoint, folder) for _ in range(arguments.repeats)]
    median = {name: statistics.median(times[name] for times in repeats) for name in repeats[0]}
    show(f"packs, median of {len(repeats)}", median)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"no_packs": cold, "packs": repeats, "median": median}, indent=1))


def warm(file: Path) -> None:
    with file.open("rb", buffering=0) as opened:
        while opened.read(2**24):
            pass


@contextmanager
def packs_in(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def start(checkpoint: Path, folder: Path, *, wait_for_packs: bool = False) -> dict[str, float]:
    """Seconds from the start of the process to each stage and to the first token."""
    port = free_port()
    command = [sys.executable, "-m", "tapetum", "serve", str(checkpoint)]
    command += ["--port", str(port), "--pack-cache", str(folder)]
    started_s, used_s = time.perf_counter(), processor_s()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            times = {name: at_s - started_s for name, at_s in stages(server.stderr)}
            ask(port, checkpoint.name)
            times["first token"] = time.perf_counter() - started_s
            end_s = time.perf_counter() + _WRITTEN_S
            while wait_for_packs and not list(folder.glob("*.packs")) and time.perf_counter() < end_s:
                time.sleep(0.1)
        finally:
            server.terminate()
    times["processor"] = processor_s() - used_s
    return times


def processor_s() -> float:
    """Of the processes started here that have ended, and of those that they started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def stages(lines: Iterator[str]) -> Iterator[tuple[str, float]]:
    """Each stage with the time at which its line came; ends with the last."""
    said: list[str] = []
    for line in lines:
        said.append(line)
        entry = json.loads(line) if line.startswith("{") else {"logger": "", "message": line}
        for name, logger, beginning in STAGES:
            if entry["logger"] == logger and entry["message"].startswith(beginning):
                yield name, time.perf_counter()
                if name == STAGES[-1][0]:
                    return
    sys.exit("the server has ended:\n" + "".join(said))


def ask(port: int, model: str) -> None:
    """Returns with the first token of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is to be seen in a picture of a harbour?"}],
        "max_tokens": 1,
        "stream": True,
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    for line in answer:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            return
    sys.exit("the answer has no token")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def show(title: str, times: dict[str, float]) -> None:
    print(f"{title}: " + ", ".join(f"{name} {value:.2f} s" for name, value in times.items()), flush=True)


if __name__ == "__main__":
    main()
