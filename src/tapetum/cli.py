"""The command line: `tapetum run`, `chat`, `serve`, `run-batch`, `bench`, `evaluate`, `doctor`, `plan`.

Owns commands, what they print, and exit codes: 2 for what the user can correct, 1 for the rest. Each command
imports its world when it runs, so `--help` is quick and needs no torch.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tapetum import __version__
from tapetum.command_help import FlagsCommand
from tapetum.commands.batch import run_batch
from tapetum.commands.bench import bench
from tapetum.commands.chat import chat
from tapetum.commands.doctor import doctor
from tapetum.commands.place import tell_loading
from tapetum.commands.plan import plan
from tapetum.core.config import EngineConfig
from tapetum.core.errors import ConfigError, RequestError, TapetumError
from tapetum.core.logs import set_up_logging
from tapetum.flags import (
    COUNT,
    DTYPE,
    engine_config,
    engine_flags,
    model_option,
    one_model,
    option,
    sampling_flags,
    serve_config,
    server_flags,
)

if TYPE_CHECKING:
    from tapetum.core.chat import MediaPart
    from tapetum.core.request import SamplingParams
    from tapetum.engine.generation import Generation
    from tapetum.engine.output import Delta


_INTERRUPTED = 130  # what shells use for the end by Ctrl-C


class _Commands(click.Group):
    command_class = FlagsCommand

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; a typed error is one line and an exit code, not a traceback, and so is Ctrl-C."""
        try:
            return super().invoke(ctx)
        except TapetumError as error:
            click.echo(f"tapetum: {error.message}", err=True)
            ctx.exit(2 if isinstance(error, (RequestError, ConfigError)) else 1)
        except KeyboardInterrupt:
            click.echo("tapetum: stopped", err=True)
            ctx.exit(_INTERRUPTED)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="tapetum")
def main() -> None:
    """Vision-language inference that computes every picture once.

    Every flag --some-flag may also be set as TAPETUM_SOME_FLAG.
    """


@main.command()
@click.argument("words", nargs=-1, required=True, metavar="[MODEL] FILE... QUESTION")
@sampling_flags
@option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@engine_flags
def run(
    words: tuple[str, ...],
    max_tokens: int | None,
    temperature: float | None,
    as_json: bool,
    **options: object,
) -> None:
    """Ask a question about pictures, videos and PDF documents.

    A first argument that is a directory with a config.json, or a .gguf file, is the model. The answer goes to standard
    output as it is made, tokens and seconds to standard error.
    """
    import asyncio

    from tapetum.core.request import SamplingParams

    logging.basicConfig(level=logging.WARNING, format="tapetum: %(message)s")
    model, files, question = _split_words(words, options)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    asyncio.run(_ask(engine_config(model, options), files, question, sampling, as_json=as_json))


@main.command()
@click.argument("model_argument", required=False, metavar="[MODEL]")
@server_flags
@engine_flags
def serve(model_argument: str | None, **options: object) -> None:
    """Answer OpenAI's chat API over HTTP."""
    from tapetum.engine.child import try_start_child
    from tapetum.server.process import keep_standard_files

    engine, server = serve_config(one_model(model_argument, options), options)
    set_up_logging(server.log_level)
    keep_standard_files()
    child = try_start_child()  # before the imports of the server, beside which it does its own
    from tapetum.server.run import serve as run_server

    run_server(engine, server, child)


@main.command()
@click.argument("model_argument", required=False, metavar="[MODEL]")
@model_option
@option("--dtype", "dtype", type=DTYPE, default="auto", show_default=True, help="Type of the weights.")
@option("--n", "n", type=COUNT, default=100, show_default=True, help="Questions of each task.")
@option(
    "--tasks", "tasks", help="Names with commas between; default: all that the bundled model was trained on."
)
@option(
    "--condition",
    "conditions",
    default="clean",
    show_default=True,
    help="Of clean, jpeg, blur, rotate and fonts, with commas between: a table for each.",
)
@option(
    "--fonts",
    "fonts",
    type=click.Path(exists=True, file_okay=False),
    help="Folder of the faces that condition fonts draws with.",
)
@option("--json", "json_path", type=click.Path(dir_okay=False), help="Write figures and wrong answers here.")
def evaluate(
    model_argument: str | None,
    dtype: str,
    n: int,
    tasks: str | None,
    conditions: str,
    fonts: str | None,
    json_path: str | None,
    **options: object,
) -> None:
    """Measure how often a model answers drawn questions exactly."""
    from tapetum.evaluate import ALL_TASKS
    from tapetum.evaluate import run as run_evaluation

    names = ALL_TASKS if tasks is None else _names(tasks)
    model = one_model(model_argument, options)
    run_evaluation(model, n, names, dtype, json_path, _names(conditions), fonts)


main.add_command(bench)
main.add_command(chat)
main.add_command(doctor)
main.add_command(plan)
main.add_command(run_batch)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _split_words(words: Sequence[str], options: dict[str, object]) -> tuple[str | None, list[Path], str]:
    """Model, files and question."""
    *names, question = words
    is_model = bool(names) and options["model"] is None and _is_model(names[0])
    model = one_model(names.pop(0) if is_model else None, options)
    for name in names:
        if os.path.isdir(name):
            raise click.UsageError(f"{name} is a directory without a config.json, so it is no model")
        if not os.path.isfile(name):
            raise click.UsageError(
                f"no such file: {name}; name pictures first, then the question in quotes, and give a hub id with "
                "--model"
            )
    if os.path.isfile(question):
        raise click.UsageError(f"{question} is a file; put the question behind it, in quotes")
    return model, [Path(name) for name in names], question


def _is_model(name: str) -> bool:
    return os.path.isfile(os.path.join(name, "config.json")) or name.endswith(".gguf")


async def _ask(
    config: EngineConfig, files: Sequence[Path], question: str, sampling: SamplingParams, *, as_json: bool
) -> None:
    from tapetum.core.chat import ChatInput, Message
    from tapetum.engine.output import joined
    from tapetum.engine.service import AsyncEngine

    media = tuple(map(_part_of, files))
    chat = ChatInput(messages=(Message(role="user", content=(*media, question)),))
    if not as_json:
        tell_loading(config)
    async with AsyncEngine(config) as engine:
        started_s = time.perf_counter()
        generation = await engine.submit(chat, sampling)
        deltas: list[Delta] = []
        async for delta in generation:
            deltas.append(delta)
            if not as_json:
                click.echo(delta.text, nl=False)
        seconds = time.perf_counter() - started_s
    answer = joined(deltas)
    if as_json:
        click.echo(_as_json(engine.model_names[0], generation, answer, seconds))
    else:
        click.echo()
        cut = ", cut at the limit" if answer.finish_reason == "length" else ""
        click.echo(f"{len(answer.tokens)} tokens in {seconds:.2f} s{cut}", err=True)
        for seen in generation.pages:
            numbers = ", ".join(map(str, seen.pages))
            click.echo(f"pages {numbers} of {seen.num_pages} of {seen.name}", err=True)


def _part_of(file: Path) -> MediaPart:
    """What a file is by its first bytes; one that is nothing known is told about as a picture."""
    from tapetum.core.chat import DocumentPart, MediaPart
    from tapetum.media.container import is_video
    from tapetum.media.document import START_BYTES, is_pdf

    try:
        with file.open("rb") as opened:
            start = opened.read(START_BYTES)
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror}") from error
    if is_pdf(start):
        return DocumentPart(source=file, name=file.name, is_trusted=True)
    return MediaPart(kind="video" if is_video(start) else "image", source=file, is_trusted=True)


def _as_json(model: str, generation: Generation, answer: Delta, seconds: float) -> str:
    report = {
        "model": model,
        "answer": answer.text,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": len(generation.prompt.token_ids),
        "completion_tokens": len(answer.tokens),
        "seconds": round(seconds, 4),
        "media": [asdict(media) for media in generation.media],
        "pages": [asdict(pages) for pages in generation.pages] or None,
        "timing": {name: round(value, 6) for name, value in asdict(generation.timing).items()},
    }
    return json.dumps(report, ensure_ascii=False)
