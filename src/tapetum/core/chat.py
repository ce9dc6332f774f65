"""What a client says: messages of text and media, before any template or decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from tapetum.core.checks import shown
from tapetum.core.errors import InvalidParameter
from tapetum.core.media import EXACT, MediaKind, PagesSeen, Reuse

DocumentMode = Literal["retrieve", "map_reduce"]
MAX_PAGES = 8  # of a document that are seen, where nothing else is said
_MOST_PAGES = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MediaPart:
    """A reference to one picture or clip.

    source: bytes of a file, a path, a `data:` or `file:` URL, a PIL picture or a uint8 array [H, W, 3]; for a clip
    a file of a video, or a sequence of pictures, one per frame in order. options: what `ProcessorOptions` knows, such
    as min_pixels, max_pixels, max_visual_tokens, detail, fps.
    """

    kind: MediaKind
    source: object
    options: Mapping[str, object] = field(default_factory=dict)
    is_trusted: bool = False  # the operator's own reference (offline use): paths are not confined to a root


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentPart(MediaPart):
    """A reference to a PDF document, in whose place a model sees pages of it as pictures.

    mode: `retrieve` shows the pages that the last question is about, at most `max_pages` and no more than fit;
    `map_reduce` has all of them read, some after the others, before the question is answered. pages: numbers from 1;
    no others are seen then. page_text: what is written on a page follows its picture. first_page: pages in order from
    this number on, as many as fit, whatever was asked. `options` are those of each page as a picture.
    """

    kind: MediaKind = "image"
    name: str | None = None
    mode: DocumentMode = "retrieve"
    max_pages: int = MAX_PAGES
    pages: tuple[int, ...] = ()
    page_text: bool = False
    first_page: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(DocumentMode):
            raise InvalidParameter(
                f"mode is {shown(self.mode)}, must be {' or '.join(get_args(DocumentMode))}", param="mode"
            )
        if type(self.max_pages) is not int or not 1 <= self.max_pages <= _MOST_PAGES:
            raise InvalidParameter(
                f"max_pages is {shown(self.max_pages)}, allowed are 1 to {_MOST_PAGES}", param="max_pages"
            )
        is_list = isinstance(self.pages, tuple)
        if not is_list or not all(type(page) is int and page >= 1 for page in self.pages):
            raise InvalidParameter(
                f"pages is {shown(self.pages)}, must be a list of numbers from 1 on", param="pages"
            )
        if len(self.pages) > _MOST_PAGES:
            raise InvalidParameter(
                f"pages holds {len(self.pages)} numbers, limit {_MOST_PAGES}; send fewer", param="pages"
            )
        if type(self.page_text) is not bool:
            raise InvalidParameter(
                f"page_text is {shown(self.page_text)}, must be true or false", param="page_text"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a function that the model made in an earlier turn."""

    id: str
    name: str
    arguments: str  # JSON text of an object


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """One turn: strings and media in the order in which the model sees them."""

    role: str
    content: tuple[str | MediaPart, ...]
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant turn
    tool_call_id: str | None = None  # of a tool turn: which call it answers
    name: str | None = None
    reasoning: str | None = None  # of an assistant turn: what it thought before it spoke


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChatInput:
    """Messages that go through the model's chat template."""

    messages: tuple[Message, ...]
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False  # the answer goes on where the last message ends
    tools: tuple[Mapping[str, object], ...] = ()  # {"type": "function", "function": {...}} as in OpenAI's API
    max_visual_tokens: int | None = None  # of all media together, shared out by their areas
    reuse: Reuse = EXACT
    num_choices: int = 1  # answers to it
    pages: tuple[PagesSeen, ...] = ()  # of documents that stood here and have been read


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextInput:
    """A prompt the caller wrote whole: special tokens in it count, each placeholder takes the next media part."""

    prompt: str | tuple[int, ...]  # text, or token ids
    media: tuple[MediaPart, ...] = ()
    max_visual_tokens: int | None = None
    reuse: Reuse = EXACT
    num_choices: int = 1  # as of a chat
