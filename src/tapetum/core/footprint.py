"""What a model takes of memory, on paper: weights, keys and values, features, and how many requests fit.

Pure arithmetic over sizes: what `tapetum doctor` and `tapetum plan` print. Bytes, unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapetum.core.errors import ConfigError
from tapetum.core.model import kv_bytes_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """One checkpoint in one number format."""

    num_parameters: int
    bytes_per_value: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    feature_size: int  # values of a visual token
    num_wide: int = 0  # of the parameters, kept in float32 whatever the format
    num_again: int = 0  # float32 values that are kept beside them

    @property
    def weight_bytes(self) -> int:
        narrow = self.num_parameters - self.num_wide
        return narrow * self.bytes_per_value + 4 * (self.num_wide + self.num_again)

    @property
    def token_bytes(self) -> int:
        """Keys and values of a token, a visual one the same as a text one."""
        return kv_bytes_per_token(self.num_layers, self.num_kv_heads, self.head_dim, self.bytes_per_value)

    @property
    def feature_bytes(self) -> int:
        """Of a visual token, between encoder and decoder."""
        return self.feature_size * self.bytes_per_value


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """What a step takes beside weights and caches, by what it does; 0 for the pictures of a model of text."""

    token_bytes: int  # of a token that is computed
    score_bytes: int  # of a token whose scores are wanted: the last of a row, and each guess
    choice_bytes: int  # of a row that chooses from its scores
    patch_bytes: int  # of a patch, from the first slice of its encode to the last
    visual_token_bytes: int  # of what an encode gives
    slice_bytes: int  # of one call of an encoder, whose size is bounded

    def encode_bytes(self, num_patches: int, num_tokens: int) -> int:
        """Kept by an encode until its features have been taken over."""
        return num_patches * self.patch_bytes + num_tokens * self.visual_token_bytes

    def forward_bytes(self, num_tokens: int, num_scored: int, num_rows: int) -> int:
        return num_tokens * self.token_bytes + num_scored * self.score_bytes + num_rows * self.choice_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How the memory of a device is shared out; what is left is for keys and values."""

    memory_bytes: int
    share: float  # of it that is used
    weight_bytes: int
    working_bytes: int  # the largest step
    feature_bytes: int  # kept features of pictures
    visual_kv_share: float = 1.0  # of keys and values, that pictures may fill before theirs go first

    @property
    def spared_bytes(self) -> int:
        return self.memory_bytes - int(self.memory_bytes * self.share)

    @property
    def kv_bytes(self) -> int:
        """Below zero where the model does not fit."""
        used = self.weight_bytes + self.working_bytes + self.feature_bytes
        return self.memory_bytes - self.spared_bytes - used

    @property
    def visual_kv_bytes(self) -> int:
        """The visual budget of keys and values."""
        return int(max(0, self.kv_bytes) * self.visual_kv_share)

    def num_requests(self, request_tokens: int, token_bytes: int, block_size: int) -> int:
        """Requests of this length at once, in whole blocks."""
        blocks = max(0, self.kv_bytes) // (token_bytes * block_size)
        return blocks // -(-request_tokens // block_size)


_UNITS = {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}


def read_bytes(text: str) -> int:
    """Bytes of a size such as 24GiB; a number alone is in GiB."""
    unit = next((unit for unit in _UNITS if text.lower().endswith(unit.lower())), "")
    try:
        size = int(float(text[: len(text) - len(unit)]) * _UNITS[unit or "GiB"])
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise ConfigError(f"memory is {text!r}, must be a size such as 24GiB, 512MiB or 24")
    return size


def shown_bytes(size: int) -> str:
    """In the largest binary unit of which there is at least one, three digits at least."""
    number, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(number) < 1023.5:  # which would be shown as 1024
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if abs(number) >= 100 or unit == "B" else f"{number:.3g} {unit}"


def shown_count(number: int) -> str:
    """Of parameters, as they are spoken of: 7.62 B, 135 M."""
    for factor, unit in ((10**12, " T"), (10**9, " B"), (10**6, " M"), (10**3, " K")):
        if number >= 0.9995 * factor:  # less is shown in the next unit
            return f"{number / factor:.3g}{unit}"
    return str(number)
