"""What a case will do, settled before it runs: its steps with all words filled in, its flags, and the answers it needs.

Owns what is asked of a server with default settings on behalf of cases: answers to compare with, and the sizes that
settings are told in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.conformance import expect, settings
from tests.conformance.cases import Case, Cases, form_problems
from tests.conformance.fill import filled
from tests.conformance.lengthen import lengthened
from tests.conformance.observation import Unmet
from tests.conformance.reply import Reply
from tests.conformance.server import LiveServer
from tests.conformance.settings import Figures, UnknownSetting


@dataclass(frozen=True, kw_only=True)
class Plan:
    case: Case
    flags: tuple[str, ...] = ()
    routes: Sequence[dict] = ()
    steps: Sequence[dict] = ()
    problems: Sequence[str] = ()  # why it cannot run

    @property
    def starts_itself(self) -> bool:
        return bool(self.steps) and self.steps[0]["do"] == "start"


class Planner:
    """`words` are what stands in braces; `server` runs with default settings."""

    def __init__(self, cases: Cases, words: Mapping[str, str], server: LiveServer) -> None:
        self._cases = cases
        self._words = words
        self._server = server
        self.answers: dict[str, Reply] = {}

    async def plan(self, case: Case) -> Plan:
        """A case that cannot even be written down is a plan with problems."""
        try:
            return await self._plan(case)
        except (UnknownSetting, Unmet) as error:
            return Plan(case=case, problems=[str(error)])
        except Exception as error:
            return Plan(case=case, problems=[f"the case cannot be built: {type(error).__name__}: {error}"])

    async def _plan(self, case: Case) -> Plan:
        built = case.build()
        problems = form_problems(self._cases, case, built)
        if problems:
            return Plan(case=case, problems=problems)
        for case_id in (self._cases.CONTROL, *expect.named_cases(case.expect)):
            await self._ask(case_id)
        built = filled(built, self._words)
        if "scenario" not in built:
            return Plan(case=case, steps=[{"do": "post", "body": built, "save": "r"}])
        config, steps = built.get("config", {}), built["steps"]
        flags = await self._flags(config, steps)
        steps = [await self._with_flags(step, config, steps) for step in steps]
        if "context" not in config:  # a case about the edge of the context means its own numbers
            steps = await lengthened(steps, self._room_for)
        return Plan(case=case, flags=flags, routes=built.get("serve", ()), steps=steps)

    async def _with_flags(self, step: dict, config: Mapping[str, object], steps: Sequence[dict]) -> dict:
        """A start step with the flags it stands for: the scenario's settings and its own on top."""
        if step["do"] != "start":
            return step
        return {**step, "flags": await self._flags({**config, **step.get("args", {})}, steps)}

    async def _flags(self, config: Mapping[str, object], steps: Sequence[dict]) -> tuple[str, ...]:
        for case_id in settings.named_cases(config):
            if case_id not in self._cases.BY_ID:
                raise UnknownSetting(f"there is no case {case_id} whose tokens count")
            await self._ask(case_id)
        sizes = {name: reply.prompt_tokens for name, reply in self.answers.items() if reply.prompt_tokens}
        picture = next(_pictures(steps), None)
        visual_tokens, feature_bytes = 0, 0
        if settings.needs_picture(config):
            if picture is None:
                raise UnknownSetting("a setting is told in pictures, and no request of the scenario has one")
            visual_tokens, feature_bytes = await self._server.measure_picture(picture)
        figures = Figures(
            context=await self._server.context() if settings.needs_context(config) else 0,
            prompt_tokens=sizes,
            visual_tokens=visual_tokens,
            feature_bytes=feature_bytes,
        )
        return settings.flags_of(config, figures)

    async def _room_for(self, body: dict) -> int | None:
        """What the context leaves for an answer; None where the prompt itself is refused."""
        num_tokens = await self._server.num_prompt_tokens(body)
        return None if num_tokens is None else await self._server.context() - num_tokens

    async def _ask(self, case_id: str) -> None:
        if case_id not in self.answers:
            body = filled(self._cases.BY_ID[case_id].build(), self._words)
            self.answers[case_id] = await self._server.post(body)


def _pictures(steps: Sequence[dict]) -> Iterator[dict]:
    """The picture parts of all posts, in order."""
    for step in steps:
        yield from _pictures(step.get("steps", ()))
        for message in step.get("body", {}).get("messages", ()) if step["do"] == "post" else ():
            parts = message["content"] if isinstance(message["content"], list) else ()
            yield from (part for part in parts if part.get("type") == "image_url")
