"""The scenario's program on pydantic-ai, with its own function model."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelContextWindowExceededError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from host_scenario import Answer, Mode, ScenarioHost, Sent, read_report, sent_of
from scroll_adapters.pydantic_ai import ScrollCapability, host_parts


class Host(ScenarioHost):
    heading = "pydantic-ai"
    adapter_type = ScrollCapability
    modes = ("sync", "async", "stream")
    answer_tool = "final_result"

    def _agent(self, structured: bool) -> Agent[None, Any]:
        return Agent(
            FunctionModel(self._answer, stream_function=self._pieces),
            instructions="You read reports.",
            tools=[read_report],
            output_type=Answer if structured else str,
            capabilities=[self.adapter] if self.adapter else [],
        )

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        system = Sent("system", info.instructions or "")
        played = self.play([system, *self.sent(messages)])
        texts = [TextPart(played.text)] if played.text else []
        calls = [ToolCallPart(call.name, call.arguments, call.id) for call in played.calls]
        return ModelResponse(parts=[*texts, *calls])

    def overflow(self) -> Exception:
        return ModelContextWindowExceededError("function", "the prompt is too long")

    def snippet_names(self) -> dict[str, Any]:
        return {"model": FunctionModel(self._answer)}

    def snippet_answer(self, names: dict[str, Any]) -> str:
        return str(names["answer"])

    async def _pieces(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        """The same reply, in pieces."""
        for index, part in enumerate(self._answer(messages, info).parts):
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield word if part.content.endswith(word) else f"{word} "
            elif isinstance(part, ToolCallPart):
                arguments = json.dumps(part.args)
                call = DeltaToolCall(part.tool_name, arguments, tool_call_id=part.tool_call_id)
                yield {index: call}

    def turn(self, prompt: str, image: bytes, structured: bool) -> str:
        agent = self._agent(structured)
        content = _content(prompt, image)
        result = agent.run_sync(content, message_history=self.messages)
        return self._end(result.all_messages(), result.output)

    async def aturn(self, prompt: str, image: bytes, mode: Mode, structured: bool) -> str:
        agent, content = self._agent(structured), _content(prompt, image)
        if mode == "async":
            result = await agent.run(content, message_history=self.messages)
            return self._end(result.all_messages(), result.output)
        async with agent.run_stream(content, message_history=self.messages) as stream:
            output = await stream.get_output()
        return self._end(stream.all_messages(), output)

    def _end(self, messages: list[ModelMessage], output: Any) -> str:
        self.messages = list(messages)
        return str(output.number if isinstance(output, Answer) else output)

    def parts(self) -> list[Any]:
        # pydantic-ai merges a prompt into the request before it, so messages change by themselves.
        return [part for message in self.messages for part in message.parts]

    def sent(self, messages: Sequence[ModelMessage]) -> list[Sent]:
        return [sent_of(part.message) for part in host_parts(messages)]


def _content(prompt: str, image: bytes) -> Any:
    return [prompt, BinaryContent(image, media_type="image/png")] if image else prompt
