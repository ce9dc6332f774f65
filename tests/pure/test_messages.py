"""What crosses between the processes is on the other side what it was on this one, field by field."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from tapetum.core import errors
from tapetum.core.media import Degradation, MediaItem, PagesSeen, Part, Reuse
from tapetum.core.request import Grammar, Request, SamplingParams
from tapetum.core.stats import Backlog
from tapetum.engine.messages import (
    Failed,
    ItemMessage,
    News,
    add_message,
    decode_command,
    decode_report,
    encode,
    request_of,
)
from tapetum.engine.output import Delta
from tests.scripted import make_item, make_request

SAMPLING = SamplingParams(
    temperature=0.5,
    top_k=3,
    top_p=0.9,
    min_p=0.1,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=-0.3,
    seed=-(2**63),
    stop=("a", "ü"),
    stop_token_ids=(3, 4),
    max_tokens=9,
    min_tokens=2,
    ignore_eos=True,
    logprobs=5,
    logit_bias={7: -1.5, 8: 100.0},
    grammar=Grammar(kind="regex", source="a+", param="guided_regex"),
    prediction="aa",
)


def picture(name: str, value: int) -> MediaItem:
    item = make_item(name, 2)
    patches = np.full((item.geometry.num_patches, 12), value, np.uint8)
    return replace(
        item,
        patches=patches,
        parts=(Part(key=b"p" * 32, runs=((0, 1), (1, 2))),),
        processor="fast",
        degraded=Degradation(reason="load", requested=(112, 56), rung="low"),
        compared_with=b"c" * 32,
        alias=b"a" * 32,
        fetch_s=0.25,
        decode_s=0.5,
        resize_s=0.75,
    )


def request(*segments: int | MediaItem) -> Request:
    made = make_request(
        "r",
        segments,
        max_tokens=9,
        stop_token_ids=(5,),
        sampling=SAMPLING,
        tenant="t",
        priority=-2,
        arrival_s=1.5,
        deadline_s=2.5,
    )
    size = len(made.prompt.token_ids)
    positions = np.arange(3 * size, dtype=np.int64).reshape(3, size)
    prompt = replace(made.prompt, position_ids=positions, position_delta=-4)
    reuse = Reuse(position_independent=True)
    pages = (PagesSeen(document=0, name="a.pdf", pages=(2, 5), num_pages=9, chosen_by="question"),)
    made = replace(made, prompt=prompt, num_choices=3, is_sibling=True, prediction=(6, 7))
    return replace(made, reuse=reuse, left_out=("video",), pages=pages)


def crossed(sent: Request, offsets: dict[bytes, int]) -> tuple[Request, list[ItemMessage]]:
    """The request on the other side, over the items as they were, and what was said of those."""
    message = decode_command(encode(add_message(sent, offsets)))
    items = {span.item.key: span.item for span in sent.prompt.spans}
    return request_of(message, [items[item.key] for item in message.items]), message.items


def test_every_field_of_a_request_crosses_over():
    sent = request(1, 2, picture("a", 7), 3)
    assert all(getattr(sent, field.name) != field.default for field in fields(Request)), "nothing by default"
    assert all(getattr(SAMPLING, field.name) != field.default for field in fields(SamplingParams))
    came, (item,) = crossed(sent, {})
    for field in fields(Request):
        if field.name != "prompt":
            assert getattr(came, field.name) == getattr(sent, field.name), field.name
    assert came.prompt.token_ids == sent.prompt.token_ids
    assert came.prompt.position_delta == sent.prompt.position_delta
    assert np.array_equal(came.prompt.position_ids, sent.prompt.position_ids)
    (span,), (other,) = came.prompt.spans, sent.prompt.spans
    assert replace(span, item=other.item) == other
    for field in fields(MediaItem):
        if field.name not in ("patches", "is_reserved"):
            assert getattr(item, field.name) == getattr(span.item, field.name) != field.default, field.name
    assert np.array_equal(np.frombuffer(item.patches, np.uint8).reshape(item.shape), span.item.patches)


def test_what_is_reserved_comes_without_patches():
    reserved = replace(make_item("a", 2), is_reserved=True)
    _, (item,) = crossed(request(1, reserved), {})
    assert item.is_reserved and not item.patches and item.key == reserved.key


def test_what_lies_in_shared_memory_is_not_sent():
    first, second = picture("a", 7), picture("b", 8)
    sent = request(first, 1, second, first)
    came, items = crossed(sent, {second.key: 4096})
    told = [(item.offset, item.patches) for item in items]
    assert told == [(-1, first.patches.tobytes()), (4096, b"")], "each once, however often it is shown"
    assert [span.key for span in came.prompt.spans] == [first.key, second.key, first.key]


@pytest.mark.parametrize("name", [name for name in vars(errors) if isinstance(getattr(errors, name), type)])
def test_errors_keep_what_they_are(name: str):
    sent = getattr(errors, name)("why", param="which")
    news = decode_report(encode(News({"r": Delta(finish_reason="error", error=sent)}, Backlog())))
    for came in (news.deltas["r"].error, decode_report(encode(Failed(sent))).error):
        assert (type(came), came.message, came.param) == (type(sent), "why", "which")


def test_an_error_that_only_one_side_knows_is_one_of_the_engine():
    class Strange(errors.TapetumError):
        pass

    came = decode_report(encode(Failed(Strange("why")))).error
    assert (type(came), came.message) == (errors.EngineError, "why")
