"""Schemas that no answer can keep to: found where they are, and only there."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.assets import MODEL_DIR
from tapetum.core.errors import InvalidParameter
from tapetum.core.request import Grammar
from tapetum.text.grammar import MAX_CHARS, check_grammar
from tapetum.text.recursion import Recursion
from tapetum.text.schemas import MAX_WHOLE, bounded, flaw_of
from tapetum.text.tokenizer import Tokenizer
from tapetum.text.tool_grammar import tool_grammar
from tapetum.text.tools import MAX_JSON_CHARS, Tool, ToolChoice, read_tools


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(MODEL_DIR)


NAMES = "ABCD"
REFERENCES = st.sampled_from([{"$ref": f"#/$defs/{name}"} for name in NAMES])
PARTS = st.recursive(
    st.one_of(REFERENCES, REFERENCES, st.just({"type": "null"}), st.just({"const": 1})),
    lambda parts: st.one_of(
        st.tuples(parts, st.sampled_from([[], ["a"], ["a", "b"]])).map(
            lambda drawn: {
                "type": "object",
                "properties": {"a": drawn[0]},
                "required": drawn[1],
                "additionalProperties": drawn[0],
            }
        ),
        st.tuples(parts, parts, st.integers(0, 2)).map(
            lambda drawn: {
                "type": "array",
                "prefixItems": [drawn[0]],
                "items": drawn[1],
                "minItems": drawn[2],
            }
        ),
        st.lists(parts, min_size=1, max_size=2).map(lambda drawn: {"anyOf": drawn}),
        st.lists(parts, min_size=1, max_size=2).map(lambda drawn: {"allOf": drawn}),
    ),
    max_leaves=3,
)


def depth_of(schema: dict, definitions: dict, fuel: int) -> bool:
    """Whether there is a value that is reached in so many steps."""
    if fuel == 0:
        return False

    def of(part: dict) -> bool:
        return depth_of(part, definitions, fuel - 1)

    match schema:
        case {"$ref": name}:
            return of(definitions[name[-1]])
        case {"anyOf": parts}:
            return any(map(of, parts))
        case {"allOf": parts}:
            return all(map(of, parts))
        case {"type": "object", "required": required, "properties": properties}:
            return not required or of(properties["a"])
        case {"type": "array", "minItems": least, "prefixItems": [first], "items": items}:
            return (least < 1 or of(first)) and (least < 2 or of(items))
    return True


@given(st.fixed_dictionaries(dict.fromkeys(NAMES, PARTS)))
def test_a_schema_has_a_value_if_one_is_reached_in_as_many_steps_as_it_has_parts(definitions: dict) -> None:
    root = {"$ref": "#/$defs/A", "$defs": definitions}
    assert Recursion(root).has_end() == depth_of({"$ref": "#/$defs/A"}, definitions, 40)


TREE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {
            **TREE,
            "properties": {
                "next": {"anyOf": [{"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]}
            },
        },
        {
            "$ref": "#/definitions/a~1b%20c",
            "definitions": {"a/b c": {**TREE, "properties": {"next": {"$ref": "#/definitions/a~1b%20c"}}}},
        },
        {
            "type": ["object", "array"],
            "required": ["a"],
            "properties": {"a": {"$ref": "#"}},
            "items": {"$ref": "#"},
            "minItems": 2,
        },
    ],
)
def test_values_within_values_without_end_are_refused(schema: dict) -> None:
    for grammar in (
        Grammar(kind="json_schema", source=json.dumps(schema)),
        tool_grammar([Tool(name="f", parameters=schema)], ToolChoice(mode="auto")),
    ):
        assert grammar is not None
        with pytest.raises(InvalidParameter, match="so on without end") as caught:
            check_grammar(grammar, tokenizer())
        assert caught.value.param == grammar.param


@pytest.mark.parametrize(
    "schema",
    [
        {**TREE, "required": []},
        {
            **TREE,
            "properties": {"next": {"type": ["object", "null"], "$ref": "#/$defs/x"}},
            "$defs": {"x": True},
        },
        {**TREE, "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        {**TREE, "properties": {"next": {"type": "array", "items": {"$ref": "#"}}}},
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"$ref": "http://elsewhere/#"},
        {"$ref": "#anchor"},
        {"$ref": "#/items/7", "items": [1]},
        {**TREE, "properties": {"next": {"$id": "other", "$ref": "#"}}},
        {"$ref": "#/$defs/ok", "$defs": {"ok": {"type": "null"}}, **TREE},
        {"type": "object", "required": [{}, 3, "a"], "properties": 7},
        {"type": "array", "minItems": "many", "items": {"$ref": "#"}},
        {"type": "array", "minItems": -1, "prefixItems": [{"$ref": "#"}]},
        True,
        [],
        {"default": {"multipleOf": 99991}, "const": 2**60},
    ],
    ids=range(16),
)
def test_what_has_a_value_or_cannot_be_told_passes(schema: object) -> None:
    assert flaw_of(schema) is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"enum": ["a", [9007199254740993]]}, "9007199254740993 is between two numbers"),
        ({"properties": {"a": {"const": -12345678901234567891}}}, "-12345678901234567891 is between"),
        ({"anyOf": [{"multipleOf": 86400}]}, "multipleOf is 86400, limit 4096"),
        ({"multipleOf": 2048.5}, "multipleOf is 2048.5, limit 4096"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(schema: object, said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        check_grammar(Grammar(kind="json_schema", source=json.dumps(schema)), tokenizer())


def test_a_tool_that_is_not_strict_loses_a_multiple_that_cannot_be_kept_to() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 86400}}}
    for is_strict in (False, True):
        grammar = tool_grammar(
            [Tool(name="f", parameters=parameters, strict=is_strict)], ToolChoice(mode="auto")
        )
        assert grammar is not None and ("86400" in grammar.source) == is_strict
    with pytest.raises(InvalidParameter, match="multipleOf"):
        check_grammar(grammar, tokenizer())


@pytest.mark.parametrize(
    ("schema", "added"),
    [
        ({"type": "integer", "multipleOf": 7}, {"minimum": -MAX_WHOLE, "maximum": MAX_WHOLE}),
        ({"type": "number", "multipleOf": 7, "exclusiveMinimum": 0}, {"maximum": MAX_WHOLE}),
        ({"type": "number", "multipleOf": 0.25}, {}),
        ({"type": "integer", "multipleOf": 7, "minimum": 10**17}, {}),
        ({"type": "integer", "multipleOf": 7, "allOf": [{"minimum": 10**17}]}, {}),
        ({"type": "string", "format": "time"}, {"maxLength": 30}),
        ({"type": "string", "format": "time", "maxLength": 50}, {}),
        ({"type": "string", "format": "uri"}, {}),
    ],
)
def test_bounds_are_added_where_there_are_none(schema: dict, added: dict) -> None:
    assert bounded(schema) == {**schema, **added}
    assert bounded({"items": [schema], "const": schema}) == {"items": [{**schema, **added}], "const": schema}


def test_tools_have_one_limit() -> None:
    def entries(size: int) -> list[object]:
        properties = {"a": {"type": "integer", "description": "x" * size}}
        function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
        return [{"type": "function", "function": function}]

    size = MAX_JSON_CHARS - len(json.dumps(entries(0)))
    grammar = tool_grammar(read_tools(entries(size)), ToolChoice(mode="required"))
    assert grammar is not None and len(grammar.source) > MAX_CHARS
    check_grammar(grammar, tokenizer())
    with pytest.raises(
        InvalidParameter, match=f"tools has {MAX_JSON_CHARS + 1} characters .*limit {MAX_JSON_CHARS}"
    ):
        read_tools(entries(size + 1))
