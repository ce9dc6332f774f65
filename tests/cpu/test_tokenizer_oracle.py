"""Tokenizers that put a space before the first word, and a token before a text, beside transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tapetum import LLM, SamplingParams
from tapetum.text import tokenizer as text
from tests.families import llava
from tests.families.kit import image_part, user
from tests.families.text import write_checkpoint

SPECIAL = ("<unk>", "<s>", "</s>", "<image>")
TEMPLATE = "<s>{% for message in messages %}[{{ message.content }}]</s>{% endfor %}"
TEXTS = st.lists(
    st.one_of(st.sampled_from([*SPECIAL, " ", "  ", "\n", "hi a", "▁"]), st.text(max_size=4))
).map("".join)
KINDS = ("first", "first in a sequence", "always", "never", "prepended")


def sentencepiece(kind: str) -> Tokenizer:
    """A tokenizer in the way of Llama's, with hardly any merges; `kind` says where it puts spaces."""
    letters = "▁abcdefghijklmnopqrstuvwxyz[]\n"
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁a", "hi"]
    vocabulary = {name: index for index, name in enumerate(names)}
    made = Tokenizer(
        models.BPE(vocabulary, [("▁", "a"), ("h", "i")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    if kind == "prepended":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=kind.split()[0], split=False)
        if "sequence" in kind:
            made.pre_tokenizer = pre_tokenizers.Sequence([made.pre_tokenizer])
    cleaned = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    made.decoder = decoders.Sequence(cleaned)
    made.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return made


def write(directory: Path, kind: str, template: str = TEMPLATE, **config: object) -> Path:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=sentencepiece(kind), bos_token="<s>", eos_token="</s>", unk_token="<unk>", **config
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("kind", KINDS)
def test_spaces_stand_where_transformers_puts_them(
    tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    directory = write(tmp_path_factory.mktemp("tokenizer"), kind)
    oracle, ours = AutoTokenizer.from_pretrained(directory), text.Tokenizer.load(directory)

    @settings(max_examples=200, deadline=None)
    @given(TEXTS)
    def check(prompt: str) -> None:
        assert list(ours.encode(prompt)) == oracle(prompt, add_special_tokens=False).input_ids

    check()
    assert ours.encode_plain("hi") == ours.encode_plain("hi", is_first=True)[kind.startswith("first") :]


@pytest.mark.parametrize("config", [{}, {"add_bos_token": False}, {"add_bos_token": True}])
def test_a_text_begins_as_in_transformers(tmp_path: Path, config: dict[str, bool]) -> None:
    directory = write(tmp_path, "first", **config)
    oracle, ours = AutoTokenizer.from_pretrained(directory), text.Tokenizer.load(directory)
    assert [*ours.opening, *ours.encode("hi a")] == oracle("hi a").input_ids


def test_prompts_and_chats_of_an_engine_begin_as_in_transformers(tmp_path: Path) -> None:
    directory = write(write_checkpoint(tmp_path, "llama", 4, bos_token_id=1, eos_token_id=2), "first")
    oracle = AutoTokenizer.from_pretrained(directory)
    one = SamplingParams(max_tokens=1)
    with LLM(str(directory), dtype="float32", device="cpu", kv_cache_bytes=1 << 24) as llm:
        prompts = ["hi a", " a</s> hi", "[]"]
        for prompt, output in zip(prompts, llm.generate(prompts, one, use_tqdm=False), strict=True):
            assert list(output.prompt_token_ids) == oracle(prompt).input_ids
        (begun,) = llm.generate(["<s>hi a"], one, use_tqdm=False)
        assert list(begun.prompt_token_ids) == oracle("<s>hi a", add_special_tokens=False).input_ids
        messages = [{"role": "user", "content": "hi a"}]
        (chat,) = llm.chat(messages, one, use_tqdm=False)
        written = oracle.apply_chat_template(messages, tokenize=False)
        assert list(chat.prompt_token_ids) == oracle(written, add_special_tokens=False).input_ids


def test_a_chat_with_a_picture_begins_as_the_processor_of_transformers_has_it(tmp_path: Path) -> None:
    """LLaVA's template writes no <s>, and its processor leaves that to the tokenizer."""
    directory = llava.family("llava").write(tmp_path, 5)
    config = json.loads((directory / "config.json").read_text())
    image_id = SPECIAL.index("<image>")
    (directory / "config.json").write_text(json.dumps(config | {"image_token_index": image_id}))
    oracle = AutoTokenizer.from_pretrained(write(directory, "first", llava.TEMPLATE))
    messages = [user(image_part(1, 40, 30), {"type": "text", "text": "hi a"})]
    one = SamplingParams(max_tokens=1)
    with LLM(str(directory), dtype="float32", device="cpu", kv_cache_bytes=1 << 24) as llm:
        (output,) = llm.chat(messages, one, use_tqdm=False)
    text = oracle.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    places = output.prompt_token_ids.count(image_id)
    assert places > 1
    expected = oracle(text.replace("<image>", "<image>" * places)).input_ids
    assert list(output.prompt_token_ids) == expected and expected[0] == oracle.bos_token_id
