"""Pictures linked to where they stood before, on tiny checkpoints of every family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tapetum import LLM
from tapetum.core.plan import BatchPlan, EncodeJob, Link, Row
from tapetum.core.request import Prompt, Request
from tapetum.engine.build import build_engine
from tapetum.engine.front import Front
from tapetum.engine.inputs import chat_input
from tapetum.engine.options import config_from
from tapetum.engine.prompts import Terms
from tapetum.runtime.executor import LocalExecutor
from tests.cpu.links_kit import ANY, EXACT, SAMPLING, ask, chat, picture, reasons, said
from tests.families import text
from tests.families.table import FAMILIES

WITH_PICTURES = [name for name in FAMILIES if name not in text.OWN]
BLOCK = 16


class Alone:
    """A picture with nothing before it, at any position, on a device driven by hand."""

    def __init__(self, directory: Path) -> None:
        engine = build_engine(config_from(str(directory), EXACT))
        front = Front(engine.files, engine.config, engine.facts, forecast=engine.forecast, clock=engine.clock)
        terms = Terms(request_id="whole", arrival_s=0.0)
        self.whole = front.prompts.build(chat_input(chat([picture(1)])), SAMPLING, terms)
        front.close()
        assert isinstance(engine._executor, LocalExecutor)
        self.device = engine._executor
        (self.span,) = self.whole.prompt.spans
        self.length = self.span.end - self.span.start
        self.num_blocks = -(-self.length // BLOCK)

    def request(self, name: str, position: int) -> Request:
        prompt = self.whole.prompt
        inside = slice(self.span.start, self.span.end)
        placed = np.asarray(prompt.position_ids)[:, inside]
        return replace(
            self.whole,
            request_id=name,
            prompt=Prompt(
                token_ids=prompt.token_ids[inside],
                spans=(replace(self.span, start=0, end=self.length, position=position),),
                position_ids=placed - placed.min() + position,
                position_delta=0,
            ),
        )

    def row(self, name: str, first_block: int, length: int) -> Row:
        blocks = tuple(range(first_block, first_block + self.num_blocks))
        return Row(request_id=name, start=0, length=length, block_ids=blocks, has_sample=False)

    def read(self, first_block: int) -> list[tuple[torch.Tensor, ...]]:
        """Keys and values of each layer."""
        slots = torch.arange(self.length) + first_block * BLOCK
        linker = self.device._linker
        return [linker._ops.read_kv(layer, slots) for layer in linker._kv.layers]


@pytest.mark.parametrize("name", WITH_PICTURES)
def test_a_turn_is_all_that_sets_an_isolated_picture_apart(name: str, tmp_path: Path) -> None:
    alone = Alone(FAMILIES[name].write(tmp_path, 3))
    there, here = alone.request("there", 5), alone.request("here", 42)
    item, length, other = alone.span.item, alone.length, alone.num_blocks
    rows = (alone.row("there", 0, length), alone.row("here", other, length))
    alone.device.execute(
        BatchPlan(step=1, admitted=(there, here), encodes=(EncodeJob(item=item),), rows=rows)
    )
    computed = alone.read(other)
    link = Link(
        request_id="here",
        first=0,
        start=3,
        end=length,
        block_ids=rows[1].block_ids,
        source_ids=rows[0].block_ids,
        source_first=0,
        shift=37,
        tolerance=1e-5,
    )
    again = length if alone.span.is_atomic else 3
    result = alone.device.execute(BatchPlan(step=2, rows=(alone.row("here", other, again),), links=(link,)))
    assert result.links["here"] <= 1e-5
    for (keys, values), (moved_keys, moved_values) in zip(computed, alone.read(other), strict=True):
        assert float((keys - moved_keys).norm() / keys.norm()) <= 1e-5
        assert float((values - moved_values).norm() / values.norm()) <= 1e-5
    unturned = replace(link, shift=36)
    result = alone.device.execute(
        BatchPlan(step=3, rows=(alone.row("here", other, again),), links=(unturned,))
    )
    assert result.links["here"] > 1e-3, "another turn would not fit"


@pytest.mark.parametrize("name", WITH_PICTURES)
def test_every_family_links_or_computes_and_says_which(name: str, tmp_path: Path) -> None:
    directory = FAMILIES[name].write(tmp_path, 3)
    pictures = [picture(1), picture(2)]
    before = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello, what is it?"}
    settings = {**EXACT, "block_size": 4, "link_tokens": 4, "link_tolerance": ANY}
    with LLM(str(directory), **settings) as llm:
        for shown in pictures:
            ask(llm, chat([shown]), may_link=False)
        output = ask(llm, chat(pictures[::-1], "Which?", *before))
        stats = llm._engine.stats
        again = ask(llm, chat(pictures[::-1], "Which?", *before), may_link=False)
    with LLM(str(directory), **EXACT) as llm:
        whole = ask(llm, chat(pictures[::-1], "Which?", *before), may_link=False)
    assert said(again) == said(whole) and reasons(again) == [None, None]
    is_atomic = name == "gemma3"
    assert reasons(output) == ([None] if is_atomic else ["position_independent"]) * 2
    assert (stats.num_linked, stats.num_held_blocks) == (0 if is_atomic else 2, 0)
    if is_atomic:
        assert said(output) == said(whole)
