"""`tapetum run-batch`: a file of requests in OpenAI's batch format, answered by the same application as over HTTP."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from tapetum.command_help import FlagsCommand
from tapetum.commands.place import Place, client_of, place_flags, place_of, unreachable
from tapetum.core.config import ScheduleConfig
from tapetum.flags import COUNT, option

if TYPE_CHECKING:
    from tapetum.commands.batch_files import Input, Output

_MAX_EXIT_CODE = 125  # shells use those above for other ends
_INTERRUPTED = 130
_MAX_REASONS = 3


@click.command("run-batch", cls=FlagsCommand)
@option("--input", "source", "-i", type=click.File("rb"), required=True, help="Requests; - = standard input.")
@option(
    "--output",
    "target",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Answers, in the order in which they come.",
)
@option("--concurrency", "concurrency", type=COUNT, help="Requests at a time.  [default: --max-num-seqs]")
@option(
    "--served-model-name",
    "served_model_names",
    multiple=True,
    help="What the requests call the model; may be given several times.",
)
@place_flags
@click.pass_context
def run_batch(
    call: click.Context, /, source: BinaryIO, target: Path, concurrency: int | None, **options: object
) -> None:
    """Answer a file of requests.

    Each line is {"custom_id": "...", "method": "POST", "url": "/v1/chat/completions", "body": {...}}, as in OpenAI's
    batches; its answer is a line of the output. The same command goes on where a run has ended: it skips what the
    output has. The exit code is the number of requests that have no answer but an error, 125 at most.
    """
    from tapetum.commands.batch_files import Input, Output

    logging.basicConfig(level=logging.WARNING, format="tapetum: %(message)s")
    place = place_of(call, options)
    questions = Input(_seekable(source), source.name)
    output = Output(target)
    try:
        _answer(place, questions, output, concurrency or _rows(place))
    except KeyboardInterrupt:
        click.echo("\nstopped; the same command goes on from here", err=True)
        call.exit(_INTERRUPTED)
    finally:
        output.close()
        num_answered = output.num_answered(questions.custom_ids)
        click.echo(
            f"{num_answered} of {len(questions.custom_ids)} requests are answered in {target}", err=True
        )
        if errors := output.errors(questions.custom_ids):
            click.echo(f"errors: {_reasons(errors)}", err=True)
    call.exit(min(len(questions.custom_ids) - num_answered, _MAX_EXIT_CODE))


def _seekable(file: BinaryIO) -> BinaryIO:
    """A file that can be read twice: what comes through a pipe goes to disk first."""
    if file.seekable():
        return file
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - it goes with the process
    shutil.copyfileobj(file, spool)
    return spool


def _rows(place: Place) -> int:
    return (place.config.schedule if place.config else ScheduleConfig()).max_num_seqs


def _reasons(errors: Counter[str]) -> str:
    """The most frequent codes, and how many errors have others."""
    first = sorted(errors.items(), key=lambda item: (-item[1], item[0]))[:_MAX_REASONS]
    reasons = [f"{count} {code}" for code, count in first]
    rest = errors.total() - sum(count for _, count in first)
    return ", ".join(reasons) + (f", and {rest} more" if rest else "")


def _answer(place: Place, questions: Input, output: Output, concurrency: int) -> None:
    import httpx2

    if questions.custom_ids <= output.answered.keys():
        return
    try:
        asyncio.run(_ask(place, questions, output, concurrency))
    except httpx2.TransportError as error:
        raise unreachable(place, error) from error


async def _ask(place: Place, questions: Input, output: Output, concurrency: int) -> None:
    from tqdm import tqdm

    from tapetum.commands.batch_run import BatchRun

    there = questions.custom_ids & output.answered.keys()
    num_errors = len(there) - output.num_answered(there)
    left = (question for question in questions if question.custom_id not in output.answered)
    async with client_of(place) as client:
        with tqdm(total=len(questions.custom_ids), initial=len(there), unit="req", file=sys.stderr) as bar:

            def tell(is_answer: bool) -> None:
                nonlocal num_errors
                num_errors += not is_answer
                bar.set_postfix(errors=num_errors, refresh=False)
                bar.update()

            await BatchRun(client, output, tell).ask_all(left, concurrency)
