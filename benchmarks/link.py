"""Pictures that have moved: what position-independent reuse saves, and what it costs.

    python benchmarks/link.py time [CHECKPOINT] [--side 1344] [--pictures 2 3] [--repeats 3]
    python benchmarks/link.py answers [--n 100] [--share 0.05] [--tokens 32] [--tolerance 0.12]

time     two and three pictures that were asked about before, in another order and behind another preamble: time to the
         first token with their features cached, prefilled whole and linked. Without a checkpoint, weights are random
         and of --shape. Every link is taken, whatever the guard would say
answers  the bundled model on questions of the generator in `training/`, each asked of an engine that prefills and of
         one that may link: how many answers are equal, and how many pictures were linked or refused, after
           preamble   a picture seen without a system prompt comes behind one
           together   two pictures seen one by one come together, behind a system prompt
           shuffled   pairs come in the other order, behind a system prompt
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint import SHAPES, write_checkpoint
from PIL import Image

from tapetum import LLM, SamplingParams
from tapetum.engine.build import build_engine
from tapetum.engine.engine import Engine
from tapetum.engine.options import config_from
from tapetum.engine.output import RequestOutput
from tapetum.evaluate import TASKS, draw_cases

REUSE = {"position_independent": True}
FIRST_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
ANSWER = SamplingParams(temperature=0.0, max_tokens=96)
SYSTEM = "You are a helpful assistant."
ANY = 1e9  # a tolerance that every link meets
Messages = list[dict[str, object]]


@dataclass(frozen=True)
class Case:
    """What was asked before, and what is asked now about the same pictures."""

    before: tuple[Messages, ...]
    now: Messages


def chat(pictures: Sequence[object], question: str, system: str | None = None) -> Messages:
    shown: list[object] = [{"type": "image", "image": picture} for picture in pictures]
    asked: Messages = [{"role": "user", "content": [*shown, {"type": "text", "text": question}]}]
    return asked if system is None else [{"role": "system", "content": system}, *asked]


def make_engine(model: Path | None, options: argparse.Namespace, **settings: object) -> Engine:
    settings |= {"dtype": options.dtype, "threads": options.threads}
    settings |= {"link_share": options.share, "link_tokens": options.tokens}
    return build_engine(config_from(model, {"schedule": "throughput", **settings}))


def time_links(model: Path, options: argparse.Namespace) -> None:
    most = max(options.pictures)
    length = (1 + most) * (options.side // 28) ** 2 + 512
    pictures = [make_picture(seed, options.side) for seed in range(most)]
    with LLM(make_engine(model, options, max_model_len=length, link_tolerance=ANY)) as llm:
        for picture in pictures:
            llm.chat(chat([picture], "What is this?"), FIRST_TOKEN)
        print("pictures  tokens        ttft: whole  linked  faster     prefill: whole  linked  faster")
        for count in options.pictures:
            print(time_order(llm, [*pictures[1:count], pictures[0]], options.repeats))


def make_picture(seed: int, side: int) -> bytes:
    source = random.Random(seed)
    small = Image.frombytes("RGB", (24, 24), source.randbytes(24 * 24 * 3))
    file = io.BytesIO()
    small.resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def time_order(llm: LLM, pictures: Sequence[bytes], repeats: int) -> str:
    """A row of the table: whole and linked in turn, each behind a preamble of its own."""
    times: dict[str, list[tuple[float, float]]] = {"whole": [], "linked": []}
    num_tokens = 0
    for repeat in range(repeats):
        for way, found in times.items():
            asked = chat(pictures, "Compare them.", f"{way} {repeat} of {len(pictures)}: look closely.")
            (out,) = llm.chat(asked, FIRST_TOKEN, reuse=REUSE if way == "linked" else None)
            assert all(is_linked == (way == "linked") for is_linked in links_of(out)), out.media
            found.append((out.timing.ttft_s, out.timing.prefill_s))
            num_tokens = len(out.prompt_token_ids)
    whole, linked = (
        [statistics.median(values) for values in zip(*found, strict=True)] for found in times.values()
    )
    cells = [
        f"{one:9.3f} s {other:7.3f} s {one / other:6.1f}x" for one, other in zip(whole, linked, strict=True)
    ]
    return f"{len(pictures):8d}  {num_tokens:6d}      {'      '.join(cells)}"


def links_of(out: RequestOutput) -> list[bool]:
    reasons = [report.degraded.reason if report.degraded else None for report in out.media]
    return [reason == "position_independent" for reason in reasons]


def compare_answers(options: argparse.Namespace) -> None:
    print("setup     equal              pictures  linked  refused  equal where linked")
    for name, cases in draw(options.n):
        engine = make_engine(None, options, link_tolerance=options.tolerance)
        whole = [answer for answer, _ in ask(make_engine(None, options), cases, reuse=None)]
        linking = list(ask(engine, cases, reuse=REUSE))
        are_equal = [one == other for one, (other, _) in zip(whole, linking, strict=True)]
        where_linked = [equal for equal, (_, links) in zip(are_equal, linking, strict=True) if any(links)]
        print(
            f"{name:8s}  {sum(are_equal):3d} of {len(cases)} {sum(are_equal) / len(cases):7.1%}"
            f"  {sum(len(links) for _, links in linking):8d}  {engine.stats.num_linked:6d}"
            f"  {engine.stats.num_rejected_links:7d}  {sum(where_linked)} of {len(where_linked)}"
        )


def draw(n: int) -> Iterator[tuple[str, list[Case]]]:
    """The setups and `n` cases of each."""
    singles = list(draw_cases(TASKS, -(-n // len(TASKS))))[:n]
    pairs = list(draw_cases(("pair",), n))
    what = "What is this?"
    yield "preamble", [Case((chat(c.images, what),), chat(c.images, c.question, SYSTEM)) for c in singles]
    others = [*singles[1:], singles[0]]
    yield (
        "together",
        [
            Case(
                (chat(one.images, what), chat(other.images, what)),
                chat([*one.images, *other.images], one.question, SYSTEM),
            )
            for one, other in zip(singles, others, strict=True)
        ],
    )
    yield (
        "shuffled",
        [Case((chat(c.images[::-1], what),), chat(c.images, c.question, SYSTEM)) for c in pairs],
    )


def ask(
    engine: Engine, cases: Sequence[Case], reuse: dict[str, bool] | None
) -> Iterator[tuple[str, list[bool]]]:
    """The answer to each case, and which of its pictures were linked."""
    with LLM(engine) as llm:
        for case in cases:
            for messages in case.before if reuse else ():
                llm.chat(messages, FIRST_TOKEN)
            (out,) = llm.chat(case.now, ANSWER, reuse=reuse)
            yield out.outputs[0].text, links_of(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=("time", "answers"))
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--shape", default="mini", choices=SHAPES)
    parser.add_argument("--side", type=int, default=1344)
    parser.add_argument("--pictures", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--n", type=int, default=100, help="questions of each setup")
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--tokens", type=int, default=32, help="of a picture that are computed at least")
    parser.add_argument("--tolerance", type=float, default=0.12)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.figure == "answers":
        compare_answers(options)
    elif options.checkpoint is not None:
        time_links(options.checkpoint, options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            time_links(write_checkpoint(options.shape, Path(folder)), options)


if __name__ == "__main__":
    main()
