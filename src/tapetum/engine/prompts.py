"""From what a client sent to a Request; whatever can be refused is refused on the way.

Owns the order of the checks: what is cheap comes first, so a prompt that can never fit is refused before most
of its pixels are decoded. Does not own decoding (media), the tokens of a picture (processing) or the template
(text). Media of one prompt load side by side.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Protocol

from tapetum.core.chat import ChatInput, MediaPart, TextInput
from tapetum.core.config import MEDIA_LIMIT
from tapetum.core.errors import InvalidParameter, MediaTooLarge, PromptTooLong, TapetumError
from tapetum.core.media import MediaItem, MediaKind
from tapetum.core.request import Request, SamplingParams
from tapetum.engine.files import ModelFiles
from tapetum.text.template import MediaSlot, split_prompt
from tapetum.text.tokenizer import Tokenizer

PromptInput = ChatInput | TextInput


class MediaLoader(Protocol):
    """Loads media on its own workers."""

    def submit(self, part: MediaPart, *, tenant: str) -> Future[MediaItem]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimits:
    max_model_len: int  # tokens of prompt and answer together
    max_media: int | Mapping[MediaKind, int]  # pictures and clips of one prompt, together or of each kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a request carries besides prompt and sampling."""

    request_id: str
    arrival_s: float  # when it was handed in, before its prompt is built
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draft:
    """A prompt whose media are known but not loaded; every check that needs no pixels has passed."""

    segments: tuple[tuple[int, ...] | MediaPart, ...]
    sampling: SamplingParams  # resolved but for max_tokens

    @property
    def media(self) -> tuple[MediaPart, ...]:
        return tuple(part for part in self.segments if isinstance(part, MediaPart))

    @property
    def num_text_tokens(self) -> int:
        return sum(len(part) for part in self.segments if not isinstance(part, MediaPart))


class Loads:
    """The media loads of one prompt that is being built. Whoever wants the prompt may give them up from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: Sequence[Future[MediaItem]] = ()
        self._is_cancelled = False

    def begin(self, futures: Sequence[Future[MediaItem]]) -> None:
        """These are the loads; if they have been given up already, they end here."""
        with self._lock:
            self._futures = futures
            is_cancelled = self._is_cancelled
        if is_cancelled:
            self.cancel()

    def cancel(self) -> None:
        """End every load that is not done. The build then ends with CancelledError; no effect on one that is over."""
        with self._lock:
            self._is_cancelled = True
            futures = self._futures
        for future in futures:
            future.cancel()


class PromptBuilder:
    """Builds requests in two steps, `draft` and `complete`; safe to call from many threads."""

    def __init__(self, files: ModelFiles, loader: MediaLoader, limits: PromptLimits) -> None:
        self._processor = files.processor
        self._tokenizer = files.tokenizer
        self._template = files.template
        self._defaults = files.defaults
        self._loader = loader
        self._limits = limits
        self._placeholders = {
            kind: files.tokenizer.decode((token_id,), skip_special=False)
            for kind, token_id in files.processor.media_tokens.items()
        }

    def draft(self, prompt: PromptInput, sampling: SamplingParams) -> Draft:
        """Render and check without touching a pixel."""
        media = _media_of(prompt)
        _check_count(media, self._limits.max_media)
        limit = self._limits.max_model_len - 1
        if isinstance(prompt, ChatInput):
            segments = self._template.render(prompt, limit)
        elif isinstance(prompt.prompt, str):
            segments = split_prompt(self._tokenizer, prompt.prompt, limit)
        else:
            segments = _split_ids(prompt.prompt, self._tokenizer)
        draft = Draft(
            segments=tuple(_bind(segments, media, self._placeholders)),
            sampling=sampling.resolved(self._defaults.sampling),
        )
        self._check_stop_tokens(sampling)
        self._check_length(draft.num_text_tokens + len(media), num_visual=len(media), is_exact=not media)
        return draft

    def build(
        self, prompt: PromptInput, sampling: SamplingParams, terms: Terms, loads: Loads | None = None
    ) -> Request:
        """Both steps at once."""
        return self.complete(self.draft(prompt, sampling), terms, loads)

    def complete(self, draft: Draft, terms: Terms, loads: Loads | None = None) -> Request:
        """Load the media, lay the prompt out and settle the limits; blocks until all media are there.

        Raises CancelledError once `loads` are cancelled.
        """
        items = self._load(draft, terms.tenant, loads or Loads())
        segments = [items.popleft() if isinstance(part, MediaPart) else part for part in draft.segments]
        prompt = self._processor.layout(segments)
        num_tokens = len(prompt.token_ids)
        self._check_length(num_tokens, num_visual=sum(span.end - span.start for span in prompt.spans))
        max_tokens = self._max_tokens(draft.sampling.max_tokens, num_tokens)
        ends = frozenset() if draft.sampling.ignore_eos else self._defaults.eos_token_ids
        return Request(
            request_id=terms.request_id,
            prompt=prompt,
            sampling=replace(draft.sampling, max_tokens=max_tokens),
            max_tokens=max_tokens,
            stop_token_ids=ends.union(draft.sampling.stop_token_ids),
            tenant=terms.tenant,
            priority=terms.priority,
            arrival_s=terms.arrival_s,
            deadline_s=terms.deadline_s,
        )

    def _load(self, draft: Draft, tenant: str, loads: Loads) -> deque[MediaItem]:
        """All media in order. The first failure, or the item that no longer fits, cancels the rest."""
        parts = draft.media
        futures = [self._loader.submit(part, tenant=tenant) for part in parts]
        items: deque[MediaItem] = deque()
        num_visual = len(parts)  # every picture has at least one token
        loads.begin(futures)
        try:
            for index, future in enumerate(futures):
                items.append(_result(future, parts[index], index, len(parts)))
                num_visual += items[-1].geometry.num_tokens - 1
                is_exact = index + 1 == len(parts)
                self._check_length(
                    draft.num_text_tokens + num_visual, num_visual=num_visual, is_exact=is_exact
                )
        finally:
            loads.cancel()
        return items

    def _check_length(self, num_tokens: int, *, num_visual: int, is_exact: bool = True) -> None:
        if num_tokens < 1:
            raise InvalidParameter("prompt has 0 tokens; send at least one word", param="prompt")
        limit = self._limits.max_model_len - 1
        if num_tokens > limit:
            raise PromptTooLong(
                f"prompt has {'' if is_exact else 'at least '}{num_tokens} tokens, {num_visual} of them visual, "
                f"limit {limit} with one left for the answer; "
                "shorten it, lower max_pixels or raise --max-model-len"
            )

    def _max_tokens(self, wanted: int | None, num_tokens: int) -> int:
        room = self._limits.max_model_len - num_tokens
        if wanted is None:
            return min(self._defaults.max_new_tokens or room, room)
        if wanted > room:
            raise InvalidParameter(
                f"max_tokens is {wanted} and the prompt has {num_tokens} tokens, the context holds "
                f"{self._limits.max_model_len}; ask for at most {room} or raise --max-model-len",
                param="max_tokens",
            )
        return wanted

    def _check_stop_tokens(self, sampling: SamplingParams) -> None:
        size = self._tokenizer.vocab_size
        for token_id in sampling.stop_token_ids:
            if not 0 <= token_id < size:
                raise InvalidParameter(
                    f"stop_token_ids holds {token_id!r}, tokens are integers from 0 to {size - 1}",
                    param="stop_token_ids",
                )


def _media_of(prompt: PromptInput) -> tuple[MediaPart, ...]:
    if isinstance(prompt, TextInput):
        return prompt.media
    parts = (part for message in prompt.messages for part in message.content)
    return tuple(part for part in parts if isinstance(part, MediaPart))


def _check_count(media: tuple[MediaPart, ...], limit: int | Mapping[MediaKind, int]) -> None:
    if isinstance(limit, int):
        counts = [(len(media), "pictures and clips", limit)]
    else:
        kinds = [part.kind for part in media]
        counts = [
            (kinds.count("image"), "pictures", limit.get("image", MEDIA_LIMIT)),
            (kinds.count("video"), "clips", limit.get("video", MEDIA_LIMIT)),
        ]
    for count, what, most in counts:
        if count > most:
            raise MediaTooLarge(
                f"prompt has {count} {what}, limit {most}; send fewer or raise --limit-mm-per-prompt"
            )


def _split_ids(token_ids: tuple[int, ...], tokenizer: Tokenizer) -> list[tuple[int, ...] | MediaSlot]:
    """Segments of a prompt of token ids: a placeholder is a slot, as in text."""
    segments: list[tuple[int, ...] | MediaSlot] = []
    start = 0
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidParameter(
                f"prompt holds the token {token_id}, tokens are integers from 0 to {tokenizer.vocab_size - 1}",
                param="prompt",
            )
        if token_id in tokenizer.media_tokens:
            segments += [token_ids[start:index], MediaSlot(tokenizer.media_tokens[token_id])]
            start = index + 1
    return [*segments, token_ids[start:]]


def _bind(
    segments: list[tuple[int, ...] | MediaSlot],
    media: tuple[MediaPart, ...],
    written: Mapping[MediaKind, str],
) -> list[tuple[int, ...] | MediaPart]:
    """Give every slot the next media part of its kind; refuse when they do not come out even."""
    waiting: defaultdict[str, deque[MediaPart]] = defaultdict(deque)
    for part in media:
        waiting[part.kind].append(part)
    slots = [segment.kind for segment in segments if isinstance(segment, MediaSlot)]
    for kind, placeholder in written.items():
        if slots.count(kind) != len(waiting[kind]):
            raise InvalidParameter(
                f"prompt has {placeholder} {slots.count(kind)} times, and {len(waiting[kind])} {kind} parts came "
                "with it; write it once for each, or send chat messages, where the template writes it",
                param="prompt",
            )
    return [waiting[part.kind].popleft() if isinstance(part, MediaSlot) else part for part in segments]


def _result(future: Future[MediaItem], part: MediaPart, index: int, count: int) -> MediaItem:
    """The loaded item. An error says which of several it was; a fresh one, since loads may be shared."""
    try:
        return future.result()
    except TapetumError as error:
        place = f"media {index + 1} of {count}: " if count > 1 else ""
        name = _file_name(part)
        if name and name not in error.message:
            place += f"{name}: "
        raise type(error)(place + error.message, param=error.param) from error


def _file_name(part: MediaPart) -> str:
    """The name of a picture that was named by a path, else nothing."""
    source = part.source
    if isinstance(source, str) and not source.startswith("data:"):
        source = PurePath(source[:_MAX_NAME])
    return source.name[:_MAX_NAME] if isinstance(source, PurePath) else ""


_MAX_NAME = 255
