"""Documents in a prompt: which of their pages the model sees, laid out as pictures in the order of the document.

Owns the choice. The last question of the user ranks the pages; of the best as many are taken as were asked for and as
fit the context, the budget of visual tokens and the number of pictures. They stand by their numbers, whatever their
rank, so that a prompt which chooses the same pages is the same prompt and its prefix is found again. Does not own how
a document is opened and searched (media/document_library.py) or how a page becomes a picture (media/document.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol, TypeVar

from tapetum.core.chat import ChatInput, DocumentPart, MediaPart
from tapetum.core.config import MEDIA_LIMIT
from tapetum.core.errors import InvalidParameter, MediaTooLarge
from tapetum.core.media import ChosenBy, PagesSeen
from tapetum.core.request import SamplingParams
from tapetum.engine.arrange import Arrangement, TextTokens, arrange
from tapetum.engine.files import ModelFiles
from tapetum.engine.loads import Loads, result_of
from tapetum.engine.places import Content, check_kinds, documents_of, with_contents
from tapetum.engine.prompts import PromptBuilder, PromptInput, PromptLimits
from tapetum.media.document import Document
from tapetum.media.document_library import Consultation, Question
from tapetum.media.plan import MediaPlan

_ANSWER_SHARE = 8  # of the context is left for an answer of which nobody said how long it may be
_MAX_NAME = 120
T = TypeVar("T")


class DocumentLoader(Protocol):
    """`media.ingest.Ingest` is one."""

    def plan(self, part: MediaPart, *, tenant: str) -> Future[MediaPlan]: ...

    def consult(self, part: DocumentPart, question: Question, *, tenant: str) -> Future[Consultation]: ...

    def page_texts(self, document: Document, pages: Sequence[int]) -> Future[list[str]]: ...


@dataclass(slots=True)
class _Room:
    """What is left for pages."""

    tokens: int
    visual_tokens: int
    pictures: int

    def share(self, count: int) -> _Room:
        """Of one of so many that share it."""
        return _Room(self.tokens // count, self.visual_tokens // count, max(1, self.pictures // count))

    def has(self, leaf: _Leaf) -> bool:
        is_within = leaf.num_tokens <= self.tokens and leaf.num_visual_tokens <= self.visual_tokens
        return self.pictures > 0 and is_within

    def take(self, leaf: _Leaf) -> None:
        self.tokens -= leaf.num_tokens
        self.visual_tokens -= leaf.num_visual_tokens
        self.pictures -= 1


@dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    """A page that may be seen: what stands for it, and what that costs."""

    number: int
    content: Content
    num_tokens: int
    num_visual_tokens: int


class PageReader:
    """Puts pages in the place of documents; safe to call from many threads."""

    def __init__(
        self, files: ModelFiles, loader: DocumentLoader, prompts: PromptBuilder, limits: PromptLimits
    ) -> None:
        self._files = files
        self._loader = loader
        self._prompts = prompts
        self._limits = limits

    def laid_out(
        self, prompt: PromptInput, sampling: SamplingParams, tenant: str, loads: Loads
    ) -> PromptInput:
        """The prompt with pages for its documents; blocks until those are known. Other media beside documents are
        looked at here too, since they take room."""
        parts = documents_of(prompt)
        if not parts:
            return prompt
        if not isinstance(prompt, ChatInput):
            raise InvalidParameter("documents are read in chats only; send messages", param="prompt")
        if any(part.mode == "map_reduce" for part in parts):
            raise InvalidParameter(
                "mode map_reduce takes several requests and cannot be foretold; ask for the answer itself",
                param="mode",
            )
        check_kinds(parts, self._files.processor.media_tokens)
        layout = _Layout(self._files, self._loader, tenant, loads)
        room = self._room(prompt, sampling, layout)
        found = layout.consult(parts, question_of(prompt))
        self._check_bytes(parts, found)
        contents: dict[int, Content] = {}
        seen: list[PagesSeen] = []
        numbers = _free_numbers(prompt)
        for place, (part, consultation) in enumerate(zip(parts, found, strict=True)):
            leaves, chosen_by = layout.chosen(part, consultation, room.share(len(parts) - place))
            for leaf in leaves:
                room.take(leaf)
            seen.append(
                PagesSeen(
                    document=next(numbers),
                    name=part.name,
                    pages=tuple(leaf.number for leaf in leaves),
                    num_pages=consultation.document.num_pages,
                    chosen_by=chosen_by,
                )
            )
            pages = (piece for leaf in leaves for piece in leaf.content)
            contents[id(part)] = (*_title(part, place, len(parts)), *pages)
        told = sorted((*prompt.pages, *seen), key=lambda pages: pages.document)
        return replace(with_contents(prompt, contents), pages=tuple(told))

    def _room(self, prompt: ChatInput, sampling: SamplingParams, layout: _Layout) -> _Room:
        """What the rest of the prompt and the answer leave."""
        parts = documents_of(prompt)
        titles: dict[int, Content] = {
            id(part): _title(part, place, len(parts)) for place, part in enumerate(parts)
        }
        draft = self._prompts.draft(with_contents(prompt, titles), sampling)  # refuses what can never fit
        others = layout.num_tokens_of(draft.media)
        context = self._limits.max_model_len
        answer = draft.sampling.max_tokens or self._files.defaults.max_new_tokens or context // _ANSWER_SHARE
        budget = prompt.max_visual_tokens
        most = self._limits.max_media
        return _Room(
            tokens=context - answer - draft.num_text_tokens - others,
            visual_tokens=context if budget is None else budget - others,
            pictures=(most.get("image", MEDIA_LIMIT) if isinstance(most, Mapping) else most)
            - len(draft.media),
        )

    def _check_bytes(self, parts: Sequence[DocumentPart], found: Sequence[Consultation]) -> None:
        limit = self._limits.max_media_bytes
        total = sum(
            len(consultation.document.file.data)
            for part, consultation in zip(parts, found, strict=True)
            if not part.is_trusted
        )
        if total > limit:
            raise MediaTooLarge(
                f"documents of the prompt have more than {limit} bytes together, the limit; send fewer or smaller "
                "ones or raise --media-max-mb"
            )


class _Layout:
    """The documents of one prompt on their way to pages."""

    def __init__(self, files: ModelFiles, loader: DocumentLoader, tenant: str, loads: Loads) -> None:
        self._processor = files.processor
        self._loader = loader
        self._tenant = tenant
        self._loads = loads
        self._tokens = TextTokens(files.tokenizer.encode_plain, files.tokenizer.special_tokens)

    def consult(self, parts: Sequence[DocumentPart], question: Question) -> list[Consultation]:
        return self._results(
            [self._loader.consult(part, question, tenant=self._tenant) for part in parts], parts
        )

    def num_tokens_of(self, media: Sequence[MediaPart]) -> int:
        """In a prompt, with what their family writes around them."""
        return sum(
            self._arranged((part,), plan).num_tokens
            for part, plan in zip(media, self._plans(media), strict=True)
        )

    def chosen(
        self, part: DocumentPart, consultation: Consultation, room: _Room
    ) -> tuple[list[_Leaf], ChosenBy]:
        """The pages that are seen, in the order of the document. There is always one: should that be too large for
        the prompt, it is refused later, as any picture is."""
        wanted, chosen_by = _ranked(part, consultation)
        best = self._leaves(part, consultation.document, wanted[: max(1, room.pictures)])
        leaves: list[_Leaf] = []
        for leaf in best:
            if room.has(leaf):
                leaves.append(leaf)
                room.take(leaf)
            elif part.first_page is not None:
                break  # the next window begins with it
        leaves = sorted(leaves or best[:1], key=lambda leaf: leaf.number)
        return leaves, "all" if len(leaves) == consultation.document.num_pages else chosen_by

    def _leaves(self, part: DocumentPart, document: Document, numbers: Sequence[int]) -> list[_Leaf]:
        pictures = [
            MediaPart(kind="image", source=document.page(number), options=part.options, is_trusted=True)
            for number in numbers
        ]
        texts = [""] * len(numbers)
        if part.page_text:
            (texts,) = self._results([self._loader.page_texts(document, numbers)], (part,))
        leaves = []
        for number, picture, plan, text in zip(numbers, pictures, self._plans(pictures), texts, strict=True):
            words = text.replace("\r\n", "\n").strip()
            content = (
                f"Page {number} of {document.num_pages}:\n",
                picture,
                f"\n{words}\n" if words else "\n",
            )
            arrangement = self._arranged(content, plan)
            leaves.append(_Leaf(number, content, arrangement.num_tokens, arrangement.num_visual_tokens))
        return leaves

    def _plans(self, media: Sequence[MediaPart]) -> list[MediaPlan]:
        return self._results([self._loader.plan(part, tenant=self._tenant) for part in media], media)

    def _arranged(self, content: Content, plan: MediaPlan) -> Arrangement:
        return arrange(content, (self._processor.expand(plan.geometry),), self._tokens)

    def _results(self, futures: Sequence[Future[T]], parts: Sequence[MediaPart]) -> list[T]:
        """What came of loads, in order; the first failure ends the others."""
        self._loads.begin(futures)
        try:
            return [
                result_of(future, part, index, len(parts), self._loads.left_s)
                for index, (future, part) in enumerate(zip(futures, parts, strict=True))
            ]
        finally:
            self._loads.end()


def question_of(chat: ChatInput) -> Question:
    """What the user says last, and said before that."""
    said = [
        "\n".join(part for part in message.content if isinstance(part, str))
        for message in chat.messages
        if message.role == "user"
    ]
    texts = [text for text in said if text.strip()]
    return Question(*texts[:-3:-1])


def _ranked(part: DocumentPart, consultation: Consultation) -> tuple[list[int], ChosenBy]:
    """Pages that may be seen, the best first."""
    num_pages = consultation.document.num_pages
    allowed = sorted(set(part.pages)) or range(1, num_pages + 1)
    if part.first_page is not None:
        in_order = [page for page in allowed if page >= part.first_page]
        return in_order[: part.max_pages], "request" if part.pages else "order"
    best = [page for page in consultation.found if page in allowed]
    unread = [page for page in consultation.textless if page in allowed]
    if part.pages:
        return list(dict.fromkeys((*best, *unread, *allowed))), "request"
    has_all = num_pages <= part.max_pages or not best
    ranked = dict.fromkeys((*best, *unread, *(allowed if has_all else ())))
    return list(ranked)[: part.max_pages], "question" if best else "order"


def _title(part: DocumentPart, place: int, count: int) -> tuple[str, ...]:
    """What stands before the pages of a document that has a name, or is one of several."""
    name = "".join(letter for letter in part.name or "" if letter.isprintable())[:_MAX_NAME]
    if count > 1:
        name = f"{place + 1} {name}".rstrip()
    return (f"Document {name}\n",) if name else ()


def _free_numbers(chat: ChatInput) -> Iterator[int]:
    """Places of documents that have not been read before the others are."""
    taken = {pages.document for pages in chat.pages}
    return (number for number in count() if number not in taken)
