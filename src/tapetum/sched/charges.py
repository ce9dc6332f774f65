"""What the work of a step costs, by whom it was done for, in predicted seconds.

What a step costs however little it does is charged to nobody. What is cached is not done, so it is not charged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from operator import itemgetter

from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.plan import EncodeJob, Row, StepResult
from tapetum.sched.progress import Progress

_MOST = 1024  # accounts


class Charged:
    """What was done for each account since the start; of very many, for those that have had most."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        return dict(self._seconds)

    def add(self, charges: Mapping[str, float]) -> None:
        for account, seconds in charges.items():
            self._seconds[account] = self._seconds.get(account, 0.0) + seconds
        if len(self._seconds) > 2 * _MOST:
            self._seconds = dict(nlargest(_MOST, self._seconds.items(), key=itemgetter(1)))


def charges_of_encodes(
    jobs: Sequence[EncodeJob], result: StepResult, cost: CostModel
) -> Iterator[tuple[EncodeJob, float]]:
    """For as much as was encoded, which may be more than was planned."""
    if not jobs:
        return
    _, per_patch, per_square = cost.encode_coefficients
    for job in jobs:
        whole = per_patch * job.num_patches + per_square * job.squares
        done = result.encoded.get(job.item.key, job.end) - job.start
        yield job, done * whole * (1 - result.spared.get(job.item.key, 0.0))


def charges_of_rows(
    rows: Sequence[Row], owners: Sequence[Progress], result: StepResult, cost: CostModel
) -> Mapping[str, float]:
    """By account. `result` may have the tokens of several decodes of a row; guesses cost as a chunk does."""
    _, per_decode, per_context, per_token, per_pair = cost.step_coefficients
    charges: defaultdict[str, float] = defaultdict(float)
    tokens = result.tokens
    for (request_id, start, length, _, _, guess), owner in zip(rows, owners, strict=True):
        if not owner.is_decoding:
            seconds = per_token * length + per_pair * chunk_context(start, length)
        elif guess:
            seconds = per_decode + per_context * start
            seconds += per_token * len(guess) + per_pair * chunk_context(start, len(guess))
        else:
            count = len(tokens.get(request_id, ()))
            seconds = count * (per_decode + per_context * (start + count / 2))
        charges[owner.account] += seconds
    return charges
