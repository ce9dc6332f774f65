"""Grammars as masks: nothing but what they describe comes out, and all of that may."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from functools import cache

import jsonschema
import pytest
import tokenizers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tapetum.assets import MODEL_DIR
from tapetum.core.errors import EngineError, InvalidParameter
from tapetum.core.request import Grammar, GrammarKind
from tapetum.text.grammar import MAX_CHARS, Constraint, check_grammar
from tapetum.text.tokenizer import Tokenizer
from tests.mini import END_OF_TEXT as OTHER_END
from tests.mini import EOS as END

ENDS = frozenset({END, OTHER_END})


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(MODEL_DIR)


def constraint(kind: GrammarKind, source: object = "", ends: frozenset[int] = ENDS) -> Constraint:
    text = source if isinstance(source, str) else json.dumps(source)
    return Constraint(Grammar(kind=kind, source=text), tokenizer(), ends)


def allowed(mask: bytes) -> set[int]:
    return {8 * place + bit for place, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1}


def walk(constraint: Constraint, seed: int, limit: int = 150) -> tuple[str, bool]:
    """A text of random tokens that the masks allow, and whether it came to an end."""
    source = random.Random(seed)
    token_ids: list[int] = []
    for _ in range(limit):
        choices = allowed(constraint.mask)
        if constraint.is_over or (choices & ENDS and source.random() < 0.5):
            return tokenizer().decode(token_ids), True
        assert choices - ENDS, "something can follow until it is over"
        token_ids.append(source.choice(sorted(choices - ENDS)))
        constraint.advance(token_ids[-1])
    return tokenizer().decode(token_ids), False


def accepts(constraint: Constraint, text: str) -> bool:
    """Whether an answer may be just this text."""
    for token_id in tokenizer().encode_plain(text):
        if token_id not in allowed(constraint.mask):
            return False
        constraint.advance(token_id)
    return END in allowed(constraint.mask)


LETTERS = st.characters(exclude_categories=("Cs", "Cc"))  # control characters come escaped, in one form only
WORDS = st.text(LETTERS, max_size=6)
NAMES = st.sampled_from(["a", "b", "name", "größe", "a b", '"', "\\"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-50, 50), WORDS)


def _with(schema: Mapping[str, object], values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.tuples(st.just(dict(schema)), values)


@st.composite
def objects(draw: st.DrawFn, parts: st.SearchStrategy[object]) -> tuple[object, object]:
    names = draw(st.lists(NAMES, unique=True, max_size=3))
    pairs = [draw(parts) for _ in names]
    required = [name for name in names if draw(st.booleans())]
    schema = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in zip(names, pairs, strict=True)},
        "required": required,
        "additionalProperties": False,
    }
    value = {
        name: value
        for name, (_, value) in zip(names, pairs, strict=True)
        if name in required or draw(st.booleans())
    }
    return schema, value


@st.composite
def arrays(draw: st.DrawFn, parts: st.SearchStrategy[object]) -> tuple[object, object]:
    schema, value = draw(parts)
    low, extra = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    count = draw(st.integers(low, low + extra))
    return {"type": "array", "items": schema, "minItems": low, "maxItems": low + extra}, [value] * count


@st.composite
def unions(draw: st.DrawFn, parts: st.SearchStrategy[object]) -> tuple[object, object]:
    pairs = draw(st.lists(parts, min_size=1, max_size=3))
    return {"anyOf": [schema for schema, _ in pairs]}, draw(st.sampled_from(pairs))[1]


@st.composite
def enums(draw: st.DrawFn) -> tuple[object, object]:
    values = draw(st.lists(SCALARS, min_size=1, max_size=4))
    return {"enum": values}, draw(st.sampled_from(values))


LEAVES = st.one_of(
    _with({"type": "integer"}, st.integers(-(10**6), 10**6)),
    _with({"type": "integer", "minimum": -3, "exclusiveMaximum": 40}, st.integers(-3, 39)),
    _with({"type": "string", "minLength": 2, "maxLength": 5}, st.text(LETTERS, min_size=2, max_size=5)),
    _with({"type": "string", "pattern": "^[a-c]{1,3}x$"}, st.from_regex("[a-c]{1,3}x", fullmatch=True)),
    _with({"type": ["boolean", "null"]}, st.sampled_from([True, False, None])),
    enums(),
)
CASES = st.recursive(
    LEAVES, lambda parts: st.one_of(objects(parts), arrays(parts), unions(parts)), max_leaves=5
)


@settings(max_examples=60)
@given(CASES, st.integers(0, 2**32))
def test_what_ends_by_itself_fits_its_schema(case: tuple[object, object], seed: int) -> None:
    schema, _ = case
    text, has_ended = walk(constraint("json_schema", schema), seed)
    if has_ended:
        jsonschema.validate(json.loads(text), schema)


@settings(max_examples=60)
@given(CASES, st.booleans())
def test_what_fits_a_schema_may_come(case: tuple[object, object], is_tight: bool) -> None:
    schema, value = case
    separators = (",", ":") if is_tight else (", ", ": ")
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    assume(tokenizer().decode(tokenizer().encode_plain(text)) == text)  # it may compose characters
    assert accepts(constraint("json_schema", schema), text), text


@pytest.mark.parametrize("seed", range(20))
def test_an_answer_cut_anywhere_can_still_come_to_an_end(seed: int) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 8},
            "b": {"type": "array", "items": {"enum": [1, 22]}},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    followed = constraint("json_schema", schema)
    walk(followed, seed, limit=seed)
    text, has_ended = walk(followed, seed, limit=400)
    assert has_ended, text


def test_white_space_is_one_space_at_most_so_that_an_answer_gets_on() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    assert accepts(constraint("json_schema", schema), "[ 1 , 2 ]")
    for text in ("[  1]", "[\n1]", "[1] "):
        assert not accepts(constraint("json_schema", schema), text)


@pytest.mark.parametrize("seed", range(5))
def test_an_object_of_any_form(seed: int) -> None:
    text, has_ended = walk(constraint("json_object"), seed)
    assert text.lstrip().startswith("{")
    if has_ended:
        assert isinstance(json.loads(text), dict)
    assert accepts(constraint("json_object"), '{"a": [1.5e3, {"b": null}], "": "\\n"}')
    assert not accepts(constraint("json_object"), "[1]")


@pytest.mark.parametrize(
    ("pattern", "is_one", "is_none"),
    [
        ("[0-9]{3}-[a-z]{2,5}", "123-abc", "123-a"),
        ("(yes|no)( please)?", "no please", "no pleas"),
        (r"\d+(\.\d\d)?", "17.50", "17.5"),
        ("é+|😀", "éé", "é😀"),
        ("^a.c$", "abc", "ac"),
    ],
)
def test_a_regex_matches_from_end_to_end(pattern: str, is_one: str, is_none: str) -> None:
    for seed in range(10):
        text, has_ended = walk(constraint("regex", pattern), seed)
        if has_ended:
            assert re.fullmatch(pattern, text), text
    assert accepts(constraint("regex", pattern), is_one)
    assert not accepts(constraint("regex", pattern), is_none)


CHOICES = st.lists(st.text("ab \n\"'\\{é😀\u0301", min_size=1, max_size=5), min_size=1, max_size=5)


@cache
def words() -> dict[int, bytes]:
    """The bytes of all tokens that add some to a text."""
    ids = set(range(tokenizer().vocab_size)) - tokenizer().special_ids
    return {token_id: word for token_id in ids if (word := tokenizer().token_bytes(token_id))}


@settings(max_examples=60)
@example(['""'], 0)
@example(["e\u0301"], 0)
@given(CHOICES, st.integers(0, 2**32))
def test_masks_of_choices_hold_the_tokens_that_lead_to_one(choices: list[str], seed: int) -> None:
    """All of them; but where one text alone can follow, it may be held to the tokens it is usually written with."""
    source = random.Random(seed)
    wanted = {choice.encode() for choice in choices}
    followed, so_far = constraint("choice", choices), b""
    while True:
        rests = {choice[len(so_far) :] for choice in wanted if choice.startswith(so_far)}
        viable = {
            token_id for token_id, word in words().items() if any(rest.startswith(word) for rest in rests)
        }
        found = allowed(followed.mask)
        assert found == viable | (ENDS if b"" in rests else set()) or found == {usual(rests)}
        assert followed.is_over == (not viable)
        if not viable:
            break
        token_id = source.choice(sorted(found & viable))
        followed.advance(token_id)
        so_far += words()[token_id]
    assert so_far in wanted


def usual(rests: set[bytes]) -> int | None:
    """The first token of what all of the texts begin with, if that is not open to being written on differently."""
    low, high = min(rests), max(rests)
    length = next((place for place in range(len(low)) if low[place] != high[place]), len(low))
    settled = low[:length].decode(errors="ignore")
    return exact_tokenizer().encode(settled).ids[0] if settled else None


@cache
def exact_tokenizer() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    backend.normalizer = None
    return backend


def test_both_dialects_of_context_free_grammars() -> None:
    nested = 'start: "a" start? "b"'
    assert accepts(constraint("lark", nested), "aabb")
    assert not accepts(constraint("lark", nested), "aab")
    assert accepts(constraint("lark", 'root ::= "x" [a-c]+'), "xabc")


def test_ends_are_those_of_the_request_and_come_only_where_the_grammar_may_end() -> None:
    followed = constraint("regex", "ab?", frozenset({OTHER_END}))
    a, b = tokenizer().encode_plain("a")[0], tokenizer().encode_plain("b")[0]
    assert not allowed(followed.mask) & tokenizer().special_ids
    followed.advance(a)
    assert allowed(followed.mask) == {b, OTHER_END}
    followed.advance(OTHER_END)
    assert allowed(followed.mask) == {b, OTHER_END}
    followed.advance(b)
    assert followed.is_over
    assert allowed(constraint("regex", "b", frozenset({5000})).mask) == {b}, "no token has that id"


def test_a_token_that_the_mask_forbids_is_our_fault() -> None:
    for token_id in (tokenizer().encode_plain("b")[0], END + 1, 10**6):
        with pytest.raises(EngineError, match=f"token {token_id}"):
            constraint("regex", "ac").advance(token_id)


BAD = [
    ("json_schema", "{", "property name"),
    ("json_schema", "3", "must be an object"),
    ("json_schema", '["a"]', "must be an object"),
    ("json_schema", "false", "must be an object"),
    ("json_schema", '{"const": NaN}', "expected value"),
    ("json_schema", '{"type": "text"}', "Invalid type: text"),
    ("json_schema", '{"not": {}}', '"not"'),
    ("json_schema", '{"uniqueItems": true, "type": "array"}', '"uniqueItems"'),
    ("json_schema", '{"x-guidance": {"lenient": true}, "not": {}}', '"not"'),
    ("json_schema", '{"$ref": "#"}', "no text satisfies it"),
    ("json_schema", '{"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}', "stack level exceeded"),
    ("json_schema", '{"$ref": "#/missing"}', "/missing"),
    ("json_schema", '{"$ref": "http://example.com/x.json"}', "example.com"),
    ("json_schema", '{"type": "integer", "minimum": 3, "maximum": 2}', "greater than maximum"),
    ("json_schema", '{"enum": []}', "anyOf is empty"),
    ("json_schema", '{"type": "string", "pattern": "(?=a)"}', "look-around"),
    ("json_schema", '{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "oneOf"),
    ("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000, "nested too deeply"),
    ("json_schema", '{"items":' * 200 + "{}" + "}" * 200, "recursion limit"),
    ("json_schema", json.dumps({"type": "object", "properties": {str(i): {} for i in range(700)}}), "2000"),
    ("regex", "(", "unclosed group"),
    ("regex", "", "only an answer without text"),
    ("regex", "[^\\s\\S]", "no text satisfies it"),
    ("regex", "a{1000000000000}", "decimal literal"),
    ("regex", "(" * 2000 + ")" * 2000, "invalid regex"),
    ("regex", "((a{1000}){1000}){1000}", "too many expressions"),
    ("regex", "\ud800", "surrogates"),
    ("choice", "[]", "0 choices"),
    ("choice", '["a", ""]', "none of them empty"),
    ("choice", '["a", 3]', "list of strings"),
    ("choice", '{"a": 3}', "list of strings"),
    ("choice", '["\\ud83d"]', "surrogates"),
    ("lark", "start: nowhere", "nowhere"),
    ("lark", "start: start", "no text satisfies it"),
    ("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "nested"),
    ("lark", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "recursion depth"),
    ("lark", "", "root"),
    ("lark", '{"grammars": [{"json_schema": {}}]}', "Expected name"),
    ("regex", "a" * (MAX_CHARS + 1), "limit 262144"),
]


@pytest.mark.parametrize(("kind", "source", "said"), BAD, ids=[f"{bad[0]}-{bad[2]}" for bad in BAD])
def test_a_grammar_that_no_answer_can_keep_to_is_refused(kind: GrammarKind, source: str, said: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_grammar(Grammar(kind=kind, source=source, param="response_format"), tokenizer())
    assert said in caught.value.message
    assert caught.value.param == "response_format"
    assert caught.value.message.startswith("response_format") and len(caught.value.message) < 500
