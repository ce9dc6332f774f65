"""Templates that read only strings: where a family has marks that may stand in any text, media are written as these."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.assets import MODEL_DIR
from tapetum.core.chat import ChatInput, MediaPart, Message
from tapetum.core.errors import TemplateError
from tapetum.core.media import MediaKind
from tapetum.text.runs import MediaSlot, Run
from tapetum.text.template import ChatTemplate
from tapetum.text.tokenizer import Tokenizer

# One mark is a token of the vocabulary, the other is not.
SLOTS: dict[int | str, MediaKind] = {"<|image_pad|>": "image", "<clip>": "video"}
MARKS: dict[MediaKind, str] = {"image": "<|image_pad|>", "video": "<clip>"}
TOKENIZER = Tokenizer.load(MODEL_DIR, SLOTS)
STRINGS = "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}"
PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}[<|image_pad|>]{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
IMAGE, VIDEO = MediaPart(kind="image", source=b""), MediaPart(kind="video", source=(b"",))
PIECES = st.sampled_from(
    ["<|image_pad|>", "<clip>", "<|im_end|>", "<|image", "_pad|>", "<cl", "ip>", "<", "\n", "a"]
)


def template(source: str, marks: dict[MediaKind, str] | None = None) -> ChatTemplate:
    return ChatTemplate(source, TOKENIZER, names={}, marks=marks)


def turn(*parts: str | MediaPart, role: str = "user") -> Message:
    return Message(role=role, content=parts)


def shown(runs: list[Run]) -> str:
    """The runs as text: media in braces, tokens as numbers in brackets."""
    return "".join(
        f"{{{run.kind}}}" if isinstance(run, MediaSlot) else run if isinstance(run, str) else f"[{run}]"
        for run in runs
    )


def test_a_mark_stands_on_a_line_of_its_own_in_the_order_of_the_parts() -> None:
    start, end = TOKENIZER.special_tokens["<|im_start|>"], TOKENIZER.special_tokens["<|im_end|>"]
    turns = (turn(IMAGE, "What", VIDEO, " is it?"), turn("A cat", role="assistant"), turn(IMAGE, IMAGE))
    text = shown(template(STRINGS, MARKS).render(ChatInput(messages=turns)))
    assert text == (
        f"[{start}]user\n{{image}}\nWhat{{video}}\n is it?[{end}]"
        f"[{start}]assistant\nA cat[{end}][{start}]user\n{{image}}\n{{image}}\n[{end}]"
    )


@given(before=st.lists(PIECES, max_size=5).map("".join), behind=st.lists(PIECES, max_size=5).map("".join))
def test_what_a_user_types_is_no_mark(before: str, behind: str) -> None:
    start, end = TOKENIZER.special_tokens["<|im_start|>"], TOKENIZER.special_tokens["<|im_end|>"]
    runs = template(STRINGS, MARKS).render(ChatInput(messages=(turn(before, IMAGE, behind),)))
    assert [run for run in runs if not isinstance(run, str)] == [start, MediaSlot("image"), end]
    assert "".join(run for run in runs if isinstance(run, str)) == f"user\n{before}\n{behind}"


def test_the_last_turn_may_stay_open() -> None:
    turns = (turn(IMAGE, "What?"), turn("A", "cat", role="assistant"))
    chat = ChatInput(messages=turns, continue_final_message=True, add_generation_prompt=False)
    assert shown(template(STRINGS, MARKS).render(chat)).endswith("assistant\nAcat")


def test_a_template_that_reads_parts_gets_parts() -> None:
    chat = ChatInput(messages=(turn("see ", IMAGE, " and say"),))
    assert shown(template(PARTS, MARKS).render(chat)) == "see [{image}] and say"


def test_media_without_a_mark_are_refused() -> None:
    for marks, part in ((None, IMAGE), ({"image": "<|image_pad|>"}, VIDEO)):
        with pytest.raises(TemplateError, match="the chat template places 0 pictures and 0 clips"):
            template(STRINGS.replace("m.content", "m.content|string"), marks).render(
                ChatInput(messages=(turn(part, "x"),))
            )
