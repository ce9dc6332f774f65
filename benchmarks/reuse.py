"""Every picture computed once: what the second look at a picture costs, after a restart and beside another server too.

    python -m benchmarks.reuse CHECKPOINT [--side 1344] [--pictures 5] [--askers 50] [--only abc] [--out FILE]

  a  the same question about the same picture again: its first token by that of the first question (at most 0.1)
  b  a restart with a disk tier: the first token of a known picture by that of an unknown one (at most 0.35), each as
     the first request of a fresh process, and as those behind it; answers are to be the same
  c  two servers over one Redis: what one has encoded the other finds, and as many askers as are wanted, of one new
     picture, half of them at either server, cost one encode

Servers are `tapetum serve` in processes of their own, with packed weights from a start before. The seconds that such a
process takes to start are told beside, and are in no ratio. Ends with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tests.tier_servers import REDIS, redis_server

QUESTION = "What is in this picture? Answer in one sentence."
AGAIN, RESTARTED = 0.1, 0.35  # the goals


@dataclass(frozen=True, slots=True)
class Answer:
    ttft_s: float
    text: str
    cache: str


@dataclass(frozen=True, slots=True)
class Server:
    port: int
    start_s: float  # until it said that it serves

    def ask(self, picture: str, max_tokens: int = 8) -> Answer:
        """Streamed, by a connection of its own."""
        content = [
            {"type": "image_url", "image_url": {"url": picture}},
            {"type": "text", "text": QUESTION},
        ]
        body = json.dumps(
            {
                "model": "default",
                "messages": [{"role": "user", "content": content}],
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
        )
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        began_s = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"the server answers {response.status}: {response.read().decode()}")
        ttft_s, text, cache = 0.0, "", ""
        for line in response:
            data = line.strip().removeprefix(b"data: ")
            if not data.startswith(b"{"):
                continue
            event = json.loads(data)
            for choice in event.get("choices", ()):
                if said := choice["delta"].get("content"):
                    ttft_s = ttft_s or time.perf_counter() - began_s
                    text += said
            for medium in event.get("tapetum", {}).get("media", ()):
                cache = medium["cache"] or cache
        connection.close()
        return Answer(ttft_s, text, cache)


@contextmanager
def serving(options: argparse.Namespace, *flags: str) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tapetum", "serve", str(options.checkpoint), "--port", str(port)]
    command += ["--pack-cache", str(options.packs), *options.flags.split(), *flags]
    began_s = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if "serving" in line and f":{port}" in line:
                    break
            else:
                sys.exit("the server has ended:\n" + "".join(said))
            threading.Thread(
                target=process.stderr.read, daemon=True
            ).start()  # so that it never waits for a reader
            yield Server(port, time.perf_counter() - began_s)
        finally:
            process.terminate()
            process.wait(60)


def picture(seed: int, side: int) -> str:
    """A JPEG that no other is like: coloured clouds under a little noise, as a data: URL."""
    random = np.random.default_rng(seed)
    clouds = random.integers(0, 256, (8, 8, 3), np.uint8)
    pixels = np.asarray(Image.fromarray(clouds).resize((side, side), Image.Resampling.BICUBIC)).astype(
        np.int16
    )
    noisy = np.clip(pixels + random.integers(-12, 13, pixels.shape), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def median_s(answers: list[Answer]) -> float:
    return statistics.median(answer.ttft_s for answer in answers)


def again(options: argparse.Namespace, pictures: list[str]) -> dict[str, object]:
    with serving(options) as server:
        server.ask(picture(999, options.side))  # the first request of a process is for nobody's account
        first = [server.ask(each) for each in pictures]
        second = [server.ask(each) for each in pictures]
    return {
        "first_s": median_s(first),
        "second_s": median_s(second),
        "ratio": median_s(second) / median_s(first),
        "goal": AGAIN,
        "sources": sorted({answer.cache for answer in second}),
        "same_answers": [answer.text for answer in first] == [answer.text for answer in second],
    }


def restarted(options: argparse.Namespace, pictures: list[str], folder: Path) -> dict[str, object]:
    tier = ("--feature-tier", f"disk:{folder}?max=4GiB")
    told: list[list[Answer]] = []
    starts: list[float] = []
    for _ in range(2):
        with serving(options, *tier) as server:
            starts.append(server.start_s)
            told.append([server.ask(each) for each in pictures])
    cold, known = told
    return {
        "process_start_s": starts,
        "first_request_cold_s": cold[0].ttft_s,
        "first_request_known_s": known[0].ttft_s,
        "first_request_ratio": known[0].ttft_s / cold[0].ttft_s,
        "cold_s": median_s(cold),
        "known_s": median_s(known),
        "ratio": max(known[0].ttft_s / cold[0].ttft_s, median_s(known) / median_s(cold)),
        "goal": RESTARTED,
        "sources": sorted({answer.cache for answer in known}),
        "same_answers": [answer.text for answer in cold] == [answer.text for answer in known],
    }


def beside(options: argparse.Namespace, pictures: list[str], url: str) -> dict[str, object]:
    tier = ("--feature-tier", f"{url}?max=4GiB")
    with serving(options, *tier) as one, serving(options, *tier) as other:
        cold = [one.ask(each) for each in pictures]
        found = [other.ask(each) for each in pictures]
        new = picture(500, options.side)
        with ThreadPoolExecutor(options.askers) as pool:
            asked = list(pool.map(lambda place: (one, other)[place % 2].ask(new), range(options.askers)))
    return {
        "cold_s": median_s(cold),
        "of_the_other_s": median_s(found),
        "sources": sorted({answer.cache for answer in found}),
        "same_answers": [answer.text for answer in cold] == [answer.text for answer in found]
        and len({answer.text for answer in asked}) == 1,
        "askers": options.askers,
        "sources_of_askers": {
            cache: sum(answer.cache == cache for answer in asked) for cache in _caches(asked)
        },
        "encodes": sum(answer.cache == "miss" for answer in asked),
        "all_found": all(answer.cache == "remote" for answer in found),
    }


def _caches(answers: list[Answer]) -> list[str]:
    return sorted({answer.cache for answer in answers})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--side", type=int, default=1344, help="of the pictures, in pixels")
    parser.add_argument("--pictures", type=int, default=5)
    parser.add_argument("--askers", type=int, default=50)
    parser.add_argument("--only", default="abc", help="parts to measure")
    parser.add_argument("--flags", default="", help="more flags of the servers, in one word")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    pictures = [picture(seed, options.side) for seed in range(options.pictures)]
    figures: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        options.packs = folder / "packs"
        with serving(options) as server:  # which leaves packed weights and costs for the others
            server.ask(pictures[0])
            time.sleep(1.0)
        if "a" in options.only:
            figures["again"] = again(options, pictures)
        if "b" in options.only:
            figures["restarted"] = restarted(options, pictures, folder / "tier")
        if "c" in options.only and REDIS is not None:
            with redis_server(folder) as redis:
                figures["beside"] = beside(options, pictures, redis.url())
    print(json.dumps(figures, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1))
    missed = [name for name, each in figures.items() if not _is_met(each)]
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


def _is_met(figures: dict[str, object]) -> bool:
    ratio, goal = figures.get("ratio", 0.0), figures.get("goal", 0.0)
    assert isinstance(ratio, float) and isinstance(goal, float), "as written above"
    is_shared = figures.get("encodes", 1) == 1 and figures.get("all_found", True) is True
    return ratio <= goal and figures["same_answers"] is True and is_shared


if __name__ == "__main__":
    main()
