"""The events of the scheduler as news: what is there for each request since its news were taken last.

Owns one answer per live request. An answer whose text may end it, by a stop string or a grammar, is read before the
next step is planned; the others may be read while that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tapetum.core.plan import BatchPlan, TokenEvent
from tapetum.core.request import Request
from tapetum.engine.answer import Answer
from tapetum.engine.constraints import Constraints
from tapetum.engine.meters import Meters
from tapetum.engine.output import Delta
from tapetum.text.tokenizer import Tokenizer


class Answers:
    """`finish` ends a request of the scheduler and gives its last event; `on_end` hears of each that has ended."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        constraints: Constraints,
        meters: Meters,
        finish: Callable[[str, float], TokenEvent | None],
        on_end: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._tokenizer = tokenizer
        self._constraints = constraints
        self._meters = meters
        self._finish = finish
        self._on_end = on_end
        self._answers: dict[str, Answer] = {}
        self._news: dict[str, Delta] = {}

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def begin(self, request: Request) -> None:
        self._answers[request.request_id] = Answer(request, self._tokenizer)
        self._meters.taken(request)
        self.add_news(request.request_id, Delta())

    def add_news(self, request_id: str, delta: Delta) -> None:
        before = self._news.get(request_id)
        self._news[request_id] = delta if before is None else before.then(delta)

    def take_news(self) -> dict[str, Delta]:
        news, self._news = self._news, {}
        return news

    def may_end(self, request_id: str) -> bool:
        """Whether the text of a request may end it before its tokens do."""
        sampling = self._answers[request_id].request.sampling
        return bool(sampling.stop) or sampling.grammar is not None

    def num_visual_tokens(self, plan: BatchPlan) -> int:
        """How many of the tokens of a plan's rows stand for pictures."""
        count = 0
        for row in plan.rows:
            answer = None if row.is_decode else self._answers.get(row.request_id)
            if answer is not None:  # else it has none, or was aborted meanwhile
                runs = (run for span in answer.request.prompt.spans for run in span.placeholders)
                count += sum(max(0, min(end, row.end) - max(start, row.start)) for start, end in runs)
        return count

    def tell(self, events: Iterable[TokenEvent], now: float) -> None:
        """Add events that came at `now` to the news, and end what a stop string or a grammar ends."""
        for event in events:
            answer = self._answers[event.request_id]
            delta = answer.read(event)
            self._measure(answer, event, len(delta.tokens), now)
            is_over = self._constraints.is_over(event.request_id)
            if delta.finish_reason == "length" and is_over:
                delta = replace(
                    delta, finish_reason="stop"
                )  # whole, though its last token was the last allowed
            if event.finish_reason is None and (answer.has_met_stop_string or is_over):
                end = self._finish(event.request_id, now)
                assert end is not None, "a request without a last event is still there"
                self._measure(answer, end, 0, now)
                delta = delta.then(answer.read(end))
            if delta.finish_reason in ("stop", "length"):
                self._meters.answered(answer.request, answer.num_tokens)
            if delta.finish_reason is not None:
                del self._answers[event.request_id]
                self._constraints.forget(event.request_id)
                self._on_end(event.request_id)
            self.add_news(event.request_id, delta)

    def _measure(self, answer: Answer, event: TokenEvent, num_tokens: int, now: float) -> None:
        if num_tokens:
            is_first = answer.last_token_s is None
            if answer.last_token_s is not None:
                self._meters.tokens(num_tokens, now - answer.last_token_s)
            answer.last_token_s = now
            if is_first and event.stats is not None:
                self._meters.first_token(event.stats)
        if event.finish_reason is not None and event.stats is not None:
            self._meters.finished(event.stats, has_tokens=answer.last_token_s is not None)
