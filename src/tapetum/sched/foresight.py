"""The step after the one that runs, planned before its tokens are there.

Where every request decodes and nothing waits, the next step is the same rows one token on, whatever the tokens are: a
row does not name them. Only which requests end is open, and that is seen from the tokens. Anything else (a prompt, a
picture, a grammar, a guess, a stop string, an answer at its limit) waits for the result, as the scheduler does. Where
no token ends an answer, many such steps may be taken as one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tapetum.cache.ledger import Ledger
from tapetum.core.plan import BatchPlan, Row, StepResult
from tapetum.core.request import Phase
from tapetum.sched.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """A plan, and the tokens of the step before it that make a row of it void."""

    plan: BatchPlan
    ends: Mapping[str, Collection[int]] = field(default_factory=dict)  # by request

    def given(self, result: StepResult) -> BatchPlan:
        """The plan once the step before it has brought this result: without the rows of those that have ended."""
        rows = tuple(row for row in self.plan.rows if self._is_due(row, result))
        return self.plan if len(rows) == len(self.plan.rows) else replace(self.plan, rows=rows)

    def _is_due(self, row: Row, result: StepResult) -> bool:
        tokens = result.tokens.get(row.request_id)
        return tokens is not None and tokens[-1].token_id not in self.ends[row.request_id]


def who_goes_on(rows: Sequence[Row], owners: Sequence[Progress]) -> dict[Progress, Row]:
    """The live requests of a plan in flight, with their rows; none where one of them may do other than go on."""
    live = {
        owner: row for row, owner in zip(rows, owners, strict=True) if owner.state.phase is not Phase.FINISHED
    }
    return live if all(_goes_on(owner, row) for owner, row in live.items()) else {}


def next_rows(live: Mapping[Progress, Row], ledger: Ledger) -> tuple[Row, ...] | None:
    """The rows one token on, with blocks for it; None where there is no room."""
    if not all(ledger.extend(owner.state, num_ahead=1) for owner in live):
        return None
    for owner in live:
        if owner.speculation is not None:
            owner.speculation.rest()
    return tuple(
        Row(row.request_id, row.start + 1, 1, owner.state.block_ids, has_sample=True)
        for owner, row in live.items()
    )


def room_ahead(live: Collection[Progress], ledger: Ledger, longest: int) -> int:
    """How many steps of decodes, at most `longest`, have all their blocks, which are reserved; up to the first end."""
    count = min(longest, *(owner.num_tokens_left for owner in live))
    while count > 1 and not ledger.has_room(sum(_num_missing(owner, ledger, count) for owner in live)):
        count //= 2
    for owner in live:
        has_room = ledger.extend(owner.state, num_ahead=count - 1)
        assert has_room, "there was room for all of them"
    return count


def _num_missing(owner: Progress, ledger: Ledger, num_steps: int) -> int:
    """Blocks that a request lacks for so many decodes."""
    state = owner.state
    return max(0, -(-(state.num_tokens + num_steps - 1) // ledger.block_size) - len(state.block_ids))


def _goes_on(owner: Progress, row: Row) -> bool:
    """Whether the request will want one more token after the row's, unless that one ends it."""
    sampling = owner.state.request.sampling
    return (
        owner.is_decoding
        and row.length == 1
        and owner.num_tokens_left > 1
        and sampling.grammar is None
        and not sampling.stop
        and (owner.speculation is None or owner.speculation.is_resting)
    )
