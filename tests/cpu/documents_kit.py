"""A document about towns, and questions to a server about it."""

from __future__ import annotations

import base64

import httpx2

from tapetum.core.request import Request
from tests.cpu.server_kit import TestServer, files
from tests.documents import pdf

PAGES = [
    f"Chapter {number}\nThe harbour of town {number} has {37 * number} boats." for number in range(1, 41)
]
FILE = pdf(PAGES)
SMALL = {"mm_processor_kwargs": {"max_pixels": 80 * 28**2}}  # so that many pages find room
PAGE_TOKENS = 70  # of A4, small


def data_url(data: bytes = FILE) -> str:
    return f"data:application/pdf;base64,{base64.b64encode(data).decode()}"


def part(data: bytes = FILE, **fields: object) -> dict[str, object]:
    return {"type": "file", "file": {"file_data": data_url(data), "filename": "towns.pdf"}, **fields}


def ask(
    server: TestServer, *content: object, text: str = "How many boats has town 17?", **fields: object
) -> httpx2.Response:
    parts = [*(content or (part(),)), {"type": "text", "text": text}]
    return server.client.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": parts}], **SMALL, **fields}
    )


def seen(response: httpx2.Response) -> list[int]:
    assert response.status_code == 200, response.text
    (pages,) = response.json()["tapetum"]["pages"]
    return pages["pages"]


def written(request: Request) -> str:
    return files().tokenizer.decode(request.prompt.token_ids, skip_special=False)
