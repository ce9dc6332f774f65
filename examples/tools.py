"""A model that may call a function.

Start `.venv/bin/tapetum serve`, then `.venv/bin/python examples/tools.py PICTURE QUESTION`. It needs OpenAI's own
client: `.venv/bin/python -m pip install openai`.

The model sees the picture, asks for exchange rates if it wants them, and gets what the function says. The bundled
model has not been taught to call functions; others such as Qwen2.5-VL have.
"""

from __future__ import annotations

import json
import os
import sys
from base64 import b64encode
from pathlib import Path

from openai import APIConnectionError, APIError, OpenAI

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
RATES = {"CHF": 1.04, "USD": 0.92, "JPY": 0.0061}
TOOL = {
    "type": "function",
    "function": {
        "name": "euro_rate",
        "description": "How many euros one unit of a currency is worth",
        "parameters": {
            "type": "object",
            "properties": {"currency": {"type": "string", "enum": sorted(RATES)}},
            "required": ["currency"],
            "additionalProperties": False,
        },
    },
}


def euro_rate(currency: str) -> float:
    return RATES[currency]


def main(picture: Path, question: str) -> None:
    client = OpenAI(base_url=URL, api_key="none")
    url = f"data:image/png;base64,{b64encode(picture.read_bytes()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    messages = [{"role": "user", "content": content}]
    for _ in range(4):  # a model might ask for ever
        answer = client.chat.completions.create(
            model="default", messages=messages, tools=[TOOL], temperature=0
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            break
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = euro_rate(**json.loads(call.function.arguments))
            print(f"{call.function.name}({call.function.arguments}) = {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    print(message.content)


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
