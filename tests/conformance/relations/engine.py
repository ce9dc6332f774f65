"""Relations that ask the engine: the prompt a model gets, cache keys, gauges and counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from tests.conformance.exposition import USAGE_OF, Numbers
from tests.conformance.observation import Observation, Unmet
from tests.conformance.reply import Reply
from tests.conformance.trial import PromptSeen, Trial

_TURN_S = 0.05
_KINDS = ("image", "video")


async def role_turns_seen_by_model(
    trial: Trial,
    value: str | tuple[str, int],
    *,
    is_: int | None = None,
    user: int | None = None,
    system: int | None = None,
) -> None:
    """`[name, n]` counts user and system turns together, and so does `is`; `user` and `system` count one of them."""
    name, number = (value, is_) if isinstance(value, str) else value
    wanted = {("user", "system"): number, ("user",): user, ("system",): system}
    if all(count is None for count in wanted.values()):
        raise Unmet("role_turns_seen_by_model gives no number of turns")
    for reply in trial.seen.named(name):
        turns = (await trial.server.prompt_of(reply.asked)).turns
        for roles, count in wanted.items():
            found = sum(turn in roles for turn in turns)
            if count is not None and found != count:
                raise Unmet(f"the model sees {count} {'/'.join(roles)} turns of {name}; seen: {list(turns)}")


async def prompt_order(
    trial: Trial, value: str | tuple[str, Sequence[str]], *, is_: Sequence[str] | None = None
) -> None:
    """`image` and `video` stand for themselves and are all named; any other word is in the text at its place."""
    name, wanted = (value, is_) if isinstance(value, str) else value
    if not wanted:
        raise Unmet("prompt_order gives no order")
    for reply in trial.seen.named(name):
        _check_order(name, await trial.server.prompt_of(reply.asked), _order(wanted))


def cached_tokens_at_least_image_of(trial: Trial, value: tuple[str, str]) -> None:
    name, other = value
    visual = _details(trial.seen.named(other)[0], other).get("visual_tokens")
    if not visual:
        raise Unmet(f"{other} has a picture; seen: {visual} visual tokens")
    for index, reply in enumerate(trial.seen.named(name)):
        cached = _details(reply, name).get("cached_tokens") or 0
        if cached < visual:
            raise Unmet(f"{name}[{index}] has at least {visual} cached tokens; seen: {cached}")


async def distinct_image_keys(trial: Trial, value: tuple[str, int]) -> None:
    name, number = value
    keys = {
        span.key
        for reply in trial.seen.named(name)
        for span in (await trial.server.prompt_of(reply.asked)).spans
    }
    if len(keys) != number:
        raise Unmet(f"the pictures of {name} have {number} different keys; seen: {len(keys)}")


async def gauge(trial: Trial, value: tuple[str, float]) -> None:
    word, wanted = value
    found = (await trial.server.numbers()).gauge(word)
    if found != wanted:
        raise Unmet(f"{word} is {wanted:g}; seen: {found:g}")


async def gauge_within_s(trial: Trial, value: tuple[str, float, float]) -> None:
    word, wanted, limit_s = value
    deadline_s = trial.seen.ended_s + limit_s
    while (found := (await trial.server.numbers()).gauge(word)) != wanted:
        if time.monotonic() > deadline_s:
            raise Unmet(f"{word} is {wanted:g} within {limit_s:g} s; seen: {found:g}")
        await asyncio.sleep(_TURN_S)


def counter_delta(trial: Trial, value: tuple[str, float]) -> None:
    word, wanted = value
    found = _delta(trial.seen, word)
    if found != wanted:
        raise Unmet(f"{word} grows by {wanted:g} from 'before' to 'after'; seen: {found:g}")


def counter_delta_equals_sum_of_usage(trial: Trial, value: tuple[str, str | Sequence[str]]) -> None:
    word, names = value
    if word not in USAGE_OF:
        raise Unmet(f"usage tells {', '.join(USAGE_OF)}, not {word}")
    replies = [
        reply for name in ([names] if isinstance(names, str) else names) for reply in trial.seen.named(name)
    ]
    if any(reply.usage is None for reply in replies):
        raise Unmet(f"every reply of {names} tells its usage; seen: one that does not")
    wanted = sum((reply.usage or {})[USAGE_OF[word]] for reply in replies)
    found = _delta(trial.seen, word)
    if found != wanted:
        raise Unmet(f"{word} grows by the usage of {names}, {wanted}; seen: {found:g}")


async def no_negative_metric(trial: Trial, is_wanted: bool) -> None:
    scrapes = [numbers for numbers in _scrapes(trial.seen) if numbers is not None]
    for numbers in (*scrapes, await trial.server.numbers()):
        if is_wanted and numbers.negatives():
            raise Unmet(f"no metric is negative; seen: {', '.join(numbers.negatives())}")


def _check_order(name: str, prompt: PromptSeen, wanted: Sequence[str]) -> None:
    seen = [segment.kind if segment.kind in _KINDS else segment.text for segment in prompt.segments]
    place, offset = 0, 0  # which segment, and how far in its text
    for word in wanted:
        while place < len(seen) and not _is_at(seen[place], word, offset):
            if seen[place] in _KINDS:
                raise Unmet(
                    f"the prompt of {name} has the order {list(wanted)}; seen: {seen[place]} before {word}"
                )
            place, offset = place + 1, 0
        if place == len(seen):
            raise Unmet(
                f"the prompt of {name} has the order {list(wanted)}; seen: no {word} at its place in {seen}"
            )
        if word in _KINDS:
            place, offset = place + 1, 0
        elif word != "text":
            offset = seen[place].index(word, offset) + len(word)
        else:
            offset = len(seen[place])
    rest = [part for part in seen[place:] if part in _KINDS]
    if rest:
        raise Unmet(f"the prompt of {name} has the order {list(wanted)}; seen: {rest} more")


def _order(words: Sequence[str]) -> list[str]:
    """What to look for one after the other; texts side by side are one text to the model."""
    plain = [word.strip("<>|[]{}").lower() if _is_kind(word) else word for word in words]
    return [
        word for index, word in enumerate(plain) if word != "text" or plain[index - 1 : index] != ["text"]
    ]


def _is_kind(word: str) -> bool:
    return word.strip("<>|[]{}").lower() in (*_KINDS, "text")


def _is_at(part: str, word: str, offset: int) -> bool:
    if word in _KINDS or part in _KINDS:
        return part == word
    return bool(part[offset:].strip()) if word == "text" else word in part[offset:]


def _details(reply: Reply, name: str) -> Mapping[str, int]:
    if reply.usage is None:
        raise Unmet(f"{name} tells its usage; seen: {reply.outcome}")
    return reply.usage.get("prompt_tokens_details") or {}


def _delta(seen: Observation, word: str) -> float:
    before, after = (Numbers(seen.named(name)[-1].body.decode()) for name in ("before", "after"))
    return after.counter(word) - before.counter(word)


def _scrapes(seen: Observation) -> list[Numbers | None]:
    saved = [item for items in seen.saved.values() for item in items if isinstance(item, Reply)]
    return [Numbers(item.body.decode()) for item in saved if item.path == "/metrics" and item.status == 200]
