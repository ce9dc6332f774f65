"""What one step may spend: rows, tokens, visual tokens to encode, and seconds."""

from __future__ import annotations

from dataclasses import dataclass

from tapetum.core.config import ScheduleConfig

_TIME_SHARE = {"balanced": 1.0, "interactive": 0.5}  # of itl_target_ms, for steps with decodes
# seconds of encode in a step without such a limit: who comes meanwhile waits as long, and slices cost a little each
_ENCODE_S = {"balanced": 0.1, "interactive": 0.05, "throughput": 0.5}
_PREFILL_S = {"balanced": 0.5, "interactive": 0.25, "throughput": 2.0}  # the same of prefills
_LEAST_PREFILL = 10.0  # times what a step costs anyhow, so that the cuts stay cheap


@dataclass(slots=True)
class StepBudget:
    """What is left. `seconds` is the whole step's time; None = its encodes and prefills have limits of their own."""

    rows: int
    tokens: int
    visual_tokens: int
    encode_s: float
    prefill_s: float
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


def step_budget(config: ScheduleConfig, fixed_s: float) -> StepBudget:
    """`fixed_s`: what a step costs however little it does."""
    return StepBudget(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.encoder_budget_tokens,
        _ENCODE_S[config.schedule],
        max(_PREFILL_S[config.schedule], _LEAST_PREFILL * fixed_s),
    )


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
