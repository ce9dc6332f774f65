"""What linked pictures do to the answers of the bundled model, and how it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tapetum import LLM
from tapetum.core.errors import InvalidParameter
from tapetum.core.plan import Link
from tapetum.runtime.links import Linker
from tests.cpu.links_kit import ANY, EXACT, REUSE, SAMPLING, ask, chat, picture, reasons, said, system

SYSTEM = "You are a helpful assistant."


@pytest.fixture
def llm():
    with LLM(**EXACT, link_tokens=4) as model:
        yield model


def test_with_a_share_of_one_an_answer_is_that_of_a_full_prefill() -> None:
    asked = chat([picture(2), picture(1)], "Which?", system(SYSTEM))
    with LLM(**EXACT, link_share=1.0, link_tolerance=ANY) as llm:
        ask(llm, chat([picture(1), picture(2)]))
        linking = ask(llm, asked)
        assert llm._engine.stats.num_linked == 0
    with LLM(**EXACT, enable_prefix_caching=False) as llm:
        assert said(linking) == said(ask(llm, asked, may_link=False))
    assert reasons(linking) == [None, None]


def test_the_same_place_behind_the_same_words_is_exact(llm: LLM) -> None:
    ask(llm, chat([picture(1)], "What is this?", system(SYSTEM)))
    output = ask(llm, chat([picture(1)], "Who is it?", system(SYSTEM)))
    assert reasons(output) == [None] and llm._engine.stats.num_linked == 0
    assert output.media[0].cache == "prefix" or output.num_cached_tokens >= output.media[0].visual_tokens


def test_without_the_wish_no_bit_changes(llm: LLM) -> None:
    asked = chat([picture(2), picture(1)], "Which?", system(SYSTEM))
    ask(llm, chat([picture(1), picture(2)]))
    plain = ask(llm, asked, may_link=False)
    with LLM(**EXACT, enable_prefix_caching=False) as other:
        assert said(plain) == said(ask(other, asked, may_link=False))
    assert llm._engine.stats.num_linked == llm._engine.stats.num_rejected_links == 0


def test_the_error_falls_as_more_is_computed() -> None:
    shown = [picture(seed) for seed in range(6)]
    asked = [chat([image], "What is this?", system(SYSTEM)) for image in shown]
    with LLM(**EXACT) as llm:
        whole = [said(ask(llm, messages, may_link=False))[0][1] for messages in asked]
    errors = []
    for share in (0.02, 0.4, 0.75, 1.0):
        with LLM(**EXACT, link_share=share, link_tokens=1, link_tolerance=ANY) as llm:
            for image in shown:
                ask(llm, chat([image]))
            found = [said(ask(llm, messages))[0][1] for messages in asked]
            assert llm._engine.stats.num_linked == (len(shown) if share < 0.7 else 0) or share == 0.75
        pairs = [
            (one, other[token])
            for ours, other in zip(found, whole, strict=True)
            for token, one in ours.items()
            if token in other
        ]
        errors.append(sum(abs(one - other) for one, other in pairs) / len(pairs))
    assert errors[0] > errors[1] > errors[2] >= errors[3] == 0.0


def test_a_preamble_that_changes_the_picture_is_noticed(llm: LLM) -> None:
    """Of a pair each picture knows whether it is the first: what it is in the other place does not fit."""
    ask(llm, chat([picture(1), picture(2)]))
    swapped = chat([picture(2), picture(1)], "Which image is larger?")
    output = ask(llm, swapped)
    stats = llm._engine.stats
    assert reasons(output) == [None, None]
    assert (stats.num_linked, stats.num_rejected_links) == (0, 2)
    with LLM(**EXACT, enable_prefix_caching=False) as other:
        assert said(output) == said(ask(other, swapped, may_link=False))


def test_three_pictures_in_any_order_behind_another_preamble() -> None:
    shown = [picture(seed, 300, 200) for seed in range(3)]
    with LLM(**EXACT, link_tokens=8, link_tolerance=ANY) as llm:
        ask(llm, chat(shown))
        for order in ([2, 0, 1], [1, 2, 0]):
            output = ask(llm, chat([shown[place] for place in order], "Which?", system("Answer briefly.")))
            assert reasons(output) == ["position_independent"] * 3
            again = ask(llm, chat([shown[place] for place in order], "Which?", system("Answer briefly.")))
            assert said(again) == said(output), "a link is computed alike each time"
        assert llm._engine.stats.num_linked == 12 and llm._engine.stats.num_held_blocks == 0


def test_a_wish_that_nobody_knows_is_refused(llm: LLM) -> None:
    for wish in ({"position_independant": True}, {"position_independent": 1}, "all"):
        with pytest.raises(
            InvalidParameter, match=r"reuse is .*must be a dict of near_duplicate, position_ind"
        ):
            llm.chat(chat([picture(1)]), SAMPLING, reuse=wish)  # type: ignore[arg-type]


def test_a_prompt_written_whole_may_link_too() -> None:
    slot = "<|vision_start|><|image_pad|><|vision_end|>"
    with LLM(**EXACT, link_tokens=4, link_tolerance=ANY) as llm:
        llm.generate({"prompt": slot + "What is this?", "images": [picture(1)]}, SAMPLING)
        (output,) = llm.generate(
            {"prompt": "Look here: " + slot, "images": [picture(1)], "reuse": REUSE}, SAMPLING
        )
    assert reasons(output) == ["position_independent"]


def test_a_link_that_fails_costs_no_answer_beside_it_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[Link] = []

    def fail(self: Linker, link: Link) -> float:
        broken.append(link)
        raise RuntimeError("out of memory")

    talk = [{"role": "user", "content": "Hello"}]
    moved = chat([picture(2), picture(1)], "Which?", system(SYSTEM))
    long = replace(SAMPLING, max_tokens=40)
    with LLM(**EXACT) as llm:
        truth = [said(output) for output in llm.chat([talk, moved], long, use_tqdm=False)]
    monkeypatch.setattr(Linker, "link", fail)
    with LLM(**EXACT, link_tokens=4, max_num_batched_tokens=32, link_tolerance=ANY) as llm:
        ask(llm, chat([picture(1), picture(2)]))
        outputs = llm.chat([talk, moved], long, reuse=REUSE, use_tqdm=False)
    assert broken
    assert [said(output) for output in outputs] == truth
