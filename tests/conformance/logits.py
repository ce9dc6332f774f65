"""The most likely first tokens of an answer, and when two servers' views of them agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TOLERANCE = 1e-3  # of a log-probability in float32


@dataclass(frozen=True)
class Logits:
    """Log-probabilities of the most likely tokens; a token is known by its bytes."""

    by_token: Mapping[tuple[int, ...] | str, float]

    @classmethod
    def of(cls, candidates: Iterable[dict]) -> Logits | None:
        found = {_token(candidate): float(candidate["logprob"]) for candidate in candidates}
        return cls(found) if found else None

    def is_near(self, other: Logits, tolerance: float = TOLERANCE) -> bool:
        """Equal within the tolerance. A token that only one of them lists must be as likely as the other's last."""
        return _is_within(self.by_token, other.by_token, tolerance) and _is_within(
            other.by_token, self.by_token, tolerance
        )

    def has_same_tokens(self, other: Logits) -> bool:
        return self.by_token.keys() == other.by_token.keys()

    def __str__(self) -> str:
        ranked = sorted(self.by_token.items(), key=lambda item: -item[1])
        return " ".join(f"{_shown(token)}:{value:.4f}" for token, value in ranked)


def _token(candidate: dict) -> tuple[int, ...] | str:
    raw = candidate.get("bytes")
    return tuple(raw) if raw else str(candidate["token"])


def _shown(token: tuple[int, ...] | str) -> str:
    return repr(token if isinstance(token, str) else bytes(token).decode("utf-8", "replace"))


def _is_within(
    ours: Mapping[tuple[int, ...] | str, float],
    theirs: Mapping[tuple[int, ...] | str, float],
    tolerance: float,
) -> bool:
    least = min(theirs.values())
    return all(abs(value - theirs.get(token, least)) <= tolerance for token, value in ours.items())
