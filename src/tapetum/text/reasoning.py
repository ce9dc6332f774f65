"""Splits what a model thinks from what it says, while the answer comes.

Owns the form `<think>...</think>` of Qwen3 and DeepSeek. White space around the markers belongs to neither side. The
joined result does not depend on where the borders between pieces lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tapetum.text.stream import overlap

# Whether an answer thinks before it speaks: never, where it opens `<think>`, or from its first character.
Thinking = Literal["never", "perhaps", "open"]

_OPEN = "<think>"
_CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class Thought:
    """What a piece of an answer adds; reasoning always comes before the content of the same piece."""

    reasoning: str = ""
    content: str = ""


def opens_reasoning(prompt_tail: str) -> bool:
    """Whether the answer begins inside the reasoning: the prompt, whose end this is, has opened it."""
    return prompt_tail.rstrip().endswith(_OPEN)


def thinking_after(text: str, *, is_answer: bool = False) -> Thinking:
    """How a model that may think goes on after a prompt, or after the beginning of its own answer."""
    if opens_reasoning(text) or (is_answer and text.rfind(_OPEN) > text.rfind(_CLOSE)):
        return "open"
    return "never" if text.rstrip().endswith(_CLOSE) or (is_answer and text.strip()) else "perhaps"


class ReasoningStream:
    """One answer. `is_open`: it begins inside the reasoning. An answer that does not begin with reasoning has none."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._place: Literal["start", "reasoning", "content"] = "reasoning" if is_open else "start"
        self._held = ""  # white space at a border, or what may become a marker
        self._has_begun = False  # something other than white space has been said at this place

    def push(self, text: str) -> Thought:
        """What is certain now that `text` has come."""
        text = self._held + text
        self._held = ""
        if self._place == "start":
            text = self._open(text)
        reasoning = ""
        if self._place == "reasoning":
            reasoning, text = self._think(text)
        return Thought(reasoning, self._say(text) if self._place == "content" else "")

    def flush(self) -> Thought:
        """What is still held back, at the end of the answer; white space there is dropped after reasoning."""
        held, self._held = self._held, ""
        if self._place == "reasoning":
            return Thought(reasoning=held if held.strip() else "")
        return Thought(content=held if self._place == "start" else "")

    def _open(self, text: str) -> str:
        """What follows the opening marker, or all of it where there is none."""
        words = text.lstrip()
        if words.startswith(_OPEN):
            self._place = "reasoning"
            return words[len(_OPEN) :]
        if _OPEN.startswith(words):
            self._held = text
            return ""
        self._place = "content"
        self._has_begun = True  # without reasoning, content is left as it is
        return text

    def _think(self, text: str) -> tuple[str, str]:
        """The reasoning that is certain, and what follows the closing marker."""
        if not self._has_begun:
            text = text.lstrip()
        end = text.find(_CLOSE)
        if end >= 0:
            self._place = "content"
            self._has_begun = False
            return text[:end].rstrip(), text[end + len(_CLOSE) :]
        certain = text[: len(text) - overlap(text, _CLOSE)].rstrip()
        self._held = text[len(certain) :]
        self._has_begun = self._has_begun or bool(certain)
        return certain, ""

    def _say(self, text: str) -> str:
        if not self._has_begun:
            text = text.lstrip()
            self._has_begun = bool(text)
        return text
