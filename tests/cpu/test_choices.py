"""Several answers to one prompt, with generations made up for the test: who is ended when the reader leaves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tapetum.core.errors import Overloaded
from tapetum.core.plan import SampledToken
from tapetum.engine.choices import Choices
from tapetum.engine.output import Delta

TOKEN = Delta(text="x", tokens=(SampledToken(token_id=1),))
END = Delta(finish_reason="stop")


class MadeUp:
    """A generation that says these deltas and then nothing more."""

    def __init__(self, *deltas: Delta) -> None:
        self.deltas = list(deltas)
        self.finish_reason = None
        self.num_cancels = 0

    async def __anext__(self) -> Delta:
        if not self.deltas:
            await asyncio.Event().wait()
        return self.deltas.pop(0)

    def __aiter__(self):
        return self

    def cancel(self) -> None:
        self.num_cancels += 1


async def test_a_reader_that_leaves_while_others_are_handed_in_ends_those_that_were_taken():
    first, second = MadeUp(TOKEN), MadeUp()

    async def fork(index: int):
        if index == 2:
            await asyncio.Event().wait()
        return second

    choices = Choices(first, 3, fork)

    async def read() -> None:
        async with aclosing(aiter(choices)) as news:
            async for _ in news:
                pass

    reader = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert (first.num_cancels, second.num_cancels) == (1, 1)


async def test_one_that_is_refused_ends_all():
    first, second = MadeUp(TOKEN), MadeUp(TOKEN, END)

    async def fork(index: int):
        if index == 2:
            raise Overloaded("the queue is full")
        return second

    seen = []
    with pytest.raises(Overloaded):
        async for index, _ in Choices(first, 3, fork):
            seen.append(index)
    assert seen == []
    assert (first.num_cancels, second.num_cancels) == (1, 1)


async def test_news_keep_the_index_of_their_answer_whoever_is_taken_first():
    generations = {index: MadeUp(Delta(text=str(index)), END) for index in (1, 2, 3)}

    async def fork(index: int):
        await asyncio.sleep(0.01 * (4 - index))
        return generations[index]

    choices = Choices(MadeUp(TOKEN, END), 4, fork)
    texts = dict.fromkeys(range(4), "")
    async for index, delta in choices:
        texts[index] += delta.text
    assert texts == {0: "x", 1: "1", 2: "2", 3: "3"}
    assert choices.num_tokens == 1


async def test_others_begin_with_the_first_token_and_not_before():
    handed_in = []

    async def fork(index: int):
        handed_in.append(index)
        return MadeUp(END)

    choices = Choices(MadeUp(Delta(), TOKEN, END), 2, fork)
    async with aclosing(aiter(choices)) as news:
        assert await anext(news) == (0, Delta())
        assert handed_in == []
        assert await anext(news) == (0, TOKEN)
        assert handed_in == [1]


async def test_an_answer_that_ends_without_a_token_has_siblings_all_the_same():
    async def fork(index: int):
        return MadeUp(END)

    assert [index async for index, _ in Choices(MadeUp(END), 3, fork)] == [0, 1, 2]
