"""Tools, calls, results, reasoning and continued answers in prompts, beside transformers with the same templates."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tapetum.assets import MODEL_DIR
from tapetum.core.chat import ChatInput, MediaPart, Message, ToolCall
from tapetum.core.errors import TapetumError
from tapetum.text.runs import MediaSlot
from tapetum.text.template import ChatTemplate
from tapetum.text.tokenizer import Tokenizer
from tests.slots import SLOTS
from tests.templates import LLAMA3, QWEN2_VL, QWEN3, WALKING

ORACLE = AutoTokenizer.from_pretrained(str(MODEL_DIR))
TOKENIZER = Tokenizer.load(MODEL_DIR, SLOTS)
BUNDLED = (MODEL_DIR / "chat_template.jinja").read_text()
KNOWING = {"qwen3": QWEN3, "llama3": LLAMA3, "walking": WALKING}  # those that know tools
ALL = {**KNOWING, "qwen2_vl": QWEN2_VL, "bundled": BUNDLED}
OURS = {name: ChatTemplate(source, TOKENIZER, names={}) for name, source in ALL.items()}

# What begins no special token, even in the template that writes the halves of one.
TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs", "Cc")), max_size=12).filter(
    lambda text: "<|" not in text and not any(special in text for special in TOKENIZER.special_tokens)
)
LEAVES = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(-1e9, 1e9) | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
)
NAMES = st.from_regex(r"\A[A-Za-z0-9_-]{1,12}\Z")
KINDS = st.sampled_from(["string", "integer", "array", "object", "number"])
SCHEMAS = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(
            NAMES, KINDS.map(lambda kind: {"type": kind, "items": {"type": "string"}}), max_size=3
        ),
        "required": st.lists(NAMES, max_size=2),
    }
)
FUNCTIONS = st.builds(
    lambda name, description, schema: {"name": name, "description": description, "parameters": schema},
    NAMES,
    TEXTS,
    SCHEMAS,
)
TOOLS = st.lists(
    FUNCTIONS.map(lambda function: {"type": "function", "function": function}),
    max_size=2,
    unique_by=lambda tool: tool["function"]["name"],
)
CALLS = st.builds(
    lambda name, arguments, ident: ToolCall(
        id=ident, name=name, arguments=json.dumps(arguments, ensure_ascii=False)
    ),
    NAMES,
    st.dictionaries(TEXTS, VALUES, max_size=3),
    st.from_regex(r"\A[A-Za-z0-9]{9}\Z"),
)
TURNS = st.one_of(
    st.builds(lambda text: Message(role="user", content=(text,)), TEXTS),
    st.builds(lambda text: Message(role="assistant", content=(text,)), TEXTS),
    st.builds(
        lambda text, thought: Message(role="assistant", content=(text,), reasoning=thought), TEXTS, TEXTS
    ),
    st.builds(lambda call: Message(role="assistant", content=(), tool_calls=(call,)), CALLS),
    st.builds(
        lambda text, name, ident: Message(role="tool", content=(text,), name=name, tool_call_id=ident),
        TEXTS,
        NAMES,
        NAMES,
    ),
)
CHATS = st.tuples(
    st.lists(st.builds(lambda text: Message(role="system", content=(text,)), TEXTS), max_size=1),
    st.lists(TURNS, min_size=1, max_size=4),
).map(lambda halves: (*halves[0], *halves[1]))


def as_transformers(messages: tuple[Message, ...]) -> list[dict[str, object]]:
    return [_turn(message) for message in messages]


def _turn(message: Message) -> dict[str, object]:
    parts: list[dict[str, object]] = [
        {"type": part.kind} if isinstance(part, MediaPart) else {"type": "text", "text": part}
        for part in message.content
    ]
    is_lone = len(parts) == 1 and "text" in parts[0]
    turn: dict[str, object] = {
        "role": message.role,
        "content": parts[0]["text"] if is_lone else (parts or ""),
    }
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.tool_calls
        ]
    optional = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning,
    }
    return turn | {key: value for key, value in optional.items() if value is not None}


def our_ids(name: str, chat: ChatInput) -> list[int]:
    placeholders = {kind: token_id for token_id, kind in TOKENIZER.slots.items()}
    ids: list[int] = []
    for run in OURS[name].render(chat):
        if isinstance(run, str):
            ids.extend(TOKENIZER.encode_plain(run))
        else:
            ids.append(placeholders[run.kind] if isinstance(run, MediaSlot) else run)
    return ids


def oracle_ids(name: str, chat: ChatInput) -> list[int] | None:
    """None where the template, or transformers, refuses the chat."""
    try:
        ids: list[int] = ORACLE.apply_chat_template(
            as_transformers(chat.messages),
            tools=list(chat.tools) or None,
            chat_template=ALL[name],
            add_generation_prompt=chat.add_generation_prompt and not chat.continue_final_message,
            continue_final_message=chat.continue_final_message,
            tokenize=True,
            return_dict=False,
            **chat.template_kwargs,
        )
    except Exception:
        return None
    return ids


def assert_equal(name: str, chat: ChatInput) -> None:
    expected = oracle_ids(name, chat)
    if expected is None:
        with pytest.raises(TapetumError) as raised:
            our_ids(name, chat)
        assert raised.value.http_status == 400
    else:
        assert our_ids(name, chat) == expected


@pytest.mark.parametrize("name", KNOWING)
@given(messages=CHATS, tools=TOOLS, is_asked=st.booleans())
@settings(max_examples=60, deadline=None)
def test_prompts_with_tools_are_those_of_transformers(
    name: str, messages: tuple[Message, ...], tools: list[dict[str, object]], is_asked: bool
) -> None:
    assert_equal(name, ChatInput(messages=messages, tools=tuple(tools), add_generation_prompt=is_asked))


@pytest.mark.parametrize("name", ALL)
@given(
    before=st.lists(st.builds(lambda text: Message(role="user", content=(text,)), TEXTS), max_size=1),
    texts=st.lists(TEXTS, min_size=1, max_size=2),
    has_parts=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_continued_answers_are_those_of_transformers(
    name: str, before: list[Message], texts: list[str], has_parts: bool
) -> None:
    final = Message(role="assistant", content=tuple(texts) if has_parts else (texts[0],))
    assert_equal(name, ChatInput(messages=(*before, final), continue_final_message=True))


def test_every_template_renders_a_whole_conversation() -> None:
    """The properties above would hold too where everything is refused."""
    tool = {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
    }
    messages = (
        Message(role="user", content=("what is there?",)),
        Message(
            role="assistant",
            content=(),
            tool_calls=(ToolCall(id="abcdefghi", name="look", arguments='{"at": [1]}'),),
        ),
        Message(role="tool", content=("a cat",), name="look", tool_call_id="abcdefghi"),
        Message(role="assistant", content=("A c",)),
    )
    for name in KNOWING:
        for is_open in (False, True):
            chat = ChatInput(messages=messages, tools=(tool,), continue_final_message=is_open)
            assert oracle_ids(name, chat) is not None, name
            assert_equal(name, chat)


def test_told_in_words_calls_and_results_are_as_a_template_that_knows_them_writes_them() -> None:
    """A template that knows no calls and no results, told of them, writes what one that knows them writes."""
    messages = (
        Message(role="system", content=("Be brief.",)),
        Message(role="user", content=("look twice",)),
        Message(
            role="assistant",
            content=("Yes.",),
            tool_calls=(
                ToolCall(id="1", name="look", arguments='{"at": "é"}'),
                ToolCall(id="2", name="look", arguments="{}"),
            ),
        ),
        Message(role="tool", content=("a cat",)),
        Message(role="tool", content=("a dog",)),
    )
    chat = ChatInput(messages=messages)
    written, known = (
        TOKENIZER.decode(our_ids(name, chat), skip_special=False) for name in ("bundled", "qwen3")
    )
    assert written == known
