"""Tools of a request: what is taken, what is refused, and by what word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.errors import InvalidParameter
from tapetum.text.tools import MAX_DEPTH, ToolChoice, check_size, read_arguments, read_tool_choice, read_tools

LOOK = {"type": "function", "function": {"name": "look"}}
WAIT = {"type": "function", "function": {"name": "wait"}}
EMPTY = {"type": "object", "properties": {}}


def function(**fields: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", **fields}}


def nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {"type": "object"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}}
    return value


def test_what_a_tool_says_is_kept() -> None:
    schema = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
    (tool,) = read_tools([function(description="Look.", parameters=schema, strict=True, other=1)])
    assert (tool.name, tool.description, tool.parameters, tool.strict) == ("f", "Look.", schema, True)
    assert tool.as_data() == function(description="Look.", parameters=schema)


def test_what_a_tool_leaves_out_is_an_object_of_anything() -> None:
    for said in (
        function(),
        function(parameters=None, description=None, strict=None),
        function(parameters={}),
    ):
        (tool,) = read_tools([said])
        assert tool.as_data() == function(parameters=EMPTY)
        assert not tool.strict
    assert read_tools(None) == read_tools([]) == ()
    (tool,) = read_tools([function(parameters={"$ref": "#/$defs/A"})])
    assert tool.parameters == {"type": "object", "$ref": "#/$defs/A"}


@given(name=st.from_regex(r"\A[A-Za-z0-9_-]{1,64}\Z"))
def test_reading_what_was_read_changes_nothing(name: str) -> None:
    once = read_tools([{"function": {"name": name, "parameters": nested(3)}}])
    assert [tool.as_data() for tool in read_tools([tool.as_data() for tool in once])] == [once[0].as_data()]


@pytest.mark.parametrize(
    ("tools", "param", "words"),
    [
        ("look", "tools", "must be a list"),
        ({"look": 1}, "tools", "must be a list"),
        ([LOOK] * 129, "tools", "has 129 tools, limit 128"),
        ([LOOK, WAIT, LOOK], "tools", "names 'look' twice"),
        ([LOOK, 1], "tools[1]", "must be {'type': 'function'"),
        ([{"type": "web_search"}], "tools[0]", "web_search"),
        ([{"type": "function"}], "tools[0].function", "must be an object with a name"),
        ([{"type": "function", "function": {}}], "tools[0].function.name", "is None"),
        ([function(name="")], "tools[0].function.name", "1 to 64 letters"),
        ([function(name="<|im_end|>")], "tools[0].function.name", "1 to 64 letters"),
        ([function(name="a" * 65)], "tools[0].function.name", "1 to 64 letters"),
        ([function(name="look\n")], "tools[0].function.name", "1 to 64 letters"),
        ([function(name="lóok")], "tools[0].function.name", "1 to 64 letters"),
        ([function(description=1)], "tools[0].function", "must be a string"),
        ([function(strict="yes")], "tools[0].function", "true or false"),
        ([function(parameters=[])], "tools[0].function.parameters", "schema of an object"),
        ([function(parameters={"type": "string"})], "tools[0].function.parameters", "schema of an object"),
        ([function(parameters=nested(MAX_DEPTH))], "tools", "nested more than 64 deep"),
        ([function(description="x" * 2**18)], "tools", "limit 262144"),
        ([function(description='"' * 2**17)], "tools", "limit 262144"),
        ([function(parameters={"x" * 2**18: 1})], "tools", "limit 262144"),
        ([function(parameters={"enum": [0] * 2**18})], "tools", "limit 262144"),
        ([function(parameters={"default": float("nan")})], "tools", "no JSON"),
        ([function(parameters={"default": object()})], "tools", "no JSON"),
    ],
)
def test_what_is_no_tool_is_refused(tools: object, param: str, words: str) -> None:
    with pytest.raises(InvalidParameter) as raised:
        read_tools(tools)
    assert raised.value.param == param
    assert words in raised.value.message


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (None, ToolChoice(mode="auto")),
        ("auto", ToolChoice(mode="auto")),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        (WAIT, ToolChoice(mode="named", name="wait")),
        ({"type": "function", "name": "wait"}, ToolChoice(mode="named", name="wait")),
    ],
)
def test_a_choice_is_read(given: object, choice: ToolChoice) -> None:
    assert read_tool_choice(given, read_tools([LOOK, WAIT])) == choice


def test_without_tools_nothing_is_called() -> None:
    for said in (None, "auto", "none"):
        assert read_tool_choice(said, ()) == ToolChoice(mode="none")


@pytest.mark.parametrize(
    ("given", "tools", "words"),
    [
        ("required", [], "tools is empty"),
        (LOOK, [], "tools has none"),
        (LOOK, [WAIT], "names 'look', tools has wait"),
        ("always", [WAIT], "must be 'none', 'auto', 'required'"),
        (3, [WAIT], "must be 'none', 'auto', 'required'"),
        ({"type": "function"}, [WAIT], "must be 'none', 'auto', 'required'"),
        ({"type": "function", "function": None}, [WAIT], "must be 'none', 'auto', 'required'"),
    ],
)
def test_a_choice_that_cannot_be_kept_to_is_refused(given: object, tools: list[object], words: str) -> None:
    with pytest.raises(InvalidParameter) as raised:
        read_tool_choice(given, read_tools(tools))
    assert raised.value.param == "tool_choice"
    assert words in raised.value.message


def test_arguments_are_the_text_of_an_object() -> None:
    assert read_arguments('{"a": [1, "é"]}', "x") == {"a": [1, "é"]}
    assert read_arguments(" ", "x") == {}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '"{}"',
        '{"a": NaN}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a":' * 65 + "1" + "}" * 65,
        "[" * 100_000,
        '{"a": 1' + " " * 2**18 + "}",
    ],
)
def test_arguments_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameter, match=r"messages\[1\]") as raised:
        read_arguments(text, "messages[1].tool_calls[0].function.arguments")
    assert len(raised.value.message) < 400


def test_no_more_of_a_value_is_looked_at_than_its_limit_allows() -> None:
    class Endless(list):
        """A list that says how long it is, and must not be read."""

        def __len__(self) -> int:
            return 2**40

        def __iter__(self):
            raise AssertionError("it is looked into")

    with pytest.raises(InvalidParameter, match="limit 262144"):
        check_size({"a": [Endless()]}, "x")


def test_so_many_tools_and_no_more() -> None:
    tools = [function(name=f"f{number}") for number in range(129)]
    assert len(read_tools(tools[:128])) == 128
    with pytest.raises(InvalidParameter, match="129 tools, limit 128"):
        read_tools(tools)
