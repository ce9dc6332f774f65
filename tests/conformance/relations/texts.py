"""Relations about what answers say: equal, different, as another case, fitting a schema."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.conformance.compare import check_same
from tests.conformance.observation import Observation, Unmet, agree
from tests.conformance.reply import shortened
from tests.conformance.schema import check_schema
from tests.conformance.trial import Trial

_DRAW = 1  # seed of the drawn replies


def equal(trial: Trial, value: tuple[str, str]) -> None:
    ours, theirs = (trial.seen.value(path) for path in value)
    if not agree(ours, theirs):
        raise Unmet(f"{value[0]} equals {value[1]}; seen: {_shown(ours)} and {_shown(theirs)}")


def differ(trial: Trial, value: tuple[str, str]) -> None:
    ours, theirs = (trial.seen.value(path) for path in value)
    if agree(ours, theirs):
        raise Unmet(f"{value[0]} differs from {value[1]}; seen: both are {_shown(ours)}")


def greater(trial: Trial, value: tuple[str, str | float]) -> None:
    first, second = (trial.seen.value(part) if isinstance(part, str) else part for part in value)
    if not first > second:
        raise Unmet(f"{value[0]} is greater than {value[1]}; seen: {first} and {second}")


def every_equal(trial: Trial, path: str) -> None:
    values = trial.seen.values(path)
    other = next((index for index, item in enumerate(values) if not agree(values[0], item)), None)
    if other is not None:
        raise Unmet(
            f"all of {path} are equal; seen: {_shown(values[0])} first, {_shown(values[other])} at {other}"
        )


def not_all_equal(trial: Trial, path: str) -> None:
    values = trial.seen.values(path)
    if all(agree(values[0], item) for item in values):
        raise Unmet(f"{path} has at least two values; seen: {len(values)} times {_shown(values[0])}")


def same_text_of_every(trial: Trial, path: str) -> None:
    every_equal(trial, path if "." in path else f"{path}.text")


def pairwise_equal(trial: Trial, value: tuple[str | Sequence[str], str | Sequence[str]]) -> None:
    """Each side is a list of paths, or one path of a name that was saved several times."""
    _check_pairs(*value, lambda side: _listed(trial.seen, side))


def pairwise_equal_text(trial: Trial, value: tuple[str | Sequence[str], str | Sequence[str]]) -> None:
    _check_pairs(*value, lambda side: [text for name in _names(side) for text in trial.seen.texts(name)])


def pairwise_equal_logits(trial: Trial, value: tuple[str | Sequence[str], str | Sequence[str]]) -> None:
    _check_pairs(
        *value, lambda side: [item for name in _names(side) for item in trial.seen.values(f"{name}.logits")]
    )


def repeats_equal(trial: Trial, name: str) -> None:
    """Among the replies there must be at least one that was asked for twice."""
    replies = trial.seen.named(name)
    texts = trial.seen.texts(name)
    first: dict[str, int] = {}
    num_repeats = 0
    for index, reply in enumerate(replies):
        earlier = first.setdefault(repr(reply.asked), index)
        num_repeats += earlier != index
        if texts[index] != texts[earlier]:
            raise Unmet(
                f"equal bodies get equal texts; seen: {texts[earlier]!r} at {earlier}, {texts[index]!r} at {index}"
            )
    if not num_repeats:
        raise Unmet(f"no body of {name} was sent twice, so nothing is compared")


async def sample_equal_to_cold(trial: Trial, value: tuple[str, int]) -> None:
    name, number = value
    replies = trial.seen.named(name)
    for reply in random.Random(_DRAW).sample(replies, min(number, len(replies))):
        await trial.server.reset_caches()
        check_same(name, reply, "a server with empty caches", await trial.server.post(reply.asked))


def same_output_as_case(trial: Trial, value: tuple[str, str]) -> None:
    name, case_id = value
    other = trial.answers[case_id]
    for reply in trial.seen.named(name):
        check_same(name, reply, case_id, other)
        if reply.prompt_tokens != other.prompt_tokens:
            raise Unmet(
                f"{name} has the prompt tokens of {case_id}; seen: {reply.prompt_tokens} and {other.prompt_tokens}"
            )


def text_never_contains(trial: Trial, value: tuple[str, str]) -> None:
    name, word = value
    for index, text in enumerate(trial.seen.texts(name)):
        if word in text:
            raise Unmet(f"{name}[{index}] never says {word!r}; seen: {shortened(text)!r}")


def finish_reason_of(
    trial: Trial, name: str, *, is_: str | None = None, in_: Sequence[str] | None = None
) -> None:
    wanted = in_ or [is_]
    for index, reason in enumerate(trial.seen.values(f"{name}.finish_reason")):
        if reason not in wanted:
            raise Unmet(f"{name}[{index}] ends with one of {wanted}; seen: {reason}")


def every_json_schema_valid(trial: Trial, name: str) -> None:
    for reply, text in zip(trial.seen.named(name), trial.seen.texts(name), strict=True):
        check_schema(reply.asked, text)


def _check_pairs(
    ours: str | Sequence[str],
    theirs: str | Sequence[str],
    read: Callable[[str | Sequence[str]], list[object]],
) -> None:
    first, second = read(ours), read(theirs)
    if len(first) != len(second):
        raise Unmet(f"{ours} and {theirs} have one length; seen: {len(first)} and {len(second)}")
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        if not agree(one, other):
            raise Unmet(f"{ours} and {theirs} agree at {index}; seen: {_shown(one)} and {_shown(other)}")


def _listed(seen: Observation, side: str | Sequence[str]) -> list[object]:
    return [value for path in _names(side) for value in seen.values(path)]


def _names(side: str | Sequence[str]) -> Sequence[str]:
    return [side] if isinstance(side, str) else side


def _shown(value: object) -> str:
    return shortened(str(value) if not isinstance(value, str) else repr(value))
