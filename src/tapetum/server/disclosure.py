"""What every answer tells about itself: tokens used, what the model saw, where the time went.

Owns the `usage` and `tapetum` objects of all routes and how they are read off a generation. Fields left UNSET are not
written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from tapetum.core.media import Degradation, PagesSeen
from tapetum.engine.generation import Generation
from tapetum.engine.output import MediaReport, Timing


class PromptDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int
    visual_tokens: int


class CompletionDetails(Struct, frozen=True, kw_only=True):
    """Tokens of the client's prediction that were verified: those that came true, and those that did not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class Queue(Struct, frozen=True):
    """How many others waited for their turn when the request came."""

    waiting: int


class Disclosure(Struct, frozen=True, kw_only=True):
    """The `tapetum` object: what the model saw and where the time went."""

    request_id: str
    media: Sequence[MediaReport]
    queue: Queue | UnsetType = UNSET
    timing: Timing | UnsetType = UNSET
    degradations: Sequence[Degradation] | UnsetType = UNSET
    pages: Sequence[PagesSeen] | UnsetType | None = UNSET  # of each document


def opening(generation: Generation, num_waiting: int) -> Disclosure:
    """What is known before the first token."""
    return Disclosure(
        request_id=generation.request_id,
        media=generation.media,
        queue=Queue(num_waiting),
        pages=generation.pages or UNSET,
    )


def closing(generation: Generation) -> Disclosure:
    """What is known once the last delta has been read."""
    return Disclosure(
        request_id=generation.request_id,
        media=generation.media,
        timing=rounded(generation.timing),
        degradations=generation.degradations,
        pages=generation.pages or None,
    )


def rounded(timing: Timing) -> Timing:
    """To microseconds: more digits would say nothing."""
    return Timing(**{name: round(value, 6) for name, value in dataclasses.asdict(timing).items()})


def usage(generation: Generation, num_tokens: int) -> Usage:
    """Tokens of the prompt and, of all its answers together, `num_tokens`; with them all that was spent before, where
    an answer took several requests."""
    prompt, spent = generation.prompt, generation.spent
    num_prompt = len(prompt.token_ids) + spent.prompt_tokens
    num_completion = num_tokens + spent.completion_tokens
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptDetails(
            cached_tokens=generation.num_cached_tokens + spent.cached_tokens,
            visual_tokens=sum(span.num_tokens for span in prompt.spans) + spent.visual_tokens,
        ),
    )
