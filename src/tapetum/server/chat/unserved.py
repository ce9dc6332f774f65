"""Fields that are known but not served: refused by name, never silently dropped.

Owns their names and which of their values ask for nothing. Fields that nobody knows are ignored, as OpenAI's clients
expect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from tapetum.server.errors import NotSupported


class UnservedFields(Struct, frozen=True, kw_only=True):
    allowed_token_ids: object = None
    audio: object = None
    bad_words: object = None
    best_of: object = None
    chat_template: object = None
    documents: object = None
    echo: object = None
    function_call: object = None
    functions: object = None
    guided_whitespace_pattern: object = None
    include_stop_str_in_output: object = None
    length_penalty: object = None
    modalities: object = None
    prediction: object = None
    prompt_logprobs: object = None
    reasoning_effort: object = None
    service_tier: object = None
    skip_special_tokens: object = None
    store: object = None
    truncate_prompt_tokens: object = None
    use_beam_search: object = None
    verbosity: object = None
    web_search_options: object = None


_ASK_FOR_NOTHING: dict[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "best_of": (1,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "store": (False,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
}


def refuse_unserved(asked: UnservedFields, *, but: Collection[str] = ()) -> None:
    """Raises NotSupported for the first field that asks for something; `but`: those that a route does serve."""
    names = [name for name in UnservedFields.__struct_fields__ if name not in but]
    refuse(asked, {name: _ASK_FOR_NOTHING.get(name, ()) for name in names})


def refuse(asked: Struct, names: Mapping[str, Collection[object]]) -> None:
    """The same for a route's own fields: their names, and which of their values ask for nothing."""
    for name, neutral in names.items():
        value = getattr(asked, name)
        if value is not None and value not in neutral:
            raise unserved(name)


def unserved(name: str) -> NotSupported:
    return NotSupported(f"{name} is not supported by this version; leave it out", param=name)
