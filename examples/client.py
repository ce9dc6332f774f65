"""A streamed answer from a running server.

Start `.venv/bin/tapetum serve`, then `.venv/bin/python examples/client.py PICTURE QUESTION`. It needs OpenAI's own
client: `.venv/bin/python -m pip install openai`; any other client of that API works the same way. A server elsewhere
is named by OPENAI_BASE_URL.
"""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from mimetypes import guess_type
from pathlib import Path

from openai import APIConnectionError, APIError, OpenAI

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")


def main(picture: Path, question: str) -> None:
    kind = guess_type(picture.name)[0] or "image/png"
    data_url = f"data:{kind};base64,{b64encode(picture.read_bytes()).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": data_url}},
        {"type": "text", "text": question},
    ]
    stream = OpenAI(base_url=URL, api_key="none").chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": content}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        elif chunk.usage:
            print(f"\n{chunk.usage.prompt_tokens} tokens in, {chunk.usage.completion_tokens} out")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except OSError as error:
        sys.exit(f"cannot read {sys.argv[1]}: {error.strerror}")
    except APIConnectionError as error:
        sys.exit(f"no server answers at {URL}: {error}")
    except APIError as error:
        sys.exit(f"the server refuses: {error.message}")
