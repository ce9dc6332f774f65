"""A conversation on a picture that goes on later: what the first token of its second turn costs.

    python -m benchmarks.resume [CHECKPOINT] [--side 1344] [--words 60] [--rounds 3] [--out FILE]

  cold      nothing is cached: the picture is encoded, all of the prompt computed
  evicted   the first turn was answered here, but its keys and values have left the device since: a tier in host memory
            has them, or one on disk
  restart   another engine answered the first turn into a tier on disk; this one has started behind it

Engines run in this process, one after the other, with caches emptied in between, so starts are in no number. The time
is that of the whole call, with the decoding of the picture. Beside it: encodes, tokens computed, blocks brought back,
and whether the answer is that of the cold engine. Ends with 1 if one is not, or if something was encoded again.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tapetum import LLM, SamplingParams
from tapetum.core.plan import BatchPlan, Executor, StepResult
from tapetum.engine.build import build_engine
from tapetum.engine.engine import Engine
from tapetum.engine.options import config_from

Chat = list[dict[str, object]]
FIRST = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
SECOND = SamplingParams(temperature=0.0, max_tokens=1)
SETTLE_S = 0.5  # for what is saved to be there, and for a folder to be read


@dataclass(frozen=True, slots=True)
class Turn:
    """The second one."""

    case: str
    seconds: float
    num_encodes: int
    num_tokens: int
    num_blocks: int  # that came back
    token_ids: tuple[int, ...]


class Counted(Executor):
    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.num_encodes = self.num_tokens = 0

    def execute(self, plan: BatchPlan) -> StepResult:
        self.num_encodes += len(plan.encodes)
        self.num_tokens += sum(row.length for row in plan.rows)
        return self._executor.execute(plan)


class Place:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._counted = engine._executor = Counted(engine._executor)
        self._llm = LLM(engine)

    def ask(self, chat: Chat, sampling: SamplingParams) -> tuple[str, tuple[int, ...]]:
        (output,) = self._llm.chat(chat, sampling, use_tqdm=False)
        return output.outputs[0].text, tuple(output.outputs[0].token_ids)

    def second(self, case: str, chat: Chat) -> Turn:
        counted = self._counted
        counted.num_encodes = counted.num_tokens = 0
        num_arrived = self._engine.stats.num_arrived_blocks
        began_s = time.perf_counter()
        _, token_ids = self.ask(chat, SECOND)
        seconds = time.perf_counter() - began_s
        num_blocks = self._engine.stats.num_arrived_blocks - num_arrived
        return Turn(case, seconds, counted.num_encodes, counted.num_tokens, num_blocks, token_ids)

    def forget(self) -> None:
        """What was to be saved has been, and none of it is on the device."""
        time.sleep(SETTLE_S)
        self._engine.reset_caches()
        while self._engine.has_work:
            self._engine.step()

    def close(self) -> None:
        self._llm.close()


@contextmanager
def place(options: argparse.Namespace, *tiers: str) -> Iterator[Place]:
    given = {"kv_tiers": tiers, "threads": options.threads, "kv_cache_bytes": int(options.kv_gib * 2**30)}
    found = Place(build_engine(config_from(options.checkpoint, given)))
    try:
        found.ask([{"role": "user", "content": "Hello."}], SECOND)  # what the first call of all pays
        time.sleep(SETTLE_S)
        yield found
    finally:
        found.close()


def picture(seed: int, side: int) -> bytes:
    random = np.random.default_rng(seed)
    clouds = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
    buffer = io.BytesIO()
    clouds.resize((side, side), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def opening(seed: int, options: argparse.Namespace) -> Chat:
    question = " ".join(["What is in this picture, and where?"] * (options.words // 7 + 1))
    content = [
        {"type": "image", "image": picture(seed, options.side)},
        {"type": "text", "text": question},
    ]
    return [{"role": "user", "content": content}]


def going_on(chat: Chat, answer: str) -> Chat:
    return [*chat, {"role": "assistant", "content": answer}, {"role": "user", "content": "And beside it?"}]


def measure(options: argparse.Namespace, folder: str) -> Iterator[Turn]:
    chats = [opening(seed, options) for seed in range(options.rounds)]
    disk = f"disk:{folder}?max=20GiB"
    with place(options) as plain:
        answers = [plain.ask(chat, FIRST)[0] for chat in chats]
        seconds = [going_on(chat, answer) for chat, answer in zip(chats, answers, strict=True)]
        for chat in seconds:
            plain.forget()
            yield plain.second("cold", chat)
    for case, tier in (("evicted, host", "host:?max=4GiB"), ("evicted, disk", disk)):
        with place(options, tier) as kept:
            for chat in chats:
                kept.ask(chat, FIRST)
            for chat in seconds:
                kept.forget()
                yield kept.second(case, chat)
    with place(options, disk) as restarted:
        for chat in seconds:
            yield restarted.second("restart, disk", chat)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("--side", type=int, default=1344)
    parser.add_argument("--words", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kv-gib", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        turns = list(measure(options, folder))
    cold = [turn for turn in turns if turn.case == "cold"]
    cold_s = statistics.median(turn.seconds for turn in cold)
    is_right = True
    print(f"{'':16} {'first token':>12} {'by cold':>8} {'encodes':>8} {'tokens':>7} {'blocks':>7}  answer")
    for case in dict.fromkeys(turn.case for turn in turns):
        own = [turn for turn in turns if turn.case == case]
        seconds = statistics.median(turn.seconds for turn in own)
        is_same = [turn.token_ids for turn in own] == [turn.token_ids for turn in cold]
        num_encodes = max(turn.num_encodes for turn in own)
        is_right &= is_same and (case == "cold" or num_encodes == 0)
        print(
            f"{case:16} {1e3 * seconds:9.1f} ms {seconds / cold_s:8.2f} {num_encodes:8} "
            f"{max(turn.num_tokens for turn in own):7} {max(turn.num_blocks for turn in own):7}  "
            f"{'same' if is_same else 'ANOTHER'}"
        )
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(turn) for turn in turns], indent=1))
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
