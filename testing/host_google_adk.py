"""The scenario's program on the Google Agent Development Kit, with a fake model."""

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from pydantic import PrivateAttr

from host_scenario import Answer, Mode, ScenarioHost, Sent, read_report
from scroll_adapters.google_adk import ScrollPlugin

APP = "reader_app"


class FakeModel(BaseLlm):
    """Asks the scenario for its replies."""

    model: str = "fake"
    _host: Any = PrivateAttr(default=None)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        content = self._host.answer(llm_request)
        if stream:
            yield LlmResponse(content=content, partial=True)
        yield LlmResponse(content=content, partial=False)


class Host(ScenarioHost):
    heading = "Google ADK"
    adapter_type = ScrollPlugin
    modes = ("sync", "async", "stream")
    # Used beside other tools only.
    answer_tool = "set_model_response"

    def fake_model(self) -> FakeModel:
        model = FakeModel()
        model._host = self
        return model

    async def _runner(self, structured: bool) -> Runner:
        """A runner on a session of the kit that holds the messages so far."""
        agent = LlmAgent(
            name="reader",
            model=self.fake_model(),
            instruction="You read reports.",
            tools=[read_report],
            output_schema=Answer if structured else None,
        )
        app = App(name=APP, root_agent=agent, plugins=[self.adapter] if self.adapter else [])
        service = InMemorySessionService()
        session = await service.create_session(app_name=APP, user_id="u", session_id="s")
        for event in self.messages:
            await service.append_event(session, copy.deepcopy(event))
        return Runner(app=app, session_service=service)

    def answer(self, request: LlmRequest) -> types.Content:
        system = Sent("system", str(request.config.system_instruction or ""))
        played = self.play([system, *self._of_contents(request.contents)])
        texts = [types.Part(text=played.text)] if played.text else []
        calls = [
            types.Part.from_function_call(name=call.name, args=call.arguments)
            for call in played.calls
        ]
        return types.Content(role="model", parts=[*texts, *calls])

    def overflow(self) -> Exception:
        return RuntimeError("The input token count exceeds the maximum number of tokens.")

    def snippet_names(self) -> dict[str, Any]:
        return {"agent": LlmAgent(name="guide", model=self.fake_model(), tools=[read_report])}

    def snippet_answer(self, names: dict[str, Any]) -> str:
        return str(names["events"][-1].content.parts[0].text)

    def turn(self, prompt: str, image: bytes, structured: bool) -> str:
        runner = asyncio.run(self._runner(structured))
        content = _prompt(prompt, image)
        events = list(runner.run(user_id="u", session_id="s", new_message=content))
        asyncio.run(self._end(runner))
        return _final_text(events, structured)

    async def aturn(self, prompt: str, image: bytes, mode: Mode, structured: bool) -> str:
        runner = await self._runner(structured)
        streaming = StreamingMode.SSE if mode == "stream" else StreamingMode.NONE
        events = [
            event
            async for event in runner.run_async(
                user_id="u",
                session_id="s",
                new_message=_prompt(prompt, image),
                run_config=RunConfig(streaming_mode=streaming),
            )
        ]
        await self._end(runner)
        return _final_text(events, structured)

    async def _end(self, runner: Runner) -> None:
        session = await runner.session_service.get_session(
            app_name=APP, user_id="u", session_id="s"
        )
        self.messages = list(session.events)

    def sent(self, messages: Sequence[Any]) -> list[Sent]:
        return self._of_contents([event.content for event in messages if event.content])

    def _of_contents(self, contents: Sequence[types.Content]) -> list[Sent]:
        """The kit sends no ids of calls; a result answers the oldest open call of its name."""
        sent: list[Sent] = []
        waiting: list[tuple[str, str]] = []
        number = 0
        for content in contents:
            role = "assistant" if content.role == "model" else "user"
            text, calls, images = [], [], 0
            for part in content.parts or []:
                if part.function_response is not None:
                    name = part.function_response.name
                    index = next(i for i, call in enumerate(waiting) if call[0] == name)
                    values = part.function_response.response
                    result = values.get("result") or json.dumps(values)
                    sent.append(Sent("tool", result, call_id=waiting.pop(index)[1]))
                elif part.function_call is not None:
                    number += 1
                    calls.append(f"call-{number}")
                    waiting.append((part.function_call.name, calls[-1]))
                elif part.inline_data is not None:
                    images += 1
                elif part.text:
                    text.append(part.text)
            if text or calls or images:
                sent.append(Sent(role, "\n".join(text), tuple(calls), images=images))
        return sent


def _prompt(prompt: str, image: bytes) -> types.Content:
    parts = [types.Part(text=prompt)]
    if image:
        parts.append(types.Part.from_bytes(data=image, mime_type="image/png"))
    return types.Content(role="user", parts=parts)


def _final_text(events: Sequence[Any], structured: bool) -> str:
    text = ""
    for event in events:
        if event.is_final_response() and event.content and event.content.parts:
            text = event.content.parts[0].text or text
    return str(Answer.model_validate_json(text).number) if structured else text
