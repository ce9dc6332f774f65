"""What has come of a step: features that are there, that failed, that nobody wants any more; tokens, and full blocks.

Owns the items that are encoded in slices, from one step to the next, and the counts of guesses. Which items these are,
and how long their slices, is decided while a step is written (encode.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tapetum.cache.ledger import Ledger
from tapetum.cache.visual import VisualCache
from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.media import MediaItem
from tapetum.core.plan import BatchPlan, Row, SampledToken, StepResult, TokenEvent
from tapetum.core.request import FinishReason, Phase, Request, RequestStats
from tapetum.sched.encode import UnderWay
from tapetum.sched.progress import Progress, stats_of
from tapetum.sched.roster import Roster
from tapetum.sched.speculate import Speculation

_event = partial(tuple.__new__, TokenEvent)  # half of what its own constructor takes, for every row


class Encodes:
    def __init__(self, visual: VisualCache, roster: Roster) -> None:
        # the one that is due first in front; set by whoever has written a step
        self.under_way: tuple[UnderWay, ...] = ()
        self._visual = visual
        self._roster = roster

    def work_left(self, item: MediaItem) -> tuple[float, float]:
        """The patches of an item that are still to be encoded, and their squares. Asked from other threads too."""
        if item.is_reserved or self._visual.state(self._visual.key_of(item)) in ("resident", "landed"):
            return 0.0, 0.0
        current = next((entry for entry in self.under_way if entry.item.key == item.key), None)
        if current is None:
            job = self._visual.job_of(item)
            return job.num_patches, job.squares
        left = 1 - current.done
        return left * current.job.num_patches, left * current.job.squares

    def drop_for_nobody(self) -> None:
        """One that is under way goes on for a request that was preempted, and ends with its last one."""
        for current in self.under_way:
            key = self._visual.key_of(current.item)
            if not (self._visual.waiters(key) or self._roster.wants(current.item)):
                self._visual.fail(key, is_begun=current.is_begun)
                self._lose(current.item.key)
                self._forget(current)

    def settle(self, plan: BatchPlan, result: StepResult, now: float) -> list[TokenEvent]:
        """Encoded features are resident; failed ones end every request that waits for them."""
        news: list[TokenEvent] = []
        waiters: set[str] = set()
        for job in plan.encodes:
            key = self._visual.key_of(job.item)
            error = result.failed_features.get(job.item.key)
            if error is None:
                waiters.update(self._visual.waiters(key))
                self._note_done(job.item, result.encoded[job.item.key])
                continue
            self._note_done(job.item, None)
            news += self._give_up(job.item.key, error, now)
        for arrival in plan.arrivals:
            if error := result.failed_features.get(arrival.key):
                news += self._give_up(arrival.key, error, now)
        for media_key in self._visual.settle_exports(plan.exports, result.exported):
            news += self._give_up(media_key, _lost(), now)
        for request_id in waiters:
            if progress := self._roster.find(request_id):
                progress.note_encode(result.encode_s, began_s=now - result.encode_s - result.forward_s)
        return news

    def check_reserved(self, request: Request) -> None:
        """Raise for a request that comes without the patches of what it has not reserved."""
        for span in request.prompt.spans:
            if span.item.is_reserved and not self._visual.reserve.is_held(span.key, request.request_id):
                raise _lost()

    def _give_up(self, media_key: bytes, error: TapetumError, now: float) -> list[TokenEvent]:
        """End all who wait for features, and all who have nothing to encode them from."""
        ended = dict.fromkeys(self._visual.fail(self._visual.key_from(media_key)))
        has_landed = self._visual.reserve.has_landed(media_key)
        for request_id in () if has_landed else self._visual.reserve.holders(media_key):
            progress = self._roster.find(request_id)
            if progress is not None and progress.relies_on(media_key):
                ended[request_id] = None
        self._lose(media_key)
        found = (self._roster.find(request_id) for request_id in ended)
        return [self._roster.end(progress, "error", now, error=error) for progress in found if progress]

    def _lose(self, media_key: bytes) -> None:
        """Unless they lie on the host too, nobody has these features any more."""
        if not self._visual.reserve.has_landed(media_key):
            self._visual.reserve.lose(media_key)

    def _note_done(self, item: MediaItem, share: float | None) -> None:
        """So much of an item is encoded; None if that has failed."""
        current = next((entry for entry in self.under_way if entry.item.key == item.key), None)
        if share is not None and share < 1:
            assert current is not None, "an encode with work left is under way"
            current.done = share
            return
        if share is not None:
            self._visual.complete(self._visual.key_of(item))
        if current is not None:
            self._forget(current)

    def _forget(self, ended: UnderWay) -> None:
        self.under_way = tuple(entry for entry in self.under_way if entry is not ended)


def _lost() -> EngineError:
    return EngineError(
        "the features of a picture or clip were lost in a step that failed; send the request again"
    )


class Tokens:
    def __init__(self, ledger: Ledger, visual: VisualCache, roster: Roster, *, may_guess: bool) -> None:
        self.num_guessed = 0
        self.num_guessed_right = 0
        self._ledger = ledger
        self._visual = visual
        self._roster = roster
        self._may_guess = may_guess

    def settle(
        self, plan: BatchPlan, result: StepResult, owners: Sequence[Progress], now: float
    ) -> list[TokenEvent]:
        """Every row has computed its tokens, and sampled or failed; those of ended requests are void."""
        news: list[TokenEvent] = []
        sampled, failed = result.tokens, result.failed
        for row, progress in zip(plan.rows, owners, strict=True):
            if progress.state.phase is Phase.FINISHED:
                continue
            if failed and (error := failed.get(row.request_id)):
                news.append(self._roster.end(progress, "error", now, error=error))
                continue
            if not progress.is_decoding:
                progress.state.prefill_s += result.forward_s
            if row.has_sample:
                news.append(self._take(progress, row, sampled[row.request_id], now))
            else:
                progress.advance(row.end, self._visual)
                self._ledger.publish(progress.state)
                self._roster.running.note_computed(progress)
        return news

    def _take(self, progress: Progress, row: Row, tokens: tuple[SampledToken, ...], now: float) -> TokenEvent:
        """The tokens up to the one that ends the answer; what the row computed behind them is void."""
        state, ends = progress.state, progress.ends
        output, most = state.output_token_ids, state.request.max_tokens
        reason: FinishReason | None = None
        count = 0
        for token in tokens:
            count += 1
            output.append(token.token_id)
            if token.token_id in ends or len(output) >= most:
                reason = "stop" if token.token_id in ends else "length"
                break
        if progress.is_decoding:
            state.num_computed_tokens += count
        else:
            progress.advance(row.end + count - 1, self._visual)
            self._roster.running.note_computed(progress)
        self._ledger.publish(state)
        stats = self._note_first(progress, now) if state.first_token_s is None else None
        if row.guess:
            self._settle_guess(progress, row, num_accepted=len(tokens) - 1)
        if reason:
            return self._roster.end(progress, reason, now, tokens=tokens[:count])
        return _event((progress.request_id, tokens, None, None, stats))

    def _note_first(self, progress: Progress, now: float) -> RequestStats:
        state = progress.state
        state.first_token_s = now
        # a grammar says anew after every token what may come
        is_free = self._may_guess and state.request.sampling.grammar is None
        progress.speculation = Speculation(state) if is_free else None
        return stats_of(state, now)

    def _settle_guess(self, progress: Progress, row: Row, num_accepted: int) -> None:
        """Some of the guess came true; the blocks of the rest go back."""
        assert progress.speculation is not None, "only who speculates has guesses"
        progress.speculation.settle(num_accepted)
        self._ledger.trim(progress.state)
        self.num_guessed += len(row.guess)
        self.num_guessed_right += num_accepted
