"""Finds the tool calls in an answer while it comes.

Owns the forms in which families of models write calls. A call begins for the reader once its name is known and its
arguments have begun; from then on they are handed out as they come. What looks like a call and is none is text, and
so is the rest of a call whose arguments stop being JSON. White space before a call belongs to it, and behind one at
the end of the answer. The joined result does not depend on where the borders between pieces lie.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from tapetum.text.call_scan import CallScanner
from tapetum.text.json_scan import WHITE
from tapetum.text.stream import overlap
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How calls are written: marker, before, a call, perhaps between and a further call, after."""

    marker: str
    before: str = ""
    between: str = ""
    after: str = ""
    arguments_key: str = "arguments"
    may_lack_marker: bool = False  # at the start of an answer, where the marker is a token that is not shown


FORMS: dict[ToolStyle, CallForm] = {
    "hermes": CallForm(marker="<tool_call>", after="</tool_call>"),
    "llama3_json": CallForm(
        marker="<|python_tag|>", between=";", arguments_key="parameters", may_lack_marker=True
    ),
    "mistral": CallForm(marker="[TOOL_CALLS]", before="[", between=",", after="]", may_lack_marker=True),
}
_MAX_WHITE = 64  # characters of white space before a marker that are held back for it
_WHITE = "".join(sorted(WHITE))


class ToolCallStream:
    """One answer. `names`: the tools there are, a call of another is text. `new_id`: makes the id of each call.

    `num_calls` counts the calls that have begun. `is_cut`: the arguments of the last of them have not come to their
    end, so whoever ended the answer cut it short.
    """

    def __init__(
        self, style: ToolStyle = "hermes", *, names: Collection[str], new_id: Callable[[], str]
    ) -> None:
        self._form = FORMS[style]
        self._names = names
        self._new_id = new_id
        self._place: Literal["text", "opening", "call", "closing"] = "text"
        self._input = ""  # not looked at
        self._held: list[str] = []  # looked at; whether it is text depends on what follows
        self._call = CallScanner(names)
        self._num_given = 0  # pieces of its arguments
        self._has_begun = False  # the call that is being read has been told of
        self._awaits_before = False
        self._may_lack_marker = self._form.may_lack_marker
        self._is_after_call = False  # nothing has been said since a call
        self._out: list[ToolDelta] = []
        self.num_calls = 0

    @property
    def is_cut(self) -> bool:
        return self._has_begun and self._call.is_in_arguments

    def push(self, text: str) -> list[ToolDelta]:
        """What is certain now that `text` has come."""
        self._input += text
        self._look()
        return self._take()

    def flush(self) -> list[ToolDelta]:
        """What is still held back, at the end of the answer. The end of a call that is cut short is no text."""
        while self._place != "text" and not self._has_begun:
            self._give_up()
            self._look()
        held = "".join(self._held)
        if self._place == "text" and not (self._is_after_call and not held.strip(_WHITE)):
            self._say(held)
        self._held = []
        return self._take()

    def _look(self) -> None:
        while self._input:
            if self._place == "text":
                self._in_text()
            elif self._place == "opening":
                self._before_call()
            elif self._place == "call":
                self._in_call()
            else:
                self._after_call()

    def _in_text(self) -> None:
        text = self._retake()
        if self._may_lack_marker and self._begins_bare(text):
            return
        marker = self._form.marker
        start = text.find(marker)
        if start < 0:
            certain = _without_white(text, len(text) - overlap(text, marker))
            self._hold(text[certain:])
        else:
            certain = _without_white(text, start)
            self._hold(text[certain : start + len(marker)])
            self._input = text[start + len(marker) :]
            self._open(is_first=True)
        self._say(text[:certain])

    def _begins_bare(self, text: str) -> bool:
        """Whether the answer begins as a call does behind its marker, or may still do so."""
        words = text.lstrip(_WHITE)
        if not words:
            self._hold(text)
            return True
        self._may_lack_marker = False
        if words[0] != (self._form.before or "{"):
            return False
        self._hold(text[: len(text) - len(words)])
        self._input = words
        self._open(is_first=True)
        return True

    def _open(self, *, is_first: bool) -> None:
        self._place = "opening"
        self._awaits_before = is_first and bool(self._form.before)
        self._has_begun = False

    def _before_call(self) -> None:
        words = self._input.lstrip(_WHITE)
        self._hold(self._input[: len(self._input) - len(words)])
        self._input = words
        if words and self._awaits_before and words[0] == self._form.before:
            self._awaits_before = False
            self._hold(words[0])
            self._input = words[1:]
        elif words and not self._awaits_before and words[0] == "{":
            self._place = "call"
            self._call, self._num_given = CallScanner(self._names), 0
        elif words:
            self._give_up()

    def _in_call(self) -> None:
        """Reads to the end of the call, of the input, or of what can be a call."""
        call, text = self._call, self._input
        num_read = 0
        is_call = True
        while is_call and num_read < len(text) and not call.is_done:
            was_in_arguments = call.is_in_arguments
            is_call = call.push(text[num_read])
            if is_call and call.has_both and not self._has_begun:
                self._begin()
            elif is_call and not (self._has_begun and was_in_arguments):
                self._hold(text[num_read])
            num_read += is_call
        self._input = text[num_read:]
        self._give_arguments()
        if call.is_done and self._has_begun:
            self._held = []
            self._place = "closing"
        elif call.is_done or not is_call:
            self._give_up()

    def _begin(self) -> None:
        self._has_begun = True
        self._held = []
        self._out.append(CallBegin(self.num_calls, self._new_id(), self._call.name or ""))
        self.num_calls += 1
        self._is_after_call = True

    def _give_arguments(self) -> None:
        pieces = self._call.arguments[self._num_given :]
        if self._has_begun and pieces:
            self._out.append(ArgumentsDelta(self.num_calls - 1, "".join(pieces)))
            self._num_given = len(self._call.arguments)

    def _after_call(self) -> None:
        form, text = self._form, self._retake()
        words = text.lstrip(_WHITE)
        if form.between and words.startswith(form.between):
            self._hold(text[: len(text) - len(words) + 1])
            self._input = words[1:]
            self._open(is_first=False)
        elif not words or (words != form.after and form.after.startswith(words)):
            self._hold(text)
        else:
            self._place = "text"
            self._input = (
                words.removeprefix(form.after) if words.startswith(form.after) and form.after else text
            )

    def _give_up(self) -> None:
        """What is held is no call. Behind a marker's first character, which is text then, another may begin."""
        held = "".join(self._held)
        words = held.lstrip(_WHITE)
        num_certain = len(held) - len(words) + 1 if words.startswith(self._form.marker) else 0
        text = self._retake()
        self._say(text[:num_certain])
        self._input = text[num_certain:]
        self._place = "text"

    def _hold(self, text: str) -> None:
        if text:
            self._held.append(text)

    def _retake(self) -> str:
        """What is held and what has not been looked at."""
        text = "".join(self._held) + self._input
        self._held, self._input = [], ""
        return text

    def _say(self, text: str) -> None:
        if not text:
            return
        self._is_after_call = False
        last = self._out[-1] if self._out else None
        if isinstance(last, TextDelta):
            self._out[-1] = TextDelta(last.text + text)
        else:
            self._out.append(TextDelta(text))

    def _take(self) -> list[ToolDelta]:
        out, self._out = self._out, []
        return out


def _without_white(text: str, end: int) -> int:
    """Where the white space before `end` begins, as far as it is held back."""
    return max(len(text[:end].rstrip(_WHITE)), end - _MAX_WHITE)
