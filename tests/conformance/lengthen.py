"""Longer answers for the cases that need them.

A scenario whose point is what happens during an answer asks for more tokens than a small model has to say, and for
more than its context holds. Such a request goes on after the end of the answer, as far as the context reaches. Which
request is meant is told by itself and not by where it stands, so equal bodies stay equal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

LONG = 32  # tokens from which on an answer is meant to be long
_ENDS_BY_ITSELF = ("response_format", "tools", "functions")
Room = Callable[[dict], Awaitable[int | None]]


async def lengthened(steps: Sequence[dict], room_for: Room) -> list[dict]:
    """The steps with longer answers; `room_for` tells how many tokens a body may have, None = leave it as it is."""
    return [await _lengthened_step(step, room_for) for step in steps]


async def _lengthened_step(step: dict, room_for: Room) -> dict:
    if step["do"] == "parallel":
        return {**step, "steps": await lengthened(step["steps"], room_for)}
    if step["do"] != "post" or not _wants_length(step):
        return step
    body = {**step["body"], "ignore_eos": True}
    room = await room_for(body) if "max_tokens" in body else None
    if room is not None:
        body["max_tokens"] = max(min(body["max_tokens"], room), 1)
    return {**step, "body": body}


def _wants_length(step: dict) -> bool:
    """Whether a post is about a long or a broken-off answer, and not about where one ends by itself."""
    body = step["body"]
    max_tokens = body.get("max_tokens")
    is_long = isinstance(max_tokens, int) and not isinstance(max_tokens, bool) and max_tokens >= LONG
    is_broken_off = "abort_after_chunks" in step or "abort_after_s" in step
    return (is_long or is_broken_off) and not any(body.get(name) for name in _ENDS_BY_ITSELF)
