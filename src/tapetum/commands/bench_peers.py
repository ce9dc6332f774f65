"""`tapetum bench peers`: Tapetum and other servers on the same checkpoint, in turn, and how they compare."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tapetum import __version__
from tapetum.command_help import FlagsCommand
from tapetum.core.errors import ConfigError
from tapetum.flags import COUNT, option

if TYPE_CHECKING:
    from tapetum.bench.peers import Peer
    from tapetum.bench.record import Record, Repeat

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(file_okay=False, path_type=Path)


@click.command(cls=FlagsCommand)
@click.argument("model", type=_FOLDER)
@option("--peer", "named", multiple=True, help="vllm, llama or transformers, as KIND or KIND=PATH; several.")
@option("--gguf", "gguf", multiple=True, help="The checkpoint for llama, as PRECISION=FILE; several.")
@option("--mmproj", "mmproj", type=_FILE, help="Its vision part, for llama.")
@option(
    "--workloads",
    "workloads",
    default="T1,W1,W2,W3,W4,W5",
    show_default=True,
    help="Also P10 (start each server for its turn alone), P11.",
)
@option("--repeats", "repeats", type=COUNT, default=3, show_default=True, help="Repeats of each workload.")
@option("--requests", "num_requests", type=COUNT, default=4, show_default=True, help="Of T1 and W1.")
@option("--per-client", "per_client", type=COUNT, default=2, show_default=True, help="Requests, in W2.")
@option("--threads", "threads", type=COUNT, help="Of each server.  [default: all cores]")
@option("--peer-args", "peer_args", multiple=True, help="More words of a command, as KIND=WORDS; several.")
@option("--seed", "seed", default="s", show_default=True, help="Of pictures and texts.")
@option("--out", "out", type=_OUT, required=True, help="Folder for run.json, report.md, chart.svg and logs.")
def peers(
    model: Path,
    named: tuple[str, ...],
    gguf: tuple[str, ...],
    mmproj: Path | None,
    threads: int | None,
    peer_args: tuple[str, ...],
    out: Path,
    **options: object,
) -> None:
    """Ask Tapetum and other servers the same, and compare.

    Servers run at equal threads, one loaded at a time. A repeat in which other processes used more than 0.1 core does
    not count where another does. Run it on a quiet machine; with `nice -n -18` before it where that is allowed.
    """
    from tapetum.bench.peers import Ground, peers_of

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers are stopped then too
    ground = Ground(
        checkpoint=model,
        threads=threads or len(os.sched_getaffinity(0)),
        gguf=tuple((name, _existing(file, "--gguf")) for name, file in _pairs(gguf, "--gguf")),
        mmproj=mmproj,
        more_words={kind: tuple(shlex.split(words)) for kind, words in _pairs(peer_args, "--peer-args")},
    )
    _measure(peers_of(named, ground), ground.checkpoint, ground.threads, out, options)


def _measure(found: Sequence[Peer], model: Path, threads: int, out: Path, options: dict[str, object]) -> None:
    from tapetum.bench.chart import chart
    from tapetum.bench.goals import shape_of
    from tapetum.bench.record import Record, Setup, write_record
    from tapetum.bench.report import goals_of, report
    from tapetum.bench.run import Plan, Run
    from tapetum.bench.workloads import Sizes

    out.mkdir(parents=True, exist_ok=True)
    seen: list[Repeat] = []
    failed: dict[str, str] = {}

    def record() -> Record:
        setup = Setup(
            version=__version__,
            model=model.name,
            shape=shape_of(model),
            threads=threads,
            seed=str(options["seed"]),
            commands={peer.label: shlex.join(_shown(peer.command)) for peer in found},
            failed=failed,
        )
        return Record(setup=setup, repeats=tuple(seen))

    def told(repeat: Repeat) -> None:
        seen.append(repeat)
        click.echo(_line(repeat), err=True)
        write_record(record(), out / "run.json")  # a run that is stopped leaves what it has

    def missed(label: str, why: str) -> None:
        failed[label] = why
        click.echo(f"{label} is left out: {why}", err=True)

    sizes = Sizes(num_requests=int(str(options["num_requests"])), per_client=int(str(options["per_client"])))
    plan = Plan(
        workloads=_known(str(options["workloads"])),
        repeats=int(str(options["repeats"])),
        seed=str(options["seed"]),
        sizes=sizes,
        checkpoint=model,
        logs=out,
    )
    Run(plan, told, missed).all(found)
    whole = record()
    write_record(whole, out / "run.json")
    text = report(whole)
    (out / "report.md").write_text(text + "\n", encoding="utf-8")
    (out / "chart.svg").write_text(chart(goals_of(whole)), encoding="utf-8")
    click.echo(text)
    click.echo(f"written to {out}", err=True)


def _known(names: str) -> tuple[str, ...]:
    from tapetum.bench.run import PATCHES, START
    from tapetum.bench.workloads import WORKLOADS

    wanted = tuple(name.strip() for name in names.split(","))
    known = (*WORKLOADS, START, PATCHES)
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--workloads has {name!r}, known are {', '.join(known)}")
    return wanted


def _pairs(values: Sequence[str], flag: str) -> list[tuple[str, str]]:
    pairs = [value.partition("=") for value in values]
    for name, sign, rest in pairs:
        if not (name and sign and rest):
            raise ConfigError(f"{flag} is {name + sign + rest!r}, must be NAME=VALUE")
    return [(name, rest) for name, _, rest in pairs]


def _existing(name: str, flag: str) -> Path:
    if not os.path.isfile(name):
        raise ConfigError(f"{flag}: no such file: {name}")
    return Path(name)


def _shown(command: Sequence[str]) -> list[str]:
    """Without the folders of this machine."""
    return [Path(word).name if word.startswith("/") else word for word in command]


def _line(repeat: Repeat) -> str:
    names = ("ttft_s", "tpot_s", "requests_per_s", "gap_max_s", "first_token_s", "patches_s")
    values = [f"{name} {repeat.figures[name]:.4g}" for name in names if name in repeat.figures]
    mark = (
        ""
        if repeat.counts
        else f"  does not count: {repeat.faults[0] if repeat.faults else 'others at work'}"
    )
    return (
        f"{repeat.number} {repeat.peer:20} {repeat.workload:4} {', '.join(values)}; "
        f"foreign {repeat.use.foreign_cores:.2f} cores, {repeat.use.seconds:.1f} s{mark}"
    )
