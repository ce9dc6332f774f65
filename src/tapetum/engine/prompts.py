"""From what a client sent to a Request; whatever can be refused is refused on the way.

Owns the order of the checks: what is cheap comes first, so a prompt that can never fit is refused before any of its
pixels are decoded; and the budget of visual tokens that a prompt's media share. Does not own decoding (media), the
tokens of a picture (processing) or the template (text). Media of one prompt load side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tapetum.core.chat import ChatInput, MediaPart, TextInput
from tapetum.core.config import MEDIA_BYTES
from tapetum.core.errors import (
    DeadlineOutOfReach,
    DeadlinePassed,
    InvalidParameter,
    MediaTimeout,
    MediaTooLarge,
    PromptTooLong,
)
from tapetum.core.media import EXACT, Geometry, MediaItem, MediaKind, PagesSeen, Reuse
from tapetum.core.request import Request, SamplingParams
from tapetum.engine.arrange import Arrangement, PromptRun, TextTokens, arrange
from tapetum.engine.feasible import Feasibility
from tapetum.engine.files import ModelFiles
from tapetum.engine.forecast import Workload
from tapetum.engine.loads import Loads, result_of
from tapetum.engine.places import bind, check_count, check_ids, check_kinds, media_of
from tapetum.engine.quality import Descent, Quality
from tapetum.engine.timely import OnVisionTimeout, Timeliness, without_media
from tapetum.engine.undecoded import Undecoded
from tapetum.engine.visual_budget import MediaLoader, within
from tapetum.media.plan import MediaPlan
from tapetum.text.runs import Run, split_ids, split_runs

PromptInput = ChatInput | TextInput


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimits:
    max_model_len: int  # tokens of prompt and answer together
    max_media: int | Mapping[MediaKind, int]  # pictures and clips of one prompt, together or of each kind
    # of the files of clients, which are held together until all headers are known
    max_media_bytes: int = 4 * MEDIA_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a request carries besides prompt and sampling."""

    request_id: str
    arrival_s: float  # when it was handed in, before its prompt is built
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None
    on_vision_timeout: OnVisionTimeout = "reject"
    has_to_cross: bool = False  # to an engine, which may keep features for it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draft:
    """A prompt whose media are known but not loaded; every check that needs no pixels has passed."""

    runs: tuple[PromptRun, ...]
    tokens: TextTokens
    sampling: SamplingParams  # resolved but for max_tokens
    max_visual_tokens: int | None = None  # of all media together
    reuse: Reuse = EXACT
    num_choices: int = 1
    pages: tuple[PagesSeen, ...] = ()

    @property
    def media(self) -> tuple[MediaPart, ...]:
        return tuple(run for run in self.runs if isinstance(run, MediaPart))

    @property
    def num_text_tokens(self) -> int:
        return len(self.tokens.opening) + sum(
            len(self.tokens.plain(run, is_first=index == 0)) if isinstance(run, str) else 1
            for index, run in enumerate(self.runs)
            if not isinstance(run, MediaPart)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptPlan:
    """What a prompt will be, from the headers of its media alone. It may be longer than the context."""

    arrangement: Arrangement
    media: tuple[MediaPlan, ...]  # in the order of the prompt

    @property
    def geometries(self) -> tuple[Geometry, ...]:
        return tuple(plan.geometry for plan in self.media)

    @property
    def workload(self) -> Workload:
        return Workload.of(self.num_tokens, self.media)

    @property
    def num_visual_tokens(self) -> int:
        return self.arrangement.num_visual_tokens

    @property
    def num_tokens(self) -> int:
        return self.arrangement.num_tokens


class PromptBuilder:
    """Builds requests in two steps, `draft` and `complete`, or only foretells them; safe to call from many threads."""

    def __init__(
        self,
        files: ModelFiles,
        loader: MediaLoader,
        limits: PromptLimits,
        quality: Quality | None = None,
        timeliness: Timeliness | None = None,
        undecoded: Undecoded | None = None,
    ) -> None:
        self._processor = files.processor
        self._tokenizer = files.tokenizer
        self._template = files.template
        self._defaults = files.defaults
        self._loader = loader
        self._limits = limits
        self._quality = quality
        self._timeliness = timeliness
        self._undecoded = undecoded
        self.feasibility = Feasibility(files.tokenizer)
        self._marks = {kind: text for text, kind in files.tokenizer.slot_texts.items()}

    def close(self) -> None:
        self.feasibility.close()

    def draft(self, prompt: PromptInput, sampling: SamplingParams) -> Draft:
        """Render and check without touching a pixel."""
        media = media_of(prompt)
        if prompt.reuse.near_duplicate:
            media = tuple(map(_willing, media))
        check_kinds(media, self._processor.media_tokens)
        check_count(media, self._limits.max_media)
        limit = self._limits.max_model_len - 1
        if isinstance(prompt, ChatInput):
            runs = self._template.render(prompt, limit)
        elif isinstance(prompt.prompt, str):
            runs = split_runs(self._tokenizer, prompt.prompt)
        else:
            check_ids(prompt.prompt, self._tokenizer)
            runs = split_ids(prompt.prompt, self._tokenizer)
        encode = partial(self._tokenizer.encode_plain, max_tokens=limit)
        draft = Draft(
            runs=tuple(bind(runs, media, self._marks)),
            tokens=TextTokens(encode, self._tokenizer.special_tokens, self._opening(prompt, runs)),
            sampling=sampling.resolved(self._defaults.sampling),
            max_visual_tokens=_checked_budget(prompt.max_visual_tokens),
            reuse=prompt.reuse,
            num_choices=prompt.num_choices,
            pages=prompt.pages if isinstance(prompt, ChatInput) else (),
        )
        self._check_length(draft.num_text_tokens, len(media), is_exact=not media)
        self.feasibility.check(draft.sampling)
        return draft

    def _opening(self, prompt: PromptInput, runs: Sequence[Run]) -> tuple[int, ...]:
        """What begins a prompt that does not begin so by itself; as in transformers not one that is tokens already,
        nor a chat of a model of text, which is as its template writes it."""
        opening = self._tokenizer.opening
        is_whole = isinstance(prompt, TextInput) and not isinstance(prompt.prompt, str)
        is_chat_of_text = isinstance(prompt, ChatInput) and not self._processor.media_tokens
        return () if is_whole or is_chat_of_text or (*runs[:1],) == opening[:1] else opening

    def build(
        self, prompt: PromptInput, sampling: SamplingParams, terms: Terms, loads: Loads | None = None
    ) -> Request:
        """Both steps at once. Media that do not come in time are left out, if the terms say so."""
        draft, loads = self.draft(prompt, sampling), loads or Loads()
        if self._timeliness is None or not draft.media:
            return self.complete(draft, terms, loads)
        text = self._workload(draft, draft.num_text_tokens, (), terms)
        self._timeliness.check(terms.deadline_s, text)
        if terms.on_vision_timeout == "reject" or not isinstance(prompt, ChatInput):
            return self.complete(draft, terms, loads)
        loads.limit(self._timeliness.seconds_for_media(terms.deadline_s, text))
        try:
            return self.complete(draft, terms, loads)
        except (MediaTimeout, DeadlinePassed, DeadlineOutOfReach):
            request = self.complete(self.draft(without_media(prompt), sampling), terms, loads)
            return replace(request, left_out=tuple(part.kind for part in draft.media))

    def plan(
        self,
        prompt: PromptInput,
        sampling: SamplingParams,
        *,
        tenant: str = "",
        loads: Loads | None = None,
        priority: int | None = None,
    ) -> PromptPlan:
        """What `build` would make of a prompt, without decoding a pixel; blocks until all headers are there.

        With a `priority` it is what would be made of it now, however the load is, else what was asked for. Raises what
        `build` raises, but for a prompt that its media make too long.
        """
        draft, loads = self.draft(prompt, sampling), loads or Loads()
        plans = tuple(self._planned(draft, tenant, loads, is_bounded=False))
        if priority is not None and self._quality is not None and self._may_shrink(draft):
            plans = self._quality.foretold(self._descent(draft, plans, loads), priority, tenant)
        return PromptPlan(arrangement=self._arranged(draft, plans), media=plans)

    def complete(self, draft: Draft, terms: Terms, loads: Loads | None = None) -> Request:
        """Load the media, lay the prompt out and settle the limits; blocks until all media are there.

        Raises CancelledError once `loads` are cancelled.
        """
        loads = loads or Loads()
        plans = tuple(self._planned(draft, terms.tenant, loads, is_bounded=True))
        try:
            if self._quality is None or not self._may_shrink(draft):
                return self._completed(draft, plans, terms, loads)
            descent = self._descent(draft, plans, loads)
            with self._quality.fitted(descent, terms.priority, terms.tenant) as fitted:
                return self._completed(draft, fitted, terms, loads)
        except BaseException:
            if self._undecoded is not None and terms.has_to_cross:
                self._undecoded.let_go(terms.request_id)
            raise

    def _completed(self, draft: Draft, plans: Sequence[MediaPlan], terms: Terms, loads: Loads) -> Request:
        arrangement = self._arranged(draft, plans)
        num_visual = arrangement.num_visual_tokens
        self._check_length(arrangement.num_tokens - num_visual, num_visual)
        max_tokens = self._max_tokens(draft.sampling.max_tokens, arrangement.num_tokens)
        if self._timeliness is not None and plans:
            workload = self._workload(draft, arrangement.num_tokens, plans, terms)
            self._timeliness.check(terms.deadline_s, workload)
        prompt = self._processor.layout(arrangement.filled(self._decoded(draft, plans, terms, loads)))
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
            prediction=self._prediction(draft.sampling.prediction, max_tokens),
            reuse=draft.reuse,
            num_choices=draft.num_choices,
            pages=draft.pages,
        )

    def _workload(self, draft: Draft, num_tokens: int, plans: Sequence[MediaPlan], terms: Terms) -> Workload:
        room = max(1, self._limits.max_model_len - num_tokens)
        max_tokens = draft.sampling.max_tokens or self._defaults.max_new_tokens or room
        return Workload.of(num_tokens, plans, priority=terms.priority, max_tokens=min(max_tokens, room))

    def _may_shrink(self, draft: Draft) -> bool:
        """A budget of the whole prompt says already how large its media are to be."""
        return bool(draft.media) and draft.max_visual_tokens is None

    def _descent(self, draft: Draft, plans: tuple[MediaPlan, ...], loads: Loads) -> Descent:
        return Descent(
            plans, draft.media, self._loader, lambda media: self._arranged(draft, media).num_tokens, loads
        )

    def _arranged(self, draft: Draft, plans: Sequence[MediaPlan]) -> Arrangement:
        expansions = [self._processor.expand(plan.geometry) for plan in plans]
        return arrange(draft.runs, expansions, draft.tokens)

    def _prediction(self, text: str, max_tokens: int) -> tuple[int, ...]:
        """The tokens of a text that the answer will largely follow, as many as the answer may have."""
        return self._tokenizer.encode_plain(text[: _TOKEN_LETTERS * max_tokens])[:max_tokens] if text else ()

    def _planned(self, draft: Draft, tenant: str, loads: Loads, *, is_bounded: bool) -> list[MediaPlan]:
        """All media in order, read and within the budget. The first failure ends the rest, and so does the item that
        no longer fits a bounded prompt."""
        parts, budget = draft.media, draft.max_visual_tokens
        plans: list[MediaPlan] = []
        num_visual = len(parts)  # every picture has at least one token
        num_bytes = 0
        futures = [self._loader.plan(part, tenant=tenant) for part in parts]
        loads.begin(futures)
        try:
            for index, future in enumerate(futures):
                plans.append(result_of(future, parts[index], index, len(parts), loads.left_s))
                num_bytes += 0 if parts[index].is_trusted else plans[-1].shot.num_bytes
                self._check_bytes(num_bytes)
                num_visual += plans[-1].geometry.num_tokens - 1
                if is_bounded and budget is None and index + 1 < len(parts):
                    self._check_length(draft.num_text_tokens, num_visual, is_exact=False)
        finally:
            loads.end()
        return plans if budget is None else within(budget, plans, self._loader)

    def _decoded(
        self, draft: Draft, plans: Sequence[MediaPlan], terms: Terms, loads: Loads
    ) -> list[MediaItem]:
        """All media in order, decoded where the engine has not what comes of that. The first failure ends the rest."""
        # what is kept for the first of several answers may be gone when the others begin
        may_lack = terms.has_to_cross and draft.num_choices == 1
        undecoded = self._undecoded if may_lack else None
        reserved = (None,) * len(plans) if undecoded is None else undecoded.keys(terms.request_id, plans)
        parts = draft.media
        items = [
            None if key is None else self._loader.reserved(plan, key)
            for plan, key in zip(plans, reserved, strict=True)
        ]
        futures = {
            index: self._loader.decode(plans[index]) for index, item in enumerate(items) if item is None
        }
        loads.begin(tuple(futures.values()))
        try:
            for index, future in futures.items():
                items[index] = result_of(future, parts[index], index, len(parts), loads.left_s)
        finally:
            loads.end()
        return [
            replace(item, degraded=plan.degraded) if plan.degraded else item
            for item, plan in zip(items, plans, strict=True)
            if item is not None
        ]

    def _check_length(self, num_text: int, num_visual: int, *, is_exact: bool = True) -> None:
        num_tokens = num_text + num_visual
        if num_tokens < 1:
            raise InvalidParameter("prompt has 0 tokens; send at least one word", param="prompt")
        limit = self._limits.max_model_len - 1
        if num_tokens > limit:
            raise PromptTooLong(
                f"prompt has {'' if is_exact else 'at least '}{num_tokens} tokens, {num_visual} of them visual, "
                f"limit {limit} with one left for the answer; "
                "shorten it, lower max_pixels or raise --max-model-len"
            )

    def _check_bytes(self, num_bytes: int) -> None:
        if num_bytes > self._limits.max_media_bytes:
            raise MediaTooLarge(
                f"pictures and clips of the prompt have more than {self._limits.max_media_bytes} bytes together, "
                "the limit; send fewer or smaller ones or raise --media-max-mb"
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


def _willing(part: MediaPart) -> MediaPart:
    """The same reference, but a picture that looks the same will do."""
    return replace(part, options={"near_duplicate": True, **part.options})


def _checked_budget(budget: int | None) -> int | None:
    if budget is not None and budget < 1:
        raise InvalidParameter(
            f"max_visual_tokens is {budget}, must be at least 1", param="max_visual_tokens"
        )
    return budget


_TOKEN_LETTERS = 16  # more than a token has, but for runs of spaces
