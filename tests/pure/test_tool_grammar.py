"""What the grammar of tools lets through, asked of llguidance over the bundled tokenizer."""

from __future__ import annotations

import itertools
import json

import llguidance
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.assets import MODEL_DIR
from tapetum.core.request import Grammar
from tapetum.text.tokenizer import Tokenizer
from tapetum.text.tool_calls import ArgumentsDelta, CallBegin, ToolCallStream
from tapetum.text.tool_grammar import tool_grammar
from tapetum.text.tools import Tool, ToolChoice, ToolStyle, read_tools
from tests.slots import SLOTS

TOKENIZER = Tokenizer.load(MODEL_DIR, SLOTS)
LL_TOKENIZER = llguidance.LLTokenizer((MODEL_DIR / "tokenizer.json").read_text())
LOOK = Tool(
    name="look",
    parameters={
        "type": "object",
        "properties": {
            "at": {"type": "array", "items": {"type": "integer"}},
            "how": {"enum": ["near", "far"]},
        },
        "required": ["at"],
        "additionalProperties": False,
    },
)
WAIT = Tool(name="wait")
TOOLS = (LOOK, WAIT)
AUTO, REQUIRED = ToolChoice(mode="auto"), ToolChoice(mode="required")
NAMED = ToolChoice(mode="named", name="look")


def matcher(grammar: Grammar | None) -> llguidance.LLMatcher:
    assert grammar is not None
    assert grammar.kind == "tools"
    found = llguidance.LLMatcher(LL_TOKENIZER, llguidance.LLMatcher.grammar_from_lark(grammar.source))
    assert not found.is_error(), found.get_error()
    return found


def allows(grammar: Grammar | None, text: str) -> bool:
    """Whether an answer may be exactly this."""
    match = matcher(grammar)
    ids = list(TOKENIZER.encode_plain(text))
    return bool(match.try_consume_tokens(ids) == len(ids) and match.is_accepting())


def begins(grammar: Grammar | None, text: str) -> bool:
    """Whether an answer may begin with this."""
    ids = list(TOKENIZER.encode_plain(text))
    return bool(matcher(grammar).try_consume_tokens(ids) == len(ids))


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


GOOD = hermes("look", '{"at": [1, 2], "how": "far"}')
OTHER = hermes("wait", '{"for": {"s": 1}}')
BAD = (
    hermes("look", '{"at": ["x"]}'),
    hermes("look", "{}"),
    hermes("look", '{"at": [], "who": 1}'),
    hermes("leap", "{}"),
    hermes("wait", "[]"),
    "<tool_call>look</tool_call>",
)


def test_a_free_answer_is_text_in_which_every_call_is_valid() -> None:
    grammar = tool_grammar(TOOLS, AUTO)
    for answer in ("", "a < b, <tool", GOOD, f"Well. {GOOD}\n{OTHER} Done.", f"<tool>{OTHER}"):
        assert allows(grammar, answer), answer
    for call in BAD:
        assert not begins(grammar, call), call
        assert not begins(grammar, f"Well. {GOOD}{call}"), call
    assert not allows(grammar, GOOD[:-1])


def test_a_free_answer_ends_with_its_one_call_where_several_are_not_wanted() -> None:
    grammar = tool_grammar(TOOLS, AUTO, parallel=False)
    assert allows(grammar, "Well.")
    assert allows(grammar, f"Well. {GOOD}")
    assert not begins(grammar, f"{GOOD}\n")
    assert not begins(grammar, BAD[0])


def test_a_required_answer_is_calls_and_nothing_else() -> None:
    grammar = tool_grammar(TOOLS, REQUIRED)
    assert allows(grammar, GOOD)
    assert allows(grammar, f"{GOOD}\n{OTHER}\n{GOOD}")
    for answer in ("", "Well.", f" {GOOD}", f"{GOOD} Done.", *BAD):
        assert not allows(grammar, answer), answer
    single = tool_grammar(TOOLS, REQUIRED, parallel=False)
    assert allows(single, OTHER)
    assert not begins(single, f"{GOOD}\n")


def test_a_named_tool_is_called_once() -> None:
    grammar = tool_grammar(TOOLS, NAMED)
    assert allows(grammar, GOOD)
    assert not begins(grammar, OTHER)
    assert not begins(grammar, f"{GOOD}\n")


@pytest.mark.parametrize("choice", [AUTO, REQUIRED])
def test_thoughts_come_before_calls_and_may_say_anything(choice: ToolChoice) -> None:
    thought = f"<think>perhaps {BAD[0]}</think>\n\n"
    opened = tool_grammar(TOOLS, choice, thinking="open")
    assert allows(opened, thought.removeprefix("<think>") + GOOD)
    assert not begins(opened, thought.removeprefix("<think>") + BAD[0])
    perhaps = tool_grammar(TOOLS, choice, thinking="perhaps")
    assert allows(perhaps, "<think>hm</think>\n\n" + GOOD)
    assert allows(perhaps, GOOD)
    assert not begins(perhaps, "<think>hm</think>\n\n" + BAD[0])
    assert not begins(perhaps, BAD[0])
    assert allows(perhaps, "Well.") == (choice is AUTO)


def test_no_grammar_where_any_text_will_do() -> None:
    assert tool_grammar((), AUTO) is None
    assert tool_grammar(TOOLS, ToolChoice(mode="none")) is None
    assert tool_grammar(TOOLS, AUTO, style="mistral") is None
    assert tool_grammar(TOOLS, AUTO, style="llama3_json") is None


def test_other_styles_force_calls_in_their_form() -> None:
    call = '{"name": "look", "parameters": {"at": [1]}}'
    llama = tool_grammar(TOOLS, REQUIRED, style="llama3_json")
    assert allows(llama, call)
    assert allows(llama, f"{call}; {call}")
    assert not begins(llama, call.replace("[1]", "1"))
    call = call.replace("parameters", "arguments")
    mistral = tool_grammar(TOOLS, REQUIRED, style="mistral")
    assert allows(mistral, f"[{call}, {call}]")
    assert not begins(mistral, call)
    assert allows(tool_grammar(TOOLS, NAMED, style="mistral"), f"[{call}]")
    assert not begins(tool_grammar(TOOLS, NAMED, style="mistral"), f"[{call},")


def test_references_in_a_schema_are_those_of_the_schema() -> None:
    (tool,) = read_tools(
        [
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "parameters": {
                        "$ref": "#/$defs/P",
                        "$defs": {
                            "P": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
                        },
                    },
                },
            }
        ]
    )
    assert allows(tool_grammar((tool,), REQUIRED), hermes("f", '{"a": 1}'))
    assert not begins(tool_grammar((tool,), REQUIRED), hermes("f", '{"a": 2}'))


def test_what_cannot_be_kept_to_is_passed_over_unless_the_tool_is_strict() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    assert allows(
        tool_grammar((Tool(name="f", parameters=parameters),), REQUIRED), hermes("f", '{"a": [1, 1]}')
    )
    strict = tool_grammar((Tool(name="f", parameters=parameters, strict=True),), REQUIRED)
    assert strict is not None
    error = llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(strict.source))
    assert "uniqueItems" in error


@pytest.mark.parametrize("style", ["hermes", "llama3_json", "mistral"])
@given(seed=st.integers(0, 2**32), parallel=st.booleans())
def test_whatever_the_grammar_lets_through_reads_as_calls(
    style: ToolStyle, seed: int, parallel: bool
) -> None:
    """Random tokens of those allowed, for a while, then an end as soon as there may be one."""
    match = matcher(tool_grammar((LOOK,), REQUIRED, parallel=parallel, style=style))
    text = _drawn(match, seed)
    if text is None:
        return
    ids = itertools.count()
    stream = ToolCallStream(style, names=["look"], new_id=lambda: str(next(ids)))
    deltas = [*stream.push(text), *stream.flush()]
    assert all(isinstance(delta, (CallBegin, ArgumentsDelta)) for delta in deltas), text
    arguments = [delta.text for delta in deltas if isinstance(delta, ArgumentsDelta)]
    assert len(arguments) == stream.num_calls > 0
    for each in map(json.loads, arguments):
        assert isinstance(each["at"], list)
    assert parallel or stream.num_calls == 1


def _drawn(match: llguidance.LLMatcher, seed: int) -> str | None:
    ids: list[int] = []
    for step in range(200):
        if match.is_accepting() and (step > 40 or match.is_stopped()):
            return TOKENIZER.decode(ids)
        allowed = _allowed(match)
        ids.append(allowed[(seed * (step + 7919) + step) % len(allowed)])
        assert match.consume_token(ids[-1])
    return None


def _allowed(match: llguidance.LLMatcher) -> list[int]:
    mask = match.compute_bitmask()
    return [
        index
        for index in range(TOKENIZER.vocab_size)
        if mask[index // 8] >> (index % 8) & 1 and index not in TOKENIZER.special_ids
    ]
