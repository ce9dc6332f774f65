"""Tools, calls, results and continued answers in prompts: told by every template, and never more than text."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.assets import MODEL_DIR
from tapetum.core.chat import ChatInput, MediaPart, Message, ToolCall
from tapetum.core.errors import InvalidParameter, TemplateError
from tapetum.text.runs import MediaSlot, Run
from tapetum.text.template import ChatTemplate
from tapetum.text.tokenizer import Tokenizer
from tests.slots import SLOTS
from tests.templates import LLAMA3, QWEN2_VL, QWEN3, WALKING

TOKENIZER = Tokenizer.load(MODEL_DIR, SLOTS)
BUNDLED = ChatTemplate.load(MODEL_DIR, TOKENIZER)
TEMPLATES = {"bundled": BUNDLED} | {
    name: ChatTemplate(source, TOKENIZER, names={})
    for name, source in {"qwen2_vl": QWEN2_VL, "qwen3": QWEN3, "llama3": LLAMA3, "walking": WALKING}.items()
}
IMAGE = MediaPart(kind="image", source=b"")
FRAGMENTS = (
    "<|im_end|>",
    "<|im_start|>",
    "<|image_pad|>",
    "<|im_",
    "end|>",
    "|>",
    "<",
    "im_start",
    "\n",
    "x",
    '"',
)
ATTACKS = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4).map("".join)
ASKS = Message(role="user", content=("what?",))


def text_of(segments: Sequence[Run]) -> str:
    """The prompt as the model sees it, with {image} where a picture is."""
    return "".join(
        f"{{{each.kind}}}"
        if isinstance(each, MediaSlot)
        else TOKENIZER.decode(tokens_of(each), skip_special=False)
        for each in segments
    )


def specials_of(segments: Sequence[Run]) -> list[int]:
    return [each for each in segments if isinstance(each, int)]


def tokens_of(run: str | int) -> tuple[int, ...]:
    return TOKENIZER.encode_plain(run) if isinstance(run, str) else (run,)


def tool(name: str = "look", description: str = "Look.", **properties: object) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties, "required": []}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def call(arguments: str = "{}", name: str = "look", id: str = "abcdefghi") -> Message:
    return Message(
        role="assistant", content=(), tool_calls=(ToolCall(id=id, name=name, arguments=arguments),)
    )


def result(*content: str | MediaPart) -> Message:
    return Message(role="tool", content=content, tool_call_id="abcdefghi", name="look")


def rendered(name: str, *messages: Message, tools: Sequence[dict[str, object]] = (), **options: bool) -> str:
    return text_of(TEMPLATES[name].render(ChatInput(messages=messages, tools=tuple(tools), **options)))


@given(name=st.sampled_from(sorted(TEMPLATES)), word=ATTACKS, key=ATTACKS)
def test_no_word_of_a_client_becomes_a_special_token(name: str, word: str, key: str) -> None:
    def chat(word: str, key: str) -> list[Run]:
        messages = (
            Message(role="system", content=(word,)),
            ASKS,
            call(json.dumps({key: [word, {"a": word}]})),
            result(word),
            Message(role="assistant", content=(word,), reasoning=word),
            Message(role="user", content=(word,)),
        )
        offered = tool("look", word, **{key: {"type": "string", "description": word, "enum": [word]}})
        return TEMPLATES[name].render(ChatInput(messages=messages, tools=(offered,)))

    assert specials_of(chat(word, key)) == specials_of(chat("x", "y"))


@given(name=st.sampled_from(sorted(TEMPLATES)), word=ATTACKS)
def test_every_word_of_a_client_is_there_as_it_was_written(name: str, word: str) -> None:
    word = word.strip() or "x"
    text = rendered(name, ASKS, result(f"[{word}]"), tools=(tool("look", f"[{word}]"),))
    quoted = json.dumps(f"[{word}]", ensure_ascii=False)
    assert f"[{word}]" in text or quoted in text
    assert quoted in text or f"look() - [{word}]" in text
    text = rendered(name, ASKS, call(json.dumps({"a": word}, ensure_ascii=False)))
    assert json.dumps({"a": word}, ensure_ascii=False) in text


@given(name=ATTACKS, id=st.sampled_from(["<|im_end|>", "im_start|>"]))
def test_names_and_ids_of_calls_are_text_too(name: str, id: str) -> None:
    for each in ("bundled", "qwen3"):
        segments = TEMPLATES[each].render(ChatInput(messages=(ASKS, call("{}", name, id))))
        benign = TEMPLATES[each].render(ChatInput(messages=(ASKS, call())))
        assert specials_of(segments) == specials_of(benign)
        assert name in text_of(segments) or json.dumps(name) in text_of(segments)


TOLD = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "look", "description": "Look.", \
"parameters": {"type": "object", "properties": {}, "required": []}}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


def test_a_template_that_knows_no_tools_is_told_in_the_system_turn() -> None:
    end = "<|im_start|>user\nwhat?<|im_end|>\n<|im_start|>assistant\n"
    for name in ("bundled", "qwen2_vl"):
        assert rendered(name, ASKS, tools=(tool(),)) == f"<|im_start|>system\n{TOLD}<|im_end|>\n{end}"
        system = Message(role="system", content=("Be brief.",))
        assert (
            rendered(name, system, ASKS, tools=(tool(),))
            == f"<|im_start|>system\nBe brief.\n\n{TOLD}<|im_end|>\n{end}"
        )
        empty = Message(role="system", content=("",))
        assert rendered(name, empty, ASKS, tools=(tool(),)) == f"<|im_start|>system\n{TOLD}<|im_end|>\n{end}"


def test_calls_and_results_are_told_in_words() -> None:
    """The bundled template puts the pictures of a turn before its text."""
    spoken = Message(role="assistant", content=("I look.",), tool_calls=call('{"at": "é"}').tool_calls * 2)
    text = rendered("bundled", ASKS, spoken, result("a cat"), result("a ", IMAGE), ASKS, call(), result())
    written = '\n<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call>'
    assert text == (
        "<|im_start|>user\nwhat?<|im_end|>\n"
        f"<|im_start|>assistant\nI look.{written}{written}<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|>{image}<|vision_end|><tool_response>\na cat\n</tool_response>\n"
        "<tool_response>\na \n</tool_response><|im_end|>\n"
        "<|im_start|>user\nwhat?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_picture_in_a_result_is_seen_or_refused() -> None:
    for name in ("qwen2_vl", "qwen3"):
        assert "<tool_response>\nsee <|vision_start|>{image}<|vision_end|>\n</tool_response>" in rendered(
            name, ASKS, call(), result("see ", IMAGE)
        )
    assert "<|vision_start|>{image}<|vision_end|><tool_response>\nsee \n</tool_response>" in rendered(
        "bundled", ASKS, call(), result("see ", IMAGE)
    )
    with pytest.raises(TemplateError, match="messages hold 1 pictures and 0 clips"):
        rendered("llama3", ASKS, call(), result("see ", IMAGE))


def test_a_template_that_compares_words_of_a_schema_finds_them() -> None:
    listed = {"type": "array", "items": {"type": "string"}}
    text = rendered("walking", ASKS, call(), result("a cat"), tools=(tool(at=listed, n={"type": "integer"}),))
    assert text == (
        "[AVAILABLE] look(at: list[str] = None, n: int = None) - Look.\n<|user|>what?<|im_end|>"
        '<|assistant|>[TOOL_CALLS][{"name": "look", "arguments": {}, "id": "abcdefghi"}]<|im_end|>'
        "<|tool|>[RESULT]look abcdefghi: a cat<|im_end|>"
    )


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("words", ["A cat", "A cat ", "", " \n", "<|im_end|>", "A <think>"])
def test_a_continued_answer_ends_the_prompt_where_it_ends(name: str, words: str) -> None:
    final = Message(role="assistant", content=(words,))
    text = rendered(name, ASKS, final, continue_final_message=True)
    before = rendered(name, ASKS, Message(role="assistant", content=("ANSWER",)), add_generation_prompt=False)
    before = before[: before.index("ANSWER")]
    # One of the templates trims all turns; then what comes before an empty one may be trimmed too.
    assert text == before + words if name != "llama3" else text.rstrip() == (before + words).rstrip()


def test_only_text_of_the_assistant_can_be_continued() -> None:
    for final in (ASKS, call(), Message(role="assistant", content=()), result("a cat")):
        with pytest.raises(
            TemplateError, match="continue_final_message is set, and the last message"
        ) as raised:
            rendered("bundled", ASKS, final, continue_final_message=True)
        assert raised.value.param == "continue_final_message"
    deaf = ChatTemplate("{{ messages[0].content }}", TOKENIZER, names={})
    chat = ChatInput(messages=(ASKS, Message(role="assistant", content=("A",))), continue_final_message=True)
    with pytest.raises(TemplateError, match="does not write the last message as it is"):
        deaf.render(chat)
    pictured = Message(role="assistant", content=("A cat", IMAGE))
    with pytest.raises(TemplateError, match="messages hold 1 pictures"):
        rendered("qwen2_vl", ASKS, pictured, continue_final_message=True)
    text = rendered("bundled", ASKS, pictured, continue_final_message=True)
    assert text.endswith("assistant\n<|vision_start|>{image}<|vision_end|>A cat"), "a picture before its text"


def test_what_a_template_can_do() -> None:
    told = {
        name: (each.abilities.has_tools, each.abilities.tool_style, each.abilities.has_reasoning)
        for name, each in TEMPLATES.items()
    }
    assert told == {
        "bundled": (False, "hermes", False),
        "qwen2_vl": (False, "hermes", False),
        "qwen3": (True, "hermes", True),
        "llama3": (True, "llama3_json", True),
        "walking": (True, "mistral", False),
    }
    assert [each.abilities.has_tool_calls for each in TEMPLATES.values()] == [False, False, True, True, True]


def test_how_an_answer_begins() -> None:
    def thinking(name: str, *messages: Message, is_open: bool = False, **kwargs: object) -> str:
        chat = ChatInput(messages=messages, template_kwargs=kwargs, continue_final_message=is_open)
        return TEMPLATES[name].thinking(chat)

    assert thinking("bundled", ASKS) == "never"
    assert thinking("qwen3", ASKS) == "perhaps"
    assert thinking("qwen3", ASKS, enable_thinking=False) == "never"
    assert thinking("llama3", ASKS) == "open"
    assert thinking("llama3", Message(role="user", content=("<think></think>",))) == "open"
    begun = Message(role="assistant", content=("<think>Hm",))
    assert thinking("qwen3", ASKS, begun, is_open=True) == "open"
    assert thinking("qwen3", ASKS, Message(role="assistant", content=("Well",)), is_open=True) == "never"
    assert thinking("qwen3", is_open=True) == "perhaps"  # such a chat is refused when it is rendered
    picky = ChatTemplate("{{ raise_exception('<think>') }}", TOKENIZER, names={})
    assert picky.thinking(ChatInput(messages=(ASKS,))) == "perhaps"


def test_tools_are_checked_and_bounded_wherever_they_come_from() -> None:
    with pytest.raises(InvalidParameter, match=r"tools\[0\]\.function\.name"):
        rendered("bundled", ASKS, tools=(tool("<|im_end|>"),))
    with pytest.raises(InvalidParameter, match=r"messages\[1\]\.tool_calls\[0\]\.function\.arguments"):
        rendered("bundled", ASKS, call("{"))
    with pytest.raises(InvalidParameter, match=r"messages\[1\]\.tool_calls\[0\]\.function\.arguments"):
        rendered("qwen3", ASKS, call('{"a":' * 100 + "1" + "}" * 100))
    with pytest.raises(InvalidParameter, match="limit 262144"):
        rendered("qwen3", ASKS, call(json.dumps({"a": "x" * 2**18})))
    with pytest.raises(TemplateError, match="limit 16777216"):
        rendered("qwen3", Message(role="user", content=("x" * 2**24,)))
