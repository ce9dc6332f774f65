"""Chat requests for tests: from fields to what the engine is asked, or to the error."""

from __future__ import annotations

import json

import pytest

from tapetum.core.errors import RequestError
from tapetum.core.request import SamplingParams
from tapetum.server.chat.schema import ChatRequest, parse_chat
from tapetum.server.chat.translate import ChatQuestion, question_of


def parse(**fields: object) -> ChatRequest:
    return parse_chat(json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode())


def ask(**fields: object) -> ChatQuestion:
    return question_of(parse(**fields))


def sampling(**fields: object) -> SamplingParams:
    return ask(**fields).sampling


def message(content: object, role: str = "user", **fields: object) -> dict[str, object]:
    return {"role": role, "content": content, **fields}


def refusal(**fields: object) -> RequestError:
    """The error of a request that is refused somewhere between its bytes and the engine."""
    with pytest.raises(RequestError) as raised:
        ask(**fields)
    return raised.value
