"""How large a picture may be while others wait: the rung of a ladder of sizes at which a prompt meets its target.

Owns the decision alone. Its input is predicted time, never free memory: what waits, and what the request itself takes
at each rung. Who may not be degraded, or not below some rung, is the caller's to say by the work that it offers.

The wait that counts is the longest one of the last `quiet_s` seconds. So quality falls with the load at once, rises
only after so long a quiet, and never flaps under a load that comes and goes faster. A longer wait never means a higher
rung. Lower classes count the wait more than once, and so do tenants that ask for more than an equal share: they give
way first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import exp

QUIET_S = 5.0
TENANT_S = 30.0  # what a tenant asked for counts less by e after so long
MAX_TENANT_WEIGHT = 2.0
_FORGOTTEN = 1e-3  # a tenant with less than this of all that was asked for is no longer there
_LOWEST_CLASS = 2  # economy is 1, interactive -1


class QualityLadder:
    """`target_s` is the wanted time to the first token. All times are seconds; `now` never goes back."""

    def __init__(self, target_s: float, quiet_s: float = QUIET_S) -> None:
        self.target_s = target_s
        self._quiet_s = quiet_s
        self._waits: deque[tuple[float, float]] = deque()  # (time, wait), each longer than all after it
        self._tenants = _Tenants()

    def observe(self, wait_s: float, now: float) -> None:
        """What a request that came now would wait before anything of it is computed."""
        while self._waits and self._waits[-1][1] <= wait_s:
            self._waits.pop()
        self._waits.append((now, wait_s))
        while self._waits[0][0] < now - self._quiet_s:
            self._waits.popleft()

    def charge(self, tenant: str, seconds: float, now: float) -> None:
        """A tenant asked for so much work, at full quality: what it got must not decide what it gets."""
        self._tenants.charge(tenant, seconds, now)

    def allowance(self, priority: int, tenant: str, now: float) -> float:
        """Seconds that the encodes and the prefill of a request may take; below 0 where the wait alone is too long."""
        since = now - self._quiet_s
        wait_s = next((wait for time, wait in self._waits if time >= since), 0.0)
        return self.target_s - wait_s * class_weight(priority) * self._tenants.weight(tenant)


def choose(allowance_s: float, work_s: Iterable[float]) -> int:
    """The first of the rungs, given by the work at each from the highest down, that is allowed; where none is, the
    cheapest, of equals the first. Reads no further than it must; 0 for none."""
    best, least_s = 0, float("inf")
    for rung, seconds in enumerate(work_s):
        if seconds <= allowance_s:
            return rung
        if seconds < least_s:
            best, least_s = rung, seconds
    return best


def class_weight(priority: int) -> float:
    """How often a class counts the wait: interactive once, standard 4/3 times, economy twice, background 4 times."""
    return 4 / (3 - min(max(priority, -1), _LOWEST_CLASS))


class _Tenants:
    """What each tenant asked for of late."""

    def __init__(self) -> None:
        self._asked: dict[str, float] = {}  # in seconds of work as they counted at `_since`
        self._total = 0.0
        self._since = 0.0

    def charge(self, tenant: str, seconds: float, now: float) -> None:
        if now > self._since + TENANT_S:
            self._age(now)
        worth = seconds * exp((now - self._since) / TENANT_S)
        self._asked[tenant] = self._asked.get(tenant, 0.0) + worth
        self._total += worth

    def weight(self, tenant: str) -> float:
        """1 up to an equal share, then in proportion to what was asked for."""
        if not self._total:
            return 1.0
        share = self._asked.get(tenant, 0.0) / self._total
        return min(max(share * len(self._asked), 1.0), MAX_TENANT_WEIGHT)

    def _age(self, now: float) -> None:
        """Count from now on, and forget who asks for nothing any more."""
        decay = exp((self._since - now) / TENANT_S)
        least = _FORGOTTEN * self._total
        self._asked = {name: asked * decay for name, asked in self._asked.items() if asked > least}
        self._total = sum(self._asked.values())
        self._since = now
