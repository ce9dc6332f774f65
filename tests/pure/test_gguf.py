"""GGUF files beside the `gguf` package: container, blocks, tokenizer; damage is always one sentence."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from tapetum.assets import MODEL_DIR
from tapetum.core.errors import CheckpointError, ConfigError
from tapetum.models.gguf import blocks as blocks_module
from tapetum.models.gguf.blocks import block_type, dequantise
from tapetum.models.gguf.config import read_config, read_generation
from tapetum.models.gguf.folder import LINK, checkpoint_folder
from tapetum.models.gguf.names import find_homes
from tapetum.models.gguf.reader import GGUFFile
from tapetum.models.gguf.tokenizer import read_tokenizer, read_tokenizer_config
from tapetum.text.tokenizer import Tokenizer
from tests.gguf_files import TOKENS, embedding, gguf, metadata, write_gguf

QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
TEXTS = (
    "Hello, world! It's 12345 o'clock.",
    "  two  spaces\n\n\tand\r\nlines ",
    "déjà vu, naïve, Ångström, 日本語のテキスト, 🙂🙃",
    "snake_case camelCase x=3.14159; y+=1 // WE'LL I'm",
    "",
    "e\u0301 decomposed",
)


@pytest.mark.parametrize("name", QUANTISED)
def test_blocks_are_unpacked_as_ggml_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "_CHUNK", 16)  # several, and the last one not whole
    kind = block_type(gguf.GGMLQuantizationType[name], "t")
    data = np.random.default_rng(0).integers(0, 256, (53, kind.num_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # random scales may be anything
        ours = dequantise(data.reshape(-1), kind)
        theirs = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).reshape(-1)
    assert ours.dtype == np.float32
    assert np.array_equal(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("name", [kind.name for kind in gguf.GGMLQuantizationType])
def test_every_other_type_is_refused_by_name(name: str) -> None:
    number = gguf.GGMLQuantizationType[name]
    if name in (*QUANTISED, "F32", "F16", "BF16"):
        assert block_type(number, "t").name == name
        return
    with pytest.raises(CheckpointError, match=r"tensor t is stored as \w+.*Q4_K"):
        block_type(number, "t")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    values = metadata(general__name="née", tokenizer__chat_template="{{ 'x' }}") | {
        "x.flags": [True, False], "x.numbers": [1, -2, 3], "x.floats": [0.5, 1.25], "x.yes": True,
    }  # fmt: skip
    tensors = {
        "a": (rng.standard_normal((3, 5)).astype(np.float32), "F32"),
        "b": (rng.standard_normal((2, 3, 4)).astype(np.float16), "F16"),
        "c": (rng.integers(0, 256, (7, 2 * 34), dtype=np.uint8), "Q8_0"),
        **embedding(),
    }
    return write_gguf(tmp_path / "m.gguf", values, tensors)


def test_container_is_read_as_by_the_gguf_package(written: Path) -> None:
    ours, theirs = GGUFFile(written), gguf.GGUFReader(written)
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == fields
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        place = ours.tensors[tensor.name]
        assert place.kind.name == tensor.tensor_type.name
        assert place.shape == tuple(int(length) for length in tensor.shape[::-1])
        assert ours.blocks(tensor.name).tobytes() == tensor.data.tobytes()


def test_a_file_that_is_cut_anywhere_is_one_sentence(written: Path, tmp_path: Path) -> None:
    whole = written.read_bytes()
    for length in [*range(200), *range(200, len(whole), 97), len(whole) - 1]:
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf.*download it again"):
            GGUFFile(cut)


def test_damage_in_the_head_is_one_sentence_or_does_no_harm(written: Path, tmp_path: Path) -> None:
    whole, draw = written.read_bytes(), random.Random(0)
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(1200)] = draw.choice((0, 1, 127, 255, draw.randrange(256)))
        path = tmp_path / "bad.gguf"
        path.write_bytes(damaged)
        try:
            file = GGUFFile(path)
            read_config(file), read_generation(file), read_tokenizer(file), read_tokenizer_config(file)
            find_homes(file)
        except CheckpointError as error:
            assert "\n" not in error.message.strip()


def test_config_has_the_names_of_transformers(tmp_path: Path) -> None:
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", metadata(), embedding()))
    config = read_config(file)
    expected = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 512,
        "rope_theta": 10000.0, "vocab_size": 6, "tie_word_embeddings": True, "dtype": "float32",
    }  # fmt: skip
    assert {key: config[key] for key in expected} == expected
    assert read_generation(file) == {"eos_token_id": [2]}
    assert read_tokenizer_config(file) == {"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("changes", "opening"),
    [
        ({}, ()),
        ({"tokenizer__ggml__pre": "llama-bpe"}, (1,)),
        ({"tokenizer__ggml__pre": "llama-bpe", "tokenizer__ggml__add_bos_token": False}, ()),
        ({"tokenizer__ggml__add_bos_token": True}, (1,)),
    ],
)
def test_a_text_is_opened_as_the_file_says(
    tmp_path: Path, changes: dict[str, object], opening: tuple[int, ...]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata(**changes), embedding())
    assert Tokenizer.load(checkpoint_folder(path, tmp_path / "cache")).opening == opening


def test_rotary_scaling_of_llama_3_is_found_from_its_factors(tmp_path: Path) -> None:
    """The factors of Llama 3.1, by the rule of transformers (8 times, between 1 and 4 turns in 8,192 tokens)."""
    theta, dim, factor = 500_000.0, 128, 8.0
    frequencies = theta ** -(np.arange(0, dim, 2) / dim)
    wavelengths = 2 * np.pi / frequencies
    smooth = (8192 / wavelengths - 1) / (4 - 1)
    scaled = np.where(wavelengths > 8192, frequencies / factor, frequencies)
    middle = (wavelengths <= 8192) & (wavelengths >= 8192 / 4)
    scaled[middle] = ((1 - smooth) * frequencies / factor + smooth * frequencies)[middle]
    factors = (frequencies / scaled).astype(np.float32)
    values = metadata(llama__rope__freq_base=theta, llama__attention__key_length=dim)
    tensors = embedding() | {"rope_freqs.weight": (factors, "F32")}
    config = read_config(GGUFFile(write_gguf(tmp_path / "m.gguf", values, tensors)))
    assert config["rope_scaling"] == {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    tensors["rope_freqs.weight"] = (factors[::-1].copy(), "F32")
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        read_config(GGUFFile(write_gguf(tmp_path / "other.gguf", values, tensors)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama__block_count": None}, "has no 'llama.block_count'"),
        ({"llama__embedding_length": "wide"}, "llama.embedding_length is 'wide'"),
        ({"split__count": 3}, "is one part of 3; join them with llama-gguf-split"),
        ({"tokenizer__ggml__pre": "poro-chat"}, "tokenizer.ggml.pre is 'poro-chat'.*smollm"),
        ({"tokenizer__ggml__model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"tokenizer__ggml__tokens": None}, "tokenizer.ggml.tokens must be a list"),
        ({"tokenizer__ggml__model": "llama"}, "tokenizer.ggml.scores must be a list"),
        ({"tokenizer__ggml__token_type": [1]}, "tokenizer.ggml.token_type must be a list of 6"),
    ],
)
def test_what_is_missing_or_unknown_is_told_by_its_key(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata(**changes), embedding())
    with pytest.raises(CheckpointError, match=message):
        checkpoint_folder(path, tmp_path / "cache")
    assert list((tmp_path / "cache").glob("*")) == []


def test_unknown_architectures_and_tensors_are_told(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata(), embedding(), kind="rwkv7")
    with pytest.raises(CheckpointError, match=r"general.architecture is 'rwkv7'.*llama, qwen2"):
        read_config(GGUFFile(path))
    tensors = embedding() | {"blk.0.ssm_in.weight": (np.zeros((2, 2), np.float32), "F32")}
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", metadata(), tensors))
    with pytest.raises(CheckpointError, match=r"tensor blk\.0\.ssm_in\.weight, which no llama"):
        find_homes(file)
    with pytest.raises(CheckpointError, match=r"has no tensor token_embd\.weight"):
        read_config(GGUFFile(write_gguf(tmp_path / "m.gguf", metadata(), {})))


def test_a_byte_level_tokenizer_survives_the_way_through_a_file(tmp_path: Path) -> None:
    """The bundled one, whose text is cut as Qwen2 does."""
    stored = json.loads((MODEL_DIR / "tokenizer.json").read_text())
    own = tokenizers.Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    added = own.get_added_tokens_decoder()
    texts = [own.id_to_token(token_id) for token_id in range(own.get_vocab_size())]
    types = [3 if token_id in added and added[token_id].special else 1 for token_id in range(len(texts))]
    values = metadata(
        tokenizer__ggml__pre="qwen2",
        tokenizer__ggml__tokens=texts,
        tokenizer__ggml__token_type=types,
        tokenizer__ggml__merges=[
            merge if isinstance(merge, str) else " ".join(merge) for merge in stored["model"]["merges"]
        ],
    )
    folder = checkpoint_folder(write_gguf(tmp_path / "m.gguf", values, embedding()), tmp_path / "cache")
    read = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = "".join(token.content for token in added.values() if token.special)
    for text in (*TEXTS, special, f"a{special}b"):
        ids = own.encode(text, add_special_tokens=False).ids
        assert read.encode(text, add_special_tokens=False).ids == ids
        assert read.decode(ids, skip_special_tokens=False) == own.decode(ids, skip_special_tokens=False)


def test_sentence_pieces_merge_by_their_scores(tmp_path: Path) -> None:
    """A small vocabulary that the tokenizers library has trained: its merges are found again from the scores."""
    trained = tokenizers.SentencePieceBPETokenizer()
    trained.train_from_iterator(["the cat sat on the mat that the rat had sat on"] * 3, vocab_size=80)
    pieces = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    pieces = [piece for piece in pieces if piece != "<unk>"]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    letters = sum(len(piece) == 1 for piece in pieces)
    scores = [0.0] * (259 + letters) + [-float(rank) for rank in range(len(pieces) - letters)]
    values = metadata(
        tokenizer__ggml__model="llama",
        tokenizer__ggml__pre="default",
        tokenizer__ggml__tokens=texts,
        tokenizer__ggml__scores=scores,
        tokenizer__ggml__token_type=[2, 3, 3, *([6] * 256), *([1] * len(pieces))],
    )
    folder = checkpoint_folder(write_gguf(tmp_path / "m.gguf", values, embedding()), tmp_path / "cache")
    read = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("the cat sat", "that rat", "on the  mat", "tatatheon"):
        assert read.encode(text).tokens == trained.encode(text).tokens
        assert read.decode(read.encode(text).ids) == text
    for text in ("Ünknown 日本", "a\nb"):
        assert read.decode(read.encode(text).ids) == text, "letters that it has not learnt are bytes"


def test_a_folder_is_written_once_for_each_state_of_a_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata(), embedding())
    folder = checkpoint_folder(path, tmp_path / "cache")
    stamp = (folder / "tokenizer.json").stat().st_mtime_ns
    assert checkpoint_folder(path, tmp_path / "cache") == folder
    assert (folder / "tokenizer.json").stat().st_mtime_ns == stamp
    assert (folder / LINK).resolve() == path.resolve()
    assert Tokenizer.load(folder, {}).special_ids == {0, 1, 2}
    write_gguf(path, metadata(llama__context_length=1024), embedding())
    assert checkpoint_folder(path, tmp_path / "cache") != folder
    assert not list((tmp_path / "cache").glob(".writing*"))


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata(), embedding())
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        checkpoint_folder(path, tmp_path / "cache")


def test_the_vocabulary_is_that_of_the_file(tmp_path: Path) -> None:
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", metadata(), embedding()))
    vocabulary = read_tokenizer(file)["model"]["vocab"]
    assert vocabulary == {text: token_id for token_id, text in enumerate(TOKENS)}
