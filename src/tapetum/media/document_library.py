"""Documents that were opened, and which of their pages a question is about.

Owns what is kept of a document between requests: the sizes of its pages and the index of their texts, under the hash
of its file and the tenant who sent it, up to a number of bytes; never the file itself. Several who ask for a document
that is new have it counted once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import blake3

from tapetum.core.chat import DocumentPart
from tapetum.core.config import MediaConfig
from tapetum.core.errors import InvalidParameter
from tapetum.media.deadlines import GoOn
from tapetum.media.document import Document, check_sizes
from tapetum.media.document_index import PageIndex
from tapetum.media.document_process import DocumentProcesses, PdfFile
from tapetum.media.document_words import named_pages
from tapetum.media.source import SourceReader

KEPT_BYTES = 64 * 1024**2
MAX_PROCESSES = 4
_SIZE_BYTES = 160  # of memory for the size of a page
_WAIT_S = 0.05


@dataclass(frozen=True, slots=True)
class Question:
    """What a user wants to know: in the last message, and in the one before."""

    text: str = ""
    earlier: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Consultation:
    """A document and its pages, numbered from 1: those that a question names or that have words of it, the best
    first, and those on which no words can be found since there are none."""

    document: Document
    found: tuple[int, ...] = ()
    textless: tuple[int, ...] = ()


class DocumentLibrary:
    """All methods may be called from any thread."""

    def __init__(self, config: MediaConfig, processes: int, kept_bytes: int = KEPT_BYTES) -> None:
        self._reader = SourceReader(config)
        self._processes = DocumentProcesses(min(processes, MAX_PROCESSES), config.max_pages)
        self._kept_bytes = kept_bytes
        self._state = threading.Lock()  # guards all below
        self._sizes: OrderedDict[bytes, tuple[tuple[float, float], ...]] = OrderedDict()
        self._indexes: OrderedDict[bytes, PageIndex] = OrderedDict()
        self._counting: dict[bytes, threading.Event] = {}
        self.num_bytes = 0  # of what is kept

    def consult(self, part: DocumentPart, question: Question, tenant: str, go_on: GoOn) -> Consultation:
        """Open a document and look the question up; raises MediaError for one that cannot be opened."""
        data = self._reader.read_document(part.source, is_trusted=part.is_trusted, go_on=go_on)
        digest = blake3.blake3(data).digest()
        file = PdfFile(digest.hex(), data)
        key = blake3.blake3(digest + tenant.encode("utf-8", "surrogatepass")).digest()
        document = Document(file, digest, self._opened(file, key, go_on), self._processes)
        _check_numbers(part.pages, document.num_pages)
        if part.first_page is not None or document.num_pages == 1 or not question.text.strip():
            return Consultation(document)
        index = self._index(document, key, go_on)
        named = named_pages(question.text, document.num_pages)
        ranked = (page + 1 for page in index.ranked(question.text, question.earlier))
        textless = tuple(page + 1 for page in index.textless)
        return Consultation(document, tuple(dict.fromkeys((*named, *ranked))), textless)

    @property
    def num_crashes(self) -> int:
        """Processes that ended over a document, or otherwise than they should."""
        return self._processes.num_crashes

    def clear(self) -> None:
        with self._state:
            self._sizes.clear()
            self._indexes.clear()
            self.num_bytes = 0

    def close(self) -> None:
        self._processes.close()

    def _opened(self, file: PdfFile, key: bytes, go_on: GoOn) -> tuple[tuple[float, float], ...]:
        with self._state:
            if key in self._sizes:
                self._sizes.move_to_end(key)
                return self._sizes[key]
        sizes = tuple(self._processes.sizes(file, go_on))
        check_sizes(sizes)
        with self._state:
            if key not in self._sizes:
                self._sizes[key] = sizes
                self.num_bytes += _SIZE_BYTES * len(sizes)
                self._make_room()
        return sizes

    def _index(self, document: Document, key: bytes, go_on: GoOn) -> PageIndex:
        """Kept, or counted by whoever comes first."""
        while True:
            go_on()
            with self._state:
                if key in self._indexes:
                    self._indexes.move_to_end(key)
                    return self._indexes[key]
                counted = self._counting.get(key)
                if counted is None:
                    counted = self._counting[key] = threading.Event()
                    break
            counted.wait(_WAIT_S)
        try:
            index = self._processes.index(document.file, go_on)
            if index.num_bytes <= self._kept_bytes:  # else all others would go for nothing
                with self._state:
                    self._indexes[key] = index
                    self.num_bytes += index.num_bytes
                    self._make_room()
            return index
        finally:
            with self._state:
                del self._counting[key]
            counted.set()

    def _make_room(self) -> None:
        """Forget what was used least recently: indexes first, which weigh most."""
        while self.num_bytes > self._kept_bytes and self._indexes:
            _, index = self._indexes.popitem(last=False)
            self.num_bytes -= index.num_bytes
        while self.num_bytes > self._kept_bytes and self._sizes:
            _, sizes = self._sizes.popitem(last=False)
            self.num_bytes -= _SIZE_BYTES * len(sizes)


def _check_numbers(pages: Sequence[int], num_pages: int) -> None:
    if pages and max(pages) > num_pages:
        raise InvalidParameter(
            f"pages holds {max(pages)}, the document has {num_pages} pages; ask for some of them",
            param="pages",
        )
