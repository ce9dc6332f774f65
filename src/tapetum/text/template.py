"""Chat messages to the runs of a prompt: plain text, special tokens and slots for media.

Owns the chat template of a checkpoint and the promise that only the template writes special tokens: what a
user typed is hidden from the search for them (guard). Owns no pictures: a slot is filled by whoever has loaded the
media.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jinja2

from tapetum.core.chat import ChatInput, MediaPart, Message
from tapetum.core.errors import CheckpointError, InvalidParameter, PromptTooLong, TemplateError
from tapetum.core.files import read_json, read_text
from tapetum.core.media import MediaKind
from tapetum.text.abilities import abilities_of
from tapetum.text.guard import Disguise, Guard
from tapetum.text.jinja import build_environment
from tapetum.text.reasoning import Thinking, thinking_after
from tapetum.text.runs import MediaSlot, Run, split_runs
from tapetum.text.template_data import append_text, message_data
from tapetum.text.tokenizer import Tokenizer, special_names
from tapetum.text.tool_prompt import with_calls_told, with_tools_told
from tapetum.text.tools import check_size, read_tools

MAX_PROMPT_CHARS = 16 * 1024**2
MAX_RENDER_S = 10.0
_RESERVED = ("messages", "add_generation_prompt", "tools", "documents")


class ChatTemplate:
    """The template of one checkpoint; renders on any thread. `names` are its variables, such as eos_token.

    `abilities`: what the template does by itself. Tools that it knows nothing of are told of in words; `marks`, where
    the family has such, stand for media in the strings of a template that reads nothing else.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        names: Mapping[str, str],
        marks: Mapping[MediaKind, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        environment = build_environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(tree)
        except jinja2.TemplateError as error:
            raise CheckpointError(
                f"the chat template does not compile: {error}; correct chat_template.jinja"
            ) from error
        self.abilities = abilities_of(tree)
        self._guard = Guard(tree, tokenizer.marks)
        self._tokenizer = tokenizer
        self._names, self._marks = dict(names), marks
        self._clock = clock

    @classmethod
    def load(
        cls, directory: Path, tokenizer: Tokenizer, marks: Mapping[MediaKind, str] | None = None
    ) -> ChatTemplate:
        tokenizer_config = read_json(directory / "tokenizer_config.json") or {}
        source = _read_source(directory, tokenizer_config)
        return cls(source, tokenizer, names=special_names(tokenizer_config), marks=marks)

    def render(self, chat: ChatInput, max_tokens: int | None = None) -> list[Run]:
        """Runs of the prompt, with one slot for each media part of the messages, in their order.

        A chat of more messages than `max_tokens` is refused before it is rendered.
        """
        if not chat.messages:
            raise TemplateError("messages is empty; send at least one message", param="messages")
        if max_tokens is not None and len(chat.messages) > max_tokens:
            raise PromptTooLong(
                f"messages has {len(chat.messages)} entries of at least one token each, limit {max_tokens} tokens; "
                "send fewer or raise --max-model-len"
            )
        _check_chars(chat.messages)
        for name in _RESERVED:
            if name in chat.template_kwargs:
                raise InvalidParameter(
                    f"chat_template_kwargs sets {name!r}, which the engine sets itself; leave it out",
                    param="chat_template_kwargs",
                )
        disguise = self._guard.disguise()
        text = self._run(chat, disguise)
        runs = split_runs(self._tokenizer, text, disguise.reveal)
        _check_slots(runs, chat.messages)
        return runs

    def thinking(self, chat: ChatInput) -> Thinking:
        """How the answer to `chat` begins: whether with reasoning, which the prompt may have opened already."""
        if not self.abilities.has_reasoning:
            return "never"
        if chat.continue_final_message:
            parts = [part for message in chat.messages[-1:] for part in message.content]
            texts = [part for part in parts if isinstance(part, str)]
            return thinking_after(texts[-1] if texts else "", is_answer=True)
        probe = replace(chat, messages=(Message(role="user", content=("x",)),), tools=())
        disguise = self._guard.disguise()
        try:
            return thinking_after(disguise.reveal(self._run(probe, disguise)))
        except TemplateError:  # this template wants other turns than the probe's
            return "perhaps"

    def _run(self, chat: ChatInput, disguise: Disguise) -> str:
        """The rendered text, still hidden. Stops when the template writes too much or for too long."""
        variables = self._variables(chat, disguise)
        final = (
            _leave_open(chat.messages[-1], variables, disguise.mark) if chat.continue_final_message else None
        )
        try:
            text = self._generate(variables)
        except TemplateError:
            raise
        except Exception as error:  # a template is code: whatever it does wrong is a fault of these messages
            reason = disguise.reveal(str(error)) or type(error).__name__
            raise TemplateError(
                f"the chat template refuses these messages: {reason}", param="messages"
            ) from error
        return text if final is None else _cut_open(text, final, disguise.mark)

    def _generate(self, variables: Mapping[str, object]) -> str:
        deadline_s = self._clock() + MAX_RENDER_S
        pieces: list[str] = []
        num_chars = 0
        for piece in self._template.generate(variables):
            pieces.append(piece)
            num_chars += len(piece)
            if num_chars > MAX_PROMPT_CHARS:
                raise TemplateError(
                    f"the chat renders to more than {MAX_PROMPT_CHARS} characters; shorten the messages"
                )
            if self._clock() > deadline_s:
                raise TemplateError(
                    f"the chat template ran longer than {MAX_RENDER_S:g} s; shorten the messages"
                )
        return "".join(pieces)

    def _variables(self, chat: ChatInput, disguise: Disguise) -> dict[str, object]:
        check_size(chat.template_kwargs, "chat_template_kwargs")
        tools = [tool.as_data() for tool in read_tools(chat.tools)]
        messages = chat.messages
        if not self.abilities.has_tool_calls:
            messages = with_calls_told(messages)
        if not self.abilities.has_tools:
            messages = with_tools_told(messages, tools)
        return {
            **self._names,
            **{name: disguise.hide(value) for name, value in chat.template_kwargs.items()},
            "messages": [
                message_data(
                    message,
                    disguise,
                    f"messages[{index}]",
                    content=self.abilities.content,
                    marks=self._marks,
                )
                for index, message in enumerate(messages)
            ],
            "add_generation_prompt": chat.add_generation_prompt and not chat.continue_final_message,
            "tools": disguise.hide(tools) if tools else None,
            "documents": None,
        }


def _leave_open(message: Message, variables: Mapping[str, object], mark: str) -> str:
    """Mark where the last turn's text ends; returns that text, hidden."""
    turns = variables["messages"]
    final = None
    has_text = any(isinstance(part, str) for part in message.content)
    if message.role == "assistant" and has_text and not message.tool_calls and isinstance(turns, list):
        # The space shows whether the template trims.
        final = append_text(turns[-1], f"{mark} ")
    if final is None:
        raise TemplateError(
            f"continue_final_message is set, and the last message is of role {message.role!r:.40} "
            f"{'with tool calls' if message.tool_calls else 'and not text of the assistant'}; "
            "end the messages with the text to continue, or leave continue_final_message out",
            param="continue_final_message",
        )
    return final


def _cut_open(text: str, final: str, mark: str) -> str:
    """The prompt up to the end of the last turn's text (as transformers' continue_final_message)."""
    end = text.rfind(mark)
    if end < 0 or final.strip() not in text:
        raise TemplateError(
            "continue_final_message is set, and the chat template does not write the last message as it is; "
            "leave continue_final_message out",
            param="continue_final_message",
        )
    is_trimmed = not text.startswith(f"{mark} ", end)
    return text[:end].rstrip() if is_trimmed else text[:end]


def _check_chars(messages: Sequence[Message]) -> None:
    """Before any of it is looked through, which takes long without a pause."""
    num_chars = sum(len(text) for message in messages for text in _texts(message))
    if num_chars > MAX_PROMPT_CHARS:
        raise TemplateError(
            f"messages have {num_chars} characters, limit {MAX_PROMPT_CHARS}; shorten them", param="messages"
        )


def _texts(message: Message) -> Iterator[str]:
    yield from (part for part in message.content if isinstance(part, str))
    yield from (message.role, message.name or "", message.reasoning or "", message.tool_call_id or "")
    for call in message.tool_calls:
        yield from (call.id, call.name, call.arguments)


def _check_slots(runs: list[Run], messages: Iterable[Message]) -> None:
    """Refuse a template that drops, adds or reorders media: no picture may silently go unseen."""
    placed = [run.kind for run in runs if isinstance(run, MediaSlot)]
    sent = [part.kind for message in messages for part in message.content if isinstance(part, MediaPart)]
    if placed != sent:
        raise TemplateError(
            f"messages hold {_count(sent)}, the chat template places {_count(placed)}; "
            "send media in the order and the roles that this model's template supports",
            param="messages",
        )


def _count(kinds: list[MediaKind]) -> str:
    return f"{kinds.count('image')} pictures and {kinds.count('video')} clips"


_NO_TEMPLATE = (
    "{{ raise_exception('this model has no chat template; "
    "put a chat_template.jinja beside its config.json or send a prompt written whole') }}"
)


def _read_source(directory: Path, tokenizer_config: Mapping[str, object]) -> str:
    """The template's text from whichever file of the checkpoint has it; the newest convention wins."""
    source = read_text(directory / "chat_template.jinja")
    if source is not None:
        return source
    stored = (read_json(directory / "chat_template.json") or {}).get(
        "chat_template", tokenizer_config.get("chat_template")
    )
    if isinstance(stored, list):
        named = {entry.get("name"): entry.get("template") for entry in stored if isinstance(entry, dict)}
        stored = named.get("default")
    return stored if isinstance(stored, str) else _NO_TEMPLATE
