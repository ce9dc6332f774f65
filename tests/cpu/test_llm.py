"""LLM with the bundled model: what it answers, that no way of computing changes it, lists, and bad input."""

from __future__ import annotations

import asyncio
import base64
import json
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tapetum import LLM, AsyncEngine, SamplingParams
from tapetum.assets import SAMPLES_DIR
from tapetum.core.errors import EngineDead, EngineError, InvalidParameter, MediaError, PromptTooLong
from tapetum.engine import batch
from tapetum.engine.inputs import chat_input
from tests.mini import CELL, KV_VALUES, MAX_PIXELS
from tests.pure.clips import avi, jpeg

SAMPLES = json.loads((SAMPLES_DIR / "samples.json").read_text())
OK = [sample for sample in SAMPLES if sample["image"].startswith("ok-")]
EXACT = {"dtype": "float32", "threads": 1, "kv_cache_bytes": 64 << 20}
SMALL = {"max_pixels": 80 * CELL**2}  # so that several pictures find room in a short context


def user(*content, **options) -> dict[str, object]:
    """Texts are strings, all else is a picture with these options."""
    parts = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "image": part, **options}
        for part in content
    ]
    return {"role": "user", "content": parts}


def path(number: int):
    return SAMPLES_DIR / SAMPLES[number]["image"]


def crop(number: int, box: tuple[int, int, int, int]) -> Image.Image:
    return Image.open(path(number)).convert("RGB").crop(box)


CLIP = {"type": "video", "video": [crop(9, (0, 0, 112, 112)).rotate(turn) for turn in (0, 20, 40, 60)]}
CHATS = [
    [user(path(0), SAMPLES[0]["question"], **SMALL)],
    [user("Hello, who are you?")],
    [user(path(2), path(6), "What do both say?", **SMALL)],
    [
        user(path(8), SAMPLES[8]["question"], **SMALL),
        {"role": "assistant", "content": "I see."},
        user("And the rest?"),
    ],
    [{"role": "user", "content": [CLIP, {"type": "text", "text": "What happens?"}]}],
    [user(crop(3, (0, 0, 160, 20)), "Read the line.")],
    [
        user(path(2), path(6), "What do both say?", **SMALL),
        {"role": "assistant", "content": "No."},
        user("Why?"),
    ],
    [user(crop(4, (20, 20, 62, 62)), "List the colours of the things that you see, one after the other.")],
]
LONG_GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def llm():
    with LLM(**EXACT) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """Every chat answered by itself, nothing reused, nothing cut."""
    with LLM(**EXACT, enable_prefix_caching=False, max_num_batched_tokens=4096) as llm:
        return [llm.chat(chat, LONG_GREEDY)[0].outputs[0].text for chat in CHATS]


@pytest.fixture(scope="module")
def said(llm) -> list[str]:
    """What it answers to the samples, whatever that is."""
    return texts(llm.chat([[user(SAMPLES_DIR / sample["image"], sample["question"])] for sample in OK]))


@pytest.fixture(autouse=True)
def everything_is_given_back(llm):
    yield
    assert_at_rest(llm)


def assert_at_rest(llm: LLM) -> None:
    engine = llm._engine
    stats = engine.stats
    assert (stats.num_running, stats.num_waiting, stats.num_held_blocks) == (0, 0, 0)
    assert stats.num_free_blocks + stats.num_cached_blocks == engine.facts.num_blocks
    assert engine._executor.num_requests == 0
    tokens = stats.feature_bytes // engine.facts.feature_bytes_per_token
    assert sum(len(engine._executor._features.get(key)) for key in engine._executor.feature_keys) == tokens


def texts(outputs) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_the_samples_are_answered_as_expected(llm):
    outputs = llm.chat([[user(SAMPLES_DIR / sample["image"], sample["question"])] for sample in OK])
    assert texts(outputs) == [sample["expected"] for sample in OK]
    assert {output.outputs[0].finish_reason for output in outputs} == {"stop"}


def test_among_neighbours_as_alone(llm, alone):
    assert len(set(alone)) == len(alone), "the chats were meant to be unlike"
    assert texts(llm.chat(CHATS, LONG_GREEDY)) == alone


def test_from_the_cache_as_computed(llm, alone):
    llm.chat(CHATS, LONG_GREEDY)
    again = llm.chat(CHATS, LONG_GREEDY)
    assert texts(again) == alone
    for output in again:
        assert output.num_cached_tokens > len(output.prompt_token_ids) - 32
    assert {report.cache for output in again for report in output.media} <= {"prefix", "device"}
    assert again[3].media[0].cache == "prefix"  # enough text behind the picture that its blocks are whole


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("has_cache", [False, True])
def test_in_chunks_as_whole(alone, size, has_cache):
    with LLM(**EXACT, max_num_batched_tokens=size, enable_prefix_caching=has_cache) as llm:
        assert texts(llm.chat(CHATS, LONG_GREEDY)) == alone
        assert_at_rest(llm)


@pytest.mark.parametrize("has_cache", [False, True])
def test_preempted_as_not(llm, has_cache):
    # Each of two that run makes eight blocks of answer, and one was left free for it when it was let in.
    answers = SamplingParams(temperature=0.0, max_tokens=128, ignore_eos=True)
    expected = [llm.chat(chat, answers)[0].outputs[0].text for chat in CHATS]
    options = EXACT | {
        "kv_cache_bytes": 24 * 16 * KV_VALUES * 4,
        "max_model_len": 384,
        "schedule": "throughput",
    }
    with LLM(**options, enable_prefix_caching=has_cache) as small:
        assert small.facts.num_blocks == 24
        assert texts(small.chat(CHATS, answers)) == expected
        assert small._engine.stats.num_preemptions > 0
        assert_at_rest(small)


async def test_streamed_as_joined(alone):
    async with AsyncEngine(**EXACT) as engine:

        async def read(chat) -> tuple[str, int]:
            deltas = [delta async for delta in await engine.submit(chat_input(chat), LONG_GREEDY)]
            return "".join(delta.text for delta in deltas), len(deltas)

        streamed = await asyncio.gather(*map(read, CHATS))
    assert [text for text, _ in streamed] == alone
    assert min(count for _, count in streamed) > 5  # several tokens at once where they were guessed


def test_a_seed_gives_the_same_draw_among_neighbours(llm):
    drawn = SamplingParams(temperature=1.0, seed=7, max_tokens=24, ignore_eos=True)
    chat = [user(path(8), "Tell me a story.")]
    [one] = texts(llm.chat(chat, drawn))
    others = [SamplingParams(temperature=1.0, max_tokens=30)] * len(CHATS)
    assert texts(llm.chat([*CHATS, chat], [*others, drawn]))[-1] == one
    assert texts(llm.chat(chat, replace(drawn, seed=8))) != [one]


def test_a_picture_in_any_form_gives_the_same_answer(llm, said):
    picture = Image.open(path(0)).convert("RGB")
    data = path(0).read_bytes()
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    forms = [path(0), str(path(0)), data, picture, np.asarray(picture)]
    parts = [{"type": "image", "image": form} for form in forms]
    parts.append({"type": "image_url", "image_url": {"url": url}})
    question = {"type": "text", "text": SAMPLES[0]["question"]}
    outputs = llm.chat([[{"role": "user", "content": [part, question]}] for part in parts])
    assert texts(outputs) == said[:1] * len(parts)
    assert len({output.prompt_token_ids for output in outputs}) == 1


def test_generate_takes_strings_and_dicts(llm, said):
    prompt = (
        f"<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{SAMPLES[0]['question']}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    [chat] = llm.chat([user(path(0), SAMPLES[0]["question"])])
    short = SamplingParams(max_tokens=8)
    outputs = llm.generate([{"prompt": prompt, "images": [path(0)]}, "The"], [SamplingParams(), short])
    assert outputs[0].prompt_token_ids == chat.prompt_token_ids
    assert texts(outputs)[0] == said[0]
    assert [output.prompt for output in outputs] == [prompt, "The"]
    assert chat.prompt is None
    assert llm.generate("The", short)[0].outputs[0] == outputs[1].outputs[0]


@pytest.fixture
def large(tmp_path):
    """A picture of more pixels than a quarter of what the model takes, in a file."""
    file = tmp_path / "large.png"
    Image.effect_noise((448, 392), 50).convert("RGB").save(file)
    return file


def test_options_of_a_part_set_how_it_is_processed(llm, large):
    few, most = {"max_pixels": 20_000}, SamplingParams(max_tokens=1)
    source, url = large, large.as_uri()
    parts = [
        {"type": "image", "image": source},
        {"type": "image", "image": source, **few},
        {"type": "image_url", "image_url": url, **few},
        {"type": "image_url", "image_url": {"url": url, "detail": "high"}, **few},
        {"type": "image_url", "image_url": {"url": url, **few}},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
    ]
    outputs = llm.chat([[{"role": "user", "content": [part]}] for part in parts], most)
    full, *small, low = [output.media[0].used for output in outputs]
    assert low[0] * low[1] <= MAX_PIXELS / 4 < full[0] * full[1], "a quarter of what the model allows"
    assert full[0] * full[1] > 20_000 >= small[0][0] * small[0][1]
    assert set(small) == {small[0]}


def test_options_of_a_prompt_count_for_all_its_media(llm, large):
    prompt = {"prompt": "<|image_pad|><|video_pad|>", "images": [large], "videos": [[large, large]]}
    [plain] = llm.generate(prompt, SamplingParams(max_tokens=1))
    [small] = llm.generate(
        {**prompt, "mm_processor_kwargs": {"max_pixels": 20_000}}, SamplingParams(max_tokens=1)
    )
    for before, after in zip(plain.media, small.media, strict=True):
        assert before.used[0] * before.used[1] > 20_000 >= after.used[0] * after.used[1]


@pytest.mark.parametrize("wrap", [lambda name: str(name), lambda name: name.read_bytes(), lambda name: name])
def test_a_clip_may_be_a_file(llm, tmp_path, wrap):
    file = tmp_path / "clip.avi"
    file.write_bytes(avi([jpeg(number) for number in range(3)]))
    parts = [
        {"type": "video", "video": wrap(file)},
        {"type": "video_url", "video_url": {"url": file.as_uri(), "detail": "high"}},
        {"type": "video", "video": [jpeg(number) for number in range(3)]},
    ]
    outputs = llm.chat(
        [[{"role": "user", "content": [part]}] for part in parts], SamplingParams(max_tokens=1)
    )
    assert [output.media[0].frames for output in outputs] == [3, 3, 3]
    assert len({output.outputs[0].token_ids for output in outputs}) == 1


def test_the_rate_of_a_clip_reaches_its_processing():
    [part] = chat_input([{"role": "user", "content": [{**CLIP, "fps": 2.0}]}]).messages[0].content
    assert part.options == {"fps": 2.0}


@pytest.mark.parametrize(
    "part",
    [{"type": "image", "image": path(0)}, {"type": "image_url", "image_url": {"url": str(path(0))}}, CLIP],
)
def test_options_that_are_not_known_are_refused(llm, part):
    with pytest.raises(InvalidParameter, match="media option 'nonsense' is unknown; known are min_pixels"):
        llm.chat([{"role": "user", "content": [{**part, "nonsense": 1}]}])
    with pytest.raises(InvalidParameter, match="max_pixels is 'few'"):
        llm.chat([{"role": "user", "content": [{**part, "max_pixels": "few"}]}])


def test_lists_keep_their_order_whatever_ends_first(llm):
    lengths = [9, 1, 30, 2, 17, 4]
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
    outputs = llm.chat([[user(f"Count to {length}")] for length in lengths], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert llm.chat([]) == []


def test_a_long_list_is_built_ahead_in_bounds(said, monkeypatch):
    monkeypatch.setattr(batch, "_MAX_PATCHES", 600)
    most = 0
    hand_in = batch._Batch._hand_in

    def watch(self):
        nonlocal most
        most = max(most, self._num_patches)
        hand_in(self)

    monkeypatch.setattr(batch._Batch, "_hand_in", watch)
    chats = [[user(SAMPLES_DIR / sample["image"], sample["question"])] for sample in OK * 3]
    with LLM(**EXACT, max_num_seqs=2) as llm:
        outputs = llm.chat(chats, use_tqdm=False)
    assert texts(outputs) == said * 3
    largest = 4 * max(output.media[0].visual_tokens for output in outputs)
    assert 600 <= most < 600 + batch._MAX_BUILDS * largest


def test_an_interrupt_leaves_an_llm_that_works(llm, said, monkeypatch):
    executor = llm._engine._executor
    execute = executor.execute
    num_steps = 0

    def interrupted(plan):
        nonlocal num_steps
        num_steps += 1
        if num_steps == 5:
            raise KeyboardInterrupt
        return execute(plan)

    monkeypatch.setattr(executor, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.chat(CHATS, LONG_GREEDY)
    assert_at_rest(llm)
    assert texts(llm.chat([user(path(0), SAMPLES[0]["question"])])) == said[:1]


def test_an_interrupt_between_encode_and_forward_leaves_no_features(llm, said, monkeypatch):
    """The executor has stored what it encoded; `assert_at_rest` compares its store with the account."""
    runner = llm._engine._executor._runner
    monkeypatch.setattr(runner, "forward", interrupt)
    new = Image.fromarray(np.random.default_rng(7).integers(0, 256, (140, 84, 3), np.uint8))
    before = llm._engine.stats.feature_bytes
    with pytest.raises(KeyboardInterrupt):
        llm.chat([user(new, "What is this?")])
    monkeypatch.undo()
    assert_at_rest(llm)
    assert llm._engine.stats.feature_bytes == before
    assert texts(llm.chat([user(path(0), SAMPLES[0]["question"])])) == said[:1]


def test_an_interrupt_gives_up_the_loads_of_prompts_that_are_being_built(llm, monkeypatch):
    futures: list[Future] = []

    class HeldLoader:
        def plan(self, part, *, tenant):
            futures.append(Future())
            return futures[-1]

    prompts = llm._front.prompts
    monkeypatch.setattr(prompts, "_loader", HeldLoader())
    monkeypatch.setattr(batch._Batch, "_take_built", lambda self: interrupt() if futures else None)
    with pytest.raises(KeyboardInterrupt):
        llm.chat([user(path(0), "What?")])
    assert [future.cancelled() for future in futures] == [True]


def interrupt(*args):
    raise KeyboardInterrupt


def test_a_failing_request_ends_the_batch_with_its_place(llm, monkeypatch):
    executor = llm._engine._executor
    execute = executor.execute

    def faulty(plan):
        if any(row.request_id == "prompt-2" and row.start > 20 for row in plan.rows):
            raise ValueError("bad luck")
        return execute(plan)

    monkeypatch.setattr(executor, "execute", faulty)
    before = llm._engine.stats.finished.get("abort", 0)
    with pytest.raises(EngineError, match=r"^prompts\[2\]: .*bad luck"):
        llm.chat(CHATS, LONG_GREEDY)
    assert llm._engine.stats.finished["abort"] == before + len(CHATS) - 1
    assert_at_rest(llm)


def test_the_bar_is_for_long_lists(llm, capsys):
    one = SamplingParams(max_tokens=1)
    llm.generate(["a"] * 15, one)
    assert capsys.readouterr().err == ""
    llm.generate(["a"] * 16, one)
    assert "16/16" in capsys.readouterr().err
    llm.generate(["a"] * 16, one, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_logprobs_name_the_candidates(llm):
    [output] = llm.generate("The", SamplingParams(max_tokens=3, logprobs=2, ignore_eos=True))
    completion = output.outputs[0]
    assert len(completion.logprobs) == 3
    for token_id, candidates in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(candidates)) == token_id
        assert [candidate.rank for candidate in candidates.values()] == [1, 2]
        assert (
            candidates[token_id].logprob == max(candidate.logprob for candidate in candidates.values()) <= 0
        )
        assert candidates[token_id].decoded_token == llm._engine.tokenizer.decode((token_id,), False)
    assert llm.generate("The", SamplingParams(max_tokens=1))[0].outputs[0].logprobs is None


def test_times_add_up(llm):
    [output] = llm.chat(
        [user(crop(10, (0, 0, 150, 90)), "What is it?")], SamplingParams(max_tokens=6, ignore_eos=True)
    )
    timing = output.timing
    parts = timing.fetch_s + timing.decode_s + timing.queue_s + timing.encode_s + timing.prefill_s
    assert 0 < timing.encode_s < timing.ttft_s
    assert 0.5 * timing.ttft_s < parts <= timing.ttft_s
    assert timing.decode_tokens_s > 0


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (7, InvalidParameter),
        ({"text": "x"}, InvalidParameter),
        ({"prompt": 3}, InvalidParameter),
        ({"prompt": "x", "images": path(0)}, InvalidParameter),
        ({"prompt": "x", "images": [path(0)]}, InvalidParameter),
        ({"prompt": "x", "mm_processor_kwargs": 5}, InvalidParameter),
        ({"prompt": "<|image_pad|>", "images": [path(0)], "mm_processor_kwargs": {"a": 1}}, InvalidParameter),
        ({"prompt": "<|image_pad|>", "images": [b"no picture"]}, MediaError),
        ({"prompt": "<|image_pad|>", "images": [path(0).read_bytes()[:2000]]}, MediaError),
        ({"prompt": "<|video_pad|>", "videos": [[]]}, MediaError),
        ("", InvalidParameter),
        ("word " * 3000, PromptTooLong),
    ],
    ids=[
        "number",
        "key",
        "prompt type",
        "no list",
        "no place",
        "options type",
        "option",
        "junk",
        "cut",
        "no frames",
        "empty",
        "long",
    ],
)
def test_a_bad_prompt_is_named_and_nothing_has_run(llm, bad, error):
    before = llm._engine.stats
    with pytest.raises(error, match=r"^prompts\[2\]: "):
        llm.generate(["a", "b", bad, "c"])
    assert llm._engine.stats == before
    with pytest.raises(error, match=r"^(?!prompts\[)"):
        llm.generate([bad])


@pytest.mark.parametrize(
    "messages",
    [
        "hello",
        [user("x"), 3],
        [{"content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "audio", "audio": b""}]}],
        [{"role": "user", "content": [{"type": "image"}]}],
        [{"role": "user", "content": [{"type": ["image"], "image": b""}]}],
        [{"role": "user", "content": [3]}],
    ],
)
def test_messages_of_another_shape_are_refused(llm, messages):
    with pytest.raises(InvalidParameter) as caught:
        llm.chat(messages)
    assert caught.value.param == "messages"


def test_sampling_params_come_one_for_each_or_one_for_all(llm):
    with pytest.raises(InvalidParameter, match="2 entries for 3 prompts"):
        llm.generate(["a", "b", "c"], [SamplingParams()] * 2)


@pytest.mark.parametrize("value", [{"temperature": 0}, [{"temperature": 0}], "greedy", 3])
def test_sampling_params_of_another_type_are_refused(llm, value):
    with pytest.raises(InvalidParameter, match="must be SamplingParams or a list of them"):
        llm.generate(["a"], value)


def test_an_error_names_the_file_at_fault(llm, tmp_path):
    broken = tmp_path / "letter.png"
    broken.write_bytes(b"no picture")
    with pytest.raises(MediaError, match=r"letter\.png: picture file starts with"):
        llm.chat([user(broken)])
    with pytest.raises(MediaError, match=r"^media 2 of 2: letter\.png: "):
        llm.chat(
            [
                {
                    "role": "user",
                    "content": [{"type": "image", "image": value} for value in (path(0), str(broken))],
                }
            ]
        )


def test_a_closed_llm_says_so():
    llm = LLM(dtype="float32")
    llm.close()
    with pytest.raises(EngineDead, match="closed"):
        llm.generate("a")
