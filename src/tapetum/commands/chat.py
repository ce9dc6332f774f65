"""`tapetum chat`: a conversation in a terminal, about pictures too.

Owns the terminal: what is read, what is shown, and what Ctrl-C ends. Answers go to standard output, everything else
to standard error, so a conversation can be piped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tapetum.command_help import FlagsCommand
from tapetum.commands.conversation import Conversation, Kind, paths_of, split_dropped
from tapetum.commands.place import client_of, model_of, place_flags, place_of
from tapetum.core.errors import EngineError, RequestError, TapetumError
from tapetum.flags import sampling_flags

if TYPE_CHECKING:
    import httpx2

    from tapetum.commands.answer import Answer

_HELP = """\
/image PATH...  show pictures with the next message (or drop files on the terminal)
/video PATH...  show clips
/system TEXT    tell the model how to answer; without TEXT, no longer
/clear          forget what was said
/exit, /quit    end, as does Ctrl-D
A backslash at the end of a line goes on with the next one. Ctrl-C stops an answer."""
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@click.command(cls=FlagsCommand)
@sampling_flags
@place_flags
@click.pass_context
def chat(
    call: click.Context, /, max_tokens: int | None, temperature: float | None, **options: object
) -> None:
    """Talk with a model about pictures and videos.

    Type /help for what else can be said. With --url, MODEL is the name of the server's model; default: its first.
    """
    logging.basicConfig(level=logging.WARNING, format="tapetum: %(message)s")
    place = place_of(call, options)
    sampling = {"max_tokens": max_tokens, "temperature": temperature}
    asked = {name: value for name, value in sampling.items() if value is not None}
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        client = runner.run(stack.enter_async_context(client_of(place)))
        try:
            model = runner.run(model_of(place, client))
            tell(f"{model}; /help tells what can be said, Ctrl-D ends")
            talk = Talk(runner, client, {"model": model, **asked})
            talk.run()
        finally:
            runner.run(stack.aclose())
    if talk.has_failed and not sys.stdin.isatty():  # a person has seen it
        call.exit(1)


class Talk:
    """Reads lines and answers them until the end."""

    def __init__(
        self, runner: asyncio.Runner, client: httpx2.AsyncClient, request: Mapping[str, object]
    ) -> None:
        self._runner = runner
        self._client = client
        self._request = request
        self._conversation = Conversation()
        self._num_answers = self._num_failures = 0
        self._commands: dict[str, Callable[[str], None]] = {
            "/image": lambda text: self._attach("image", paths_of(text)),
            "/video": lambda text: self._attach("video", paths_of(text)),
            "/system": self._instruct,
            "/clear": self._clear,
            "/help": lambda _: tell(_HELP),
        }

    @property
    def has_failed(self) -> bool:
        """Whether there were questions, and not one answer."""
        return self._num_failures > 0 and self._num_answers == 0

    def run(self) -> None:
        while (line := read_message()) is not None and line not in ("/exit", "/quit"):
            try:
                self._take(line)
            except TapetumError as error:
                tell(error.message, colour="red")

    def _take(self, line: str) -> None:
        files, text = split_dropped(line)
        for kind, path in files:
            self._attach(kind, [path])
        if not files and text.startswith("/"):
            name, _, rest = text.partition(" ")
            if name not in self._commands:
                raise RequestError(f"{name} is no command; /help lists them")
            self._commands[name](rest.strip())
        elif text:
            self._ask(text)

    def _attach(self, kind: Kind, paths: Sequence[Path]) -> None:
        for path in paths:
            self._conversation.attach(kind, path)
            tell(f"{path.name} goes with your next words")

    def _instruct(self, text: str) -> None:
        self._conversation.instruct(text)
        tell("the model is told to follow that" if text else "the model is told nothing any more")

    def _clear(self, _: str) -> None:
        self._conversation.clear()
        tell("what was said is forgotten")

    def _ask(self, text: str) -> None:
        import httpx2

        from tapetum.commands.answer import Answer

        answer = Answer(show)
        self._num_failures += 1  # until it has gone well
        self._conversation.ask(text)
        try:
            self._runner.run(
                answer.read(self._client, {**self._request, "messages": self._conversation.messages})
            )
        except KeyboardInterrupt:  # the request is cancelled; what was said stays said
            answer.finish_reason = "stopped"
        except httpx2.TransportError as error:
            raise EngineError(f"the connection broke: {error or type(error).__name__}") from error
        finally:
            if answer.text:
                click.echo()
                self._conversation.answer(answer.text)
            else:
                self._conversation.take_back()
        self._num_failures -= 1
        self._num_answers += 1
        tell(_summary(answer))


def read_message() -> str | None:
    """One message, whose lines but the last end in a backslash; None at the end of the input."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - input() edits lines with it
    lines: list[str] = []
    while True:
        try:
            line = input(("  " if lines else "> ") if is_terminal else "")
        except EOFError:
            if is_terminal:
                click.echo()
            return "\n".join(lines).strip() if lines else None
        except KeyboardInterrupt:
            click.echo()
            lines.clear()
            continue
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(lines).strip()


def show(text: str, is_thought: bool) -> None:
    """A piece of an answer, without what could drive the terminal."""
    text = text.translate(_CONTROLS)
    if is_thought:
        click.secho(text, nl=False, dim=True, err=True)
    else:
        click.echo(text, nl=False)


def tell(text: str, *, colour: str | None = None) -> None:
    """Words of the program itself."""
    click.secho(text, err=True, dim=colour is None, fg=colour)


def _summary(answer: Answer) -> str:
    tokens = "" if answer.num_tokens is None else f"{answer.num_tokens} tokens in "
    first = "" if answer.first_s is None else f", the first after {answer.first_s:.2f} s"
    end = {"length": ", cut at the limit", "stopped": ", stopped"}.get(answer.finish_reason or "", "")
    return f"{tokens}{answer.seconds:.2f} s{first}{end}"
