"""Chat templates and tokenizer beside transformers, with the same checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tapetum.assets import MODEL_DIR
from tapetum.core.chat import ChatInput, MediaPart, Message
from tapetum.text.runs import MediaSlot
from tapetum.text.template import ChatTemplate
from tapetum.text.tokenizer import Tokenizer
from tests.slots import SLOTS

ORACLE = AutoTokenizer.from_pretrained(str(MODEL_DIR))
TOKENIZER = Tokenizer.load(MODEL_DIR, SLOTS)
TEMPLATE = ChatTemplate.load(MODEL_DIR, TOKENIZER)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12).filter(
    lambda text: not any(special in text for special in TOKENIZER.special_tokens)
)
PARTS = st.lists(
    st.one_of(TEXTS, st.sampled_from(["image", "video"]).map(lambda kind: MediaPart(kind=kind, source=b"")))
)
CHATS = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "critic"]), PARTS), min_size=1, max_size=4
)


def as_transformers(chat: ChatInput) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []
    for message in chat.messages:
        parts = [
            {"type": part.kind} if isinstance(part, MediaPart) else {"type": "text", "text": part}
            for part in message.content
        ]
        content: object = parts or ""
        if len(message.content) == 1 and isinstance(message.content[0], str):
            content = message.content[0]
        messages.append({"role": message.role, "content": content})
    return messages


def our_ids(chat: ChatInput) -> list[int]:
    placeholders = {kind: token_id for token_id, kind in TOKENIZER.slots.items()}
    ids: list[int] = []
    for run in TEMPLATE.render(chat):
        if isinstance(run, str):
            ids.extend(TOKENIZER.encode_plain(run))
        else:
            ids.append(placeholders[run.kind] if isinstance(run, MediaSlot) else run)
    return ids


@pytest.mark.parametrize("generation", [True, False])
@given(turns=CHATS)
@example(turns=[("user", ["e\u0301 \uf900"])])  # characters that a tokenizer of this class composes
@settings(max_examples=200, deadline=None)
def test_prompts_are_those_of_transformers(
    generation: bool, turns: list[tuple[str, list[str | MediaPart]]]
) -> None:
    messages = tuple(Message(role=role, content=tuple(parts)) for role, parts in turns)
    chat = ChatInput(messages=messages, add_generation_prompt=generation)
    expected = ORACLE.apply_chat_template(
        as_transformers(chat), add_generation_prompt=generation, tokenize=True, return_dict=False
    )
    assert our_ids(chat) == expected


@given(ids=st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=20))
@settings(max_examples=200, deadline=None)
def test_decoding_is_that_of_transformers(ids: list[int]) -> None:
    for skip in (True, False):
        assert TOKENIZER.decode(ids, skip_special=skip) == ORACLE.decode(ids, skip_special_tokens=skip)
