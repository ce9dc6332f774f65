"""What one step may spend: rows, tokens, visual tokens to encode, and seconds."""

from __future__ import annotations

from dataclasses import dataclass

from tapetum.core.config import ScheduleConfig

_TIME_SHARE = {"balanced": 1.0, "interactive": 0.5}  # of itl_target_ms, for steps with decodes
_CREDIT_SHARE = 0.1  # of a step's time, its least saving
_LEAST_CREDIT_S = 1e-4  # the same where a step seems to take no time


@dataclass(slots=True)
class StepBudget:
    """What is left. `seconds` is the whole step's time, None = no limit."""

    rows: int
    tokens: int
    visual_tokens: int
    seconds: float | None = None
    has_encode: bool = False

    @property
    def has_tokens(self) -> bool:
        return self.rows > 0 and self.tokens > 0

    def take_row(self, tokens: int) -> None:
        self.rows -= 1
        self.tokens -= tokens

    def allows_encode(self, visual_tokens: int) -> bool:
        """Within what is left; an item larger than the whole budget runs as the only one of its step."""
        return visual_tokens <= self.visual_tokens or not self.has_encode

    def take_encode(self, visual_tokens: int) -> None:
        self.has_encode = True
        self.visual_tokens = max(0, self.visual_tokens - visual_tokens)


def step_budget(config: ScheduleConfig) -> StepBudget:
    return StepBudget(config.max_num_seqs, config.max_num_batched_tokens, config.encoder_budget_tokens)


def max_running(config: ScheduleConfig, block_size: int) -> int:
    """How many requests may run at once: few enough that their decodes leave tokens of every step to a prefill.

    Left over is one block, or half of the step where that is less.
    """
    left_over = min(block_size, (config.max_num_batched_tokens + 1) // 2)
    return min(config.max_num_seqs, config.max_num_batched_tokens - left_over + 1)


def step_seconds_limit(config: ScheduleConfig) -> float | None:
    """How long a step may take while requests decode."""
    share = _TIME_SHARE.get(config.schedule)
    return None if share is None else share * config.itl_target_ms / 1e3


class EncodeCredit:
    """Time that pictures too slow for the slack of one step have saved up by waiting.

    In each step that has no time for a picture, the slack it was offered is saved, at least a tenth of the step;
    once slack and savings cover the encode, it runs. So the mean time between tokens stays near the target, and the
    first picture in line waits at most ten times as long as its encode takes.
    """

    def __init__(self) -> None:
        self._saved_s = 0.0

    def try_spend(self, seconds: float, slack: float, limit: float) -> bool:
        """Whether a picture of `seconds` may run now; if not, the slack is saved."""
        if seconds <= slack + self._saved_s:
            self._saved_s = 0.0
            return True
        longest = limit - min(slack, 0.0)  # of the limit and what is planned already
        self._saved_s += max(slack, _CREDIT_SHARE * longest, _LEAST_CREDIT_S)
        return False
