"""Whether guessed tokens are worth a place in the step, and how many of them.

Owns what is known of one request's guesses: where they come from, how often they came true. A guess costs the step a
little time for each token and yields the tokens up to the first wrong one, plus the one the model says in its place.
As many are verified as give the whole step the most tokens per second by the cost model, and none where that gains
little: a step whose time grows with every row has nothing to give. What came of it never changes a token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tapetum.core.request import RequestState
from tapetum.sched.lookup import Guess, Kind, Lookup

MAX_GUESS = 32  # tokens
_LEAST_GAIN = 1.05  # in tokens per second, of a guess that is verified
_RETRY_AFTER = 64  # tokens without a guess, though there were some
_RETRY_LENGTH = 4
_RETRY_RATE = 0.9  # would it pay if so many came true
_LEAST_SECONDS = 1e-9  # of a step
_FORGETTING = 0.85  # of what was seen before, with every guess
_LONGEST_REST = 4  # tokens


@dataclass(slots=True)
class _Rate:
    """How often a token came true after those before it had."""

    accepted: float
    tried: float

    @property
    def value(self) -> float:
        return self.accepted / self.tried

    def observe(self, accepted: int, length: int) -> None:
        tried = accepted + (accepted < length)
        self.accepted = self.accepted * _FORGETTING + accepted
        self.tried = self.tried * _FORGETTING + tried


class Speculation:
    """The guesses of one request. Every guess that is taken is settled before the next one."""

    def __init__(self, state: RequestState) -> None:
        self._state = state
        self._lookup = Lookup(state.request)
        self._rates: dict[Kind, _Rate] = {
            "followed": _Rate(1.8, 2.0),
            "long": _Rate(1.4, 2.0),
            "short": _Rate(0.8, 2.0),
        }
        self._found: Guess | None = None
        self._taken: Guess | None = None
        self._num_read = 0  # tokens of the answer
        self._most_gain = self._hoped()
        self._num_idle = 0
        self._num_vain = 0  # times that nothing was worth guessing, one after the other
        self._num_to_rest = 0  # tokens

    def look(self, step: Outlook) -> bool:
        """Whether there is something to guess, and it might pay in such a step; `take` says whether it does."""
        if not step.may_gain(self._most_gain):  # among many rows one gains too little
            self._num_idle += 1
            self._note(is_vain=True)
            return False
        output, lookup = self._state.output_token_ids, self._lookup
        while self._num_read < len(output):
            lookup.append(output[self._num_read])
            self._num_read += 1
        self._found = lookup.guess(MAX_GUESS)
        if self._found is None:
            self._note(is_vain=True)
            return False
        return True

    def take(self, longest: int, step: Outlook) -> tuple[int, ...]:
        """Tokens of what was found to verify in a step of this outlook; () where they would not pay."""
        taken = self._take(longest, step)
        self._note(is_vain=not taken)
        return taken

    def _hoped(self) -> float:
        """The most tokens that a guess should yield."""
        rates = (rate.value for rate in self._rates.values())
        return _expected(max(_RETRY_RATE, *rates), MAX_GUESS)

    def _note(self, *, is_vain: bool) -> None:
        self._num_vain = self._num_vain + 1 if is_vain else 0
        self._num_to_rest = min(self._num_vain // 2, _LONGEST_REST)

    @property
    def is_resting(self) -> bool:
        """Whether a token may pass without a guess: the longer none was worth it, the less there is to miss."""
        return self._num_to_rest > 0

    def rest(self) -> None:
        """Let a token pass."""
        self._num_to_rest -= 1
        self._num_idle += 1

    def _take(self, longest: int, step: Outlook) -> tuple[int, ...]:
        guess, self._found = self._found, None
        assert guess is not None, "something was found"
        longest = min(longest, len(guess.token_ids))
        if longest < 1:
            return ()
        rate = self._rates[guess.kind].value
        length = step.best_length(rate, longest)
        if not length:
            length = self._retry(longest, step)
        if not length:
            return ()
        self._num_idle = 0
        step.take(length, rate)
        self._taken = replace(guess, token_ids=guess.token_ids[:length])
        return self._taken.token_ids

    def _retry(self, longest: int, step: Outlook) -> int:
        """The length of a guess that is only to see whether guesses come true again; 0 most of the time."""
        self._num_idle += 1
        if self._num_idle < _RETRY_AFTER:
            return 0
        return min(_RETRY_LENGTH, step.best_length(_RETRY_RATE, longest))

    def settle(self, num_accepted: int) -> None:
        """So many tokens of the guess that was taken came true."""
        guess, self._taken = self._taken, None
        assert guess is not None, "a guess is taken before it is settled"
        self._rates[guess.kind].observe(num_accepted, len(guess.token_ids))
        self._most_gain = self._hoped()
        if guess.is_predicted:
            self._state.num_predicted_right += num_accepted
            self._state.num_predicted_wrong += len(guess.token_ids) - num_accepted


@dataclass(slots=True)
class Outlook:
    """A step so far: the tokens it should yield, the seconds it should take, and what a guess would add to them."""

    num_expected: float
    seconds: float
    seconds_per_token: float = 0.0  # of the guess that is being thought about

    def best_length(self, rate: float, longest: int) -> int:
        """The length with the most expected tokens per second; 0 if none gains enough."""
        best = 0
        best_speed = _LEAST_GAIN * self.num_expected / max(self.seconds, _LEAST_SECONDS)
        expected, chance = self.num_expected, 1.0
        for length in range(1, longest + 1):
            chance *= rate
            expected += chance
            speed = expected / max(self.seconds + length * self.seconds_per_token, _LEAST_SECONDS)
            if speed > best_speed:
                best, best_speed = length, speed
        return best

    def max_length(self, seconds: float) -> int:
        """The longest guess with which the step takes no longer than `seconds`."""
        left = max(0.0, seconds - self.seconds)
        return int(min(MAX_GUESS, left / max(self.seconds_per_token, _LEAST_SECONDS)))

    def may_gain(self, num_tokens: float) -> bool:
        """Whether so many more would be enough, if they took no time."""
        return num_tokens > (_LEAST_GAIN - 1) * self.num_expected

    def take(self, length: int, rate: float) -> None:
        """A guess of such a length goes into the step."""
        self.num_expected += _expected(rate, length)
        self.seconds += length * self.seconds_per_token


def _expected(rate: float, length: int) -> float:
    """Tokens that a guess of such a length should yield."""
    return sum(rate**place for place in range(1, length + 1))
