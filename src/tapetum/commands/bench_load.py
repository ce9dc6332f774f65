"""`tapetum bench serve`, `latency`, `throughput`: questions about drawn pictures to a server or to an engine here."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from tapetum.command_help import FlagsCommand
from tapetum.commands.place import client_of, model_of, place_flags, place_of, unreachable
from tapetum.core.errors import ConfigError, EngineError
from tapetum.flags import COUNT, option

if TYPE_CHECKING:
    from tapetum.bench.load import Outcome
    from tapetum.bench.workloads import Ask, Script
    from tapetum.commands.place import Place

T = TypeVar("T", bound=Callable[..., object])
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def _load_flags(command: T) -> T:
    for add in (
        option(
            "--output-len",
            "output_len",
            type=COUNT,
            default=32,
            show_default=True,
            help="Tokens of an answer.",
        ),
        option(
            "--image-size",
            "image_size",
            type=click.IntRange(min=0),
            default=448,
            show_default=True,
            help="Side of the picture in pixels; 0 = text alone.",
        ),
        option("--bench-seed", "bench_seed", default="s", show_default=True, help="Of pictures and texts."),
    ):
        command = add(command)
    return place_flags(command)


@click.command(cls=FlagsCommand)
@option("--num-prompts", "num_prompts", type=COUNT, default=16, show_default=True, help="Requests.")
@option("--request-rate", "rate", type=float, default=float("inf"), show_default=True, help="Per second.")
@option("--max-concurrency", "lanes", type=COUNT, help="Requests at a time, without a rate.  [default: all]")
@_load_flags
@click.pass_context
def serve(
    call: click.Context, /, num_prompts: int, rate: float, lanes: int | None, **options: object
) -> None:
    """Load a server, as it would be used."""
    from tapetum.bench.workloads import Script

    if rate <= 0:
        raise ConfigError(f"--request-rate is {rate:g}, must be above 0")
    if rate != float("inf") and lanes is not None:
        raise ConfigError("--max-concurrency has no effect beside --request-rate; leave one of them out")
    asks = _asks(options, num_prompts)
    if rate == float("inf"):
        script = Script(lanes=_dealt(asks, lanes or num_prompts))
    else:
        script = _at_rate(asks, rate, str(options["bench_seed"]))
    _show(_run(call, script, options))


@click.command(cls=FlagsCommand)
@option("--num-iters", "num_iters", type=COUNT, default=8, show_default=True, help="Repeats.")
@option("--batch-size", "batch_size", type=COUNT, default=1, show_default=True, help="Requests at a time.")
@_load_flags
@click.pass_context
def latency(call: click.Context, /, num_iters: int, batch_size: int, **options: object) -> None:
    """Time batches of a fixed size, one after another."""
    from tapetum.bench.workloads import Script

    script = Script(lanes=_dealt(_asks(options, num_iters * batch_size), batch_size))
    _show(_run(call, script, options))


@click.command(cls=FlagsCommand)
@option("--num-prompts", "num_prompts", type=COUNT, default=32, show_default=True, help="Requests.")
@_load_flags
@click.pass_context
def throughput(call: click.Context, /, num_prompts: int, **options: object) -> None:
    """Answer many requests that all come at once."""
    from tapetum.bench.workloads import Script

    script = Script(lanes=_dealt(_asks(options, num_prompts), num_prompts))
    _show(_run(call, script, options))


def _asks(options: dict[str, object], count: int) -> tuple[Ask, ...]:
    from tapetum.bench.workloads import looks

    size, tokens = (int(str(options.pop(name))) for name in ("image_size", "output_len"))
    return looks(str(options["bench_seed"]), count, size, tokens)


def _dealt(asks: tuple[Ask, ...], lanes: int) -> tuple[tuple[Ask, ...], ...]:
    return tuple(asks[lane::lanes] for lane in range(min(lanes, len(asks))))


def _at_rate(asks: tuple[Ask, ...], rate: float, seed: str) -> Script:
    """Arrivals as of many people: the pauses are drawn from an exponential distribution."""
    from tapetum.bench.workloads import Paced, Script

    pauses = random.Random(seed)
    return Script(lanes=(), paced=tuple(Paced(ask, pauses.expovariate(rate)) for ask in asks))


def _run(call: click.Context, script: Script, options: dict[str, object]) -> Outcome:
    import httpx2

    options.pop("bench_seed")
    place = place_of(call, options)
    try:
        return asyncio.run(_ask(place, script))
    except httpx2.TransportError as error:
        raise unreachable(place, error) from error


async def _ask(place: Place, script: Script) -> Outcome:
    from tapetum.bench.load import Target, run_script
    from tapetum.bench.workloads import warm_up

    async with client_of(place) as client:
        target = Target(client, await model_of(place, client), lambda _: {"ignore_eos": True})
        await run_script(target, warm_up("warm"))
        return await run_script(target, script)


def _show(outcome: Outcome) -> None:
    """Means, medians and tails of the answers, in ms."""
    from tapetum.bench.figures import quantile

    good = [answer for answer in outcome.answers if answer.fault is None]
    faults = [answer.fault for answer in outcome.answers if answer.fault]
    if not good:
        raise EngineError(f"no request of {len(faults)} was answered: {faults[0]}")
    click.echo(f"{'requests':24} {len(good)} answered, {len(faults)} failed, in {outcome.wall_s:.2f} s")
    if faults:
        click.echo(f"{'first fault':24} {faults[0]}")
    click.echo(f"{'requests per second':24} {len(good) / outcome.wall_s:.3f}")
    tokens = sum(answer.num_tokens for answer in good)
    click.echo(f"{'output tokens per second':24} {tokens / outcome.wall_s:.2f}")
    times = {
        "TTFT, ms": [answer.ttft_s for answer in good],
        "TPOT, ms": [answer.tpot_s for answer in good],
        "gap between tokens, ms": [gap for answer in good for gap in answer.gaps_s],
        "whole request, ms": [answer.end_s for answer in good],
    }
    for title, values in times.items():
        if values:
            tails = ", ".join(
                f"{name} {1000 * quantile(values, share):.1f}" for name, share in _QUANTILES.items()
            )
            click.echo(f"{title:24} mean {1000 * statistics.fmean(values):.1f}, {tails}")
