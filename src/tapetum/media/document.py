"""A PDF document and its pages, as references to pictures that are not drawn yet.

Owns what a page is before it is a picture: how large it is taken to be, what makes it the same page as another, how it
is stretched to the size that a model sees. A page that was seen before is known by its file, its number and its size,
so nobody draws it again. Does not own the drawing itself (document_process.py) or the file's way here (source.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from PIL import Image

from tapetum.core.errors import MediaError, MediaTooLarge
from tapetum.media.deadlines import GoOn
from tapetum.media.document_process import DocumentProcesses, PdfFile

DPI = 128  # at which a page is taken to be a picture: about 2000 visual tokens of 28 pixels for a sheet of A4
_POINTS = 72  # of PDF in an inch
MAX_SIDE = 20_000.0  # points, seven metres
_NEARLY = 1.25  # of the aspect, up to which a page is stretched as a resize would do it
_MOST_PIXELS = 2**24  # of a page that is drawn in its own shape
START_BYTES = 1024  # in which the mark of a PDF file stands
_MARK = b"%PDF-"


def is_pdf(data: bytes) -> bool:
    """Whether a file begins as a PDF document does."""
    return data.find(_MARK, 0, START_BYTES) >= 0


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A file that has been opened; `digest` is of its bytes, `sizes` are those of its pages in points."""

    file: PdfFile
    digest: bytes
    sizes: tuple[tuple[float, float], ...]
    processes: DocumentProcesses

    @property
    def num_pages(self) -> int:
        return len(self.sizes)

    def texts(self, pages: Sequence[int], go_on: GoOn) -> list[str]:
        """What is written on pages, which are numbered from 1."""
        return self.processes.texts(self.file, [number - 1 for number in pages], go_on)

    def page(self, number: int) -> Page:
        """Numbers are as people count, from 1."""
        return Page(self, number - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """One page, which can be drawn at any size; `index` counts from 0."""

    document: Document
    index: int

    @property
    def size(self) -> tuple[int, int]:
        """Upright width and height in pixels, as a picture of it would have."""
        width, height = self.document.sizes[self.index]
        return max(1, round(width * DPI / _POINTS)), max(1, round(height * DPI / _POINTS))

    @property
    def identity(self) -> tuple[tuple[str, bytes | str | int], ...]:
        """What decides, next to a size, which pixels it gives."""
        return (
            ("document", self.document.digest),
            ("page", self.index),
            ("resolution", DPI),
            ("renderer", renderer_version()),
        )

    def picture(self, used: tuple[int, int], go_on: GoOn) -> Image.Image:
        """The page at the `used` size, where that has nearly its shape; else in its own shape and, within
        reason, no smaller."""
        size = _drawn(self.size, used)
        pixels = self.document.processes.render(self.document.file, self.index, size, go_on)
        return Image.frombytes("RGB", size, pixels)


def check_sizes(sizes: Sequence[tuple[float, float]]) -> None:
    """Raises MediaError for pages that no paper has."""
    for number, (width, height) in enumerate(sizes, 1):
        if not (math.isfinite(width) and math.isfinite(height) and min(width, height) > 0):
            raise MediaError(f"page {number} of the document has no size; save it again")
        if max(width, height) > MAX_SIDE:
            raise MediaTooLarge(
                f"page {number} of the document is {width:.0f}x{height:.0f} points, limit {MAX_SIDE:.0f} a side; "
                "send a picture of the part that counts"
            )


def renderer_version() -> str:
    """What draws pages: another one may draw other pixels."""
    try:
        return f"pypdfium2 {version('pypdfium2')}"
    except PackageNotFoundError:  # installed without its record
        return "pypdfium2"


def _drawn(size: tuple[int, int], used: tuple[int, int]) -> tuple[int, int]:
    across, down = used[0] / size[0], used[1] / size[1]
    if max(across, down) <= _NEARLY * min(across, down):
        return used
    scale = min(max(across, down), math.sqrt(_MOST_PIXELS / (size[0] * size[1])))
    return max(1, int(size[0] * scale)), max(1, int(size[1] * scale))
