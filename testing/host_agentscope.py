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

from host_scenario import Answer, Mode, ScenarioHost, Sent, read_report, sent_of
from scroll_adapters.agentscope import ScrollMiddleware, host_parts


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


ALLOWED = PermissionDecision(PermissionBehavior.ALLOW, "Reading is allowed.")


class Host(ScenarioHost):
    heading = "AgentScope"
    adapter_type = ScrollMiddleware
    modes = ("async", "stream")
    answer_tool = "GenerateStructuredOutput"

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
        played = self.play(self.sent(messages))
        texts = [TextBlock(text=played.text)] if played.text else []
        calls = [
            ToolCallBlock(id=call.id, name=call.name, input=json.dumps(call.arguments))
            for call in played.calls
        ]
        return ChatResponse(content=[*texts, *calls], is_last=True)

    def snippet_names(self) -> dict[str, Any]:
        return {"model": FakeModel(self, stream=False), "tools": []}

    def snippet_answer(self, names: dict[str, Any]) -> str:
        return str(names["answer"].get_text_content())

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
        return [sent_of(part.message) for part in host_parts(messages)]
