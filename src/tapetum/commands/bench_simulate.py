"""`tapetum bench simulate`: a trace against the real scheduler, with a device that only says how long it would take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from tapetum.command_help import FlagsCommand
from tapetum.commands import page
from tapetum.core.config import Schedule, ScheduleConfig, ServerConfig
from tapetum.core.errors import ConfigError
from tapetum.flags import COUNT, option

if TYPE_CHECKING:
    from tapetum.bench.simulate.simulation import Setup
    from tapetum.bench.simulate.study import Study
    from tapetum.bench.simulate.summary import Kind, Summary
    from tapetum.bench.simulate.trace import Arrival

_COUNT = 300  # requests of a preset
_MAX_NOISE = 2.0


@click.command(cls=FlagsCommand)
@option("--trace", "trace", default="mixed", show_default=True, help="A preset, or a file of JSON lines.")
@option("--replicas", "replicas", type=COUNT, default=1, show_default=True, help="Engines.")
@option(
    "--coefficients",
    "coefficients",
    default="qwen2vl-mini-cpu",
    show_default=True,
    help="What the device costs: a name or a file.",
)
@option("--num-prompts", "num_prompts", type=COUNT, default=_COUNT, show_default=True, help="Of a preset.")
@option("--load", "load", type=float, help="Of what a plain engine can do.  [default: the preset's]")
@option("--seed", "seed", type=int, default=0, show_default=True, help="Of arrivals and noise.")
@option(
    "--schedule",
    "schedule",
    type=click.Choice(get_args(Schedule)),
    default="balanced",
    show_default=True,
    help="As of an engine.",
)
@option("--itl-target-ms", "itl_target_ms", type=float, help="As of an engine.  [default: what is promised]")
@option("--max-num-seqs", "max_num_seqs", type=COUNT, default=64, show_default=True, help="As of an engine.")
@option("--max-queue-seconds", "max_queue_s", type=float, help="As of a server.")
@option("--quality-ladder", "ladder_s", type=float, help="As of a server: seconds to the first token.")
@option("--noise", "noise", type=float, default=0.0, show_default=True, help="Of the times of steps.")
@option("--baseline/--no-baseline", "has_baseline", default=True, show_default=True, help="Compare.")
@option("--out", "out", type=click.Path(path_type=Path), help="Folder for study.json, plot.svg, trace.jsonl.")
def simulate(
    trace: str, replicas: int, coefficients: str, seed: int, out: Path | None, **options: object
) -> None:
    """Play a trace through the scheduler, without a model.

    A plain engine, first come, first served, plays it too.
    """
    from tapetum.bench.simulate.coefficients import read_coefficients
    from tapetum.bench.simulate.plot import plot
    from tapetum.bench.simulate.simulation import Setup
    from tapetum.bench.simulate.study import keeping, study, write_study
    from tapetum.bench.simulate.trace import write_trace

    setup = Setup(
        coefficients=read_coefficients(coefficients),
        schedule=_schedule(options),
        num_replicas=replicas,
        max_queue_s=ServerConfig(max_queue_s=_number(options["max_queue_s"])).max_queue_s,
        noise=_noise(float(str(options["noise"]))),
        seed=seed,
    )
    arrivals, capacity = _arrivals(trace, setup, options)
    if (target_ms := _number(options["itl_target_ms"])) is None:
        setup = keeping(setup, arrivals)
    else:
        setup = replace(setup, schedule=replace(setup.schedule, itl_target_ms=target_ms))
    result = study(trace, arrivals, setup, capacity=capacity, has_baseline=bool(options["has_baseline"]))
    _show(result)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_study(result, out / "study.json")
        (out / "plot.svg").write_text(plot(result), encoding="utf-8")
        write_trace(arrivals, out / "trace.jsonl")
        click.echo(f"written to {out}")


def _schedule(options: dict[str, object]) -> ScheduleConfig:
    return ScheduleConfig(
        schedule=options["schedule"],  # type: ignore[arg-type]
        max_num_seqs=int(str(options["max_num_seqs"])),
        quality_ladder_s=_number(options["ladder_s"]),
    )


def _arrivals(
    source: str, setup: Setup, options: dict[str, object]
) -> tuple[tuple[Arrival, ...], float | None]:
    """Of a preset, with the rate that a plain engine can do; of a file, as they are."""
    from tapetum.bench.simulate.presets import PRESETS
    from tapetum.bench.simulate.study import draw
    from tapetum.bench.simulate.trace import read_trace

    load = _number(options["load"])
    if source not in PRESETS:
        if load is not None:
            raise ConfigError(
                f"--load is {load:g}, but a trace that is a file has its own times; leave it out"
            )
        if not Path(source).exists():
            raise ConfigError(
                f"--trace is {source!r}, which is neither a file nor one of {', '.join(PRESETS)}"
            )
        return read_trace(Path(source)), None
    if load is not None and not 0 < load < float("inf"):
        raise ConfigError(f"--load is {load:g}, must be above 0, such as 1.2")
    return draw(PRESETS[source], setup, int(str(options["num_prompts"])), load)


def _noise(given: float) -> float:
    if not 0 <= given <= _MAX_NOISE:
        raise ConfigError(f"--noise is {given:g}, allowed are 0 to {_MAX_NOISE:g}")
    return given


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))


def _show(study: Study) -> None:
    ours, other = study.ours, study.baseline
    page.title(f"{study.trace} on {study.coefficients}", study.note, is_good=True)
    page.section("trace")
    page.row("requests", str(ours.num_requests), f"{study.rate:.4g} a second, seed {study.seed}")
    if study.capacity is not None:
        page.row("capacity", f"{study.capacity:.4g} a second", "of a plain engine")
    note = f"{study.itl_target_ms:g} ms between tokens"
    page.row("engines", str(study.num_replicas), f"--schedule {study.schedule}, {note}")
    page.section("goodput")
    heads = ["", "good", "of accepted", "a second", "refused", "lost", "busy", "preempted", "longest wait, s"]
    page.table(heads, [_goodput_cells(run) for run in study.runs])
    if other is not None and other.num_good:
        page.row("times as good", f"{ours.num_good / other.num_good:.2f}")
    for run in study.runs:
        page.section(run.name)
        page.table(
            [
                "",
                "requests",
                "good",
                "smaller",
                "TTFT p50",
                "p95",
                "p99",
                "alone, s",
                "ITL p50",
                "p99",
                "gap p99",
                "alone, ms",
            ],
            [_kind_cells(kind) for kind in run.kinds],
        )
    if len(ours.tenants) > 1:
        page.section("tenants")
        rows = [
            [
                f"{tenant.name}, {run.name}",
                str(tenant.num_requests),
                str(tenant.num_good),
                f"{tenant.share:.1%}",
            ]
            for run in study.runs
            for tenant in run.tenants
        ]
        page.table(["", "requests", "good", "share of work"], rows)
    click.echo()


def _goodput_cells(run: Summary) -> list[str]:
    num_refused = run.num_requests - run.num_accepted
    return [
        run.name,
        f"{run.num_good}",
        "-" if run.good_of_accepted is None else f"{run.good_of_accepted:.1%}",
        f"{run.goodput:.4g}",
        f"{num_refused}",
        f"{sum(kind.num_lost for kind in run.kinds)}",
        f"{run.utilization:.0%}",
        f"{run.num_preemptions}",
        f"{run.longest_wait_s:.2f}",
    ]


def _kind_cells(kind: Kind) -> list[str]:
    seconds = (kind.ttft_p50_s, kind.ttft_p95_s, kind.ttft_p99_s, kind.unloaded_ttft_s)
    gaps = (kind.itl_p50_s, kind.itl_p99_s, kind.gap_p99_s, kind.unloaded_itl_s)
    return [
        kind.name,
        f"{kind.num_requests}",
        f"{kind.num_good}",
        f"{kind.num_degraded}",
        *("-" if value is None else f"{value:.2f}" for value in seconds),
        *("-" if value is None else f"{1e3 * value:.1f}" for value in gaps),
    ]
