"""The process that reads PDF files, which nobody can trust: `python -m tapetum.media.document_child`.

Owns PDFium, which is not safe for several threads and may crash or never come back, and the limits of the process. It
does one thing at a time for the process that started it (document_process.py), over its standard input and output, and
ends with it. A message is JSON behind its length in 8 bytes, little end first, and then as many bytes as it says.

Owns no policy: how much is too much is said by who asks, and time is the asker's to keep.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import BinaryIO

import pypdfium2
import pypdfium2.raw as pdfium

from tapetum.media.document_index import PageIndex

_WATCH_S = 1.0
_OPEN_FILES = 32
_PASSWORD_ERRORS = (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY)
_FLAGS = pdfium.FPDF_ANNOT | pdfium.FPDF_REVERSE_BYTE_ORDER


class Refused(Exception):
    """A document or page that will not do; the text says why."""


class Documents:
    """One open document; another takes its place."""

    def __init__(self) -> None:
        self._document: pypdfium2.PdfDocument | None = None

    def open(self, data: bytes, max_pages: int) -> list[tuple[float, float]]:
        """The sizes of its pages in points."""
        self._close()
        try:
            document = pypdfium2.PdfDocument(data)
        except pypdfium2.PdfiumError as error:
            is_locked = getattr(error, "err_code", None) in _PASSWORD_ERRORS
            raise Refused(
                "is encrypted; send it without a password"
                if is_locked
                else "is broken or no PDF; save it again"
            ) from error
        self._document = document
        count = len(document)
        if not 0 < count <= max_pages:
            raise Refused(
                f"has {count} pages, limit {max_pages}; send a part of it"
                if count
                else "has no pages; save it again"
            )
        if document.get_formtype() != pdfium.FORMTYPE_NONE:
            document.init_forms()
        return [_size(document, index) for index in range(count)]

    def texts(self, pages: Sequence[int], max_chars: int) -> list[str]:
        """What is written on pages, in the order of the file, each at most so long."""
        return [self._text(page, max_chars) for page in pages]

    def index(self, max_chars: int) -> PageIndex:
        assert self._document is not None, "asked for before"
        return PageIndex.of(self._text(page, max_chars) for page in range(len(self._document)))

    def render(self, number: int, width: int, height: int) -> memoryview:
        """RGB, row by row, upright, on white."""
        page = self._page(number)
        try:
            buffer = ctypes.create_string_buffer(width * height * 3)
            bitmap = pdfium.FPDFBitmap_CreateEx(width, height, pdfium.FPDFBitmap_BGR, buffer, width * 3)
            if not bitmap:
                raise Refused(f"cannot be drawn at {width}x{height} pixels; lower max_pixels")
            pdfium.FPDFBitmap_FillRect(bitmap, 0, 0, width, height, 0xFFFFFFFF)
            area = (0, 0, width, height, 0, _FLAGS)
            pdfium.FPDF_RenderPageBitmap(bitmap, page.raw, *area)
            if page.formenv is not None:
                pdfium.FPDF_FFLDraw(page.formenv.raw, bitmap, page.raw, *area)
            pdfium.FPDFBitmap_Destroy(bitmap)
            return memoryview(buffer)
        finally:
            page.close()

    def _text(self, number: int, max_chars: int) -> str:
        """Of a page that cannot be read there is none: others may still be found."""
        try:
            page = self._page(number)
        except Refused:
            return ""
        try:
            text = page.get_textpage()
            count = min(text.count_chars(), max_chars)
            return text.get_text_range(0, count, errors="ignore") if count > 0 else ""
        except pypdfium2.PdfiumError:
            return ""
        finally:
            page.close()

    def _page(self, number: int) -> pypdfium2.PdfPage:
        assert self._document is not None, "asked for before"
        try:
            return self._document[number]
        except pypdfium2.PdfiumError as error:
            raise Refused(_unreadable(number)) from error

    def _close(self) -> None:
        if self._document is not None:
            self._document.close()
        self._document = None


def _size(document: pypdfium2.PdfDocument, number: int) -> tuple[float, float]:
    try:
        width, height = document.get_page_size(number)
    except pypdfium2.PdfiumError as error:
        raise Refused(_unreadable(number)) from error
    return width, height


def _unreadable(number: int) -> str:
    return f"cannot be read at page {number + 1}; save it again"


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the server decides when this ends
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    _limit(int(sys.argv[1]))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    documents = Documents()
    questions = sys.stdin.buffer
    while True:
        asked = json.loads(_read(questions, int.from_bytes(_read(questions, 8), "little")))
        payloads = [_read(questions, size) for size in asked["sizes"]]
        try:
            told, parts = _answer(documents, asked, payloads)
        except Refused as error:
            told, parts = {"refusal": str(error)}, ()
        except pypdfium2.PdfiumError as error:
            told, parts = {"refusal": f"cannot be read ({error}); save it again"}, ()
        except MemoryError:
            told, parts = {"refusal": "takes more memory than it may; send a part of it"}, ()
        head = json.dumps({**told, "sizes": [len(part) for part in parts]}).encode()
        for piece in (len(head).to_bytes(8, "little"), head, *parts):
            answers.write(piece)
        answers.flush()


def _answer(
    documents: Documents, asked: dict[str, object], payloads: list[bytes]
) -> tuple[dict[str, object], tuple[bytes | memoryview, ...]]:
    match asked:
        case {"do": "open", "max_pages": int(most)}:
            return {"pages": documents.open(payloads[0], most)}, ()
        case {"do": "index", "max_chars": int(most)}:
            return {}, documents.index(most).parts()
        case {"do": "text", "pages": list(pages), "max_chars": int(most)}:
            return {"texts": documents.texts(pages, most)}, ()
        case {"do": "render", "page": int(page), "width": int(width), "height": int(height)}:
            return {}, (documents.render(page, width, height),)
    raise AssertionError(f"asked for {asked}")


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        sys.exit(0)  # who asked is gone
    return data


def _limit(memory_bytes: int) -> None:
    """What a file can make of this process: no more memory, no files, no core."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    limits = (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
    )
    for kind, limit in limits:
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _end_with(parent: int) -> None:
    """Also in the middle of a page that takes for ever."""
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(0)


if __name__ == "__main__":
    main()
