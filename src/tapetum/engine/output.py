"""What a caller gets back: news while a request runs (Delta), the whole when it has ended (RequestOutput).

All records are frozen. The names are public: clients, tests and the server depend on them. Nothing here
decides anything; the functions only write down a request and its stats in public words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tapetum.core.errors import TapetumError
from tapetum.core.media import Degradation, MediaItem, MediaKind, PagesSeen, ProcessorMode
from tapetum.core.plan import SampledToken
from tapetum.core.request import FinishReason, Request, RequestStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """News of one request: what came since the last delta.

    The first one carries nothing, it says that the engine has taken the request. One with a finish_reason is
    the last.
    """

    text: str = ""
    tokens: tuple[SampledToken, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop string or the client's stop token that ended the text
    stats: RequestStats | None = None
    error: TapetumError | None = None  # set when finish_reason is "error"

    def then(self, later: Delta) -> Delta:
        """This and the later news of the same request as one."""
        return joined((self, later))


def joined(deltas: Sequence[Delta]) -> Delta:
    """Deltas of one request, in order, as one."""
    return Delta(
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        finish_reason=next((delta.finish_reason for delta in deltas if delta.finish_reason), None),
        stop_reason=next((delta.stop_reason for delta in deltas if delta.stop_reason is not None), None),
        stats=next((delta.stats for delta in reversed(deltas) if delta.stats), None),
        error=next((delta.error for delta in deltas if delta.error), None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaReport:
    """What the model saw of one picture or clip. `cache` is None until the request is admitted."""

    type: MediaKind
    original: tuple[int, int]  # width, height
    used: tuple[int, int]  # width, height after the resize
    frames: int | None  # None for a picture
    visual_tokens: int
    cache: str | None  # miss | device | prefix
    processor: ProcessorMode = "exact"
    degraded: Degradation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where the time of a request went, in seconds since it was handed in; `decode_tokens_s` is a rate."""

    fetch_s: float = 0.0  # the slowest fetch; media of one prompt are fetched side by side
    decode_s: float = 0.0  # the rest of the preparation: decode, resize, tokenise
    queue_s: float = 0.0
    encode_s: float = 0.0
    prefill_s: float = 0.0
    decode_tokens_s: float = 0.0  # tokens per second after the first token
    ttft_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """A candidate for one position. `rank` is 1 for the most likely, None for one not among those asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """An answer. `logprobs` has a mapping from token id to Logprob for each token, where asked for."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Mapping[int, Logprob], ...] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """One prompt and all that came of it. `prompt` is the text a caller wrote whole, None for a chat."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    media: tuple[MediaReport, ...]
    timing: Timing
    num_cached_tokens: int
    pages: tuple[PagesSeen, ...] = ()  # of each document


class Decoder(Protocol):
    """The part of a tokenizer that turns ids into text."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


def media_reports(request: Request, stats: RequestStats | None = None) -> tuple[MediaReport, ...]:
    """One report per picture or clip, in order; where each came from once `stats` are known."""
    if request.left_out:
        return tuple(map(_left_out, request.left_out))
    items = [span.item for span in request.prompt.spans]
    sources: Sequence[str | None] = stats.media_sources if stats else ()
    known = sources if len(sources) == len(items) else [None] * len(items)
    reports = [_media_report(item, source) for item, source in zip(items, known, strict=True)]
    return tuple(
        replace(report, degraded=report.degraded or _LINKED) if is_linked else report
        for report, is_linked in zip(reports, _linked(request, stats), strict=True)
    )


def degradations_of(request: Request, stats: RequestStats | None = None) -> tuple[Degradation, ...]:
    """All ways in which a model saw something else than was asked for; of one picture there may be two."""
    if request.left_out:
        return tuple(report.degraded for report in media_reports(request) if report.degraded)
    found: list[Degradation] = []
    for span, is_linked in zip(request.prompt.spans, _linked(request, stats), strict=True):
        found += [span.item.degraded] if span.item.degraded else []
        found += [_LINKED] if is_linked else []
    return tuple(found)


def timing_of(request: Request, prepared_s: float, stats: RequestStats, num_tokens: int) -> Timing:
    """The public times of a request whose prompt was ready at `prepared_s`, with `num_tokens` of output."""
    preparation_s = max(prepared_s - request.arrival_s, 0.0)
    slowest_s = max((span.item.fetch_s for span in request.prompt.spans), default=0.0)
    fetch_s = min(slowest_s, preparation_s)
    streaming_s = stats.e2e_s - stats.ttft_s
    has_rate = num_tokens > 1 and streaming_s > 0
    return Timing(
        fetch_s=fetch_s,
        decode_s=preparation_s - fetch_s,
        queue_s=max(stats.queue_s - preparation_s, 0.0),
        encode_s=stats.encode_s,
        prefill_s=stats.prefill_s,
        decode_tokens_s=(num_tokens - 1) / streaming_s if has_rate else 0.0,
        ttft_s=stats.ttft_s,
    )


def output_of(
    request: Request, text: str | None, whole: Delta, prepared_s: float, tokenizer: Decoder
) -> RequestOutput:
    """The end of a request as one record; `whole` is all its deltas joined, `text` the prompt as written."""
    stats = whole.stats or RequestStats()
    return RequestOutput(
        request_id=request.request_id,
        prompt=text,
        prompt_token_ids=request.prompt.token_ids,
        outputs=(_completion(whole, tokenizer),),
        media=media_reports(request, stats),
        timing=timing_of(request, prepared_s, stats, len(whole.tokens)),
        num_cached_tokens=stats.num_cached_tokens,
        pages=request.pages,
    )


def _completion(whole: Delta, tokenizer: Decoder) -> CompletionOutput:
    has_logprobs = any(token.logprob is not None for token in whole.tokens)
    return CompletionOutput(
        index=0,
        text=whole.text,
        token_ids=tuple(token.token_id for token in whole.tokens),
        logprobs=tuple(_candidates(token, tokenizer) for token in whole.tokens) if has_logprobs else None,
        finish_reason=whole.finish_reason,
        stop_reason=whole.stop_reason,
    )


_LINKED = Degradation(reason="position_independent")


def _linked(request: Request, stats: RequestStats | None) -> Sequence[bool]:
    """Of each picture or clip, whether its keys and values come from another place."""
    none = (False,) * len(request.prompt.spans)
    return stats.are_linked or none if stats else none


def _media_report(item: MediaItem, source: str | None) -> MediaReport:
    geometry = item.geometry
    return MediaReport(
        type=geometry.kind,
        original=geometry.original,
        used=geometry.used,
        frames=geometry.frames if geometry.kind == "video" else None,
        visual_tokens=geometry.num_tokens,
        cache=source,
        processor=item.processor,
        degraded=item.degraded,
    )


def _left_out(kind: MediaKind) -> MediaReport:
    return MediaReport(
        type=kind,
        original=(0, 0),
        used=(0, 0),
        frames=0 if kind == "video" else None,
        visual_tokens=0,
        cache=None,
        degraded=Degradation(reason="timeout"),
    )


def _candidates(token: SampledToken, tokenizer: Decoder) -> dict[int, Logprob]:
    """The chosen token first, then the alternatives from the most likely down."""
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(token.top_logprobs, start=1)}
    values = {token.token_id: token.logprob or 0.0} | dict(token.top_logprobs)
    return {
        token_id: Logprob(
            logprob=value,
            rank=ranks.get(token_id),
            decoded_token=tokenizer.decode((token_id,), skip_special=False),
        )
        for token_id, value in values.items()
    }
