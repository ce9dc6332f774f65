"""By when a request should have its first token: the order in which pictures are encoded.

A request may take a few times as long as it would alone, so a small picture is due soon after it came and a large one
late: small ones pass a large one, but only those that come in time to be due before it. That is the bound: whatever
comes, nothing is passed by what arrives after it is due, except by better classes, as in the queue.
"""

from __future__ import annotations

from tapetum.core.request import Request
from tapetum.sched.queue import AGEING_S

_PATIENCE = 4.0  # times what the request takes alone
_LEAST_S = 1.0


def due_of(request: Request, alone_s: float) -> float:
    """`alone_s`: predicted until its first token, should nobody else be there."""
    due_s = request.arrival_s + patience_of(request.priority, alone_s)
    return due_s if request.deadline_s is None else min(due_s, request.deadline_s)


def patience_of(priority: int, alone_s: float) -> float:
    """Seconds after which a request of this class is due."""
    return AGEING_S * priority + max(_LEAST_S, _PATIENCE * alone_s)
