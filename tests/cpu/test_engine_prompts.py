"""From chats and prompts to requests: order and place of media, limits, defaults, what is refused and when."""

from __future__ import annotations

import json
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tapetum.assets import MODEL_DIR, SAMPLES_DIR
from tapetum.core.chat import ChatInput, MediaPart, Message, TextInput
from tapetum.core.config import MEDIA_LIMIT, MediaConfig
from tapetum.core.errors import (
    CheckpointError,
    InvalidParameter,
    MediaError,
    MediaTooLarge,
    PromptTooLong,
)
from tapetum.core.request import SamplingParams
from tapetum.engine.defaults import GenerationDefaults
from tapetum.engine.prompts import Loads, PromptBuilder, PromptLimits, Terms
from tapetum.media.ingest import Ingest
from tests.cpu.engine_kit import files, picture
from tests.mini import END_OF_TEXT, EOS, VOCAB_SIZE

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
TERMS = Terms(request_id="r", arrival_s=1.5)
BOUNDS = {
    "min_pixels": 16 * 28**2,
    "max_pixels": 80 * 28**2,
}  # of 16 to 80 visual tokens, whatever the model takes


@pytest.fixture(scope="module")
def ingest():
    made = Ingest(files().processor, MediaConfig())
    yield made
    made.close()


@pytest.fixture
def builder(ingest):
    return builder_over(ingest)


def builder_over(loader, *, max_model_len: int = 2048, max_media=8) -> PromptBuilder:
    return PromptBuilder(files(), loader, PromptLimits(max_model_len=max_model_len, max_media=max_media))


def chat(*content) -> ChatInput:
    return ChatInput(messages=(Message(role="user", content=content),))


def build(builder, prompt, **sampling):
    return builder.build(prompt, SamplingParams(**sampling), TERMS)


def test_a_chat_with_pictures_is_the_prompt_of_the_reference(builder):
    names = ["ok-01-text.png", "ok-03-receipt.jpg", "ok-09-chart.png"]
    pictures = [Image.open(SAMPLES_DIR / name).convert("RGB") for name in names]
    parts = [MediaPart(kind="image", source=SAMPLES_DIR / name, is_trusted=True) for name in names]
    request = build(builder, chat("First ", parts[0], parts[1], " and\n", parts[2], "?"))
    content = ["First ", None, None, " and\n", None, "?"]
    parts = [{"type": "text", "text": text} if text else {"type": "image"} for text in content]
    reference = AutoTokenizer.from_pretrained(str(MODEL_DIR))
    text = reference.apply_chat_template(
        [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
    )
    grids = Qwen2VLImageProcessorPil.from_pretrained(str(MODEL_DIR))(pictures)["image_grid_thw"].tolist()
    before, *after = text.split("<|image_pad|>")
    for grid, rest in zip(grids, after, strict=True):
        before += "<|image_pad|>" * (grid[0] * grid[1] * grid[2] // 4) + rest
    assert list(request.prompt.token_ids) == reference(before)["input_ids"]
    assert [list(span.item.geometry.grid_thw) for span in request.prompt.spans] == grids


def test_text_prompts_take_media_by_kind_in_order(builder):
    frames = [np.zeros((56, 56, 3), np.uint8)] * 2
    clip = MediaPart(kind="video", source=frames, is_trusted=True)
    first, second = picture(1), picture(2, 84, 56)
    prompt = f"a {VIDEO} b {IMAGE} c {IMAGE}"
    request = build(builder, TextInput(prompt=prompt, media=(first, second, clip)))
    geometries = [span.item.geometry for span in request.prompt.spans]
    assert [(geometry.kind, geometry.original) for geometry in geometries] == [
        ("video", (56, 56)),
        ("image", (56, 56)),
        ("image", (84, 56)),
    ]


@pytest.mark.parametrize(("prompt", "count"), [("no place", 1), (f"{IMAGE}{IMAGE}", 1), (IMAGE, 0)])
def test_places_and_pictures_must_come_out_even(builder, prompt, count):
    media = tuple(picture(index) for index in range(count))
    with pytest.raises(InvalidParameter, match=r"<\|image_pad\|> \d times, and \d image") as caught:
        build(builder, TextInput(prompt=prompt, media=media))
    assert caught.value.param == "prompt"


def test_token_ids_are_the_same_prompt_as_their_text(builder):
    text = "<|im_start|>user\none<|vision_start|><|image_pad|><|vision_end|>two<|im_end|>"
    media = (picture(1),)
    ids = files().tokenizer.encode(text)
    written, counted = (build(builder, TextInput(prompt=prompt, media=media)) for prompt in (text, ids))
    assert counted.prompt.token_ids == written.prompt.token_ids
    assert [span.key for span in counted.prompt.spans] == [span.key for span in written.prompt.spans]


@pytest.mark.parametrize("token_id", [-1, files().tokenizer.vocab_size, 2**70])
def test_token_ids_are_tokens(builder, token_id):
    with pytest.raises(InvalidParameter, match=f"holds the token {token_id}, .* 0 to"):
        builder.draft(TextInput(prompt=(5, token_id)), SamplingParams())


@pytest.mark.parametrize("placeholder", files().tokenizer.slots)
def test_placeholders_among_token_ids_want_media(builder, placeholder):
    with pytest.raises(InvalidParameter, match=r"1 times, and 0 .* parts came"):
        builder.draft(TextInput(prompt=(5, placeholder, 6)), SamplingParams())


def test_an_empty_prompt_is_refused(builder):
    with pytest.raises(InvalidParameter, match="0 tokens"):
        build(builder, TextInput(prompt=""))


def test_a_long_prompt_is_refused_with_its_numbers(ingest):
    builder = builder_over(ingest, max_model_len=50)
    text = TextInput(prompt="a" * 49)
    length = len(files().tokenizer.encode_plain(text.prompt))
    tight = builder_over(ingest, max_model_len=length)
    with pytest.raises(
        PromptTooLong, match=rf"prompt has {length} tokens, 0 of them visual, limit {length - 1} "
    ):
        build(tight, text)
    roomy = builder_over(ingest, max_model_len=length + 1)
    assert build(roomy, text).max_tokens == 1
    visual = TextInput(prompt=IMAGE, media=(picture(1, 224, 224),))
    with pytest.raises(PromptTooLong, match="prompt has 66 tokens, 64 of them visual, limit 49 "):
        build(builder, visual)


def test_too_many_media_are_refused_before_any_is_loaded():
    builder = builder_over(NeverLoader(), max_media=2)
    with pytest.raises(MediaTooLarge, match=r"prompt has 3 pictures and clips, limit 2"):
        build(builder, chat(picture(1), picture(2), picture(3)))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"image": 1, "video": 5}, "prompt has 2 pictures, limit 1"),
        ({"video": 0}, "prompt has 1 clip, limit 0"),
        ({"image": 2, "video": 1}, None),
        ({"video": 1}, None),
        ({}, None),
    ],
)
def test_kinds_may_have_limits_of_their_own(limits, words):
    clip = MediaPart(kind="video", source=[b""])
    builder, prompt = builder_over(NeverLoader(), max_media=limits), chat(picture(1), clip, picture(2))
    if words is None:
        assert len(builder.draft(prompt, SamplingParams()).media) == 3
    else:
        with pytest.raises(MediaTooLarge, match=words):
            builder.draft(prompt, SamplingParams())


def test_a_kind_that_is_not_limited_keeps_the_default():
    builder = builder_over(NeverLoader(), max_media={"video": 1})
    builder.draft(chat(*[picture(1)] * MEDIA_LIMIT), SamplingParams())
    with pytest.raises(MediaTooLarge, match=f"{MEDIA_LIMIT + 1} pictures, limit {MEDIA_LIMIT}"):
        builder.draft(chat(*[picture(1)] * (MEDIA_LIMIT + 1)), SamplingParams())


class NeverLoader:
    """Delivers `ready` plans and nothing after that."""

    def __init__(self, ready=()):
        self.ready = list(ready)
        self.futures: list[Future] = []

    def plan(self, part, *, tenant):
        future: Future = Future()
        if self.ready:
            outcome = self.ready.pop(0)
            fails = isinstance(outcome, Exception)
            (future.set_exception if fails else future.set_result)(outcome)
        self.futures.append(future)
        return future


def test_more_places_than_the_context_holds_are_refused_without_loading():
    loader = NeverLoader()
    builder = builder_over(loader, max_model_len=40, max_media=64)
    with pytest.raises(PromptTooLong, match="at least"):
        build(builder, chat(*(picture(index) for index in range(40))))
    assert loader.futures == []


def test_a_prompt_that_no_longer_fits_does_not_wait_for_the_other_pictures(ingest):
    loader = NeverLoader([ingest.plan(picture(1, 224, 224), tenant="").result(5)])
    builder = builder_over(loader, max_model_len=70)
    with pytest.raises(PromptTooLong, match=r"prompt has at least \d+ tokens, 66 of them visual"):
        build(builder, chat(*(picture(index) for index in range(3))))
    assert [future.cancelled() for future in loader.futures] == [False, True, True]


def test_a_broken_picture_is_named_and_the_rest_is_cancelled():
    loader = NeverLoader([shared := MediaError("not a picture")])
    with pytest.raises(MediaError, match=r"media 1 of 3: not a picture") as caught:
        build(builder_over(loader), chat(picture(1), picture(2), picture(3)))
    assert caught.value is not shared, "several requests may wait for one load"
    assert [future.cancelled() for future in loader.futures] == [False, True, True]


@pytest.mark.parametrize(
    "source",
    [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "missing.png", object()],
    ids=["empty", "gif stub", "png stub", "missing", "object"],
)
def test_bad_pictures_are_media_errors(builder, source):
    with pytest.raises(MediaError):
        build(builder, chat(MediaPart(kind="image", source=source, is_trusted=True)))


def test_the_tenant_salts_every_key(builder):
    keys = {
        builder.build(chat(picture(1)), SamplingParams(), Terms(request_id="r", arrival_s=0, tenant=tenant))
        .prompt.spans[0]
        .key
        for tenant in ("", "a", "b")
    }
    assert len(keys) == 3


def test_terms_travel_with_the_request(builder):
    terms = Terms(request_id="x", arrival_s=2.0, tenant="t", priority=-1, deadline_s=9.0)
    request = builder.build(TextInput(prompt="hi"), SamplingParams(), terms)
    assert (request.request_id, request.arrival_s, request.tenant) == ("x", 2.0, "t")
    assert (request.priority, request.deadline_s) == (-1, 9.0)


def test_defaults_of_the_bundled_model_apply(builder):
    request = build(builder, TextInput(prompt="hi"))
    assert request.sampling.temperature == 0
    assert request.max_tokens == 96
    assert request.stop_token_ids == {EOS, END_OF_TEXT}
    assert build(builder, TextInput(prompt="hi"), ignore_eos=True, stop_token_ids=[7]).stop_token_ids == {7}
    assert build(builder, TextInput(prompt="hi"), stop_token_ids=[7]).stop_token_ids == {7, EOS, END_OF_TEXT}


def test_max_tokens_fits_the_context_or_is_refused(ingest):
    prompt = TextInput(prompt="hi")
    length = len(files().tokenizer.encode_plain("hi"))
    builder = builder_over(ingest, max_model_len=length + 10)
    assert build(builder, prompt).max_tokens == 10  # less than the 96 of the checkpoint
    assert build(builder, prompt, max_tokens=10).max_tokens == 10
    with pytest.raises(
        InvalidParameter, match=rf"max_tokens is 11 and the prompt has {length} tokens.* at most 10"
    ):
        build(builder, prompt, max_tokens=11)


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
def test_stop_tokens_must_be_tokens(builder, token_id):
    with pytest.raises(InvalidParameter, match="stop_token_ids holds") as caught:
        build(builder, TextInput(prompt="hi"), stop_token_ids=[token_id])
    assert caught.value.param == "stop_token_ids"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"temperature": 0.0}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
        ({"temperature": 0.7, "top_p": 0.5}, {"temperature": 0.0, "top_p": 0.5}),
        ({"do_sample": True}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0}),
        (
            {"do_sample": True, "temperature": 0.01, "top_k": 1, "top_p": 0.001, "repetition_penalty": 1.05},
            {"temperature": 0.01, "top_k": 1, "top_p": 0.001, "repetition_penalty": 1.05},
        ),
    ],
)
def test_generation_config_gives_the_defaults(tmp_path, config, expected):
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    defaults = GenerationDefaults.load(tmp_path)
    resolved = SamplingParams().resolved(defaults.sampling)
    assert {name: getattr(resolved, name) for name in expected} == expected
    assert SamplingParams(temperature=0.3).resolved(defaults.sampling).temperature == 0.3


def test_ends_of_sequence_come_from_either_file(tmp_path):
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    assert GenerationDefaults.load(tmp_path).eos_token_ids == {5}
    for decoder in ("text_config", "llm_config"):
        (tmp_path / "config.json").write_text(json.dumps({decoder: {"eos_token_id": 6}}))
        assert GenerationDefaults.load(tmp_path).eos_token_ids == {6}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4], "max_new_tokens": 17}')
    assert GenerationDefaults.load(tmp_path).eos_token_ids == {3, 4}
    assert GenerationDefaults.load(tmp_path).max_new_tokens == 17


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"do_sample": true, "top_p": 3}', '{"eos_token_id": "x"}', '{"eos_token_id": [true]}'],
)
def test_a_broken_generation_config_is_a_checkpoint_error(tmp_path, text):
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError):
        GenerationDefaults.load(tmp_path)


def test_a_picture_in_bytes_is_the_same_picture(builder):
    pixels = Image.open(SAMPLES_DIR / "ok-01-text.png").convert("RGB")
    buffer = BytesIO()
    pixels.save(buffer, "PNG")
    sources = [
        SAMPLES_DIR / "ok-01-text.png",
        str(SAMPLES_DIR / "ok-01-text.png"),
        buffer.getvalue(),
        pixels,
        np.asarray(pixels),
    ]
    parts = [MediaPart(kind="image", source=source, is_trusted=True) for source in sources]
    spans = build(builder, chat(*parts)).prompt.spans
    assert len({span.key for span in spans}) == 1


def image(width: int, height: int, seed: int = 0, **options) -> MediaPart:
    """Within the bounds, unless it is given options of its own."""
    return replace(picture(seed, width, height), options=options or BOUNDS)


def visual_tokens(request) -> list[int]:
    return [span.item.geometry.num_tokens for span in request.prompt.spans]


def budgeted(budget: int, *content) -> ChatInput:
    return ChatInput(messages=(Message(role="user", content=content),), max_visual_tokens=budget)


def test_a_budget_of_visual_tokens_is_shared_by_area(builder):
    large, small = image(400, 400, 1), image(200, 200, 2)
    free = visual_tokens(build(builder, chat(large, small)))
    assert free == [64, 49]
    for prompt in (
        budgeted(80, large, small),
        TextInput(prompt=f"{IMAGE}{IMAGE}", media=(large, small), max_visual_tokens=80),
    ):
        shared = visual_tokens(build(builder, prompt))
        assert sum(shared) <= 80 and shared[0] > shared[1] >= 16
    assert visual_tokens(build(builder, budgeted(113, large, small))) == free, "a budget that is not used"
    assert visual_tokens(build(builder, budgeted(1000, large, small))) == free
    assert visual_tokens(build(builder, budgeted(32, large, small))) == [16, 16]
    assert visual_tokens(build(builder, budgeted(5))) == [], "nothing to share"


def test_a_picture_that_needs_less_leaves_the_rest(builder):
    tiny, large = image(28, 28, 1), image(400, 400, 2)
    shared = visual_tokens(build(builder, budgeted(66, tiny, large)))
    assert shared[0] == visual_tokens(build(builder, chat(tiny)))[0] == 16
    assert shared[1] == 49, "what is left of 66 holds a square of 7 by 7"


@pytest.mark.parametrize("budget", [1, 31])
def test_a_budget_below_the_least_of_all_media_is_refused_with_numbers(builder, budget):
    with pytest.raises(
        InvalidParameter, match=rf"max_visual_tokens is {budget}, the 2 .* at least 32; raise it"
    ) as caught:
        build(builder, budgeted(budget, image(400, 400, 1), image(200, 200, 2)))
    assert caught.value.param == "max_visual_tokens"


@pytest.mark.parametrize("budget", [0, -5])
def test_a_budget_is_positive(builder, budget):
    with pytest.raises(InvalidParameter, match=r"max_visual_tokens is .* at least 1"):
        build(builder, budgeted(budget, image(400, 400)))


def test_a_picture_that_asks_for_less_than_its_family_takes_may_have_less(builder):
    small = image(400, 400, 1, max_visual_tokens=4)
    assert visual_tokens(build(builder, budgeted(20, small, image(400, 400, 2)))) == [4, 16]


def test_a_budget_brings_a_prompt_within_the_context(ingest):
    builder = builder_over(ingest, max_model_len=120)
    pictures = [image(400, 400, seed) for seed in range(3)]
    with pytest.raises(PromptTooLong):
        build(builder, chat(*pictures))
    assert sum(visual_tokens(build(builder, budgeted(75, *pictures), max_tokens=1))) <= 75


def test_a_budget_reads_each_reference_once(builder, ingest, monkeypatch):
    reads: list[object] = []
    read = ingest._planner._reader.read

    def counting(source, **options):
        reads.append(source)
        return read(source, **options)

    monkeypatch.setattr(ingest._planner._reader, "read", counting)
    build(builder, budgeted(40, image(400, 400, 11), image(200, 200, 12)))
    assert len(reads) == 2


def test_pixels_are_decoded_when_all_headers_are_known_to_fit(ingest, monkeypatch):
    decoded: list[object] = []
    monkeypatch.setattr("tapetum.media.plan.decode", lambda data, config: decoded.append(data))
    builder = builder_over(ingest, max_model_len=140)
    files_of = [in_png(400, 400, seed) for seed in range(21, 23)]
    with pytest.raises(PromptTooLong, match=r"prompt has \d+ tokens, 128 of them visual"):
        build(builder, chat(*files_of))
    with pytest.raises(InvalidParameter, match="max_tokens is 100 "):
        build(builder, chat(files_of[0]), max_tokens=100)
    assert decoded == []


def in_png(width: int, height: int, seed: int) -> MediaPart:
    out = BytesIO()
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(out, "PNG")
    return MediaPart(kind="image", source=out.getvalue(), options=BOUNDS)


def test_a_plan_is_what_build_makes(builder):
    parts = [
        in_png(400, 300, 31),
        in_png(60, 200, 32),
        MediaPart(kind="video", source=[picture(1).source] * 3, options=BOUNDS),
    ]
    for prompt in (chat("Look: ", *parts, "?"), budgeted(75, *parts), chat("no picture")):
        plan = builder.plan(prompt, SamplingParams(), tenant="t")
        terms = replace(TERMS, tenant="t")
        request = builder.build(prompt, SamplingParams(), terms)
        spans = request.prompt.spans
        assert plan.num_tokens == len(request.prompt.token_ids)
        assert list(plan.geometries) == [span.item.geometry for span in spans]
        assert plan.num_visual_tokens == sum(span.end - span.start for span in spans)
        again = builder.plan(prompt, SamplingParams(), tenant="t")
        assert [medium.key for medium in again.media] == [span.key for span in spans], "known from the build"
        others = builder.plan(prompt, SamplingParams(), tenant="u")
        assert [medium.key for medium in others.media] == [None] * len(spans)


def test_a_plan_decodes_nothing_and_may_be_too_long(ingest, monkeypatch):
    monkeypatch.setattr("tapetum.media.plan.decode", lambda *_: pytest.fail("decoded"))
    builder = builder_over(ingest, max_model_len=100)
    plan = builder.plan(chat(*(in_png(400, 400, seed) for seed in range(41, 44))), SamplingParams())
    assert plan.num_tokens > 100 and [medium.item for medium in plan.media] == [None] * 3
    with pytest.raises(MediaError, match="media 2 of 2"):
        builder.plan(chat(picture(1), MediaPart(kind="image", source=b"x")), SamplingParams())


def test_a_plan_that_is_given_up_ends(ingest):
    loader, loads = NeverLoader(), Loads()
    loads.cancel()
    with pytest.raises(CancelledError):
        builder_over(loader).plan(chat(picture(1), picture(2)), SamplingParams(), loads=loads)
    assert all(future.cancelled() for future in loader.futures)


def test_errors_name_files_of_the_operator_alone(builder, tmp_path):
    """A client who may try names would learn which of them exist."""
    name = tmp_path / "cat.png"
    name.write_bytes(b"no picture")
    with pytest.raises(MediaError, match=r"^cat\.png: "):
        build(builder, chat(MediaPart(kind="image", source=str(name), is_trusted=True)))
    answers = set()
    for source in (str(name), f"{name}.missing", name.as_uri()):
        with pytest.raises(MediaError) as caught:
            build(builder, chat(MediaPart(kind="image", source=source)))
        answers.add(str(caught.value))
    assert len(answers) == 1


def test_the_bytes_of_all_media_are_bounded(ingest):
    parts = [in_png(50, 50, seed) for seed in range(51, 54)]
    size = max(len(part.source) for part in parts)
    for most, is_enough in ((3 * size, True), (2 * size, False)):
        limits = PromptLimits(max_model_len=2048, max_media=8, max_media_bytes=most)
        builder = PromptBuilder(files(), ingest, limits)
        if is_enough:
            build(builder, chat(*parts))
        else:
            with pytest.raises(MediaTooLarge, match=f"more than {most} bytes together"):
                build(builder, chat(*parts))
            own = [replace(part, is_trusted=True) for part in parts]
            assert build(builder, chat(*own)).prompt.spans, "the operator's own are not counted"
