"""Chat requests as clients of several engines write them: what each spelling means, and how a wrong one is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapetum.core.chat import ChatInput, MediaPart
from tapetum.core.errors import InvalidParameter, RequestError
from tapetum.core.request import SamplingParams
from tapetum.server.chat.sampling import priority_number
from tapetum.server.chat.schema import ChatRequest, parse_chat
from tapetum.server.chat.translate import chat_input_of, sampling_of, use_of
from tapetum.server.chat.unserved import UnservedFields
from tapetum.server.errors import NotSupported

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


def parse(**fields: object) -> ChatRequest:
    return parse_chat(json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode())


def sampling(**fields: object) -> SamplingParams:
    return sampling_of(parse(**fields))


def message(content: object, role: str = "user", **fields: object) -> dict[str, object]:
    return {"role": role, "content": content, **fields}


def content(*parts: object, **fields: object) -> tuple[str | MediaPart, ...]:
    (only,) = chat_input_of(parse(messages=[message(list(parts))], **fields)).messages
    return only.content


def medium(part: object, **fields: object) -> tuple[str, object, dict[str, object]]:
    (only,) = content(part, **fields)
    assert isinstance(only, MediaPart)
    assert not only.is_trusted
    return only.kind, only.source, dict(only.options)


def refusal(**fields: object) -> RequestError:
    """The error of a request that is refused somewhere between its bytes and the engine."""
    with pytest.raises(RequestError) as raised:
        request = parse(**fields)
        chat_input_of(request)
        sampling_of(request)
    return raised.value


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
        chat = chat_input_of(request)
        sampling_of(request)
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
        request = parse(**{name: value})
        chat_input_of(request)
        sampling_of(request)
    except RequestError as error:
        assert "nested" in error.message


def test_the_last_of_two_equal_keys_counts() -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}], "seed": 1, "seed": 2}'
    assert parse_chat(body).seed == 2
    with pytest.raises(InvalidParameter):  # a value of the wrong type is one, wherever it stands
        parse_chat(body.replace(b"1", b'"a"'))


# ---- parts

URL = "data:image/png;base64,AA=="
IMAGE = ("image", URL, {})
VIDEO = ("video", URL, {})
SPELLINGS = [
    ({"type": "image_url", "image_url": {"url": URL}}, IMAGE),
    ({"type": "image_url", "image_url": URL}, IMAGE),
    ({"type": "input_image", "image_url": URL}, IMAGE),
    ({"type": "input_image", "image_url": {"url": URL}}, IMAGE),
    ({"type": "image", "image": URL}, IMAGE),
    ({"type": "video_url", "video_url": {"url": URL}}, VIDEO),
    ({"type": "video_url", "video_url": URL}, VIDEO),
    ({"type": "video", "video": URL}, VIDEO),
    ({"type": "video", "video": [URL, {"url": "b"}]}, ("video", (URL, "b"), {})),
    ({"type": "image", "image": "/etc/passwd"}, ("image", "/etc/passwd", {})),
]


@pytest.mark.parametrize(("part", "expected"), SPELLINGS)
def test_a_picture_or_clip_may_be_written_in_several_ways(part: dict, expected: object) -> None:
    assert medium(part) == expected
    assert medium({**part, "uuid": "mine", "zebra": 1}) == expected  # what a client calls it decides nothing


def test_text_comes_as_a_string_or_in_parts() -> None:
    assert content("a", {"type": "text", "text": "b"}, {"type": "input_text", "text": ""}) == ("a", "b", "")
    for value, expected in (("x", ("x",)), ("", ("",)), (None, ()), ([], ())):
        (only,) = chat_input_of(parse(messages=[message(value)])).messages
        assert only.content == expected


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_pictures_may_come_in_any_role(role: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": URL}]
    (only,) = chat_input_of(parse(messages=[message(parts, role)])).messages
    assert only.role == role
    assert [getattr(part, "source", part) for part in only.content] == ["a", URL]


def test_options_of_a_part_go_before_those_of_its_kind_and_those_of_all() -> None:
    fields = {
        "mm_processor_kwargs": {"min_pixels": 1, "max_pixels": 2, "fps": 3},
        "media_io_kwargs": {"video": {"fps": 4, "num_frames": 5}, "image": {"max_pixels": 6}},
    }
    clip = {"type": "video_url", "video_url": URL, "num_frames": 7, "max_visual_tokens": 8}
    picture = {"type": "image_url", "image_url": URL, "min_pixels": 9}
    assert medium(clip, **fields)[2] == {
        "min_pixels": 1,
        "max_pixels": 2,
        "fps": 4,
        "num_frames": 7,
        "max_visual_tokens": 8,
    }
    assert medium(picture, **fields)[2] == {"min_pixels": 9, "max_pixels": 6, "fps": 3}


@pytest.mark.parametrize("detail", ["low", "high", "auto"])
def test_detail_is_an_option_wherever_it_is_written(detail: str) -> None:
    reference = {"url": URL, "detail": detail}
    parts = (
        {"type": "image_url", "image_url": reference},
        {"type": "image_url", "image_url": URL, "detail": detail},
        {"type": "input_image", "image_url": URL, "detail": detail},
        {"type": "input_image", "image_url": reference, "detail": detail},
        {"type": "image", "image": URL, "detail": detail},
        {"type": "video_url", "video_url": reference},
        {"type": "video", "video": [reference, URL, reference]},
    )
    assert [medium(part)[2] for part in parts] == [{"detail": detail}] * len(parts)


@pytest.mark.parametrize(
    ("part", "place", "words"),
    [
        ({"type": "hologram", "hologram": {}}, "messages[0].content[0].type", "hologram'; parts may be text"),
        ({"type": 5}, "messages[0].content[0].type", "str"),
        ({"text": "x"}, "messages[0].content[0]", "type"),
        (5, "messages[0].content[0]", "int"),
        ({"type": "image_url", "image_url": {"url": 5}}, "messages[0].content[0].image_url.url", "str"),
        ({"type": "image_url", "image_url": {}}, "messages[0].content[0].image_url", "url"),
        ({"type": "image_url", "image_url": None}, "messages[0].content[0].image_url", "null"),
        ({"type": "input_image", "file_id": "f"}, "messages[0].content[0]", "image_url"),
        ({"type": "video", "video": []}, "messages[0].content[0].video", ">= 1"),
        ({"type": "image", "image": [URL]}, "messages[0].content[0].image", "array"),
        (
            {"type": "image_url", "image_url": {"url": URL, "detail": "original"}},
            "messages[0].content[0].image_url.detail",
            "original'; pictures may be seen in detail auto, low or high",
        ),
        ({"type": "refusal", "refusal": "no"}, "messages[0].content[0].type", "only the assistant"),
        (
            {"type": "input_image", "image_url": {"url": URL, "detail": "low"}, "detail": "high"},
            "messages[0].content[0].detail",
            "high and low",
        ),
        (
            {"type": "video", "video": [{"url": URL, "detail": "low"}, {"url": URL, "detail": "auto"}]},
            "messages[0].content[0].detail",
            "auto and low",
        ),
    ],
)
def test_a_part_that_is_none_is_named(part: object, place: str, words: str) -> None:
    error = refusal(messages=[message([part])])
    assert error.param == place
    assert words in error.message


def test_a_refusal_of_the_assistant_is_not_seen_again() -> None:
    parts = [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "sorry"}]
    (only,) = chat_input_of(parse(messages=[message(parts, "assistant")])).messages
    assert only.content == ("sorry",)


# ---- turns with tools

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "ü"}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def test_calls_and_results_of_earlier_turns_reach_the_template() -> None:
    messages = [
        message("x"),
        message(None, "assistant", tool_calls=[CALL], reasoning_content="hm"),
        message([{"type": "image_url", "image_url": URL}], "tool", tool_call_id="c1", name="f"),
        message("so", "assistant", reasoning="newer name"),
    ]
    _, called, result, thought = chat_input_of(parse(messages=messages)).messages
    (call,) = called.tool_calls
    assert (call.id, call.name, call.arguments) == ("c1", "f", '{"a": "ü"}')
    assert (called.content, called.reasoning) == ((), "hm")
    assert (result.role, result.tool_call_id, result.name) == ("tool", "c1", "f")
    assert len(result.content) == 1
    assert thought.reasoning == "newer name"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"a": ["ü"]}, '{"a": ["ü"]}'), ("", "{}"), (" {} ", "{}"), ('{"a":1}', '{"a":1}')],
)
def test_arguments_of_a_call_are_the_text_of_an_object(arguments: object, text: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    (only,) = chat_input_of(parse(messages=[message(None, "assistant", tool_calls=[call])])).messages
    assert only.tool_calls[0].arguments == text


@pytest.mark.parametrize("arguments", ["[]", "{", "5", '{"a": NaN}', "x" * 10_000])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    calls = [CALL, {"function": {"name": "f", "arguments": arguments}}]
    error = refusal(messages=[message(None, "assistant", tool_calls=calls)])
    assert error.param == "messages[0].tool_calls[1].function.arguments"
    assert len(error.message) < 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"role": "user", "tool_calls": [CALL]}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, "messages[0].tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call"),
        ({"role": "assistant", "audio": {"id": "a"}}, "messages[0].audio"),
        ({}, "messages[0]"),
    ],
)
def test_a_message_that_is_none_is_named(fields: dict[str, object], param: str) -> None:
    assert refusal(messages=[fields]).param == param


def test_tools_are_told_to_the_model_unless_it_shall_call_none() -> None:
    assert [tool["function"]["name"] for tool in chat_input_of(parse(tools=[TOOL])).tools] == ["f"]
    assert chat_input_of(parse(tools=[TOOL], tool_choice="none")).tools == ()
    assert chat_input_of(parse(tools=[])).tools == ()
    assert not use_of(parse(tools=[TOOL], parallel_tool_calls=False)).is_parallel
    assert use_of(parse(tools=[TOOL])).is_parallel


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": {"name": "f"}}, "tools"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ],
)
def test_tools_that_are_none_are_named(fields: dict[str, object], param: str) -> None:
    assert refusal(**fields).param == param


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
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [5]}, "guided_choice[0]"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
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
        ({"media_io_kwargs": {"audio": {}}}, "media_io_kwargs"),
        ({"media_io_kwargs": {"video": 5}}, "media_io_kwargs.video"),
        ({"mm_processor_kwargs": []}, "mm_processor_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"request_id": "a\nb: c"}, "request_id"),
        ({"request_id": "a\n"}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "a" * 129}, "request_id"),
        ({"request_id": "ü"}, "request_id"),
        ({"cache_salt": 5}, "cache_salt"),
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
    chat = chat_input_of(parse(**fields))
    assert (chat.add_generation_prompt, chat.continue_final_message) == (adds_prompt, goes_on)


def test_a_budget_and_arguments_of_the_template_go_along() -> None:
    chat = chat_input_of(parse(max_visual_tokens=64, chat_template_kwargs={"a": [1]}))
    assert (chat.max_visual_tokens, chat.template_kwargs) == (64, {"a": [1]})


@pytest.mark.parametrize(
    ("name", "number"),
    [("interactive", -1), ("standard", 0), ("economy", 1), ("background", 2), (7, 7), (None, 0)],
)
def test_priority_classes_are_numbers(name: str | int | None, number: int) -> None:
    assert priority_number(parse(priority=name).priority) == number


@pytest.mark.parametrize("name", UnservedFields.__struct_fields__)
def test_a_field_that_is_not_served_is_refused_by_name(name: str) -> None:
    error = refusal(**{name: {"some": "thing"}})
    assert isinstance(error, NotSupported)
    assert error.param == name
    assert name in error.message
    assert parse(**{name: None})


def test_every_field_may_be_null() -> None:
    assert parse(**dict.fromkeys(OTHER_FIELDS))
