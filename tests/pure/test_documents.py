"""PDF documents from a file to pictures: what is refused, what is kept, and what a crash of the reader costs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tapetum.core.chat import DocumentPart, MediaPart
from tapetum.core.config import MediaConfig
from tapetum.core.errors import InvalidParameter, MediaError, MediaForbidden, MediaTimeout, MediaTooLarge
from tapetum.media import document_process
from tapetum.media.deadlines import GivenUp, GoOn
from tapetum.media.document_index import PageIndex
from tapetum.media.document_library import Consultation, DocumentLibrary, Question
from tapetum.media.document_process import DocumentProcesses, PdfFile
from tapetum.media.ingest import Ingest
from tests.documents import bomb_pdf, encrypted_pdf, locked_pdf, pages_claimed_pdf, pdf
from tests.handbook import NUM_QUESTIONS, handbook, questions
from tests.processors import make_processor

PAGES = [
    f"Chapter {number}\nThe harbour of town {number} has {37 * number} boats." for number in range(1, 31)
]
FILE = pdf(PAGES)
NUM_DAMAGED = int(os.environ.get("NUM_DAMAGED_PDFS", "40"))
PROCESSOR = make_processor(image={"min_pixels": 3136, "max_pixels": 2_000_000})
RED = b"1 0 0 rg 0 0 300 842 re f\n"


def go_on() -> None:
    """Somebody waits."""


@pytest.fixture
def processes() -> Iterator[DocumentProcesses]:
    made = DocumentProcesses(2, 100)
    yield made
    made.close()


@pytest.fixture
def ingest() -> Iterator[Ingest]:
    made = Ingest(PROCESSOR, MediaConfig(max_pages=600), workers=2)
    yield made
    made.close()


def consult(
    ingest: Ingest, data: bytes = FILE, question: str = "", tenant: str = "", **fields: object
) -> Consultation:
    part = DocumentPart(source=data, is_trusted=True, **fields)
    return ingest.consult(part, Question(question), tenant=tenant).result(30)


def test_a_document_is_opened_searched_read_and_drawn(processes: DocumentProcesses) -> None:
    file = PdfFile("a", pdf(PAGES, drawing=RED))
    assert processes.sizes(file, go_on) == [(595.0, 842.0)] * 30
    assert processes.index(file, go_on).ranked("How many boats has town 17?")[0] == 16
    assert processes.texts(file, [2], go_on) == [PAGES[2].replace("\n", "\r\n")]
    pixels = np.frombuffer(processes.render(file, 0, (119, 168), go_on), np.uint8).reshape(168, 119, 3)
    assert pixels[100, 10].tolist() == [255, 0, 0], "colours are in the order of RGB"
    assert pixels[100, 110].tolist() == [255, 255, 255], "a page without a ground is white"
    assert processes.num_processes == 1


def test_every_script_has_a_text_layer(processes: DocumentProcesses) -> None:
    text = "東京タワー größer Ελλάδα"
    assert processes.texts(PdfFile("a", pdf([text])), [0], go_on) == [text]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encrypted_pdf(), "encrypted"),
        (locked_pdf(b"owner", b"user"), "encrypted"),
        (pages_claimed_pdf(90), "at page 2"),
        (pages_claimed_pdf(10**6), "1000000 pages, limit 100"),
        (b"%PDF-1.7 and nothing else", "broken"),
        (FILE[: len(FILE) // 2], "broken"),
        (pdf([]), "broken|no pages"),
        (pdf(["x"] * 101), "101 pages, limit 100"),
    ],
)
def test_a_file_that_will_not_do_is_refused_in_a_sentence(
    processes: DocumentProcesses, data: bytes, reason: str
) -> None:
    with pytest.raises(MediaError, match=reason) as refusal:
        processes.sizes(PdfFile("a", data), go_on)
    assert ";" in refusal.value.message, "with what to do about it"
    assert processes.sizes(PdfFile("b", FILE), go_on), "the process goes on"
    assert processes.num_crashes == 0


def test_damaged_files_are_read_or_refused(processes: DocumentProcesses) -> None:
    rng = random.Random(7)
    whole = pdf(PAGES[:3], drawing=RED)
    num_read = 0
    for number in range(NUM_DAMAGED):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 30)):
            start = rng.randrange(len(data))
            data[start : start + rng.randrange(8)] = rng.randbytes(rng.randrange(8))
        file = PdfFile(str(number), bytes(data))
        try:
            count = len(processes.sizes(file, go_on))
            assert len(processes.index(file, go_on).lengths) == count
            assert len(processes.render(file, count - 1, (40, 60), go_on)) == 40 * 60 * 3
            num_read += 1
        except MediaError as refusal:
            assert ";" in refusal.message
    assert 0 < num_read < NUM_DAMAGED
    assert processes.num_processes <= 1


def test_a_document_that_anybody_may_open_is_read_though_its_owner_has_a_password(
    processes: DocumentProcesses,
) -> None:
    file = PdfFile("a", locked_pdf(b"owner", b""))
    assert processes.texts(file, [0], go_on) == ["secret"]


@pytest.mark.parametrize("box", [(900_000, 900_000), (30, 50_000)])
def test_a_page_larger_than_paper_is_refused(ingest: Ingest, box: tuple[int, int]) -> None:
    with pytest.raises(MediaTooLarge, match=r"page 1 of the document is .* limit 20000 a side"):
        consult(ingest, pdf(["x"], box=box))


def test_what_takes_too_much_memory_ends_its_process_and_nothing_else(
    processes: DocumentProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_process, "MEMORY_BYTES", 256 * 1024**2)
    bomb = PdfFile("a", bomb_pdf(280 * 1024**2))
    assert len(bomb.data) < 4 * 1024**2
    with pytest.raises(MediaError, match="limit 268435456 bytes"):
        processes.render(bomb, 0, (100, 100), go_on)
    assert processes.num_crashes == 1
    assert processes.num_processes == 0
    assert processes.render(PdfFile("b", FILE), 0, (100, 100), go_on)


def test_a_process_that_ends_while_it_has_nothing_to_do_costs_nobody_anything(
    processes: DocumentProcesses,
) -> None:
    file = PdfFile("a", FILE)
    processes.sizes(file, go_on)
    (process,) = processes._idle
    process._process.send_signal(signal.SIGSEGV)
    process._process.wait()
    assert len(processes.sizes(file, go_on)) == 30
    assert processes.num_processes == 1
    assert processes.num_crashes == 1


@pytest.mark.parametrize(
    ("ends", "is_refused"),
    [((signal.SIGKILL,), False), ((signal.SIGKILL, signal.SIGKILL), True), ((signal.SIGSEGV,), True)],
)
def test_a_document_whose_process_was_killed_by_others_is_tried_once_more(
    processes: DocumentProcesses, ends: tuple[signal.Signals, ...], is_refused: bool
) -> None:
    file, left = PdfFile("a", FILE), list(ends)

    def end_it() -> None:
        """While it is asked."""
        busy = [process for process in begun if process.is_alive]
        if left and busy:
            busy[-1]._process.send_signal(left.pop(0))
            busy[-1]._process.wait()

    begun: list[document_process._Process] = []
    real = document_process._Process.open

    def begin(process: document_process._Process, *arguments: object) -> object:
        begun.append(process)
        return real(process, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_process._Process, "open", begin)
        if is_refused:
            with pytest.raises(MediaError, match="ended the process"):
                processes.sizes(file, end_it)
        else:
            assert len(processes.sizes(file, end_it)) == 30
    assert processes.num_crashes == len(ends)
    assert processes.num_processes == (0 if is_refused else 1)


def test_work_that_nobody_waits_for_is_given_up_though_it_never_ends(processes: DocumentProcesses) -> None:
    file = PdfFile("a", FILE)
    processes.sizes(file, go_on)
    process = processes._idle[0]._process
    process.send_signal(signal.SIGSTOP)  # it will not answer
    until_s = time.monotonic() + 0.2

    def for_a_while() -> None:
        if time.monotonic() > until_s:
            raise GivenUp

    with pytest.raises(GivenUp):
        processes.sizes(file, for_a_while)
    assert process.poll() is not None, "it is gone"
    assert processes.num_processes == 0


def test_processes_end_with_who_started_them() -> None:
    code = (
        "import sys; from tapetum.media.document_process import *\n"
        "made = DocumentProcesses(1, 9); made.sizes(PdfFile('a', sys.stdin.buffer.read()), lambda: None)\n"
        "print(made._idle[0]._process.pid, flush=True); import os; os._exit(0)"
    )
    ended = subprocess.run([os.sys.executable, "-c", code], input=pdf(["x"]), capture_output=True, check=True)
    pid = int(ended.stdout)
    until_s = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}/stat") and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}/stat")


def test_many_threads_and_documents_do_not_mix(processes: DocumentProcesses) -> None:
    files = [PdfFile(str(number), pdf([f"document {number}", f"again {number}"])) for number in range(6)]

    def read(turn: int) -> bool:
        file = files[turn % 6]
        (text,) = processes.texts(file, [turn % 2], go_on)
        processes.render(file, 0, (60, 80), go_on)
        return text == f"{'again' if turn % 2 else 'document'} {file.name}"

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(read, range(120)))
    assert processes.num_processes <= 2
    assert processes.num_crashes == 0


def test_a_page_is_a_picture_that_is_drawn_once(ingest: Ingest, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    real = DocumentProcesses.render
    monkeypatch.setattr(
        DocumentProcesses,
        "render",
        lambda self, file, page, size, go_on: (
            drawn.append((page, size)) or real(self, file, page, size, go_on)
        ),
    )

    def load(data: bytes, number: int, **options: object) -> bytes:
        page = consult(ingest, data).document.page(number)
        part = MediaPart(kind="image", source=page, options=options, is_trusted=True)
        return ingest.load(part, tenant="").key

    first = load(FILE, 3)
    assert load(FILE, 3) == first
    assert drawn == [(2, (1064, 1484))], "at the size that the model sees, once"
    other = load(FILE, 4), load(FILE, 3, max_pixels=100_000), load(pdf(PAGES[:9]), 3, max_pixels=100_000)
    assert len({first, *other}) == 3, "pixels decide: the same page of another file is the same picture"
    assert other[1] == other[2]
    assert len(drawn) == 4


def test_a_page_is_never_taken_for_one_that_looks_the_same(ingest: Ingest) -> None:
    """Seen so small that nothing of it can be read, every page looks like every other."""
    data = pdf([f"Chapter {number}\nordinary words" for number in range(1, 6)])
    options = {"near_duplicate": True, "max_pixels": 56 * 56}
    parts = [
        MediaPart(kind="image", source=consult(ingest, data).document.page(number), options=options)
        for number in range(1, 6)
    ]
    items = [ingest.load(part, tenant="") for part in parts]
    assert all(item.degraded is None and item.compared_with is None for item in items)


def test_pages_far_from_square_keep_their_shape(ingest: Ingest) -> None:
    page = consult(ingest, pdf(["x"], box=(2000, 50), drawing=RED)).document.page(1)
    assert page.picture((448, 448), go_on).size == (17899, 448)
    width, height = page.picture((896, 896), go_on).size
    assert width * height <= 2**24, "within reason"
    assert width / height == pytest.approx(40, rel=0.02)


def test_an_index_is_counted_once_for_all_who_ask(ingest: Ingest, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    real = DocumentProcesses.index

    def slow(self: DocumentProcesses, *arguments: object) -> object:
        counted.append(threading.get_ident())
        time.sleep(0.1)
        return real(self, *arguments)

    monkeypatch.setattr(DocumentProcesses, "index", slow)
    part = DocumentPart(source=FILE, is_trusted=True)
    futures = [ingest.consult(part, Question(f"boats of town {n}"), tenant="") for n in range(1, 13)]
    assert [future.result(30).found[0] for future in futures] == list(range(1, 13))
    assert len(counted) == 1
    assert consult(ingest, question="town 5", tenant="other").found[0] == 5
    assert len(counted) == 2, "tenants share nothing, not even the time it takes"


def test_what_is_kept_stays_within_its_bytes() -> None:
    library = DocumentLibrary(MediaConfig(), 1, kept_bytes=60_000)
    try:
        for number in range(12):
            data = pdf([f"document {number} {word}" for word in PAGES])
            part = DocumentPart(source=data, is_trusted=True)
            assert library.consult(part, Question("town 3"), "", go_on).found[0] == 3
            assert 0 < library.num_bytes <= 60_000
        library.clear()
        assert library.num_bytes == 0
    finally:
        library.close()


def test_what_is_too_large_to_be_kept_drives_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    library = DocumentLibrary(MediaConfig(), 1, kept_bytes=60_000)
    counted = []
    real = DocumentProcesses.index

    def index(processes: DocumentProcesses, file: PdfFile, go_on: GoOn) -> PageIndex:
        counted.append(file.name)
        return real(processes, file, go_on)

    monkeypatch.setattr(DocumentProcesses, "index", index)
    dense = pdf([" ".join(f"{letter}{number}x" for number in range(900)) for letter in "abc"])
    try:
        for data in (FILE, dense, FILE, dense):
            library.consult(DocumentPart(source=data, is_trusted=True), Question("b3x town 3"), "", go_on)
            assert library.num_bytes <= 60_000
        assert len(counted) == 3, "the small one is still known"
    finally:
        library.close()


def test_the_page_with_the_fact_is_found_through_the_file(ingest: Ingest) -> None:
    data = pdf(handbook(12)[0])
    asked = questions(12, 1)
    hits = sum(page in consult(ingest, data, question).found[:8] for question, page in asked)
    assert hits >= 0.98 * NUM_QUESTIONS


def test_pages_without_words_are_told_apart(ingest: Ingest) -> None:
    mixed = pdf(["a harbour", "", "a bridge", ""])
    consultation = consult(ingest, mixed, "the bridge")
    assert consultation.found == (3,)
    assert consultation.textless == (2, 4)
    assert consult(ingest, mixed, "what is on page 2?").found[0] == 2
    assert consult(ingest, mixed, "").found == ()


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (b"\x89PNG\r\n\x1a\n", MediaError),
        (b"", MediaError),
        (np.zeros((4, 4, 3), np.uint8), MediaError),
        ("data:application/pdf;base64,AAAA", MediaError),
        ("data:application/pdf;base64,*", MediaError),
        ("file:///etc/passwd", MediaForbidden),
        ("/etc/passwd", MediaForbidden),
        ("https://example.org/a.pdf", MediaForbidden),
        ("ftp://example.org/a.pdf", MediaForbidden),
    ],
)
def test_references_are_held_to_the_policy_of_pictures(ingest: Ingest, source: object, error: type) -> None:
    with pytest.raises(error):
        ingest.consult(DocumentPart(source=source), Question(), tenant="").result(30)


def test_a_document_may_be_a_path_or_an_open_file(ingest: Ingest, tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(FILE)
    assert consult(ingest, path).document.num_pages == 30
    with path.open("rb") as opened:
        assert consult(ingest, opened).document.num_pages == 30


def test_a_document_is_no_picture_and_is_told_how_to_come(ingest: Ingest) -> None:
    with pytest.raises(MediaError, match="PDF document and no picture; send it as a part of type file"):
        ingest.load(MediaPart(kind="image", source=FILE, is_trusted=True), tenant="")


@pytest.mark.parametrize("source", [None, 5, ["a.pdf"]])
def test_what_cannot_be_a_file_is_told_to_be_no_document(ingest: Ingest, source: object) -> None:
    with pytest.raises(MediaError, match=rf"document is a {type(source).__name__}; give bytes, a path"):
        consult(ingest, source)


def test_pages_that_take_long_keep_no_picture_waiting() -> None:
    """Two that never end, and two documents that cannot be opened; the workers for anything else are free."""
    made = Ingest(PROCESSOR, MediaConfig(timeout_s=60), workers=1)
    try:
        document = consult(made).document
        made._library._processes._idle[0]._process.send_signal(signal.SIGSTOP)
        pages = [
            MediaPart(kind="image", source=document.page(number), is_trusted=True) for number in (1, 2, 3)
        ]
        stuck: list[Future] = [made.decode(made.plan(part, tenant="").result(10)) for part in pages[:2]]
        stuck.append(made.is_dense(made.plan(pages[2], tenant="").result(10)))
        stuck += [
            made.consult(DocumentPart(source=pdf([text]), is_trusted=True), Question(), tenant="")
            for text in "ab"
        ]
        picture = MediaPart(kind="image", source=np.zeros((56, 56, 3), np.uint8), is_trusted=True)
        assert made.decode(made.plan(picture, tenant="").result(10)).result(10).patches is not None
        assert not any(future.done() for future in stuck)
        for future in stuck:
            future.cancel()
    finally:
        made.close()


def test_what_takes_too_long_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Ingest(PROCESSOR, MediaConfig(timeout_s=0.5), workers=1)
    try:
        consult(made)
        made._library._processes._idle[0]._process.send_signal(signal.SIGSTOP)
        with pytest.raises(MediaTimeout):
            consult(made, pdf(["other"]))
        assert consult(made, pdf(["another"])).document.num_pages == 1
    finally:
        made.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "whole"},
        {"max_pages": 0},
        {"max_pages": True},
        {"pages": (0,)},
        {"pages": "3"},
        {"page_text": 1},
    ],
)
def test_options_that_nobody_can_mean_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter) as refusal:
        DocumentPart(source=FILE, **fields)
    assert refusal.value.param in fields


def test_pages_that_a_document_has_not_are_refused(ingest: Ingest) -> None:
    with pytest.raises(InvalidParameter, match="pages holds 31, the document has 30 pages"):
        consult(ingest, pages=(2, 31))


def test_without_the_library_a_document_is_refused_by_name(
    processes: DocumentProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MediaError, match=r"install tapetum\[pdf\]"):
        processes.sizes(PdfFile("a", FILE), go_on)
    assert processes.num_processes == 0
