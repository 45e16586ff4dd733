"""The scenario's program on LangChain: `create_agent` with a fake chat model."""

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from host_scenario import Answer, Mode, ScenarioHost, Sent, read_report
from scroll_adapters.langchain import ScrollMiddleware

ROLES = {"human": "user", "ai": "assistant", "tool": "tool", "system": "system"}


class FakeModel(BaseChatModel):
    """Asks the scenario for its replies."""

    answer: Callable[[Sequence[BaseMessage]], AIMessage]

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])


class StreamingModel(FakeModel):
    """The same, in pieces."""

    def _stream(
        self, messages: list[BaseMessage], *_: Any, **__: Any
    ) -> Iterator[ChatGenerationChunk]:
        reply = self.answer(messages)
        for word in str(reply.content).split(" "):
            space = "" if str(reply.content).endswith(word) else " "
            yield ChatGenerationChunk(message=AIMessageChunk(content=word + space, id=reply.id))
        chunks = [
            {
                "name": call["name"],
                "args": json.dumps(call["args"]),
                "id": call["id"],
                "index": index,
            }
            for index, call in enumerate(reply.tool_calls)
        ]
        last = AIMessageChunk(
            content="", id=reply.id, tool_call_chunks=chunks, chunk_position="last"
        )
        yield ChatGenerationChunk(message=last)

    async def _astream(
        self, messages: list[BaseMessage], *_: Any, **__: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(messages):
            yield chunk


class Host(ScenarioHost):
    heading = "LangChain and LangGraph"
    adapter_type = ScrollMiddleware
    modes = ("sync", "async", "stream")
    answer_tool = Answer.__name__

    def _agent(self, structured: bool, mode: Mode) -> Any:
        kind = StreamingModel if mode == "stream" else FakeModel
        return create_agent(
            kind(answer=self._answer),
            [read_report],
            system_prompt="You read reports.",
            middleware=[self.adapter] if self.adapter else [],
            response_format=ToolStrategy(Answer) if structured else None,
        )

    def _answer(self, messages: Sequence[BaseMessage]) -> AIMessage:
        played = self.play(self.sent(messages))
        calls = [
            {"name": call.name, "args": call.arguments, "id": call.id, "type": "tool_call"}
            for call in played.calls
        ]
        return AIMessage(content=played.text, tool_calls=calls)

    def overflow(self) -> Exception:
        return ContextOverflowError("the prompt is too long")

    def snippet_names(self) -> dict[str, Any]:
        return {"model": FakeModel(answer=self._answer), "tools": [read_report]}

    def snippet_answer(self, names: dict[str, Any]) -> str:
        return str(names["state"]["messages"][-1].content)

    def _input(self, prompt: str, image: bytes) -> dict[str, Any]:
        content: list[Any] = [{"type": "text", "text": prompt}]
        if image:
            data = base64.b64encode(image).decode()
            content.append({"type": "image", "base64": data, "mime_type": "image/png"})
        return {"messages": [*self.messages, HumanMessage(content=content if image else prompt)]}

    def turn(self, prompt: str, image: bytes, structured: bool) -> str:
        agent = self._agent(structured, "sync")
        return self._end(agent.invoke(self._input(prompt, image)))

    async def aturn(self, prompt: str, image: bytes, mode: Mode, structured: bool) -> str:
        agent = self._agent(structured, mode)
        given = self._input(prompt, image)
        if mode == "async":
            return self._end(await agent.ainvoke(given))
        state: dict[str, Any] = {}
        async for kind, part in agent.astream(given, stream_mode=["values", "messages"]):
            state = part if kind == "values" else state
        return self._end(state)

    def _end(self, state: dict[str, Any]) -> str:
        self.messages = state["messages"]
        if "structured_response" in state:
            return str(state["structured_response"].number)
        return str(self.messages[-1].text)

    def sent(self, messages: Sequence[BaseMessage]) -> list[Sent]:
        return [
            Sent(
                ROLES[message.type],
                str(message.text),
                tuple(str(call["id"]) for call in getattr(message, "tool_calls", ())),
                str(getattr(message, "tool_call_id", "")),
                sum(block["type"] == "image" for block in message.content_blocks),
            )
            for message in messages
        ]
