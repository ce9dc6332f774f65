"""One choice of an answer while it is said: what came of it so far, and each piece of news in the words of the wire.

Owns which part of a text is content; the stream and the whole answer are read off the same pieces, so they agree.
"""

from __future__ import annotations

from tapetum.core.errors import CapacityError
from tapetum.core.plan import SampledToken
from tapetum.engine.output import Delta
from tapetum.server.chat.wire import AnswerMessage


class Voice:
    def __init__(self) -> None:
        self.tokens: list[SampledToken] = []
        self.stop_reason: int | str | None = None
        self.finish_reason: str | None = None
        self._content: list[str] = []

    def read(self, delta: Delta) -> AnswerMessage:
        """The news as a piece of a message; raises CapacityError where the server cut the answer off."""
        self.tokens += delta.tokens
        self._content.append(delta.text)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        if delta.finish_reason == "abort":
            # Its client is still there, so it is a server that shuts down.
            raise CapacityError("the server ended the request before it was done; send it again")
        return AnswerMessage(content=delta.text) if delta.text else AnswerMessage()

    def message(self) -> AnswerMessage:
        """All that was said."""
        return AnswerMessage(role="assistant", content="".join(self._content))
