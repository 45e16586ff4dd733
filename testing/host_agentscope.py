"""The scenario's program on AgentScope 2: an `Agent` with a fake chat model."""

import base64
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from agentscope.agent import Agent, ReActConfig
from agentscope.credential import CredentialBase
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import (
    Base64Source,
    DataBlock,
    Msg,
    TextBlock,
    ToolCallBlock,
    UserMsg,
)
from agentscope.model import ChatModelBase, ChatResponse
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit
from pydantic import BaseModel

from host_scenario import (
    SESSION,
    WINDOW,
    Answers,
    Calls,
    Mode,
    Refuses,
    Says,
    ScenarioHost,
    Sent,
    report,
)
from scroll_context.hosts.agentscope import ScrollMiddleware, host_parts

ANSWER_TOOL = "GenerateStructuredOutput"
"""The tool by which AgentScope asks for a structured answer."""


class Answer(BaseModel):
    """The number that was asked for."""

    number: int


class FakeModel(ChatModelBase):
    """Asks the scenario for its replies."""

    def __init__(self, host: "Host", stream: bool) -> None:
        super().__init__(
            credential=CredentialBase(),
            model="fake",
            parameters=None,
            stream=stream,
            max_retries=0,
            context_size=1_000_000,
        )
        self.formatter = OpenAIChatFormatter()
        self._host = host

    async def count_tokens(self, *_: Any, **__: Any) -> int:
        return 0

    async def _call_api(self, _: str, messages: list[Msg], **__: Any) -> Any:
        response = self._host.answer(messages)
        return self._streamed(response) if self.stream else response

    async def _streamed(self, response: ChatResponse) -> AsyncGenerator[ChatResponse, None]:
        yield ChatResponse(content=response.content, is_last=False)
        yield response


def read_report(number: int) -> str:
    """Read one report."""
    return report(number)


ALLOWED = PermissionDecision(PermissionBehavior.ALLOW, "Reading is allowed.")


class Host(ScenarioHost):
    modes = ("async", "stream")

    @classmethod
    def open(cls, place: Any, **parts: Any) -> "Host":
        return cls(ScrollMiddleware(place, SESSION, window=WINDOW, **parts))

    def _agent(self, mode: Mode) -> Agent:
        tools = [FunctionTool(read_report, permission=ALLOWED)]
        agent = Agent(
            "reader",
            "You read reports.",
            FakeModel(self, stream=mode == "stream"),
            toolkit=Toolkit(tools=[*tools, *(self.adapter.tools if self.adapter else ())]),
            middlewares=[self.adapter] if self.adapter else [],
            react_config=ReActConfig(max_iters=50),
        )
        agent.state.context = list(self.messages)
        return agent

    def answer(self, messages: Sequence[Msg]) -> ChatResponse:
        match self.play(self.sent(messages)):
            case Says(text):
                return ChatResponse(content=[TextBlock(text=text)], is_last=True)
            case Calls(calls, _):
                blocks = [
                    ToolCallBlock(id=self.call_id(), name=name, input=json.dumps(arguments))
                    for name, arguments in calls
                ]
                return ChatResponse(content=blocks, is_last=True)
            case Answers(number):
                call = ToolCallBlock(
                    id=self.call_id(), name=ANSWER_TOOL, input=json.dumps({"number": number})
                )
                return ChatResponse(content=[call], is_last=True)
            case Refuses():
                raise RuntimeError("This model's maximum context length is 7000 tokens.")
        raise AssertionError("this reply cannot be played")

    async def aturn(self, prompt: str, image: bytes, mode: Mode, structured: bool) -> str:
        content: list[Any] = [TextBlock(text=prompt)]
        if image:
            data = base64.b64encode(image).decode()
            content.append(DataBlock(source=Base64Source(data=data, media_type="image/png")))
        agent = self._agent(mode)
        prompt_message = UserMsg(name="user", content=content)
        answer = await agent.reply(prompt_message, structured_schema=Answer if structured else None)
        self.messages = list(agent.state.context)
        if structured:
            return str(answer.structured_output["number"])
        return answer.content[-1].text

    def sent(self, messages: Sequence[Msg]) -> list[Sent]:
        return [
            Sent(
                part.message.role,
                part.message.text,
                tuple(call.id for call in part.message.calls),
                part.message.call_id,
                len(part.message.media),
            )
            for part in host_parts(messages)
        ]
