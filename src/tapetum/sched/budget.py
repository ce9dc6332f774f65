"""What one step may spend: rows, tokens, visual tokens to encode, and seconds; what admission leaves free.

A preset says how long a step may take beside requests that decode, and how long the encodes and the prefills of one
that has no decodes: whoever comes meanwhile waits as long.

    balanced     the target between tokens, and pictures and prompts get all that decodes leave of it
    interactive  streams first: a step takes a little longer than its decodes alone, and half of the target at most;
                 just that where a prompt would be late else
    throughput   no target: long slices and chunks, so that as little as possible is paid twice
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tapetum.core.config import Schedule, ScheduleConfig

_LEAST_PREFILL = 10.0  # times what a step costs anyhow, so that the cuts stay cheap
_WATERMARK = 0.01  # of all KV blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Limits of a step. Slices cost a little each, so they are longer where nobody is kept waiting."""

    target_share: float | None  # of itl_target_ms, beside decodes; None = no limit
    growth: float | None = (
        None  # times what the decodes alone take, beside them, where no prefill is in a hurry
    )
    encode_s: float  # of encodes, without such a limit
    prefill_s: float  # the same of prefills


_PRESETS: dict[Schedule, Preset] = {
    "balanced": Preset(target_share=1.0, encode_s=0.1, prefill_s=0.5),
    "interactive": Preset(target_share=0.5, growth=1.25, encode_s=0.05, prefill_s=0.25),
    "throughput": Preset(target_share=None, encode_s=0.5, prefill_s=2.0),
}


@dataclass(slots=True)
class StepBudget:
    """What is left. `seconds` is the whole step's time; None = its encodes and prefills have limits of their own."""

    rows: int
    tokens: int
    visual_tokens: int
    encode_s: float
    prefill_s: float
    least_prefill_s: float  # as long as that the cuts stay cheap
    ahead_tokens: int  # visual tokens of one request that may be encoded before its prefill gets there
    seconds: float | None = None
    has_encode: bool = False

    @property
    def has_tokens(self) -> bool:
        return self.rows > 0 and self.tokens > 0

    def take_rows(self, rows: int, tokens: int) -> None:
        self.rows -= rows
        self.tokens -= tokens

    def end_soon(self, prefill_s: float) -> None:
        """A prefill of so many seconds gets its first token in this step: it does not wait for longer ones."""
        self.prefill_s = min(self.prefill_s, max(prefill_s, self.least_prefill_s))

    def allows_encode(self, visual_tokens: int) -> bool:
        """Within what is left; an item larger than the whole budget runs as the only one of its step."""
        return visual_tokens <= self.visual_tokens or not self.has_encode

    def take_encode(self, visual_tokens: int) -> None:
        self.has_encode = True
        self.visual_tokens = max(0, self.visual_tokens - visual_tokens)


def step_budget(config: ScheduleConfig, fixed_s: float) -> StepBudget:
    """`fixed_s`: what a step costs however little it does."""
    preset = _PRESETS[config.schedule]
    return StepBudget(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.encoder_budget_tokens,
        preset.encode_s,
        max(preset.prefill_s, _LEAST_PREFILL * fixed_s),
        _LEAST_PREFILL * fixed_s,
        config.encoder_budget_tokens,
    )


def max_running(config: ScheduleConfig, block_size: int) -> int:
    """How many requests may run at once: few enough that their decodes leave tokens of every step to a prefill.

    Left over is one block, or half of the step where that is less.
    """
    left_over = min(block_size, (config.max_num_batched_tokens + 1) // 2)
    return min(config.max_num_seqs, config.max_num_batched_tokens - left_over + 1)


def step_seconds_limit(config: ScheduleConfig) -> float | None:
    """How long a step may take while requests decode; of one with nothing beside these and their guesses."""
    share = _PRESETS[config.schedule].target_share
    return None if share is None else share * config.itl_target_ms / 1e3


def limit_beside_decodes(
    config: ScheduleConfig, decodes_s: float, *, is_urgent: bool = False
) -> float | None:
    """How long a step may take with something beside its decodes, which alone take `decodes_s`."""
    limit, growth = step_seconds_limit(config), _PRESETS[config.schedule].growth
    return limit if limit is None or growth is None or is_urgent else min(limit, growth * decodes_s)


def kv_watermark(num_running: int, num_blocks: int) -> int:
    """Blocks that an admission leaves free, for the tokens that those who run will make; none if nobody does."""
    return max(num_running, ceil(_WATERMARK * num_blocks)) if num_running else 0
