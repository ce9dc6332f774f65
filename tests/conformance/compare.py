"""Whether two answers are one: the same text, the same first-token logits."""

from __future__ import annotations

from tests.conformance.observation import Unmet, agree
from tests.conformance.reply import Reply, shortened


def check_same(ours: str, reply: Reply, theirs: str, other: Reply) -> None:
    """Raises Unmet unless both are whole answers with one text and one set of logits; the names are for the message."""
    for answer in (reply, other):
        if not answer.is_whole:
            raise Unmet(f"{ours} and {theirs} are answered; seen: {reply.outcome} and {other.outcome}")
    if reply.text != other.text:
        seen = f"{shortened(reply.text)!r} and {shortened(other.text)!r}"
        raise Unmet(f"{ours} and {theirs} have one text; seen: {seen}")
    if not agree(reply.logits, other.logits):
        raise Unmet(f"{ours} and {theirs} have the same logits; seen: {reply.logits} and {other.logits}")
