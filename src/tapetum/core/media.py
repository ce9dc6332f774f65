"""Pictures and clips as the engine sees them: their shape, their identity, their place in a prompt.

Owns no pixels work: `patches` is an opaque array that only the processing and runtime layers look into.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

MediaKind = Literal["image", "video"]
ProcessorMode = Literal["exact", "fast"]  # the pixels of the reference, or nearly those in half the time
Rung = Literal["high", "medium", "low", "thumbnail"]
PARTS: Mapping[Rung, int] = {"high": 1, "medium": 2, "low": 4, "thumbnail": 16}  # of the area, one of so many
# less of it for the load, or for time; or what was computed of another picture, or of it in another place
ChosenBy = Literal["question", "order", "request", "all"]
DegradationReason = Literal["load", "timeout", "budget", "near_duplicate", "position_independent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """Why a model sees less of a picture or clip than was asked for, or something not quite it."""

    reason: DegradationReason
    requested: tuple[int, int] | None = None  # width, height at full size, where that is known
    rung: Rung | None = None  # what it got instead; None = the model sees nothing of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """What a request may be answered with besides exactly what its own pictures give. Each costs some accuracy."""

    near_duplicate: bool = False  # features of a picture that is all but equal
    position_independent: bool = False  # keys and values of the same picture in another place


EXACT = Reuse()


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesSeen:
    """Which pages of a document a model saw, by their numbers from 1, in that order.

    chosen_by: `question`, those that have most of its words; `order`, the first ones, since none has any; `request`,
    those that were asked for by number; `all`, every page.
    """

    document: int  # its place among the documents of the request, from 0
    name: str | None
    pages: tuple[int, ...]
    num_pages: int
    chosen_by: ChosenBy


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The shape of one picture or clip for one model family, known from the file's header alone."""

    kind: MediaKind
    original: tuple[int, int]  # width, height in pixels, upright
    used: tuple[int, int]  # width, height after the resize
    frames: int  # frames that reach the encoder, 1 for a picture
    grid_thw: tuple[int, int, int]  # patches: time, or tiles of a tiled picture, then height, width of each
    num_tokens: int  # visual tokens after merging
    segments: tuple[int, ...]  # patches of each attention segment (picture, frame or window)
    seconds_per_grid: float = 0.0  # seconds between two steps of the time axis, 0 for a picture
    tiles: tuple[int, int] | None = None  # columns, rows of tiles, beside an overview; None = not tiled
    frame_times: tuple[float, ...] = ()  # seconds of each frame, for families whose prompt tells them

    @property
    def num_patches(self) -> int:
        return prod(self.grid_thw)

    @property
    def squares(self) -> int:
        """Σ P² over attention segments, what attention in the encoder grows with."""
        return sum(size * size for size in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An attention segment of an item whose content is known by itself: a tile, or a window.

    Parts of equal keys are encoded alike wherever they lie, and then equal are the features in `runs`, (start, end) of
    the visual tokens; none = they hold nothing that is this part's alone.
    """

    key: bytes  # 32 bytes, BLAKE3 over pixels, processing and tenant
    runs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MediaItem:
    """One picture or clip, ready to encode. `key` alone identifies its content and processing."""

    key: bytes  # 32 bytes, BLAKE3 over pixels, processing and tenant
    geometry: Geometry
    patches: object  # uint8 array [P, values of a patch] in merge order
    parts: tuple[Part, ...] = ()  # one for each of the geometry's segments, where these are known
    processor: ProcessorMode = "exact"
    degraded: Degradation | None = None  # for the request that has it
    # the key of one that looks the same: how far apart their features are is told
    compared_with: bytes | None = None
    alias: bytes = b""  # of what was decoded: it leads here without decoding; empty = nobody needs to know
    is_reserved: bool = False  # the engine keeps its features for the request: it comes without patches
    fetch_s: float = 0.0
    decode_s: float = 0.0
    resize_s: float = 0.0  # with the cut into patches and the key


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The tokens `[start, end)` of a prompt that are bound to one media item, first placeholder to last.

    `runs` are the placeholders among them, (start, end) from the span's start on, where others stand between; empty =
    all are. The features of the item go to the placeholders in order.
    """

    start: int
    end: int
    item: MediaItem
    placement: tuple[float, ...]  # what the item's positions depend on besides `start`, e.g. its merged grid
    runs: tuple[tuple[int, int], ...] = ()
    position: int = 0  # the rotary position at which it begins
    is_atomic: bool = False  # its tokens see each other both ways, so none is computed without the others

    @property
    def key(self) -> bytes:
        return self.item.key

    @property
    def num_tokens(self) -> int:
        """Visual tokens, without what stands between them."""
        return sum(end - start for start, end in self.placeholders)

    @property
    def placeholders(self) -> tuple[tuple[int, int], ...]:
        """The runs of placeholders, (start, end) in the prompt."""
        runs = self.runs or ((0, self.end - self.start),)
        return tuple((self.start + start, self.start + end) for start, end in runs)
