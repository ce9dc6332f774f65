"""A document of 500 pages: seconds of each stage, how often the page with the fact is seen, and what it weighs.

The document is the handbook of the tests. `found` is the share of 100 questions whose page is among the best k, in the
wording that the search was tried with and in one that it was not; both share words or numbers with their page, and a
question that shares none finds nothing. `drawn` compares the process of its own, whose crash costs one request, with
the same work in this process: the difference is what it costs. The first question of a document opens, counts, draws
and encodes; asked again it does none of that.

    python -m benchmarks.document [--pages 500] [--whole 40]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pypdfium2

from tapetum.core.chat import DocumentPart
from tapetum.core.config import MediaConfig
from tapetum.core.request import SamplingParams
from tapetum.engine.llm import LLM
from tapetum.engine.output import RequestOutput
from tapetum.media.document_library import DocumentLibrary, Question
from tapetum.media.document_process import DocumentProcesses, PdfFile
from tests.documents import pdf
from tests.handbook import handbook, questions

T = TypeVar("T")
SEED = 1
A4_WIDTH = 595  # points
A4_LARGE = (1058, 1497)  # a sheet at 128 dots an inch
NUM_DRAWN = 20
SAMPLING = SamplingParams(temperature=0.0, max_tokens=16)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=500, help="of the document; questions are about all 500")
    parser.add_argument("--whole", type=int, default=40, help="pages that are read in the mode map_reduce")
    options = parser.parse_args()
    texts, _ = handbook(SEED)
    data = timed("written", lambda: pdf(texts[: options.pages]), f"{options.pages} pages")
    reading(data)
    finding(data)
    asking(data, pdf(texts[: options.whole]))
    show("peak memory", f"{_peak_bytes('self') / 2**20:.0f} MiB", "with the model")


def reading(data: bytes) -> None:
    processes = DocumentProcesses(1, 2000)
    file = PdfFile("handbook", data)
    timed("opened", lambda: processes.sizes(file, _go_on), "with the start of the process")
    timed("opened again", lambda: processes.sizes(file, _go_on))
    index = timed("counted", lambda: processes.index(file, _go_on), "terms of all pages")
    show("index", f"{index.num_bytes / 2**20:.1f} MiB", f"{len(index.terms)} terms")
    document = pypdfium2.PdfDocument(data)
    for size in ((196, 280), A4_LARGE):
        apart = timed_each(lambda page, size=size: processes.render(file, page, size, _go_on))
        here = timed_each(
            lambda page, scale=size[0] / A4_WIDTH: document[page].render(scale, rev_byteorder=True)
        )
        show(
            "drawn",
            f"{1000 * apart:.1f} ms",
            f"a page of {size[0]}x{size[1]}; in this process {1000 * here:.1f} ms",
        )
    for child in Path("/proc/self/task").glob("*/children"):
        for pid in child.read_text().split():
            show("peak memory", f"{_peak_bytes(pid) / 2**20:.0f} MiB", "of the process that reads")
    processes.close()


def finding(data: bytes) -> None:
    library = DocumentLibrary(MediaConfig(), 1)
    part = DocumentPart(source=data, is_trusted=True)
    for wording, name in enumerate(("tried", "not tried")):
        asked = questions(SEED, wording)
        started_s = time.perf_counter()
        ranks = [
            (library.consult(part, Question(question), "", _go_on).found, page) for question, page in asked
        ]
        seconds = (time.perf_counter() - started_s) / len(asked)
        shares = ", ".join(f"k={k} {sum(page in found[:k] for found, page in ranks)}%" for k in (1, 3, 8))
        show("found", shares, f"wording {name}, {1000 * seconds:.1f} ms a question")
    show("kept", f"{library.num_bytes / 2**20:.1f} MiB", "of the document between requests")
    library.close()


def asking(data: bytes, whole: bytes) -> None:
    (question, _), (other, _) = questions(SEED, 0)[:2]
    with LLM() as llm:
        for name, asked in (("first question", question), ("asked again", question), ("another", other)):
            output = timed(name, lambda asked=asked: _ask(llm, data, asked))
            _tell(output)
        output = timed("read whole", lambda: _ask(llm, whole, "What is this about?", mode="map_reduce"))
        _tell(output)


def _ask(llm: LLM, data: bytes, question: str, **fields: object) -> RequestOutput:
    content = [{"type": "file", "file": data, **fields}, question]
    return llm.chat([{"role": "user", "content": content}], SAMPLING, use_tqdm=False)[0]


def _tell(output: RequestOutput) -> None:
    (pages,) = output.pages
    visual = sum(media.visual_tokens for media in output.media)
    num_prompt = len(output.prompt_token_ids)
    show(
        "",
        f"ttft {output.timing.ttft_s:.3f} s",
        f"{len(pages.pages)} pages seen, {num_prompt} tokens with {visual} visual, {output.num_cached_tokens} cached, "
        f"decode {output.timing.decode_s:.2f} s, encode {output.timing.encode_s:.2f} s",
    )


def timed(name: str, work: Callable[[], T], note: str = "") -> T:
    started_s = time.perf_counter()
    made = work()
    show(name, f"{time.perf_counter() - started_s:.3f} s", note)
    return made


def timed_each(work: Callable[[int], object]) -> float:
    started_s = time.perf_counter()
    for page in range(NUM_DRAWN):
        work(page)
    return (time.perf_counter() - started_s) / NUM_DRAWN


def show(name: str, value: str, note: str = "") -> None:
    print(f"{name:16}{value:28}{note}")


def _peak_bytes(pid: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _go_on() -> None:
    """Somebody waits."""


if __name__ == "__main__":
    main()
