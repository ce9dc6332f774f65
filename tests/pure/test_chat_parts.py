"""Messages as clients of several engines write them: pictures and clips, calls and their results."""

from __future__ import annotations

from dataclasses import fields as fields_of

import pytest

from tapetum.core.chat import DocumentPart, MediaPart
from tapetum.core.errors import InvalidParameter
from tapetum.processing.options import ProcessorOptions
from tapetum.server.chat.parts import (
    FilePart,
    ImagePart,
    ImageUrlPart,
    InputFilePart,
    InputImagePart,
    VideoPart,
)
from tapetum.server.chat.schema import parse_chat
from tests.pure.chat_kit import ask, message, refusal


def content(*parts: object, **fields: object) -> tuple[str | MediaPart, ...]:
    (only,) = ask(messages=[message(list(parts))], **fields).chat.messages
    return only.content


def medium(part: object, **fields: object) -> tuple[str, object, dict[str, object]]:
    (only,) = content(part, **fields)
    assert isinstance(only, MediaPart)
    assert not only.is_trusted
    return only.kind, only.source, dict(only.options)


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
    assert (
        medium({**part, "uuid": "mine", "cache_control": {"type": "ephemeral"}}) == expected
    )  # what a client calls it decides nothing


def test_text_comes_as_a_string_or_in_parts() -> None:
    assert content("a", {"type": "text", "text": "b"}, {"type": "input_text", "text": ""}) == ("a", "b", "")
    for value, expected in (("x", ("x",)), ("", ("",)), (None, ()), ([], ())):
        (only,) = ask(messages=[message(value)]).chat.messages
        assert only.content == expected


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_pictures_may_come_in_any_role(role: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": URL}]
    (only,) = ask(messages=[message(parts, role)]).chat.messages
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
        ({"type": "input_image", "file_id": "f"}, "messages[0].content[0].file_id", "null"),
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
    (only,) = ask(messages=[message(parts, "assistant")]).chat.messages
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
    _, called, result, thought = ask(messages=messages).chat.messages
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
    (only,) = ask(messages=[message(None, "assistant", tool_calls=[call])]).chat.messages
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
    assert [tool["function"]["name"] for tool in ask(tools=[TOOL]).chat.tools] == ["f"]
    assert ask(tools=[TOOL], tool_choice="none").chat.tools == ()
    assert ask(tools=[]).chat.tools == ()
    assert not ask(tools=[TOOL], parallel_tool_calls=False).use.is_parallel
    assert ask(tools=[TOOL]).use.is_parallel


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


def test_every_option_of_the_processor_may_stand_in_a_part_that_it_is_of_and_no_other_field() -> None:
    bounds = {"min_frames": 2, "max_frames": 6}
    assert medium({"type": "video", "video": [URL], **bounds}) == ("video", (URL,), bounds)
    named = {item.name for item in fields_of(ProcessorOptions)}
    assert named - set(VideoPart.__struct_fields__) == {"near_duplicate"}
    of_clips = {"fps", "num_frames", "min_frames", "max_frames"}
    for part in (ImageUrlPart, InputImagePart, ImagePart, FilePart, InputFilePart):
        assert named - set(part.__struct_fields__) == of_clips
    with pytest.raises(InvalidParameter, match=r"did you mean max_frames\?") as caught:
        medium({"type": "video", "video": [URL], "max_frame": 6})
    assert caught.value.param == "messages[0].content[0].max_frame"


def test_a_picture_may_be_one_that_looks_the_same_and_a_clip_may_not() -> None:
    for chosen in (True, False):
        option = {"near_duplicate": chosen}
        assert medium({"type": "image_url", "image_url": URL, **option}) == ("image", URL, option)
        document = {"type": "file", "file": {"file_data": "AA=="}, **option}
        (seen,) = content(document)
        assert isinstance(seen, DocumentPart)
        assert seen.options == option
    place = "messages[0].content[0].near_duplicate"
    for part in ({"type": "video", "video": URL}, {"type": "video_url", "video_url": URL}):
        error = refusal(messages=[message([{**part, "near_duplicate": True}])])
        assert error.param == place
        assert error.message == (
            f"{place}: there is no such field, only those of type image_url or input_image or image or file or "
            "input_file have it"
        )


def test_a_body_whose_rest_is_no_json_is_told_where_it_first_goes_wrong() -> None:
    body = b'{"messages": [{"role": "user"}], "n": 500, "zebra": ' + b"[" * 100_000
    with pytest.raises(InvalidParameter, match="n: Expected `int` <= 128"):
        parse_chat(body)
