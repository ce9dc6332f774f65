"""The tokenizer: special tokens are found in one place only, and declared ones are special everywhere."""

from __future__ import annotations

import json
import threading
import time
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from tapetum.assets import MODEL_DIR
from tapetum.core.errors import CheckpointError, InvalidParameter, PromptTooLong
from tapetum.core.media import MediaKind
from tapetum.text.tokenizer import Tokenizer
from tests.slots import SLOTS

TOKENIZER = Tokenizer.load(MODEL_DIR, SLOTS)
SPECIALS = sorted(TOKENIZER.special_tokens)
TEXTS = st.lists(
    st.one_of(st.sampled_from([*SPECIALS, "<|", "|>", "<|im_", "end|>", "\n"]), st.text(max_size=5))
).map("".join)


def library(directory: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


LIBRARY = library(MODEL_DIR)


@given(TEXTS)
def test_encode_finds_special_tokens_as_the_library_does(text: str) -> None:
    assert TOKENIZER.encode(text) == tuple(LIBRARY.encode(text, add_special_tokens=False).ids)


@given(TEXTS)
def test_plain_text_never_yields_a_special_token_and_decodes_to_itself(text: str) -> None:
    ids = TOKENIZER.encode_plain(text)
    assert TOKENIZER.special_ids.isdisjoint(ids)
    assert TOKENIZER.decode(ids, skip_special=False) == unicodedata.normalize("NFC", text)


def small(
    directory: Path, added: list[AddedToken], tokenizer_config: dict[str, object] | None = None
) -> Tokenizer:
    """A byte-level tokenizer without merges and with these added tokens."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({char: index for index, char in enumerate(alphabet)}, [])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_tokens(added)
    made.save(str(directory / "tokenizer.json"))
    slots: dict[int | str, MediaKind] = {}
    if (image_id := made.token_to_id("<image>")) is not None:
        slots = {image_id: "image", "[clip]": "video"}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config or {}))
    return Tokenizer.load(directory, slots)


@pytest.mark.parametrize(
    "text", ["a <x> b", "a  <x>", "<x>\n\n<y> b", "w<y>w <y>,", "<x><xx>", "  <x>  <x>  "]
)
def test_tokens_that_swallow_white_space_split_as_in_the_library(tmp_path: Path, text: str) -> None:
    added = [
        AddedToken("<x>", special=True, normalized=False, lstrip=True, rstrip=True),
        AddedToken("<xx>", special=True, normalized=False),
        AddedToken("<y>", special=True, normalized=False, single_word=True),
    ]
    tokenizer = small(tmp_path, added)
    assert tokenizer.encode(text) == tuple(library(tmp_path).encode(text, add_special_tokens=False).ids)


def test_long_white_space_before_a_stripping_token_is_quick(tmp_path: Path) -> None:
    tokenizer = small(tmp_path, [AddedToken("<x>", special=True, normalized=False, lstrip=True)])
    assert len(list(tokenizer.split(" " * 200_000 + "y"))) == 1  # quadratic search would take minutes


def test_declared_tokens_are_special_even_where_the_tokenizer_file_forgets(tmp_path: Path) -> None:
    added = [
        AddedToken(name, special=False, normalized=False) for name in ("<image>", "<end>", "<box>", "<tool>")
    ]
    declared: dict[str, object] = {
        "eos_token": {"content": "<end>"},
        "additional_special_tokens": ["<box>", "<absent>"],
    }
    tokenizer = small(tmp_path, added, declared)
    assert set(tokenizer.special_tokens) == {"<image>", "<end>", "<box>"}
    image_id = tokenizer.token_id("<image>")
    assert tokenizer.slots == {image_id: "image", tokenizer.vocab_size: "video"}
    # A mark that is no token: found where the template writes it, and never in what is said.
    assert list(tokenizer.split("a [clip] b")) == ["a ", tokenizer.vocab_size, " b"]
    assert tokenizer.encode("[clip]") == tokenizer.encode_plain("[clip]")
    assert image_id not in tokenizer.encode_plain("an <image> here")
    assert image_id in tokenizer.encode("an <image> here")
    assert tokenizer.token_id("<tool>") in tokenizer.encode_plain("<tool>")  # as transformers tokenises it
    assert tokenizer.token_id("<absent>") is None


def test_threads_may_share_a_tokenizer() -> None:
    texts = [f"line {number} <|im_end|> " * 200 for number in range(8)]
    alone = [TOKENIZER.encode_plain(text) for text in texts]
    together: list[tuple[int, ...] | None] = [None] * len(texts)

    def encode(index: int) -> None:
        together[index] = TOKENIZER.encode_plain(texts[index])

    threads = [threading.Thread(target=encode, args=(index,)) for index in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_a_checkpoint_without_tokenizer_json_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(CheckpointError, match="save_pretrained"):
        Tokenizer.load(tmp_path)


def test_a_broken_tokenizer_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.load(tmp_path)


def test_half_a_surrogate_pair_is_the_clients_error() -> None:
    with pytest.raises(InvalidParameter, match="surrogate"):
        TOKENIZER.encode_plain("a\ud83d")


@pytest.mark.parametrize("piece", ["x", "ab ", "\U0001f600", " ", "\n", "e\u0301"])
def test_a_long_text_is_refused_after_a_look_at_little_of_it(piece: str) -> None:
    text = piece * (4_000_000 // len(piece))
    started = time.process_time()
    with pytest.raises(PromptTooLong, match=r"more than \d+ tokens, limit 2000"):
        TOKENIZER.encode_plain(text, 2000)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize("piece", ["word and word ", "\U0001f600", " " * 37, "\n" * 61 + "x"])
def test_a_long_text_that_fits_is_not_refused(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    ids = TOKENIZER.encode_plain(text)
    assert TOKENIZER.encode_plain(text, len(ids)) == ids


def test_special_tokens_are_sought_quickly_in_a_long_text() -> None:
    text = "\U0001f600" * 5_000_000 + SPECIALS[0]
    started = time.process_time()
    assert list(TOKENIZER.split(text))[-1] == TOKENIZER.special_tokens[SPECIALS[0]]
    assert time.process_time() - started < 0.2
