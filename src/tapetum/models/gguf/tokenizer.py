"""What tokenizer.json and tokenizer_config.json would say of a GGUF file, from its metadata.

Two kinds: byte-level BPE with its merges ("gpt2"), and SentencePiece's BPE ("llama"), whose merges are made from the
scores of its pieces. How text is cut before is only named in the file; the names known here are written out below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tapetum.core.errors import CheckpointError
from tapetum.core.files import ConfigReader
from tapetum.models.gguf.reader import GGUFFile

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # of token_type
_SPACE = "\u2581"  # SentencePiece writes a space so
_ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# name of the kind: how it cuts; None = as GPT-2
_PATTERNS: Mapping[str, str | None] = {
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|\p{{N}}|{_REST}",
    "tekken": _TEKKEN,
}
_SINGLE_DIGITS = ("smollm",)
_WHOLE_WORDS_FIRST = ("llama-bpe", "tekken")  # a word that is a token is not put together from merges
_COMPOSED_FIRST = ("qwen2",)  # Unicode NFC
_OPENED = ("llama-bpe", "tekken")  # a text begins with the token of a beginning, if the file does not say


def read_tokenizer(file: GGUFFile) -> dict[str, object]:
    """The values of tokenizer.json."""
    reader = ConfigReader(file.metadata, str(file.path))
    kind = reader.word("tokenizer.ggml.model")
    texts = _texts(file, "tokenizer.ggml.tokens")
    if kind == "gpt2":
        parts = _byte_level(file, texts, reader.word("tokenizer.ggml.pre", "default"))
    elif kind == "llama":
        parts = _sentence_piece(file, texts)
    else:
        raise CheckpointError(f"{file.path}: tokenizer.ggml.model is {kind!r}; gpt2 and llama are read")
    return {"version": "1.0", "added_tokens": _added(file, texts), **parts}


def read_tokenizer_config(file: GGUFFile) -> dict[str, object]:
    """The values of tokenizer_config.json: roles of tokens and the chat template."""
    texts = _texts(file, "tokenizer.ggml.tokens")
    is_opened = (
        file.metadata.get("tokenizer.ggml.model") == "llama"
        or file.metadata.get("tokenizer.ggml.pre") in _OPENED
    )
    values: dict[str, object] = {
        "add_bos_token": bool(file.metadata.get("tokenizer.ggml.add_bos_token", is_opened))
    }
    for theirs, ours in _ROLES.items():
        token_id = file.metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(texts):
            values[f"{ours}_token"] = texts[token_id]
    template = file.metadata.get("tokenizer.chat_template")
    return values if template is None else {**values, "chat_template": template}


def _byte_level(file: GGUFFile, texts: Sequence[str], pre: str) -> dict[str, object]:
    if pre not in _PATTERNS:
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.pre is {pre!r}, which is not read; read are {', '.join(_PATTERNS)}"
        )
    pattern = _PATTERNS[pre]
    steps: list[object] = []
    if pre in _SINGLE_DIGITS:
        steps.append({"type": "Digits", "individual_digits": True})
    if pattern is not None:
        steps.append(
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        )
    steps.append(_byte_letters(has_pattern=pattern is None))
    merges = [text.split(" ", 1) for text in _texts(file, "tokenizer.ggml.merges")]
    return {
        "normalizer": {"type": "NFC"} if pre in _COMPOSED_FIRST else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": _byte_letters(has_pattern=True),
        "model": _bpe(texts, merges, {"ignore_merges": pre in _WHOLE_WORDS_FIRST}),
    }


def _byte_letters(*, has_pattern: bool) -> dict[str, object]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": has_pattern}


def _sentence_piece(file: GGUFFile, texts: Sequence[str]) -> dict[str, object]:
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(texts):
        raise CheckpointError(f"{file.path}: tokenizer.ggml.scores must be a list of {len(texts)} numbers")
    has_prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    unknown = file.metadata.get("tokenizer.ggml.unknown_token_id", 0)
    steps: list[object] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    normal = {
        text: float(score)  # type: ignore[arg-type]
        for text, score, kind in zip(texts, scores, _types(file, len(texts)), strict=True)
        if kind in (_NORMAL, _USER_DEFINED)
    }
    fallback = {
        "byte_fallback": True,
        "fuse_unk": True,
        "unk_token": texts[unknown] if isinstance(unknown, int) and unknown < len(texts) else None,
    }
    return {
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": _SPACE,
            "prepend_scheme": "first" if has_prefix else "never",
            "split": False,
        },
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": _bpe(texts, _merges_of(normal), fallback),
    }


def _merges_of(scores: Mapping[str, float]) -> list[list[str]]:
    """Every way to put a piece together from two others, the best piece first."""
    found = [
        (-score, len(text), cut, text)
        for text, score in scores.items()
        for cut in range(1, len(text))
        if text[:cut] in scores and text[cut:] in scores
    ]
    return [[text[:cut], text[cut:]] for *_, cut, text in sorted(found)]


def _bpe(texts: Sequence[str], merges: list[list[str]], more: Mapping[str, object]) -> dict[str, object]:
    vocabulary = {text: token_id for token_id, text in enumerate(texts)}
    return {"type": "BPE", "byte_fallback": False, "vocab": vocabulary, "merges": merges, **more}


def _added(file: GGUFFile, texts: Sequence[str]) -> list[dict[str, object]]:
    """Tokens that are found in a text before anything is merged; of those the control tokens are special."""
    types = _types(file, len(texts))
    return [
        {
            "id": token_id, "content": text, "special": kind == _CONTROL,
            "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
        }
        for token_id, (text, kind) in enumerate(zip(texts, types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]  # fmt: skip


def _types(file: GGUFFile, count: int) -> list[object]:
    found = file.metadata.get("tokenizer.ggml.token_type", [_NORMAL] * count)
    if not isinstance(found, list) or len(found) != count:
        raise CheckpointError(f"{file.path}: tokenizer.ggml.token_type must be a list of {count} numbers")
    return list(found)


def _texts(file: GGUFFile, key: str) -> list[str]:
    found = file.metadata.get(key)
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise CheckpointError(f"{file.path}: {key} must be a list of texts; convert the checkpoint again")
    return [str(text) for text in found]
