"""Chat requests: what is none is told by its field, formats and sampling reach the engine."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapetum.core.chat import ChatInput
from tapetum.core.errors import InvalidParameter, RequestError
from tapetum.server.chat.sampling import priority_number
from tapetum.server.chat.schema import ChatRequest, parse_chat
from tapetum.server.chat.translate import question_of
from tapetum.server.chat.unserved import UnservedFields
from tapetum.server.errors import NotSupported
from tests.pure.chat_kit import ask, parse, refusal, sampling

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from([*ChatRequest.__struct_fields__, "type", "text", "url", "role", "content"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=3,
)
PART_TYPES = (
    "text",
    "input_text",
    "image_url",
    "input_image",
    "image",
    "video_url",
    "video",
    "refusal",
    "audio",
)
PART = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(PART_TYPES)},
        optional=dict.fromkeys(
            ("text", "image_url", "image", "video_url", "video", "refusal", "detail"), JSON
        ),
    ),
    JSON,
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "tool", "x"]),
        "content": st.one_of(st.text(), st.lists(PART, max_size=3), JSON),
    },
    optional={"tool_calls": JSON, "name": JSON, "reasoning_content": JSON},
)
OTHER_FIELDS = [name for name in ChatRequest.__struct_fields__ if name != "messages"]


@settings(max_examples=80)  # drawing such bodies is slow
@given(
    st.fixed_dictionaries(
        {"messages": st.one_of(st.lists(MESSAGE, max_size=3), JSON)},
        optional=dict.fromkeys([*OTHER_FIELDS, "zebra"], JSON),
    )
)
def test_any_json_is_a_request_or_a_request_error(body: dict[str, object]) -> None:
    try:
        request = parse_chat(json.dumps(body).encode())
        chat = question_of(request).chat
        priority_number(request.priority)
    except RequestError as error:
        assert error.message
        return
    assert isinstance(chat, ChatInput)
    assert len(chat.messages) == len(body["messages"])


@given(st.binary(max_size=40))
def test_any_bytes_are_a_request_error(body: bytes) -> None:
    with pytest.raises(RequestError):
        parse_chat(body)


@pytest.mark.parametrize(
    "body", ['\ufeff{"messages":[]}'.encode(), b'{"model": "\xff"}', b'{"messages": [{"role": "\\ud800"}]}']
)
def test_a_body_that_is_no_clean_unicode_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match="no JSON object"):
        parse_chat(body)


@pytest.mark.parametrize(
    "name", ["zebra", "chat_template_kwargs", "tools", "guided_json", "mm_processor_kwargs"]
)
def test_a_body_nested_too_deeply_is_a_request_error(name: str) -> None:
    deep = '{"a": ' * 50_000 + "1" + "}" * 50_000
    deep = f"[{deep}]" if name == "tools" else deep
    with pytest.raises(RequestError, match="nested too deeply"):
        parse_chat(f'{{"messages": [{{"role": "user", "content": "x"}}], "{name}": {deep}}}'.encode())


@pytest.mark.parametrize("name", ["tools", "guided_json", "chat_template_kwargs"])
def test_a_field_as_deep_as_the_decoder_allows_does_no_harm(name: str) -> None:
    deep: object = 1
    for _ in range(600):
        deep = {"a": deep}
    value = [{"type": "function", "function": {"name": "f", "parameters": deep}}] if name == "tools" else deep
    try:
        ask(**{name: value})
    except RequestError as error:
        assert "nested" in error.message


def test_the_last_of_two_equal_keys_counts() -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}], "seed": 1, "seed": 2}'
    assert parse_chat(body).seed == 2
    with pytest.raises(InvalidParameter):  # a value of the wrong type is one, wherever it stands
        parse_chat(body.replace(b"1", b'"a"'))


# ---- formats

SCHEMA = {"type": "object", "properties": {"b": {"const": "ü"}, "a": True}}
SCHEMA_TEXT = '{"type": "object", "properties": {"b": {"const": "ü"}, "a": true}}'
FORMATS = [
    ({"response_format": {"type": "json_object"}}, ("json_object", "")),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        ("json_schema", SCHEMA_TEXT),
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
            }
        },
        ("json_schema", SCHEMA_TEXT),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, ("json_schema", SCHEMA_TEXT)),
    ({"structured_outputs": {"json": SCHEMA_TEXT}}, ("json_schema", SCHEMA_TEXT)),
    ({"structured_outputs": {"json_object": True}}, ("json_object", "")),
    ({"structured_outputs": {"regex": "a+"}}, ("regex", "a+")),
    ({"structured_outputs": {"choice": ["ü", "b"]}}, ("choice", '["ü", "b"]')),
    ({"structured_outputs": {"grammar": "start: x"}}, ("lark", "start: x")),
    ({"guided_json": SCHEMA}, ("json_schema", SCHEMA_TEXT)),
    ({"guided_json": False}, ("json_schema", "false")),
    ({"guided_regex": "a+"}, ("regex", "a+")),
    ({"guided_choice": ["a"]}, ("choice", '["a"]')),
    ({"guided_grammar": "start: x"}, ("lark", "start: x")),
    ({"guided_regex": "a", "response_format": {"type": "text"}}, ("regex", "a")),
]


@pytest.mark.parametrize(("fields", "expected"), FORMATS, ids=lambda value: str(value)[:60])
def test_a_format_of_the_answer_is_a_grammar(fields: dict[str, object], expected: tuple[str, str]) -> None:
    grammar = sampling(**fields).grammar
    assert grammar is not None
    assert (grammar.kind, grammar.source) == expected
    assert grammar.param.split(".")[0] in fields


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": {"type": "text"}}, {"response_format": None}, {"structured_outputs": {}}],
)
def test_without_a_format_there_is_no_grammar(fields: dict[str, object]) -> None:
    assert sampling(**fields).grammar is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_regex": "a", "structured_outputs": {"json": {}}}, "guided_regex"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [5]}, "guided_choice[0]"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"guided_json": {"enum": [0] * 2**18}}, "guided_json"),
        ({"guided_choice": ["x" * 2**18]}, "guided_choice"),
    ],
)
def test_a_format_that_is_none_is_named(fields: dict[str, object], param: str) -> None:
    assert refusal(**fields).param == param


# ---- sampling and the rest


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": "3"}, "n"),
        ({"n": 10**30}, "n"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1.5": 1}}, "logit_bias"),
        ({"logit_bias": {"5": "a"}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"max_visual_tokens": 0}, "max_visual_tokens"),
        ({"media_io_kwargs": {"audio": {}}}, "media_io_kwargs.audio"),
        ({"media_io_kwargs": {"video": 5}}, "media_io_kwargs.video"),
        ({"mm_processor_kwargs": []}, "mm_processor_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"request_id": "a\nb: c"}, "request_id"),
        ({"request_id": "a\n"}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "a" * 129}, "request_id"),
        ({"request_id": "ü"}, "request_id"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"priority": "a - at `$.seed`"}, "priority"),
        ({"top_logprobs": 5, "logprobs": False}, "top_logprobs"),
    ],
)
def test_a_field_out_of_its_range_is_named(fields: dict[str, object], param: str) -> None:
    assert refusal(**fields).param == param


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e400", b"-1e400", b'"hot"', b"[]", b"true"])
@pytest.mark.parametrize("name", ["temperature", "top_p", "presence_penalty", "min_p", "timeout_s"])
def test_a_number_that_is_none_is_refused(name: str, number: bytes) -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}], "%s": %s}' % (name.encode(), number)
    with pytest.raises(RequestError):
        parse_chat(body)


def test_biases_and_lengths_reach_the_engine() -> None:
    params = sampling(logit_bias={"5": 1, "7": -100}, min_tokens=3, ignore_eos=True, logprobs=True)
    assert (dict(params.logit_bias), params.min_tokens, params.ignore_eos, params.logprobs) == (
        {5: 1.0, 7: -100.0},
        3,
        True,
        0,
    )
    assert sampling(max_tokens=9, max_completion_tokens=3).max_tokens == 3
    assert sampling(logprobs=True, top_logprobs=20).logprobs == 20
    assert sampling(top_logprobs=0).logprobs is None


@pytest.mark.parametrize(
    ("fields", "adds_prompt", "goes_on"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, False, True),
        ({"continue_final_message": False}, True, False),
    ],
)
def test_an_answer_begins_or_goes_on(fields: dict[str, object], adds_prompt: bool, goes_on: bool) -> None:
    chat = ask(**fields).chat
    assert (chat.add_generation_prompt, chat.continue_final_message) == (adds_prompt, goes_on)


def test_a_budget_and_arguments_of_the_template_go_along() -> None:
    chat = ask(max_visual_tokens=64, chat_template_kwargs={"a": [1]}).chat
    assert (chat.max_visual_tokens, chat.template_kwargs) == (64, {"a": [1]})


@pytest.mark.parametrize(
    ("name", "number"),
    [("interactive", -1), ("standard", 0), ("economy", 1), ("background", 2), (7, 7), (None, 0)],
)
def test_priority_classes_are_numbers(name: str | int | None, number: int) -> None:
    assert priority_number(parse(priority=name).priority) == number


@pytest.mark.parametrize("name", sorted({*UnservedFields.__struct_fields__} - {"prediction"}))
def test_a_field_that_is_not_served_is_refused_by_name(name: str) -> None:
    error = refusal(**{name: {"some": "thing"}})
    assert isinstance(error, NotSupported)
    assert error.param == name
    assert name in error.message
    assert parse(**{name: None})


def test_every_field_may_be_null() -> None:
    assert parse(**dict.fromkeys(OTHER_FIELDS))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (b"[]," * 2**20, "brackets, limit 1048576"),
        (b'{"a":1},' * 2**20, "brackets, limit 1048576"),
        (b"1," * (2**22 + 2**11), "commas, limit"),
    ],
)
def test_a_body_of_millions_of_parts_is_refused_before_they_are_made(parts: bytes, words: str) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}],"anything":[' + parts + b"0]}"
    with pytest.raises(RequestError, match=words):
        parse_chat(body)


def test_a_large_text_is_no_body_of_many_parts() -> None:
    text = "{a: [1, 2]} and so on, " * 200_000
    assert parse_chat(json.dumps({"messages": [{"role": "user", "content": text}]}).encode())
