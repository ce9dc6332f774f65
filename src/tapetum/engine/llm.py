"""LLM: the engine inside a program. Lists in, lists out, in the same order.

Owns the translation between a user's values and the engine; the engine steps in the calling thread. One call at a
time: an LLM is not meant to be shared between threads (AsyncEngine is).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import cast

from tqdm import tqdm

from tapetum.core.chat import ChatInput, TextInput
from tapetum.core.config import EngineConfig
from tapetum.core.errors import EngineDead, InvalidParameter, TapetumError
from tapetum.core.model import ModelFacts
from tapetum.core.request import SamplingParams
from tapetum.engine.batch import placed, run_batch
from tapetum.engine.build import build_engine
from tapetum.engine.documents import Errand, fulfilled_now, has_whole_documents, read_whole
from tapetum.engine.engine import Engine
from tapetum.engine.front import Front
from tapetum.engine.inputs import chat_input, is_conversation, text_input
from tapetum.engine.loads import Loads
from tapetum.engine.options import config_from
from tapetum.engine.output import RequestOutput
from tapetum.engine.prompts import Draft, PromptInput
from tapetum.engine.undecoded import LocalReserver

Sampling = SamplingParams | Sequence[SamplingParams] | None
_MIN_PROMPTS_FOR_BAR = 16
_OFFLINE = {"schedule": "throughput", "timeout_s": 3600.0}  # nobody waits at the other end of a connection
_BUILDERS = 4  # threads that render prompts and wait for media, which load on threads of their own


class LLM:
    """A model, ready to answer.

    `options` are the fields of EngineConfig's records by name: dtype, max_model_len, max_num_seqs, device, threads,
    kv_cache_bytes, enable_prefix_caching and so on.
    """

    def __init__(self, model: str | Path | EngineConfig | Engine | None = None, **options: object) -> None:
        if isinstance(model, Engine):
            self._engine = model
        else:
            defaults = {} if isinstance(model, EngineConfig) else _OFFLINE
            self._engine = build_engine(config_from(model, {**defaults, **options}))
        self._front = Front(
            self._engine.files,
            self._engine.config,
            self._engine.facts,
            forecast=self._engine.forecast,
            clock=self._engine.clock,
            reserver=LocalReserver(self._engine),
        )
        self._is_closed = False
        self._pool = ThreadPoolExecutor(_BUILDERS, thread_name_prefix="tapetum-prompt")

    @property
    def facts(self) -> ModelFacts:
        return self._engine.facts

    def generate(
        self, prompts: object, sampling_params: Sampling = None, *, use_tqdm: bool | None = None
    ) -> list[RequestOutput]:
        """Continue one prompt or a list of prompts, written whole: special tokens in them count.

        A prompt is a string or `{"prompt": str, "images": [...], "videos": [[frame, ...], ...]}` with a placeholder
        for each picture and clip; `"mm_processor_kwargs": {"max_pixels": ...}` counts for all of them. A picture is a
        path, bytes of a file, a PIL picture or an array. Raises the error of the first prompt at fault and says which
        one it is; nothing of the list is left in the engine then.
        """
        entries = prompts if isinstance(prompts, (list, tuple)) else [prompts]
        return self._run(text_input, entries, sampling_params, use_tqdm)

    def chat(
        self,
        messages: object,
        sampling_params: Sampling = None,
        *,
        reuse: Mapping[str, bool] | None = None,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of conversations, through the chat template of the model.

        A conversation is a list of OpenAI-style messages. Besides text parts a content may hold
        `{"type": "image", "image": picture}`, `{"type": "image_url", "image_url": {"url": ...}}`,
        `{"type": "video", "video": [frame, ...]}` and `{"type": "file", "file": PDF document}`; `min_pixels`,
        `max_pixels` and, of a clip, `fps` beside them set how it is processed; `max_pages`, `pages`, `page_text` and
        `mode` which pages of a document are seen. `reuse={"position_independent": True}`: a picture that was seen
        before in another place may be taken from there; the answer says where that was done. Errors as in `generate`.
        """
        is_one = not isinstance(messages, (list, tuple)) or is_conversation(messages)
        entries = [messages] if is_one else cast("Sequence[object]", messages)
        return self._run(partial(chat_input, reuse=reuse), entries, sampling_params, use_tqdm)

    def close(self) -> None:
        """End the threads. The model is freed with the object."""
        self._is_closed = True
        self._pool.shutdown()
        self._front.close()
        self._engine.end()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        convert: Callable[[object], PromptInput],
        entries: Sequence[object],
        sampling_params: Sampling,
        use_tqdm: bool | None,
    ) -> list[RequestOutput]:
        if self._is_closed:
            raise EngineDead("this LLM is closed; make another one")
        samplings = _one_each(sampling_params, len(entries))
        inputs: list[PromptInput] = []
        drafts: list[Draft] = []
        for index, (entry, sampling) in enumerate(zip(entries, samplings, strict=True)):
            try:
                inputs.append(self._read(convert(entry), sampling))
                drafts.append(self._front.prompts.draft(inputs[-1], sampling))
            except TapetumError as error:
                raise placed(error, index, len(entries)) from error
        texts = [_written(prompt) for prompt in inputs]
        has_bar = len(entries) >= _MIN_PROMPTS_FOR_BAR if use_tqdm is None else use_tqdm
        with tqdm(total=len(entries), unit="prompt", disable=not has_bar) as bar:
            return run_batch(self._engine, self._front.prompts, drafts, texts, self._pool, bar.update)

    def _read(self, prompt: PromptInput, sampling: SamplingParams) -> PromptInput:
        """The prompt with pages, or notes, in the place of its documents."""
        if isinstance(prompt, ChatInput) and has_whole_documents(prompt):
            limit, thinking = self.facts.max_model_len, self._engine.files.template.thinking
            prompt = fulfilled_now(read_whole(prompt, sampling, limit, thinking), self._ask).chat
        return self._front.pages.laid_out(prompt, sampling, "", Loads())

    def _ask(self, errand: Errand) -> RequestOutput:
        draft = self._front.prompts.draft(self._read(errand.chat, errand.sampling), errand.sampling)
        (output,) = run_batch(self._engine, self._front.prompts, [draft], [None], self._pool, lambda: None)
        return output


def _written(prompt: PromptInput) -> str | None:
    """The prompt where a caller wrote it whole, as text."""
    text = prompt.prompt if isinstance(prompt, TextInput) else None
    return text if isinstance(text, str) else None


def _one_each(sampling_params: Sampling, count: int) -> Sequence[SamplingParams]:
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return [sampling_params or SamplingParams()] * count
    is_list = isinstance(sampling_params, (list, tuple))
    if not is_list or not all(isinstance(entry, SamplingParams) for entry in sampling_params):
        raise InvalidParameter(
            f"sampling_params is {sampling_params!r:.80}, must be SamplingParams or a list of them",
            param="sampling_params",
        )
    if len(sampling_params) != count:
        raise InvalidParameter(
            f"sampling_params has {len(sampling_params)} entries for {count} prompts; send one for each or one for all",
            param="sampling_params",
        )
    return sampling_params
