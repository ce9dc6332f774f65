"""Text to token ids and back, for the tokenizer of one checkpoint.

Owns the line between text and special tokens: `encode_plain` never yields a special token, whatever its text
says, and `split` is the one place where special tokens are found. The underlying object is set at load and only
read from then on, so one Tokenizer serves many threads; encoding leaves the interpreter lock free.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import llguidance
import tokenizers

from tapetum.core.errors import CheckpointError, InvalidParameter, PromptTooLong
from tapetum.core.files import read_json
from tapetum.core.media import MediaKind
from tapetum.text.bare_vocabulary import from_vocabulary
from tapetum.text.vocabulary import NumberTokens, build_trie, number_tokens

# how the library writes down whether a space is put before the first word
_FIRST_SPACE, _NO_SPACE = '"prepend_scheme":"first"', '"prepend_scheme":"never"'
_SLICE = 32_768  # characters of a long text that are counted at a time
_LOST_AT_A_CUT = 256  # tokens; more than a cut through the longest token can add


class Tokenizer:
    """`special_tokens` maps text to id, `slots` the id of what marks the place of a picture or clip to its kind.

    A mark that is no token of the vocabulary has an id behind it. `opening` are the tokens that begin a text by itself.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, slots: Mapping[str, MediaKind], opening: Sequence[int] = ()
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self._backend, self._inner = backend, _without_first_space(backend)
        for each in (self._backend, self._inner):
            each.encode_special_tokens = True  # special tokens in text are text; `split` finds the true ones
        self.opening = tuple(opening)
        added = backend.get_added_tokens_decoder()
        special = [token for token in added.values() if token.special]
        self.special_tokens = {token.content: token_id for token_id, token in added.items() if token.special}
        self.special_ids = frozenset(self.special_tokens.values())
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        words = [text for text in slots if text not in self.special_tokens]
        self._marks = self.special_tokens | {
            text: self.vocab_size + index for index, text in enumerate(words)
        }
        self.slot_texts = dict(slots)
        self.slots = {self._marks[text]: kind for text, kind in slots.items()}
        self._left_stripping = {token.content for token in special if token.lstrip}
        self._pattern = _special_pattern([*special, *map(tokenizers.AddedToken, words)])

    @classmethod
    def load(cls, directory: Path, slots: Mapping[int | str, MediaKind] | None = None) -> Tokenizer:
        """From tokenizer.json or what it is made of; tokenizer_config.json and `slots` add which tokens are special."""
        path = directory / "tokenizer.json"
        backend = _from_file(path) if path.is_file() else from_vocabulary(directory)
        named = {_text_of(mark, backend, path): kind for mark, kind in (slots or {}).items()}
        config = read_json(directory / "tokenizer_config.json") or {}
        opening = _opening(config, backend)
        _make_special(backend, {*_declared(config), *named})
        return cls(backend, slots=named, opening=opening)

    def encode_plain(
        self, text: str, max_tokens: int | None = None, *, is_first: bool = False
    ) -> tuple[int, ...]:
        """Ids of `text`; what looks like a special token in it is tokenised as the characters it is of.

        `is_first`: nothing stands before it, not even a special token; some tokenizers put a space there.
        A long text that surely has more than `max_tokens` is refused after a look at as little of it as that takes.
        """
        if max_tokens is not None and len(text) > _SLICE:
            self._check_long(text, max_tokens)
        try:
            backend = self._backend if is_first else self._inner
            return tuple(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidParameter(
                "text holds half a character (a lone surrogate); send whole ones"
            ) from error

    def _check_long(self, text: str, max_tokens: int) -> None:
        """Count slice by slice. A cut through a token adds a few; so many are not counted at each cut."""
        count = 0
        for start in range(0, len(text), _SLICE):
            count += max(0, len(self.encode_plain(text[start : start + _SLICE])) - _LOST_AT_A_CUT)
            if count > max_tokens:
                raise PromptTooLong(
                    f"prompt has more than {count} tokens, limit {max_tokens}; shorten it or raise --max-model-len"
                )

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text whose special tokens count."""
        ids: list[int] = []
        for index, piece in enumerate(self.split(text)):
            if isinstance(piece, str):
                ids.extend(self.encode_plain(piece, is_first=index == 0))
            elif piece < self.vocab_size:
                ids.append(piece)
            else:  # a mark that is no token
                ids.extend(
                    self.encode_plain(next(name for name, mark in self._marks.items() if mark == piece))
                )
        return tuple(ids)

    @property
    def marks(self) -> frozenset[str]:
        """The texts that `split` finds."""
        return frozenset(self._marks)

    def split(self, text: str) -> Iterator[str | int]:
        """The text between special tokens and, as ids, the special tokens and marks themselves, in order."""
        end = 0
        for match in self._pattern.finditer(text):
            token = match[match.lastindex or 0]
            run = text[end : match.start()]
            if run := run.rstrip() if token in self._left_stripping else run:
                yield run
            yield self._marks[token]
            end = match.end()
        if end < len(text):
            yield text[end:]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=skip_special))

    @cached_property
    def trie(self) -> llguidance.LLTokenizer:
        """The vocabulary as grammars look through it; made at its first use, which takes a moment.

        Its end of sequence is a mark of where an answer may end, put on a token that no text ever holds.
        """
        mark = min(self.special_ids.intersection(self.slots) or self.special_ids)
        return build_trie(str(self._inner.to_str()), special_ids=self.special_ids, end_mark=mark)

    @cached_property
    def number_tokens(self) -> NumberTokens:
        """The tokens that go on with a number; found at its first use."""
        return number_tokens(self.trie)

    def to_json(self) -> str:
        """What a tokenizer of another process is made from, together with `slot_texts`."""
        return str(self._backend.to_str())

    def token_id(self, token: str) -> int | None:
        found: int | None = self._backend.token_to_id(token)
        return found

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to a text: a token may hold a part of a character only."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        is_byte_level = isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel)
        if is_byte_level and all(char in _BYTE_OF_CHAR for char in token):
            return bytes(_BYTE_OF_CHAR[char] for char in token)
        if match := re.fullmatch("<0x([0-9A-F]{2})>", token):
            return bytes.fromhex(match[1])
        return self.decode((token_id,), skip_special=False).encode()


def _without_first_space(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """One that writes text as it does further behind: the tokenizer itself, or where it puts a space before the first
    word of what it is given (SentencePiece, as Llama and Mistral use it), another of the same vocabulary."""
    cutter = backend.pre_tokenizer
    if cutter is None or _FIRST_SPACE not in cutter.__getstate__().decode():
        return backend
    return tokenizers.Tokenizer.from_str(backend.to_str().replace(_FIRST_SPACE, _NO_SPACE))


def _opening(config: Mapping[str, object], backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    """What the checkpoint puts before a text: as tokenizer_config.json says, else as tokenizer.json does."""
    adds_begin = config.get("add_bos_token")
    if adds_begin is None:
        return tuple(backend.encode("", add_special_tokens=True).ids)
    begin = backend.token_to_id(special_names(config).get("bos_token", ""))
    return (begin,) if adds_begin and begin is not None else ()


def _from_file(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} cannot be read: {error}; fetch the checkpoint again") from error


def special_names(tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    """Roles such as `eos_token`, and the text of the token each stands for."""
    names: dict[str, str] = {}
    for key, value in tokenizer_config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            names[key] = content
    return names


def _text_of(mark: int | str, backend: tokenizers.Tokenizer, path: Path) -> str:
    text = backend.id_to_token(mark) if isinstance(mark, int) else mark
    if text is None:
        raise CheckpointError(
            f"{path} has no token {mark}, by which the model knows the place of a picture; "
            "fetch the checkpoint again"
        )
    return str(text)


def _declared(tokenizer_config: Mapping[str, object]) -> set[str]:
    """The tokens that tokenizer_config.json calls special."""
    names = set(special_names(tokenizer_config).values())
    extra = tokenizer_config.get("additional_special_tokens")
    added = tokenizer_config.get("added_tokens_decoder")
    entries = [
        *(extra if isinstance(extra, list) else ()),
        *(added.values() if isinstance(added, dict) else ()),
    ]
    for entry in entries:
        if isinstance(entry, str):
            names.add(entry)
        elif isinstance(entry, dict) and entry.get("special") and isinstance(entry.get("content"), str):
            names.add(entry["content"])
    return names


def _make_special(backend: tokenizers.Tokenizer, declared: Iterable[str]) -> None:
    """Mark what the checkpoint declares special elsewhere: a placeholder must not come out of plain text."""
    marked = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [name for name in declared if name not in marked and backend.token_to_id(name) is not None]
    backend.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in sorted(missing)])


def _special_pattern(special: Iterable[tokenizers.AddedToken]) -> re.Pattern[str]:
    """Matches one special token, the longest first; its group is its text, without white space."""
    special = sorted(special, key=lambda token: -len(token.content))
    if special and not any(token.single_word or token.rstrip for token in special):
        # In this form the search skips to the first character of a token: a thousand times faster on long texts.
        return re.compile(f"({'|'.join(re.escape(token.content) for token in special)})")
    alternatives = [
        r"(?<!\w)" * token.single_word
        + f"({re.escape(token.content)})"
        + r"(?!\w)" * token.single_word
        + r"\s*" * token.rstrip
        for token in special
    ]
    return re.compile("|".join(alternatives) or r"(?!)")


def _byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte, inverted (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in set(printable))
    shifted = {chr(256 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


_BYTE_OF_CHAR = _byte_alphabet()
