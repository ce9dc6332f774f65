"""Every key of `expect`, in one table: what must hold of one answer, or of a scenario's last one.

Owns the reading of a whole expectation: every key that is given must hold, of `any_of` one part, and every error is
JSON unless the case says otherwise. An unknown key is an error of its case.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence

from tests.conformance import relations
from tests.conformance.compare import check_same
from tests.conformance.logits import Logits
from tests.conformance.observation import Unmet
from tests.conformance.relations.process import rss_growth_mb_max
from tests.conformance.reply import Reply, shortened
from tests.conformance.schema import check_schema
from tests.conformance.trial import Trial

_SIMILAR = 0.1  # of a log-probability
_BASE64 = re.compile(r"[A-Za-z0-9+/]{201}")


def form_problems(expect: dict) -> list[str]:
    """What is wrong with an expectation as it is written."""
    problems = [f"expect has the unknown key {key}" for key in expect if key not in EXPECT]
    problems += filter(None, map(relations.check_form, expect.get("checks", ())))
    for part in expect.get("any_of", ()):
        problems += form_problems(part)
    return problems


def named_cases(expect: dict) -> Iterator[str]:
    """The other cases whose answers an expectation looks at."""
    for key, value in expect.items():
        if key.endswith(("_as", "_from")) or (key.endswith("_than") and isinstance(value, str)):
            yield value
        elif key == "prompt_tokens_within":
            yield value[0]
    for check in expect.get("checks", ()):
        if "same_output_as_case" in check:
            yield check["same_output_as_case"][1]
    for part in expect.get("any_of", ()):
        yield from named_cases(part)


async def problems_of(trial: Trial, expect: dict) -> list[str]:
    """What does not hold of a whole case, in the order in which it is written."""
    problems = await _problems(trial, expect)
    if "error_is_json" not in expect:
        problems += [problem for reply in trial.seen.replies for problem in _json_problem(reply)]
    return problems


async def _problems(trial: Trial, expect: dict) -> list[str]:
    problems = []
    for key, value in expect.items():
        try:
            outcome = EXPECT[key](trial, value)
            if outcome is not None:
                await outcome
        except Unmet as unmet:
            problems.append(f"{key}: {unmet}")
    return problems


async def _any_of(trial: Trial, parts: Sequence[dict]) -> None:
    tried = []
    for part in parts:
        problems = await _problems(trial, part)
        if not problems:
            return
        tried.append("; ".join(problems))
    raise Unmet(" | or ".join(tried))


async def _checks(trial: Trial, checks: Sequence[dict]) -> None:
    unmet = []
    for check in checks:
        try:
            await relations.hold(trial, check)
        except Unmet as error:
            unmet.append(str(error))
    if unmet:
        raise Unmet("; ".join(unmet))


def _status(trial: Trial, wanted: int | Sequence[int]) -> None:
    statuses = [wanted] if isinstance(wanted, int) else wanted
    reply = _last(trial)
    if reply.status not in statuses or (reply.status == 200 and not reply.is_whole):
        raise Unmet(f"one of {list(statuses)}; seen: {reply.outcome}")


def _error_contains_any(trial: Trial, words: Sequence[str]) -> None:
    message = (_last(trial).error or "").lower()
    if not any(word in message for word in words):
        raise Unmet(f"one of {list(words)}; seen: {_last(trial).outcome}")


def _error_is_json(trial: Trial, is_wanted: bool) -> None:
    if is_wanted and not _last(trial).has_error_document:
        raise Unmet(f"the body is an error object; seen: {_body(_last(trial))}")


def _same_prompt_tokens_as(trial: Trial, case_id: str) -> None:
    ours, theirs = _both_prompts(trial, case_id)
    if ours != theirs:
        raise Unmet(f"{theirs} as {case_id}; seen: {ours}")


def _different_prompt_tokens_from(trial: Trial, case_id: str) -> None:
    ours, theirs = _both_prompts(trial, case_id)
    if ours == theirs:
        raise Unmet(f"another number than {case_id}; seen: {ours} both times")


def _prompt_tokens_greater_than(trial: Trial, bound: str | int) -> None:
    ours, theirs = _both_prompts(trial, bound)
    if ours <= theirs:
        raise Unmet(f"more than {theirs} of {bound}; seen: {ours}")


def _prompt_tokens_less_than(trial: Trial, bound: str | int) -> None:
    ours, theirs = _both_prompts(trial, bound)
    if ours >= theirs:
        raise Unmet(f"less than {theirs} of {bound}; seen: {ours}")


def _prompt_tokens_within(trial: Trial, value: tuple[str, int]) -> None:
    case_id, distance = value
    ours, theirs = _both_prompts(trial, case_id)
    if abs(ours - theirs) > distance:
        raise Unmet(f"{theirs} of {case_id}, {distance} more or less; seen: {ours}")


def _same_output_as(trial: Trial, case_id: str) -> None:
    reply, other = _both_answers(trial, case_id)
    if reply.text != other.text:
        raise Unmet(f"the text of {case_id}, {shortened(other.text)!r}; seen: {shortened(reply.text)!r}")
    ours, theirs = _both_logits(reply, other)
    if not ours.is_near(theirs):
        raise Unmet(f"the logits of {case_id}, {theirs}; seen: {ours}")


def _similar_output_as(trial: Trial, case_id: str) -> None:
    ours, theirs = _both_logits(*_both_answers(trial, case_id))
    if not (ours.has_same_tokens(theirs) and ours.is_near(theirs, _SIMILAR)):
        raise Unmet(f"about the logits of {case_id}, {theirs}; seen: {ours}")


def _different_output_from(trial: Trial, case_id: str) -> None:
    ours, theirs = _both_logits(*_both_answers(trial, case_id))
    if ours.is_near(theirs):
        raise Unmet(f"other logits than {case_id}; seen: {ours} both times")


async def _image_spans(trial: Trial, number: int) -> None:
    prompt = await trial.server.prompt_of(_last(trial).asked)
    found = sum(span.kind == "image" for span in prompt.spans)
    if found != number:
        raise Unmet(f"{number} in the prompt; seen: {found}")


def _choices(trial: Trial, number: int) -> None:
    if _last(trial).num_choices != number:
        raise Unmet(f"{number}; seen: {_last(trial).num_choices}, {_last(trial).outcome}")


def _json_schema_valid(trial: Trial, is_wanted: bool) -> None:
    if is_wanted:
        check_schema(_last(trial).asked, _answered(_last(trial)).text)


def _max_seconds(trial: Trial, limit_s: float) -> None:
    if trial.seen.seconds > limit_s:
        raise Unmet(f"{limit_s:g}; seen: {trial.seen.seconds:.1f}")


def _reply_and_log_without_base64(trial: Trial, is_wanted: bool) -> None:
    places = {f"reply {index}": _body(reply, None) for index, reply in enumerate(trial.seen.replies)}
    for place, text in (places | {"log": trial.seen.log}).items():
        found = _BASE64.search(text)
        if is_wanted and found:
            raise Unmet(f"no run of base64; seen in the {place}: {found[0][:40]}…")


async def _server_alive_after(trial: Trial, is_wanted: bool) -> None:
    if is_wanted:
        await trial.server.check_health()
        before = trial.answers[trial.control]
        check_same("control", await trial.server.post(before.asked), "control before", before)


def _same_status_as(trial: Trial, case_id: str) -> None:
    other = trial.answers[case_id]
    if _last(trial).status is None or _last(trial).status != other.status:
        raise Unmet(f"{other.status} as {case_id}; seen: {_last(trial).outcome}")


Expectation = Callable[..., Awaitable[None] | None]
EXPECT: dict[str, Expectation] = {
    "status": _status,
    "any_of": _any_of,
    "error_contains_any": _error_contains_any,
    "error_is_json": _error_is_json,
    "same_prompt_tokens_as": _same_prompt_tokens_as,
    "same_output_as": _same_output_as,
    "similar_output_as": _similar_output_as,
    "different_output_from": _different_output_from,
    "different_prompt_tokens_from": _different_prompt_tokens_from,
    "prompt_tokens_greater_than": _prompt_tokens_greater_than,
    "prompt_tokens_less_than": _prompt_tokens_less_than,
    "prompt_tokens_within": _prompt_tokens_within,
    "image_spans": _image_spans,
    "choices": _choices,
    "json_schema_valid": _json_schema_valid,
    "max_seconds": _max_seconds,
    "rss_growth_mb_max": rss_growth_mb_max,
    "reply_and_log_without_base64": _reply_and_log_without_base64,
    "server_alive_after": _server_alive_after,
    "same_status_as": _same_status_as,
    "checks": _checks,
}


def _last(trial: Trial) -> Reply:
    if not trial.seen.replies:
        raise Unmet("there is an answer; seen: none")
    return trial.seen.replies[-1]


def _answered(reply: Reply) -> Reply:
    if not reply.is_whole:
        raise Unmet(f"an answer; seen: {reply.outcome}")
    return reply


def _both_answers(trial: Trial, case_id: str) -> tuple[Reply, Reply]:
    return _answered(_last(trial)), _answered(trial.answers[case_id])


def _both_prompts(trial: Trial, bound: str | int) -> tuple[int, int]:
    ours = _answered(_last(trial)).prompt_tokens
    theirs = bound if isinstance(bound, int) else _answered(trial.answers[bound]).prompt_tokens
    if ours is None or theirs is None:
        raise Unmet(f"both answers tell usage; seen: {ours} and {theirs} prompt tokens")
    return ours, theirs


def _both_logits(reply: Reply, other: Reply) -> tuple[Logits, Logits]:
    if reply.logits is None or other.logits is None:
        raise Unmet("both answers have log-probabilities; seen: one that has none")
    return reply.logits, other.logits


def _json_problem(reply: Reply) -> Iterator[str]:
    if (reply.status or 0) >= 400 and not reply.has_error_document:
        yield f"error_is_json: the body is an error object; seen: {reply.status} {_body(reply)}"


def _body(reply: Reply, limit: int | None = 200) -> str:
    text = reply.body.decode("utf-8", "replace")
    return text if limit is None else shortened(text, limit)
