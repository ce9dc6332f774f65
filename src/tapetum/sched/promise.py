"""Whether a request can be promised its deadline, told when it comes: an early refusal beats a late failure.

Owns the arithmetic from what an engine has to do to when a request would end, and the margin on it. What cannot be
foreseen is learned of the requests that ended: those who come later and slow others down, and how long answers are.
Up to the first token the margin is a factor, what 99 of the last 100 requests have kept to, apart for requests with
media and those without; behind it, the pace of their tokens. Both have bounds, so a request whose deadline is far
enough away is never refused, and who finds the engine idle is measured by what it takes alone. Pure; no clock.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from math import inf

from tapetum.core.errors import DeadlineOutOfReach, DeadlinePassed
from tapetum.sched.encode import ENCODE_SHARE

KEPT_SHARE = 0.99  # of requests, that are no later than they were promised
LEAST_MARGIN, MOST_MARGIN = 0.5, 4.0
_UNSURE_MARGIN = 1.5  # while less than this many requests have taught what it is
_ENOUGH = 20
_LENGTH_SHARE = 0.9  # of answers, that are no longer than one is expected to be
_MISSED = 1.25  # a request that its deadline ended would have taken this much longer, or more
_NUM_REMEMBERED = 200  # of each kind
_REFUSALS = 5  # by a margin alone, that are taken for one request that came as predicted
_NUM_BELIEVED = 100  # requests of text that came as predicted, before any has come
_LEAST_LEFT = 0.1  # of a step, for encodes and prefills beside many decodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an engine has to do, as one more request finds it; predicted seconds."""

    flight_s: float = 0.0  # the step that is carried out now
    ahead_s: float = 0.0  # encodes and prefills that this request waits for
    pending_s: float = 0.0  # all encodes and prefills, which its decodes share the steps with
    stay_s: float = 0.0  # until it gets one of the places among the running
    decode_s: float = 0.0  # a step of the decodes of now and one more
    alone_s: float = 0.0  # a step of one decode alone
    limit_s: float = 0.0  # of a step with decodes and whatever else there is
    rest_s: float = 0.0  # of those, for encodes and prefills
    patience_s: float = (
        inf  # after which its prefill goes before encodes, with which it shares the rest until then
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """Predicted seconds of each stage of a request, from now on."""

    queue_s: float = 0.0
    encode_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    slowest_s: float = 0.0  # of the decodes, should every step last to its limit
    alone_s: float = 0.0  # of all of it, with the engine to itself
    num_steps: float = 0.0  # of the decodes
    within_s: float = 0.0  # nearly all such requests end

    @property
    def first_token_s(self) -> float:
        return self.queue_s + self.encode_s + self.prefill_s


def prospect_of(load: Load, *, encode_s: float, prefill_s: float, num_tokens: float) -> Prospect:
    """Of a request with so much of its own to do, and so many tokens to answer.

    Decodes go first in every step, so what is ahead goes on in the rest of them. While anything is left to encode or
    prefill, steps last to their limit; from then on they are as short as decodes alone make them. A prefill shares the
    rest with encodes, but for one that would be late.
    """
    slowed = load.limit_s / max(load.rest_s, _LEAST_LEFT * load.limit_s) if load.limit_s > 0 else 1.0
    work_s = load.ahead_s + encode_s + prefill_s
    if load.patience_s < inf and work_s > 0:
        slowed = min(slowed / ENCODE_SHARE, max(slowed, load.patience_s / work_s))
    num_steps = num_tokens - 1
    later_s = max(0.0, load.pending_s - load.ahead_s)
    slowest_s = num_steps * max(load.limit_s, load.decode_s)
    return Prospect(
        queue_s=load.flight_s + max(load.ahead_s * slowed, load.stay_s),
        encode_s=encode_s * slowed,
        prefill_s=prefill_s * slowed,
        decode_s=min(num_steps * load.decode_s + later_s, slowest_s),
        slowest_s=slowest_s,
        alone_s=encode_s + prefill_s + num_steps * load.alone_s,
        num_steps=num_steps,
    )


def check_in_time(left_s: float, prospect: Prospect) -> None:
    """Raise the refusal of a request that would not end within `left_s`: DeadlineOutOfReach where it would after a
    wait, DeadlinePassed where it would not with the engine to itself."""
    if prospect.alone_s > left_s:
        raise DeadlinePassed(
            f"request would take about {prospect.alone_s:.3f} s on an idle engine, its timeout_s leaves "
            f"{left_s:.3f} s; raise timeout_s, lower max_tokens or send smaller pictures",
            param="timeout_s",
        )
    wait_s = prospect.within_s - left_s
    if wait_s > 0:
        raise DeadlineOutOfReach(
            f"request would end after about {prospect.within_s:.3f} s, {prospect.queue_s:.3f} s of them in the queue, "
            f"its timeout_s leaves {left_s:.3f} s; come back in {wait_s:.1f} s or raise timeout_s",
            param="timeout_s",
            wait_s=wait_s,
        )


class Promises:
    """What was predicted of requests beside what came, and what may be promised by that."""

    def __init__(self) -> None:
        # seconds to the first token, taken by predicted; of requests with media, and of those without
        self._ratios = {True: _Recent(), False: _Recent()}
        for _ in range(_NUM_BELIEVED):
            self._ratios[False].add(1.0)
        self._paces = _Recent()  # seconds of a token behind the first
        self._lengths = _Recent()  # tokens of answers
        self._num_refused = {True: 0, False: 0}

    def margin(self, *, has_media: bool) -> float:
        """How many times as long as predicted a first token may take."""
        ratios = self._ratios[has_media]
        least = LEAST_MARGIN if len(ratios) >= _ENOUGH else _UNSURE_MARGIN
        return min(max(ratios.quantile(KEPT_SHARE, least), least), MOST_MARGIN)

    def answer_tokens(self, least: int, most: int) -> float:
        """How long an answer within these bounds is expected to be; `least` while nothing is known."""
        return min(max(self._lengths.quantile(_LENGTH_SHARE, least), least), most)

    def seconds(self, prospect: Prospect, *, has_media: bool) -> float:
        """Within which a request will end, as nearly all do."""
        pace_s = self._paces.quantile(KEPT_SHARE, 0.0)
        decode_s = min(max(prospect.num_steps * pace_s, prospect.decode_s), prospect.slowest_s)
        return self.margin(has_media=has_media) * prospect.first_token_s + decode_s

    def observe_first(
        self, predicted_s: float, took_s: float, *, has_media: bool, is_late: bool = False
    ) -> None:
        """A first token came so long after its request, or had not come when the deadline ended it."""
        if predicted_s > 0:
            self._ratios[has_media].add(took_s / predicted_s * (_MISSED if is_late else 1.0))

    def observe_rest(self, num_steps: int, took_s: float) -> None:
        """So many tokens behind the first one came."""
        if num_steps > 0:
            self._paces.add(took_s / num_steps)

    def observe_refusal(self, *, has_media: bool) -> None:
        """Somebody would have been let in but for what was learned. Who is refused teaches nothing: now and then
        believe the prediction again, so that no margin refuses all for good."""
        self._num_refused[has_media] += 1
        if self._num_refused[has_media] % _REFUSALS == 0:
            self._ratios[has_media].add(1.0)
            self._paces.drop_oldest()

    def observe_length(self, num_tokens: int) -> None:
        """An answer came to its own end, or to the limit it had."""
        self._lengths.add(num_tokens)


class _Recent:
    """The last numbers of a kind, in the order they came and by size."""

    def __init__(self) -> None:
        self._came: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._came)

    def add(self, number: float) -> None:
        if len(self._came) == _NUM_REMEMBERED:
            self.drop_oldest()
        self._came.append(number)
        insort(self._sorted, number)

    def drop_oldest(self) -> None:
        if self._came:
            del self._sorted[bisect_left(self._sorted, self._came.popleft())]

    def quantile(self, share: float, default: float) -> float:
        """The smallest that this share of them does not exceed."""
        count = len(self._sorted)
        return self._sorted[min(int(share * count), count - 1)] if count else default
