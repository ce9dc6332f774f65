"""What `tapetum doctor` finds: the checkpoint on paper, its tokenizer and template, and the names of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tapetum.core.chat import ChatInput, MediaPart, Message
from tapetum.core.errors import CheckpointError, RequestError
from tapetum.core.media import Geometry
from tapetum.engine.arrange import TextTokens, arrange
from tapetum.engine.files import ModelFiles
from tapetum.engine.paper import Paper, read_paper
from tapetum.models.stores import Store, has_tensors, indexed_names, open_store
from tapetum.models.weights import NameTable
from tapetum.text.abilities import TemplateAbilities

SIZES = ((224, 224), (448, 448), (640, 480), (1280, 720), (1920, 1080), (2480, 3508))


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a picture of one size becomes; None = the family refuses the shape."""

    size: tuple[int, int]
    geometry: Geometry | None
    prompt_tokens: int = 0  # visual ones, and what the family writes around them


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Tokenizer and chat template. The refusals are the template's own words; empty = it takes such a message."""

    vocab_size: int
    special_tokens: tuple[str, ...]
    end_tokens: tuple[str, ...]
    abilities: TemplateAbilities
    chat_refusal: str
    picture_refusal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """The stored tensors beside those that the model is made of, by name and shape; no value is read."""

    num_files: int  # 0 = only the index is there, which names them
    num_stored: int
    kinds: tuple[str, ...]  # what values are stored as
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    misshapen: tuple[str, ...] = ()  # a sentence each
    unreadable: tuple[str, ...] = ()  # likewise

    @property
    def problem(self) -> str:
        """One sentence; empty = all is well."""
        if self.unreadable:
            return self.unreadable[0]
        for found, what in (
            (self.missing, "lacks tensors that the config asks for"),
            (self.unknown, "holds tensors that no part of the model uses"),
            (self.misshapen, "holds tensors of other shapes than the config says"),
        ):
            if found:
                return f"the checkpoint {what}, the first is {found[0]}; download it again"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    paper: Paper
    text: Text
    pictures: tuple[Picture, ...]
    tensors: Tensors | None  # None = no weights are there, and no index


def examine(directory: Path) -> Examination:
    """Reads config, tokenizer and processor files, and the names of tensors where there are any."""
    paper = read_paper(directory)
    files = ModelFiles.load(directory)
    return Examination(
        paper=paper,
        text=_text(files, paper),
        pictures=tuple(_picture(files, paper, size) for size in SIZES) if paper.takes_pictures else (),
        tensors=_tensors(directory, paper.blueprint.table),
    )


def _tensors(directory: Path, table: NameTable) -> Tensors | None:
    if has_tensors(directory):
        return compare(table, open_store(directory))
    names = {table.canonical(name) for name in indexed_names(directory)}
    if not names:
        return None
    missing, unknown = table.differences(names)
    return Tensors(num_files=0, num_stored=len(names), kinds=(), missing=missing, unknown=unknown)


def compare(table: NameTable, store: Store) -> Tensors:
    homes = {table.canonical(name): name for name in store.names}
    missing, unknown = table.differences(homes)
    return Tensors(
        num_files=len(store.stamps),
        num_stored=len(homes),
        kinds=tuple(sorted({store.kind(name) for name in homes.values()})),
        missing=missing,
        unknown=unknown,
        misshapen=tuple(
            f"{' + '.join(slot.sources)}: {joined} in place of {slot.shape}"
            for slot in table.slots
            if slot.convert is None and all(source in homes for source in slot.sources)
            if (joined := _joined([store.shape(homes[source]) for source in slot.sources])) != slot.shape
        ),
        unreadable=tuple(
            refusal
            for slot in table.slots
            for source in slot.sources
            if source in homes and (refusal := store.refusal(homes[source]))
        ),
    )


def _joined(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Of tensors joined along the first axis."""
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _text(files: ModelFiles, paper: Paper) -> Text:
    names = {token_id: text for text, token_id in files.tokenizer.special_tokens.items()}
    ends = files.defaults.eos_token_ids
    return Text(
        vocab_size=files.tokenizer.vocab_size,
        special_tokens=tuple(files.tokenizer.special_tokens),
        end_tokens=tuple(names.get(token_id, str(token_id)) for token_id in sorted(ends)),
        abilities=files.template.abilities,
        chat_refusal=_refusal(files, "Hello"),
        picture_refusal=_refusal(files, MediaPart(kind="image", source=b""), "Hello")
        if paper.takes_pictures
        else "",
    )


def _refusal(files: ModelFiles, *content: str | MediaPart) -> str:
    try:
        files.template.render(ChatInput(messages=(Message(role="user", content=content),)))
    except RequestError as error:
        return error.message
    return ""


def _picture(files: ModelFiles, paper: Paper, size: tuple[int, int]) -> Picture:
    geometry = paper.geometry(*size)
    if geometry is None:
        return Picture(size=size, geometry=None)
    tokens = TextTokens(files.tokenizer.encode_plain, files.tokenizer.special_tokens)
    try:
        arranged = arrange([MediaPart(kind="image", source=b"")], [paper.processor.expand(geometry)], tokens)
    except KeyError as error:
        raise CheckpointError(
            f"tokenizer.json has no token {error.args[0]!r}, which stands around a picture; fetch the checkpoint again"
        ) from error
    return Picture(size=size, geometry=geometry, prompt_tokens=arranged.num_tokens)
