"""Relations about streams: their chunks one by one, stop strings, gaps, usage."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.conformance.observation import Unmet
from tests.conformance.reply import DONE, Chunk, Reply
from tests.conformance.trial import Trial


def stream_text_equals_prefix_of(trial: Trial, value: tuple[str, str, str]) -> None:
    name, full, stop = value
    whole = trial.seen.texts(full)[0]
    if stop not in whole:
        raise Unmet(f"the text of {full} holds the stop string {stop!r}; seen: {whole!r}")
    wanted = whole[: whole.index(stop)]
    for index, text in enumerate(trial.seen.texts(name)):
        if text != wanted:
            raise Unmet(f"{name}[{index}] is the text of {full} before {stop!r}: {wanted!r}; seen: {text!r}")


def no_suffix_is_prefix_of_stop(trial: Trial, value: str | tuple[str, str]) -> None:
    """An end that only looks begun is the answer's own where the whole text goes on with the stop string."""
    name, stop = (value, trial.seen.stop) if isinstance(value, str) else value
    if not stop:
        raise Unmet(f"there is no stop string to look for at the end of {name}")
    for index, text in enumerate(trial.seen.texts(name)):
        begun = next(
            (stop[:size] for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), None
        )
        if begun is not None and not trial.seen.stop_source.startswith(text + stop):
            raise Unmet(f"{name}[{index}] does not end with the begun stop string {begun!r}; seen: {text!r}")


def no_char_in_any_chunk(trial: Trial, value: tuple[str, str]) -> None:
    name, char = value
    for index, chunk in _chunks(trial, name):
        if char in json.dumps(json.loads(chunk.data), ensure_ascii=False):
            raise Unmet(f"no chunk of {name} holds {char!r}; seen in chunk {index}: {chunk.data!r}")


def every_chunk_valid_utf8(trial: Trial, name: str) -> None:
    """By itself, and so that its text can be written down: no half of a surrogate pair."""
    for index, chunk in _chunks(trial, name):
        try:
            json.dumps(json.loads(chunk.data.decode()), ensure_ascii=False).encode()
        except UnicodeError as error:
            raise Unmet(f"each chunk of {name} is valid UTF-8; seen in chunk {index}: {error}") from error


def last_chunk(trial: Trial, name: str, *, choices: int | None = None, has: str | None = None) -> None:
    if choices is None and has is None:
        raise Unmet("last_chunk says neither choices nor has")
    for reply in trial.seen.named(name):
        last = _data(reply, name)[-1]
        document = json.loads(last.data)
        num_choices = len(document.get("choices") or ())
        if choices not in (None, num_choices) or (has is not None and document.get(has) is None):
            raise Unmet(f"the last chunk of {name} has {choices} choices and {has}; seen: {last.data!r}")


def usage_chunks_without_option(trial: Trial, value: tuple[str, int]) -> None:
    name, number = value
    for reply in trial.seen.named(name):
        found = sum(bool(json.loads(chunk.data).get("usage")) for chunk in _data(reply, name))
        if found != number:
            raise Unmet(f"{number} chunks of {name} carry usage; seen: {found}")


def max_gap_ms_of(
    trial: Trial,
    value: str | tuple[str, str],
    *,
    alone: str = "alone",
    times_of_alone: float = 1.0,
    or_ms: float = 0.0,
) -> None:
    """The larger of the two limits holds; `[name, other]` compares with another name than 'alone'."""
    name, alone = (value, alone) if isinstance(value, str) else value
    gap_ms = max(_largest_gap_ms(reply, name) for reply in trial.seen.named(name))
    alone_ms = (
        max(_largest_gap_ms(reply, alone) for reply in trial.seen.named(alone)) if times_of_alone else 0.0
    )
    limit_ms = max(times_of_alone * alone_ms, or_ms)
    if gap_ms > limit_ms:
        raise Unmet(
            f"gaps of {name} are at most {times_of_alone:g} x {alone_ms:.0f} ms or {or_ms:g} ms; seen: {gap_ms:.0f} ms"
        )


def _largest_gap_ms(reply: Reply, name: str) -> float:
    times = [chunk.at_s for chunk in _data(reply, name)]
    if len(times) < 3:
        raise Unmet(f"{name} has gaps between its tokens; seen: {len(times)} chunks, {reply.outcome}")
    first_token, *later = times[1:]  # what opens a stream may come long before its first token
    return 1000 * max(after - before for before, after in zip([first_token, *later], later, strict=False))


def _chunks(trial: Trial, name: str) -> Iterator[tuple[int, Chunk]]:
    for reply in trial.seen.named(name):
        yield from enumerate(_data(reply, name))


def _data(reply: Reply, name: str) -> list[Chunk]:
    chunks = [chunk for chunk in reply.chunks if chunk.data != DONE]
    if not chunks:
        raise Unmet(f"{name} is a stream; seen: {reply.outcome}")
    return chunks
