"""Finds the tool calls in an answer while it comes.

Owns the forms in which families of models write calls. A call begins for the reader once its name is known and its
arguments have begun; from then on they are handed out as they come. What looks like a call and is none is text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tapetum.text.tools import ToolStyle


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    index: int  # 0 for the first call of the answer
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    index: int
    text: str  # a piece of the JSON text of the arguments


ToolDelta = TextDelta | CallBegin | ArgumentsDelta


class ToolCallStream:
    """One answer. `names`: the tools there are, a call of another is text. `new_id`: makes the id of each call.

    `num_calls` counts the calls that have begun; `is_inside_call`: the last one has not come to its end.
    """

    def __init__(
        self, style: ToolStyle = "hermes", *, names: Collection[str], new_id: Callable[[], str]
    ) -> None:
        self.num_calls = 0

    @property
    def is_inside_call(self) -> bool:
        raise NotImplementedError

    def push(self, text: str) -> list[ToolDelta]:
        """What is certain now that `text` has come."""
        raise NotImplementedError

    def flush(self) -> list[ToolDelta]:
        """What is still held back, at the end of the answer."""
        raise NotImplementedError
