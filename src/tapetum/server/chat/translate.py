"""From the words of the wire to those of the engine: messages, tools, sampling.

Owns no validation of types (schema) and none of ranges (core).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tapetum.core.chat import ChatInput, Message
from tapetum.core.request import SamplingParams
from tapetum.server.chat.parts import Options, content_of
from tapetum.server.chat.sampling import reuse_of, sampling_params
from tapetum.server.chat.schema import ChatMessage, ChatRequest, MediaIO, parse_chat
from tapetum.server.chat.tools import ToolUse, calls_of, tool_use_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChatQuestion:
    """A chat request with what the engine is asked for it."""

    asked: ChatRequest
    chat: ChatInput
    sampling: SamplingParams
    use: ToolUse


def parse_question(body: bytes) -> ChatQuestion:
    """From the bytes of a body; raises RequestError and its children."""
    return question_of(parse_chat(body))


def question_of(asked: ChatRequest) -> ChatQuestion:
    """Raises InvalidParameter and its children."""
    use = tool_use_of(asked.tools, asked.tool_choice, asked.parallel_tool_calls)
    return ChatQuestion(asked=asked, chat=_chat_input(asked, use), sampling=_sampling(asked), use=use)


def _chat_input(asked: ChatRequest, use: ToolUse) -> ChatInput:
    options = _options(asked)
    adds_prompt = asked.add_generation_prompt
    return ChatInput(
        messages=tuple(
            _message(message, options, f"messages[{index}]") for index, message in enumerate(asked.messages)
        ),
        template_kwargs=asked.chat_template_kwargs or {},
        add_generation_prompt=not asked.continue_final_message if adds_prompt is None else adds_prompt,
        continue_final_message=bool(asked.continue_final_message),
        tools=tuple(tool.as_data() for tool in use.tools),
        max_visual_tokens=asked.max_visual_tokens,
        reuse=reuse_of(asked),
        num_choices=asked.num_choices,
    )


def _sampling(asked: ChatRequest) -> SamplingParams:
    newer = asked.max_completion_tokens
    sampling = sampling_params(
        asked,
        max_tokens=asked.max_tokens if newer is None else newer,
        logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
    )
    return replace(sampling, prediction=asked.prediction.text) if asked.prediction else sampling


def _options(asked: ChatRequest) -> Options:
    """Options of all media by their kind; what is said of a kind goes before what is said of all."""
    kinds = asked.media_io_kwargs or MediaIO()
    of_all = asked.mm_processor_kwargs or {}
    return {"image": of_all | (kinds.image or {}), "video": of_all | (kinds.video or {})}


def _message(message: ChatMessage, options: Options, place: str) -> Message:
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    return Message(
        role=message.role,
        content=content_of(message.content, options),
        tool_calls=calls_of(message.tool_calls, f"{place}.tool_calls"),
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=reasoning,
    )
