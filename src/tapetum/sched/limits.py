"""What can never be served is refused when it comes, with the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tapetum.cache.ledger import Ledger
from tapetum.cache.visual import VisualCache
from tapetum.core.errors import DeadlinePassed, InvalidParameter, PromptTooLong
from tapetum.core.request import Request


def too_late(request: Request, now: float) -> DeadlinePassed | None:
    """The end of a request whose deadline has passed; None while there is time."""
    if request.deadline_s is None or now < request.deadline_s:
        return None
    age, allowed = now - request.arrival_s, request.deadline_s - request.arrival_s
    return DeadlinePassed(
        f"request is {age:.3f} s old, its deadline was after {allowed:.3f} s; raise timeout_s or send less at a time",
        param="timeout_s",
    )


def late_among(requests: Iterable[Request], now: float) -> dict[str, DeadlinePassed]:
    """The ends of those whose deadline has passed, by request id."""
    errors = {request.request_id: too_late(request, now) for request in requests}
    return {request_id: error for request_id, error in errors.items() if error is not None}


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    max_model_len: int
    ledger: Ledger
    visual: VisualCache

    def check(self, request: Request, now: float) -> None:
        """Raise the typed error of a request that could not end well even on an idle engine."""
        if not request.prompt.token_ids:
            raise InvalidParameter(
                "prompt has 0 tokens, must have at least 1; send some text", param="prompt"
            )
        if request.max_tokens < 1:
            raise InvalidParameter(
                f"max_tokens is {request.max_tokens}, must be at least 1", param="max_tokens"
            )
        self._check_length(request)
        for span in request.prompt.spans:
            self.visual.check_size(span.item)
        if request.deadline_s is not None and request.deadline_s <= now:
            raise DeadlinePassed(
                f"request came {now - request.deadline_s:.3f} s after its own deadline; send a longer timeout_s",
                param="timeout_s",
            )

    def _check_length(self, request: Request) -> None:
        length = request.num_prompt_tokens + request.max_tokens
        what = f"prompt has {request.num_prompt_tokens} tokens and max_tokens is {request.max_tokens}"
        if length > self.max_model_len:
            raise PromptTooLong(
                f"{what}, together {length}, limit {self.max_model_len}; "
                "raise --max-model-len, shorten the prompt or lower max_tokens",
                param="prompt",
            )
        if length - 1 > self.ledger.num_slots:  # the last token is never computed
            raise PromptTooLong(
                f"{what}, together {length}, limit {self.ledger.num_slots + 1} by the KV memory; "
                "raise --kv-cache-memory, shorten the prompt or lower max_tokens",
                param="prompt",
            )
