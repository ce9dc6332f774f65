"""Numbers under a grammar: all that are worth writing may come, and none goes on and on."""

from __future__ import annotations

import json
import math
import random
import re
from decimal import Decimal
from functools import cache

import jsonschema
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tapetum.assets import MODEL_DIR
from tapetum.core.request import Grammar, GrammarKind
from tapetum.text.grammar import Constraint, check_grammar
from tapetum.text.tokenizer import Tokenizer
from tapetum.text.tool_calls import FORMS
from tapetum.text.tool_grammar import tool_grammar
from tapetum.text.tools import Tool, ToolChoice, ToolStyle
from tests.mini import EOS as END

GREATEST = 2**53 - 1
LONG = "3.14159265358979323846264338327950288"


@cache
def tokenizer(is_wide: bool = False) -> Tokenizer:
    """`is_wide`: with tokens that hold several characters of a number, or what comes after one."""
    backend = tokenizers.Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    if is_wide:
        words = ["00", "12", "999", "000000", "1.5", ".0", "e3", "e+30", "0,", "7]", "9}", "5, 1", "-1"]
        backend.add_tokens([tokenizers.AddedToken(word, special=False, normalized=False) for word in words])
    return Tokenizer(backend, slots={})


def allowed(mask: bytes) -> list[int]:
    return [8 * place + bit for place, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]


def json_schema(schema: object) -> Grammar:
    return Grammar(kind="json_schema", source=json.dumps(schema))


def accepts(grammar: Grammar | None, text: str) -> bool:
    """Whether an answer may be just this text."""
    assert grammar is not None
    constraint = Constraint(grammar, tokenizer(), frozenset({END}))
    for token_id in tokenizer().encode_plain(text):
        if token_id not in allowed(constraint.mask):
            return False
        constraint.advance(token_id)
    return END in allowed(constraint.mask)


def hungry(grammar: Grammar, seed: int, *, is_wide: bool, limit: int = 400) -> str:
    """The text of a model that writes parts of a number wherever it may, and ends as soon as it may otherwise."""
    source, words = random.Random(seed), tokenizer(is_wide)
    food = {token_id for ids in words.number_tokens.values() for token_id in ids}
    constraint, text = Constraint(grammar, words, frozenset({END})), b""
    for _ in range(limit):
        choices = set(allowed(constraint.mask))
        if constraint.is_over or (END in choices and not choices & food):
            return text.decode()
        token_id = source.choice(sorted(choices & food or choices))
        constraint.advance(token_id)
        text += words.token_bytes(token_id)
    raise AssertionError(f"it does not end: {text.decode()[:400]}")


def numbers_in(text: str) -> list[str]:
    return re.findall(r"-?[0-9][0-9.eE+-]*", re.sub(r'"(?:[^"\\]|\\.)*"', "", text))


BOUNDS = st.one_of(
    st.none(), st.integers(-(10**6), 10**6), st.sampled_from([0, 0.5, -0.125, GREATEST, -GREATEST])
)


@st.composite
def number_schemas(draw: st.DrawFn) -> dict[str, object]:
    schema: dict[str, object] = {"type": draw(st.sampled_from(["integer", "number", ["integer", "null"]]))}
    low, high = draw(BOUNDS), draw(BOUNDS)
    if low is not None and high is not None and low + 10_000 > high:
        high = None
    for names, bound in ((("minimum", "exclusiveMinimum"), low), (("maximum", "exclusiveMaximum"), high)):
        if bound is not None and abs(bound) < GREATEST - 10_000:
            schema[draw(st.sampled_from(names))] = bound
    if draw(st.booleans()):
        schema["multipleOf"] = draw(st.sampled_from([1, 2, 3, 7, 60, 100, 997, 3600, 0.01, 0.25, 0.3, 0.001]))
    return schema


@settings(max_examples=60)
@given(number_schemas(), st.booleans(), st.integers(0, 2**32), st.booleans())
def test_a_model_that_writes_nothing_but_digits_comes_to_an_end(
    schema: dict[str, object], is_inside: bool, seed: int, is_wide: bool
) -> None:
    if is_inside:
        schema = {"type": "array", "items": {"anyOf": [schema, {"type": "boolean"}]}, "maxItems": 3}
    text = hungry(json_schema(schema), seed, is_wide=is_wide)
    value = json.loads(text)
    for number in numbers_in(text):
        whole, _, fraction = re.split("[eE]", number)[0].lstrip("-").partition(".")
        most = 20 if "multipleOf" in str(schema) else 17  # its last digits have to come
        assert int(whole) <= GREATEST and len((whole + fraction).lstrip("0")) <= most, text
        assert math.isfinite(float(number)), text
    if "multipleOf" not in str(schema) or "0." not in str(schema):  # the judge divides doubles
        jsonschema.validate(value, schema)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("style", FORMS)
def test_so_it_does_in_calls(style: ToolStyle, seed: int) -> None:
    parameters = {
        "type": "object",
        "properties": {
            "a": {"type": "number"},
            "b": {"type": "integer"},
            "c": {"type": "string", "pattern": "^[0-9]{20,30}$"},
        },
        "required": ["a", "b", "c"],
        "additionalProperties": False,
    }
    grammar = tool_grammar(
        [Tool(name="f", parameters=parameters)], ToolChoice(mode="named", name="f"), style=style
    )
    assert grammar is not None
    text = hungry(grammar, seed, is_wide=bool(seed % 2))
    call = json.loads(re.search(r"\{.*\}", text, re.DOTALL)[0])
    arguments = call[FORMS[style].arguments_key]
    jsonschema.validate(arguments, parameters)
    assert abs(arguments["b"]) <= GREATEST and math.isfinite(arguments["a"])
    assert len(arguments["c"]) == 30, "the digits of a string are its own"


@pytest.mark.parametrize("seed", range(6))
def test_so_it_does_in_an_object_of_any_form(seed: int) -> None:
    words = tokenizer()
    constraint = Constraint(Grammar(kind="json_object"), words, frozenset({END}))
    for token_id in words.encode_plain('{"a": '):
        constraint.advance(token_id)
    source, text = random.Random(seed), ""
    for _ in range(31):
        near = [
            token_id for token_id in allowed(constraint.mask) if words.decode((token_id,)) in "0123456789-.eE"
        ]
        if not near:
            break
        constraint.advance(token_id := source.choice(near))
        text += words.decode((token_id,))
    assert len(text) <= 30 and math.isfinite(json.loads(text))


ANY = {
    "type": "object",
    "properties": {"a": {"type": "number"}},
    "required": ["a"],
    "additionalProperties": False,
}
CALL = '<tool_call>\n{{"name": "f", "arguments": {{"a": {}}}}}\n</tool_call>'


@settings(max_examples=60)
@given(
    st.one_of(
        st.integers(-GREATEST, GREATEST),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(
            [5e-324, 1.7976931348623157e308, -2.2250738585072014e-308, 0.1 + 0.2, 1e16, 1e-5, -0.0]
        ),
    )
)
def test_every_double_and_every_integer_that_survives_as_one_may_come(value: float) -> None:
    text = json.dumps(value) if not GREATEST < abs(value) < 1e16 else f"{value:.16e}"
    assert accepts(json_schema({"type": "number"}), text)
    assert accepts(json_schema({}), text)
    assert accepts(Grammar(kind="json_object"), f'{{"a": {text}}}')
    assert accepts(
        tool_grammar([Tool(name="f", parameters=ANY)], ToolChoice(mode="required")), CALL.format(text)
    )
    if isinstance(value, int):
        assert accepts(json_schema({"type": "integer"}), text)


@pytest.mark.parametrize(
    "text",
    [
        "9007199254740992",
        "-9007199254740992",
        "10000000000000000",
        "1.00000000000000000",
        "0.00000001",
        "1e0001",
        "1e309",
    ],
)
def test_what_says_no_more_may_not_come(text: str) -> None:
    assert not accepts(json_schema({"type": "number"}), text)
    assert not accepts(Grammar(kind="json_object"), f'{{"a": {text}}}')


@settings(max_examples=60)
@given(st.data())
def test_bounds_of_a_schema_win(data: st.DataObject) -> None:
    low, high = sorted(data.draw(st.tuples(*[st.integers(-(2**62), 2**62)] * 2)))
    low, high = int(float(low)), int(float(high))  # as they are read
    value = data.draw(st.integers(low, high))
    assert accepts(json_schema({"type": "integer", "minimum": low, "maximum": high}), str(value))
    small = data.draw(st.floats(1e-14, 1e-10))
    text = f"{Decimal(repr(small)):f}"
    assert accepts(json_schema({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-10}), text)


def test_values_of_a_schema_win() -> None:
    grammar = json_schema({"enum": [2**60, 10**16, 10**17, 1e22, "1" * 40]})
    for text in (str(2**60), str(10**16), str(10**17), "10000000000000000000000", f'"{"1" * 40}"'):
        assert accepts(grammar, text)


def test_digits_that_are_no_number_are_left_alone() -> None:
    assert accepts(json_schema({"type": "string"}), f'"\\"{LONG}"')
    assert accepts(json_schema({"type": "string", "pattern": "^[0-9]{18,30}$"}), '"' + "1" * 30 + '"')
    assert accepts(Grammar(kind="lark", source='start: "[" /[0-9]+/ "]"'), "[" + "1" * 40 + "]")
    assert accepts(Grammar(kind="regex", source="[0-9]+"), "1" * 40)
    tools = [Tool(name="f", parameters=ANY)]
    for thinking in ("never", "open"):
        grammar = tool_grammar(tools, ToolChoice(mode="auto"), thinking=thinking)  # type: ignore[arg-type]
        before = f'I think {LONG} or {{"pi": "{LONG}</think>' if thinking == "open" else ""
        call = CALL.format("1.5")
        assert accepts(grammar, f'{before}π = {LONG}{{"a": {LONG}}} {call} or {LONG} {call}{LONG}')
        assert not accepts(grammar, before + "Well, " + CALL.format(LONG))
        assert not accepts(grammar, f"{before}{call}\n{LONG}\n" + CALL.format(LONG))


def test_a_string_that_looks_like_the_end_of_a_call_is_a_string() -> None:
    parameters = {**ANY, "properties": {"s": {"type": "string"}, "a": {"type": "number"}}}
    grammar = tool_grammar([Tool(name="f", parameters=parameters)], ToolChoice(mode="required"))
    call = (
        '<tool_call>\n{"name": "f", "arguments": {"s": "</tool_call> \\\\\\" '
        + LONG
        + '", "a": %s}}\n</tool_call>'
    )
    assert accepts(grammar, call % "1.5")
    assert not accepts(grammar, call % LONG)


@pytest.mark.parametrize("name", ["date-time", "time", "duration", "email", "hostname"])
@pytest.mark.parametrize("is_call", [False, True])
def test_formats_come_to_an_end(name: str, is_call: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"s": {"type": "string", "format": name}},
        "required": ["s"],
        "additionalProperties": False,
    }
    if is_call:
        grammar = tool_grammar([Tool(name="f", parameters=schema)], ToolChoice(mode="named", name="f"))
    else:
        grammar = json_schema(schema)
    assert grammar is not None
    text = hungry(grammar, 1, is_wide=False)
    assert len(text) < 400


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("date-time", "2024-02-29T23:59:60.123456789+05:30"),
        ("time", "23:59:59.123456789Z"),
        ("duration", "P12Y11M30DT23H59M59S"),
        ("email", "a" * 60 + "@" + "b" * 60 + ".example.com"),
        ("hostname", ".".join(["a" * 60] * 4)),
    ],
)
def test_formats_hold_what_anybody_writes(name: str, value: str) -> None:
    assert accepts(json_schema({"type": "string", "format": name}), json.dumps(value))
    bounded = {"type": "string", "format": name, "maxLength": len(value) - 1}
    assert not accepts(json_schema(bounded), json.dumps(value))
    assert accepts(json_schema({"const": {"format": name}}), f'{{"format": "{name}"}}'), "data is left alone"


def test_white_space_between_a_thought_and_a_call_comes_to_an_end() -> None:
    grammar = tool_grammar([Tool(name="f", parameters=ANY)], ToolChoice(mode="required"), thinking="open")
    assert accepts(grammar, "hm</think>\n\n" + CALL.format("1"))
    assert not accepts(grammar, "hm</think>" + "\n" * 30 + CALL.format("1"))


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_checking_takes_the_same_way(kind: GrammarKind) -> None:
    check_grammar(Grammar(kind=kind, source='{"type": "number"}'), tokenizer())
