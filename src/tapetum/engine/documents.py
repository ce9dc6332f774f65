"""Whole documents: read from the first page to the last, in as many requests as that takes, then asked about.

Owns the order of those requests and their words. Each sees a window of pages, as many as fit, with the notes on all
pages before; its answer are the notes that go on to the next. The last one is the question itself, with the notes in
the place of the document. Knows no engine: whoever drives a `Reading` asks each errand in its own way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace

from tapetum.core.chat import ChatInput, DocumentPart, Message
from tapetum.core.media import ChosenBy, PagesSeen
from tapetum.core.request import SamplingParams
from tapetum.engine.output import RequestOutput
from tapetum.engine.pages import question_of
from tapetum.engine.places import Content, documents_of, with_contents
from tapetum.engine.prompts import PromptInput
from tapetum.text.reasoning import ReasoningStream, Thinking

_NOTES_SHARE = 8  # of the context
_MAX_NOTES = 512  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Tokens of the requests that came before the last one."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    visual_tokens: int = 0

    def and_of(self, output: RequestOutput) -> Spent:
        return Spent(
            prompt_tokens=self.prompt_tokens + len(output.prompt_token_ids),
            completion_tokens=self.completion_tokens + sum(len(one.token_ids) for one in output.outputs),
            cached_tokens=self.cached_tokens + output.num_cached_tokens,
            visual_tokens=self.visual_tokens + sum(media.visual_tokens for media in output.media),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Errand:
    """A request on the way to an answer."""

    chat: ChatInput
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A chat without whole documents, and what it took to come to it."""

    chat: PromptInput
    spent: Spent


OnReading = Callable[[str], None]  # hears the id of the last request whenever one before it has been taken
Reading = Generator[Errand, RequestOutput, Prepared]


def has_whole_documents(prompt: PromptInput) -> bool:
    return isinstance(prompt, ChatInput) and any(part.mode == "map_reduce" for part in documents_of(prompt))


def read_whole(
    chat: ChatInput, sampling: SamplingParams, max_model_len: int, thinking: Callable[[ChatInput], Thinking]
) -> Reading:
    """Every errand in turn; each is answered before the next. `thinking` says how answers to a chat begin."""
    notes_sampling = _for_notes(sampling, min(_MAX_NOTES, max(1, max_model_len // _NOTES_SHARE)))
    spent = Spent()
    told: list[PagesSeen] = []
    contents: dict[int, Content] = {}
    for number, part in enumerate(documents_of(chat)):
        if part.mode != "map_reduce":
            continue
        notes, seen, start = "", list[int](), 1
        while start:
            window = _window(chat, part, start, notes)
            output = yield Errand(window, notes_sampling)
            spent = spent.and_of(output)
            notes = _spoken(output, thinking(window))
            (pages,) = output.pages
            seen += pages.pages
            start = _next_start(part, pages)
        told.append(_told(number, part, seen, pages.num_pages))
        contents[id(part)] = (f"Notes on {len(seen)} of {pages.num_pages} pages of a document:\n{notes}\n",)
    return Prepared(replace(with_contents(chat, contents), pages=tuple(told)), spent)


async def fulfilled(reading: Reading, ask: Callable[[Errand], Awaitable[RequestOutput]]) -> Prepared:
    """Ask all errands of a reading. Cancelling it ends the one that is under way."""
    errand = next(reading)
    while True:
        output = await ask(errand)
        try:
            errand = reading.send(output)
        except StopIteration as end:
            return _prepared(end)


def fulfilled_now(reading: Reading, ask: Callable[[Errand], RequestOutput]) -> Prepared:
    """The same in the caller's own thread."""
    errand = next(reading)
    while True:
        output = ask(errand)
        try:
            errand = reading.send(output)
        except StopIteration as end:
            return _prepared(end)


def _prepared(end: StopIteration) -> Prepared:
    assert isinstance(end.value, Prepared), "what a reading returns"
    return end.value


def _window(chat: ChatInput, part: DocumentPart, start: int, notes: str) -> ChatInput:
    """The pages from `start` on, with what is known of those before."""
    before = f"\nNotes on the pages before:\n{notes}\n" if notes else ""
    words = (
        f"{before}\nThese pages are a part of a document that is read piece by piece. The task for the whole document "
        f"is: {question_of(chat).text}\nWrite notes, with page numbers, of all that the task needs from these pages "
        "and from the notes before. Do not answer yet."
    )
    window = replace(part, mode="retrieve", first_page=start)
    return ChatInput(
        messages=(*_system(chat), Message(role="user", content=(window, words))),
        template_kwargs=chat.template_kwargs,
        max_visual_tokens=chat.max_visual_tokens,
        reuse=chat.reuse,
    )


def _system(chat: ChatInput) -> list[Message]:
    """What holds for every window, which shows no document but its own."""
    return [
        replace(
            message, content=tuple(part for part in message.content if not isinstance(part, DocumentPart))
        )
        for message in chat.messages
        if message.role in ("system", "developer")
    ]


def _next_start(part: DocumentPart, window: PagesSeen) -> int:
    """The page after a window, 0 where nothing is left to read."""
    last = max(part.pages) if part.pages else window.num_pages
    return window.pages[-1] + 1 if window.pages[-1] < last else 0


def _told(number: int, part: DocumentPart, seen: list[int], num_pages: int) -> PagesSeen:
    chosen_by: ChosenBy = "all" if len(seen) == num_pages else "request"
    return PagesSeen(
        document=number, name=part.name, pages=tuple(seen), num_pages=num_pages, chosen_by=chosen_by
    )


def _for_notes(sampling: SamplingParams, max_tokens: int) -> SamplingParams:
    """The same way of choosing tokens, but nothing of what the answer itself has to look like."""
    return replace(
        sampling,
        max_tokens=max_tokens,
        min_tokens=0,
        ignore_eos=False,
        stop=(),
        stop_token_ids=(),
        logprobs=None,
        logit_bias={},
        grammar=None,
        prediction="",
    )


def _spoken(output: RequestOutput, thinking: Thinking) -> str:
    """What an answer says, without what it thought."""
    text = output.outputs[0].text
    if thinking != "never":
        stream = ReasoningStream(is_open=thinking == "open")
        text = stream.push(text).content + stream.flush().content
    return text.strip()
