"""Whether the stages before the queue are worth beginning, and until when media may take.

Owns the checks of a deadline before a fetch and before a decode, by what the engine foretells, and the words that stand
in a prompt for media that did not come in time. The stages behind the queue are the scheduler's (sched/prospects.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

from tapetum.core.chat import ChatInput, MediaPart
from tapetum.core.checks import shown
from tapetum.core.errors import InvalidParameter
from tapetum.core.media import MediaKind
from tapetum.engine.forecast import Forecast, Workload
from tapetum.sched.promise import check_in_time

OnVisionTimeout = Literal["reject", "text_only"]
MAX_PRIORITY = 1000
_SPARE = 0.2  # of the time, for what nobody foretells when a prompt is laid out again without its media
MAX_TIMEOUT_S = 86_400  # a day
LEFT_OUT: dict[MediaKind, str] = {
    "image": "[A picture was left out here: it could not be read in time.]",
    "video": "[A video was left out here: it could not be read in time.]",
}


def check_terms(priority: int, timeout_s: float | None, on_vision_timeout: str) -> None:
    """Raise InvalidParameter for what nobody can mean."""
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidParameter(
            f"priority is {shown(priority)}, allowed are {-MAX_PRIORITY} to {MAX_PRIORITY}; lower is earlier, 0 is "
            "standard",
            param="priority",
        )
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:  # NaN too
        raise InvalidParameter(
            f"timeout_s is {shown(timeout_s)}, allowed are numbers above 0 to {MAX_TIMEOUT_S}; leave it out for none",
            param="timeout_s",
        )
    if on_vision_timeout not in get_args(OnVisionTimeout):
        raise InvalidParameter(
            f"on_vision_timeout is {shown(on_vision_timeout)}, allowed are reject or text_only",
            param="on_vision_timeout",
        )


class Timeliness:
    """`forecast` asks the engine, from any thread; `clock` is that of deadlines."""

    def __init__(self, forecast: Callable[[Workload], Forecast], clock: Callable[[], float]) -> None:
        self._forecast = forecast
        self._clock = clock

    def check(self, deadline_s: float | None, workload: Workload) -> None:
        """Raise the refusal of a prompt that would be too late. Where all of its media are cached the rest of it may
        be too, which only the scheduler knows."""
        if deadline_s is None:
            return
        forecast = self._forecast(workload)
        if not (forecast.is_held and all(forecast.is_held)):
            check_in_time(deadline_s - self._clock(), forecast.prospect)

    def seconds_for_media(self, deadline_s: float | None, text: Workload) -> float | None:
        """How long media may take if their prompt is to be answered without them then; None = as long as they like."""
        if deadline_s is None:
            return None
        left_s = deadline_s - self._clock()
        return max(0.0, (1 - _SPARE) * left_s - self._forecast(text).prospect.within_s)


def without_media(prompt: ChatInput) -> ChatInput:
    """The same chat, which says in words where media were."""
    messages = tuple(
        replace(
            message,
            content=tuple(
                LEFT_OUT[part.kind] if isinstance(part, MediaPart) else part for part in message.content
            ),
        )
        for message in prompt.messages
    )
    return replace(prompt, messages=messages, max_visual_tokens=None, pages=())
