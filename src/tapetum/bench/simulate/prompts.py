"""Requests of a trace as the scheduler gets them: prompts with spans, by the real geometry of pictures, without pixels.

Every prompt begins with a token of its own and its pictures, the text comes behind them; so no two share a prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

from tapetum.bench.simulate.coefficients import Coefficients
from tapetum.bench.simulate.trace import Arrival, Medium, Shape
from tapetum.core.cost import chunk_context
from tapetum.core.media import PARTS, Geometry, MediaItem, Rung, Span
from tapetum.core.request import Prompt, Request, SamplingParams
from tapetum.processing.options import ProcessorOptions

_TEXT_TOKEN, _PLACEHOLDER = 0, 1
_SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True).resolved(SamplingParams())


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """What a request takes on a device that does nothing else: pictures one by one, then the prompt at once."""

    encode_s: float
    prefill_s: float
    itl_s: float  # mean seconds between its tokens
    decode_s: float  # all tokens but the first

    @property
    def ttft_s(self) -> float:
        return self.encode_s + self.prefill_s

    @property
    def seconds(self) -> float:
        return self.ttft_s + self.decode_s


class Prompts:
    def __init__(self, coefficients: Coefficients) -> None:
        processor, cost = coefficients.processor(), coefficients.cost_model()

        @cache
        def geometry(medium: Medium, rung: Rung = "high") -> Geometry:
            options = ProcessorOptions()
            if rung != "high":
                width, height = geometry(medium).used
                least = processor.least_pixels(medium.kind, options)
                options = ProcessorOptions(max_pixels=max(least, width * height // PARTS[rung]))
            return processor.geometry(
                medium.kind, medium.width, medium.height, frames=medium.frames, options=options
            )

        @cache
        def tail(length: int) -> tuple[int, ...]:
            return (_TEXT_TOKEN,) * length

        @cache
        def unloaded(shape: Shape, rung: Rung = "high") -> Unloaded:
            geometries = [geometry(medium, rung) for medium in shape.media]
            length = shape.prompt_tokens + sum(item.num_tokens for item in geometries)
            gaps = [cost.step_seconds(1, length + number) for number in range(1, shape.output_tokens)]
            return Unloaded(
                encode_s=sum(cost.encode_seconds(item.num_patches, item.squares) for item in geometries),
                prefill_s=cost.step_seconds(0, 0, length, chunk_context(0, length)),
                itl_s=sum(gaps) / len(gaps) if gaps else 0.0,
                decode_s=sum(gaps),
            )

        self.geometry = geometry
        self.unloaded = unloaded
        self._tail = tail

    def request(self, arrival: Arrival, number: int, rung: Rung = "high") -> Request:
        """`number` is unlike that of any other request of the trace."""
        shape, tokens, spans = arrival.shape, [number + 2], []
        for place, medium in enumerate(shape.media):
            geometry = self.geometry(medium, rung)
            item = MediaItem(key=_key(arrival, number, place), geometry=geometry, patches=None)
            end = len(tokens) + geometry.num_tokens
            spans.append(Span(start=len(tokens), end=end, item=item, placement=()))
            tokens += [_PLACEHOLDER] * geometry.num_tokens
        prompt = Prompt(
            token_ids=(*tokens, *self._tail(shape.prompt_tokens - 1)),
            spans=tuple(spans),
            position_ids=None,
            position_delta=0,
        )
        return Request(
            request_id=str(number),
            prompt=prompt,
            sampling=_SAMPLING,
            max_tokens=shape.output_tokens,
            stop_token_ids=frozenset(),
            tenant=arrival.tenant,
            priority=arrival.priority,
            arrival_s=arrival.at_s,
            deadline_s=None if arrival.timeout_s is None else arrival.at_s + arrival.timeout_s,
        )


def _key(arrival: Arrival, number: int, place: int) -> bytes:
    content = arrival.shape.media[place].content or f"{number} {place}"
    return blake2b(f"{arrival.tenant}\n{content}".encode(), digest_size=32).digest()
