"""`tapetum bench kernels`: what the native kernels reach on this machine, beside torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tapetum.command_help import FlagsCommand
from tapetum.core.errors import EngineError
from tapetum.flags import COUNT, option

if TYPE_CHECKING:
    import ctypes

    from tapetum.commands.kernels_attention import Timing

_FILE = click.Path(dir_okay=False, path_type=Path)
_SECONDS = click.FloatRange(min=0.0, min_open=True)


@click.command(cls=FlagsCommand)
@option("--threads", "threads", type=COUNT, help="Of either side.  [default: all cores]")
@option("--seconds", "seconds", type=_SECONDS, default=0.3, show_default=True, help="Of each measurement.")
@option("--json", "file", type=_FILE, help="Write the figures there too.")
def kernels(threads: int | None, seconds: float, file: Path | None) -> None:
    """Time memory, matrix products, norms and attention, each for a moment, beside torch on as many threads.

    The shortest time counts. Run it on a quiet machine. All of it takes about half a minute and 2 GiB of memory.
    """
    import torch

    from tapetum.native import library as native

    library = native.load()
    if library is None:
        raise EngineError("the native library is not built; `make native` in a checkout builds it")
    if threads is not None:
        library.tpt_set_num_threads(threads)
    threads = int(library.tpt_num_threads())
    torch.set_num_threads(threads)
    isa = library.tpt_isa().decode()
    click.echo(f"{isa}, {threads} threads\n{'':48}{'native':>11}{'torch':>11}{'rate':>14}")
    timings = list(_told(_measured(library, seconds)))
    if file is not None:
        rows = [
            {"name": each.name, "native_s": each.native_s, "torch_s": each.torch_s,
             "rate": each.rate, "unit": each.unit}
            for each in timings
        ]  # fmt: skip
        file.write_text(json.dumps({"isa": isa, "threads": threads, "timings": rows}, indent=1) + "\n")


def _measured(library: ctypes.CDLL, seconds: float) -> Iterator[Timing]:
    from tapetum.commands import kernels_attention, kernels_linear
    from tapetum.ops.native_attention import NativeAttention

    yield from kernels_linear.timings(library, seconds)
    yield from kernels_attention.timings(NativeAttention(library), seconds)


def _told(timings: Iterable[Timing]) -> Iterator[Timing]:
    for each in timings:
        click.echo(
            f"{each.name:48}{each.native_s * 1e3:8.3f} ms{each.torch_s * 1e3:8.3f} ms"
            f"{each.rate:9.1f} {each.unit}"
        )
        yield each
