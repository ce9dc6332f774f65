"""What a single token is called where tokens are listed one by one."""

from __future__ import annotations

from tapetum.text.tokenizer import Tokenizer


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """Its text; one of no whole characters is `bytes:\\x..`, as OpenAI writes it, so no two share a name."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
