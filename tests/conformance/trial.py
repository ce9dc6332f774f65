"""What checks look at: what a case saw, and the server that is still there to be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.conformance.exposition import Numbers
from tests.conformance.observation import Observation
from tests.conformance.process import Process
from tests.conformance.reply import Reply


@dataclass(frozen=True)
class Span:
    """Where one picture or clip lies among the tokens of a prompt, and its cache key."""

    kind: str
    start: int
    end: int
    key: str


@dataclass(frozen=True)
class Segment:
    """A run of a prompt: `kind` is text, image or video; `text` is what a run of text says."""

    kind: str
    text: str = ""


@dataclass(frozen=True)
class PromptSeen:
    """The prompt that the model gets."""

    spans: Sequence[Span]
    segments: Sequence[Segment]
    turns: Sequence[str]  # the role of each turn


class Server(Protocol):
    """The server under test after the steps."""

    async def post(self, body: dict) -> Reply: ...

    async def prompt_of(self, body: dict) -> PromptSeen: ...

    async def numbers(self) -> Numbers: ...

    async def reset_caches(self) -> None: ...

    async def check_health(self) -> None:
        """Raises Unmet unless /health is 200."""
        ...

    async def ended(self, within_s: float) -> tuple[int, float] | None:
        """Exit code and the moment of the end; waits for it so long."""
        ...

    async def orphans(self, within_s: float) -> Sequence[Process]:
        """What a server left behind; waits so long for it to go away."""
        ...


@dataclass(frozen=True)
class Trial:
    """`answers` are those to other cases, asked with default settings; that to `control` is one of them."""

    seen: Observation
    server: Server
    answers: Mapping[str, Reply]
    control: str
