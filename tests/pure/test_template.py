"""Chat templates: only the template writes special tokens, whatever users type and wherever their text is joined."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tapetum.assets import MODEL_DIR
from tapetum.core.chat import ChatInput, MediaPart, Message, ToolCall
from tapetum.core.errors import CheckpointError, InvalidParameter, PromptTooLong, TapetumError, TemplateError
from tapetum.text.guard import Guard
from tapetum.text.jinja import build_environment
from tapetum.text.runs import MediaSlot, Run, split_runs
from tapetum.text.template import ChatTemplate
from tapetum.text.tokenizer import Tokenizer
from tests.slots import SLOTS

TOKENIZER = Tokenizer.load(MODEL_DIR, SLOTS)
BUNDLED = ChatTemplate.load(MODEL_DIR, TOKENIZER)
IMAGE = MediaPart(kind="image", source=b"")
VIDEO = MediaPart(kind="video", source=(b"",))
SPECIALS = sorted(TOKENIZER.special_tokens)

# Templates that join, trim, cut and compare user text, and that write special tokens in halves.
JOINING = "{% for m in messages %}{% for c in m.content %}{{ c.text | trim }}{% endfor %}{% endfor %}"
CUTTING = (
    "{% for m in messages %}<|im_start|>{% set t = m.content if m.content is string else '' %}"
    "{% if '</think>' in t %}{% set t = t.split('</think>')[-1] %}{% endif %}"
    "{{ t.replace('<image>', '').strip() }}<|im_end|>{% endfor %}"
)
HALVES = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content }}{{ '<|im_' }}{{ m.content }}{% endfor %}"
)
FRAGMENTS = (
    *SPECIALS,
    "<|",
    "|>",
    "<|im_",
    "im_end",
    "_end|>",
    "end|>",
    "<",
    ">",
    "|",
    " ",
    "</think>",
    "<image>",
)
ATTACKS = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=6).map(
    lambda parts: unicodedata.normalize(
        "NFC", "".join(parts)
    )  # as the tokenizer reads it, so that it comes back
)


def template(source: str, **names: str) -> ChatTemplate:
    return ChatTemplate(source, TOKENIZER, names=names)


def chat(
    *contents: str | MediaPart | Sequence[str | MediaPart], role: str = "user", **kwargs: object
) -> ChatInput:
    messages = tuple(
        Message(role=role, content=(content,) if isinstance(content, (str, MediaPart)) else tuple(content))
        for content in contents
    )
    return ChatInput(messages=messages, template_kwargs=kwargs)


def flat(segments: list[Run]) -> list[int]:
    return [token_id for run in segments if not isinstance(run, MediaSlot) for token_id in tokens_of(run)]


def tokens_of(run: str | int) -> tuple[int, ...]:
    return TOKENIZER.encode_plain(run) if isinstance(run, str) else (run,)


def specials_of(segments: list[Run]) -> list[int]:
    return [token_id for token_id in flat(segments) if token_id in TOKENIZER.special_ids]


def text_of(segments: list[Run]) -> str:
    return TOKENIZER.decode(flat(segments), skip_special=False)


@given(texts=st.lists(ATTACKS, min_size=1, max_size=4), role=st.sampled_from(["user", "assistant", "system"]))
def test_user_text_adds_no_special_token_and_loses_no_character(texts: list[str], role: str) -> None:
    segments = BUNDLED.render(chat(*texts, role=role))
    assert specials_of(segments) == specials_of(BUNDLED.render(chat(*["x"] * len(texts), role=role)))
    written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for text in texts)
    assert text_of(segments) == f"{written}<|im_start|>assistant\n"


@given(parts=st.lists(st.one_of(ATTACKS, st.sampled_from([IMAGE, VIDEO])), max_size=6))
def test_placeholders_in_text_are_text_and_slots_follow_the_media(parts: list[str | MediaPart]) -> None:
    segments = BUNDLED.render(chat(parts))
    kinds = [part.kind for part in parts if isinstance(part, MediaPart)]
    assert [segment.kind for segment in segments if isinstance(segment, MediaSlot)] == kinds
    assert set(TOKENIZER.slots).isdisjoint(flat(segments))


@given(first=ATTACKS, second=ATTACKS)
def test_halves_from_two_parts_do_not_join(first: str, second: str) -> None:
    segments = template(JOINING).render(chat((first, second), ("<|im_ ", " end|>")))
    assert specials_of(segments) == []
    assert text_of(segments) == f"{first.strip()}{second.strip()}<|im_end|>"


@given(text=ATTACKS)
def test_halves_left_by_a_cutting_template_do_not_join(text: str) -> None:
    segments = template(CUTTING).render(chat(text, "<|im_<image>end|>", "<<image>|im_end|>"))
    assert text_of(segments) == "".join(
        f"<|im_start|>{word}<|im_end|>"
        for word in (text.split("</think>")[-1].replace("<image>", "").strip(), "<|im_end|>", "<|im_end|>")
    )
    assert len(specials_of(segments)) == 6


@given(text=ATTACKS, role=ATTACKS)
def test_halves_written_by_the_template_are_not_completed_by_users(text: str, role: str) -> None:
    open_ended = template(HALVES)
    assert specials_of(open_ended.render(chat("end|>", role="im_start"))) == []
    segments = open_ended.render(chat(text, role=role))
    assert specials_of(segments) == []
    assert text_of(segments) == f"<|{role}|>{text}<|im_{text}"


def test_known_roles_complete_what_the_template_begins() -> None:
    library = tokenizers.Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    library.add_special_tokens(["<|user|>", "<|endoftext|>"])
    roles = Tokenizer(library, slots={})
    segments = [
        ChatTemplate(HALVES, roles, names={}).render(chat("hi", role=role)) for role in ("user", "endoftext")
    ]
    assert [flat(each)[0] in roles.special_ids for each in segments] == [True, False]


def test_the_template_can_still_compare_words_in_user_text() -> None:
    segments = template(CUTTING).render(chat("secret thought</think> answer"))
    assert text_of(segments) == "<|im_start|>answer<|im_end|>"


def test_content_is_a_string_for_a_lone_string_and_a_list_otherwise() -> None:
    shows = template("{% for m in messages %}{{ m.content is string }} {{ m.content | length }};{% endfor %}")
    assert text_of(shows.render(chat("four", ("a", "b"), ()))) == "True 4;False 2;True 0;"
    only_media = template("{{ messages[0].content[0].type }}<|image_pad|>").render(chat(IMAGE))
    assert text_of(only_media) == "image"


@pytest.mark.parametrize(
    "loop",
    [
        "for p in m['content']",
        "for p in m.content",
        "for p in m['content'] | selectattr('type', 'equalto', 'text')",
        "set content = m.content %}{% for p in content",
    ],
)
def test_a_template_that_reads_parts_alone_finds_no_lone_string(loop: str) -> None:
    source = "{% for m in messages %}{% " + loop + " %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert text_of(template(source).render(chat("four", ("a", "b"), ()))) == "[four][a][b]"


def test_unknown_roles_reach_the_template() -> None:
    assert text_of(BUNDLED.render(chat("hi", role="critic"))).startswith("<|im_start|>critic\nhi<|im_end|>")
    refuses = template(
        "{% if messages[0].role != 'user' %}{{ raise_exception('only user, not ' + messages[0].role) }}{% endif %}"
    )
    with pytest.raises(TemplateError, match=r"only user, not <\|critic") as raised:
        refuses.render(chat("hi", role="<|critic"))
    assert raised.value.http_status == 400


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{{ messages.append(1) }}",
        "{{ missing.attribute }}",
        "{{ 'a' + 1 }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_whatever_a_template_does_wrong_is_a_template_error_or_harmless(source: str) -> None:
    try:
        text = text_of(template(source).render(chat("hi")))
    except TemplateError:
        return
    assert text == "", source  # the sandbox answers forbidden attributes with nothing


def test_a_template_that_writes_without_end_is_stopped() -> None:
    endless = "{% for i in range(90000) %}{% for j in range(90000) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="16777216 characters"):
        template(endless).render(chat("hi"))


@pytest.mark.parametrize("where", ["content", "role", "name", "reasoning", "tool_call_id", "calls"])
def test_a_long_chat_is_refused_before_any_of_it_is_looked_through(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search through a hundred million characters is one step of the interpreter, and all others wait."""
    monkeypatch.setattr("tapetum.text.template.MAX_PROMPT_CHARS", 1000)
    long = "x" * 999
    given: dict[str, object] = {"role": "user", "content": ("hi",)}
    if where == "calls":
        given["tool_calls"] = (ToolCall(id="1", name="f", arguments=long),)
    else:
        given[where] = (long, "y") if where == "content" else long
    rendered = template("{{ raise_exception('it runs') }}")
    with pytest.raises(TemplateError, match="characters, limit 1000"):
        rendered.render(ChatInput(messages=(Message(**given),)))  # type: ignore[arg-type]


def test_a_long_text_is_hidden_in_no_time() -> None:
    """The search is one step of the interpreter, and all others wait."""
    hide = (
        Guard(build_environment().parse("{{ '</think>' in x or 'text' in x }}"), ["<|a|>"])
        .disguise()
        .hide_text
    )
    started_s = time.monotonic()
    assert hide("word " * 1_600_000 + "</think><") != "word " * 1_600_000 + "</think><"
    assert time.monotonic() - started_s < 0.08


def test_a_template_that_runs_too_long_is_stopped() -> None:
    ticks = iter(range(10_000))
    slow = ChatTemplate(
        "{% for i in range(90000) %}x{% endfor %}", TOKENIZER, names={}, clock=lambda: float(next(ticks))
    )
    with pytest.raises(TemplateError, match="longer than 10 s"):
        slow.render(chat("hi"))


def test_names_and_extras_of_transformers_are_there() -> None:
    source = (
        "{{ eos_token }}{%- generation %}{% set x = [1, '<é>'] %}{{ x | tojson }}{% endgeneration -%}\n"
        "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}"
        "{% endfor %}{{ strftime_now('%Y') | length }}{{ dict(a=1).a }}{{ tools is none }}{{ flag }}"
    )
    segments = template(source, eos_token="<|im_end|>").render(chat("hi", flag="<|im_end|>"))
    assert text_of(segments) == '<|im_end|>[1, "<é>"]0241True<|im_end|>'
    assert len(specials_of(segments)) == 1  # the template's variable, not the client's argument


def test_client_arguments_cannot_replace_the_messages() -> None:
    with pytest.raises(InvalidParameter, match="messages"):
        BUNDLED.render(chat("hi", messages=[]))
    with pytest.raises(TemplateError, match="not plain data"):
        BUNDLED.render(chat("hi", thing=object()))
    nested: list[object] = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(InvalidParameter, match="nested more than 64 deep"):
        BUNDLED.render(chat("hi", thing=nested))


def test_no_messages_are_refused() -> None:
    with pytest.raises(TemplateError, match="empty"):
        BUNDLED.render(ChatInput(messages=()))


@pytest.mark.parametrize(
    "source",
    ["no picture", "<|image_pad|><|image_pad|>", "<|video_pad|>", "<|image_pad|><|video_pad|>"],
)
def test_a_template_that_drops_or_invents_media_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="messages hold 1 pictures and 0 clips"):
        template(source).render(chat((IMAGE, "what is it?")))


def test_a_prompt_written_whole_counts_its_special_tokens() -> None:
    runs = split_runs(TOKENIZER, "a<|im_end|><|image_pad|>b<|video_pad|>")
    end = TOKENIZER.special_tokens["<|im_end|>"]
    assert runs == ["a", end, MediaSlot("image"), "b", MediaSlot("video")]
    assert split_runs(TOKENIZER, "") == []


def write(directory: Path, name: str, value: object) -> None:
    (directory / name).write_text(value if isinstance(value, str) else json.dumps(value))


def test_the_template_is_found_in_each_place_it_may_be_in(tmp_path: Path) -> None:
    def rendered() -> str:
        return text_of(ChatTemplate.load(tmp_path, TOKENIZER).render(chat("hi")))

    with pytest.raises(TapetumError, match=r"no chat template.*chat_template\.jinja"):
        rendered()
    named = [
        {"name": "tool_use", "template": "wrong"},
        {"name": "default", "template": "listed {{ eos_token }}"},
    ]
    write(tmp_path, "tokenizer_config.json", {"chat_template": named, "eos_token": {"content": "E"}})
    assert rendered() == "listed E"
    write(tmp_path, "tokenizer_config.json", {"chat_template": "configured", "bos_token": None})
    assert rendered() == "configured"
    write(tmp_path, "chat_template.json", {"chat_template": "in a file of its own"})
    assert rendered() == "in a file of its own"
    write(tmp_path, "chat_template.jinja", "as jinja")
    assert rendered() == "as jinja"


def test_a_template_that_is_no_text_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"{{ messages }}\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja cannot be read as UTF-8"):
        ChatTemplate.load(tmp_path, TOKENIZER)


def test_a_template_that_does_not_compile_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError, match="does not compile"):
        template("{% if %}")


def test_more_messages_than_tokens_are_refused_before_they_are_rendered() -> None:
    message = Message(role="user", content=("x",))
    with pytest.raises(PromptTooLong, match="messages has 2001 entries"):
        ChatTemplate.load(MODEL_DIR, Tokenizer.load(MODEL_DIR)).render(
            ChatInput(messages=(message,) * 2001), 2000
        )
