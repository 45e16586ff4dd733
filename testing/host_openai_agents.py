"""The scenario's program on the OpenAI Agents SDK, with its own scripted model."""

import base64
from collections.abc import Sequence
from typing import Any

from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

import host_scenario
from host_scenario import Answer, Mode, ScenarioHost, Sent
from scroll_adapters.openai_agents import ScrollFilter

set_tracing_disabled(True)


read_report = function_tool(host_scenario.read_report)


class Host(ScenarioHost):
    heading = "OpenAI Agents SDK"
    adapter_type = ScrollFilter
    modes = ("sync", "async", "stream")
    adapter: ScrollFilter | None

    def fake_model(self) -> ScriptedModel:
        return ScriptedModel([ModelStep.respond(self._answer) for _ in self._plays])

    def _agent(self, structured: bool) -> Agent[Any]:
        model = self.fake_model()
        scroll = self.adapter
        return Agent(
            name="reader",
            instructions="You read reports.",
            model=scroll.model(model) if scroll else model,
            tools=[read_report, *(scroll.tools if scroll else ())],
            output_type=Answer if structured else None,
        )

    def _answer(self, request: ModelCall) -> Any:
        system = Sent("system", request.system_instructions or "")
        played = self.play([system, *self.sent(request.input)])
        texts = [assistant_message(played.text)] if played.text else []
        calls = [function_call(call.name, call.arguments, call_id=call.id) for call in played.calls]
        return [*texts, *calls]

    def snippet_names(self) -> dict[str, Any]:
        return {"model": self.fake_model(), "tools": [read_report]}

    def snippet_answer(self, names: dict[str, Any]) -> str:
        return str(names["answer"])

    def _options(self) -> dict[str, Any]:
        if self.adapter is None:
            return {"max_turns": 50}
        config = RunConfig(call_model_input_filter=self.adapter)
        return {"max_turns": 50, "run_config": config, "hooks": self.adapter}

    def _input(self, prompt: str, image: bytes) -> list[Any]:
        content: Any = prompt
        if image:
            url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
            content = [
                {"type": "input_text", "text": prompt},
                {"type": "input_image", "image_url": url, "detail": "auto"},
            ]
        return [*self.messages, {"role": "user", "content": content}]

    def turn(self, prompt: str, image: bytes, structured: bool) -> str:
        agent = self._agent(structured)
        return self._end(Runner.run_sync(agent, self._input(prompt, image), **self._options()))

    async def aturn(self, prompt: str, image: bytes, mode: Mode, structured: bool) -> str:
        agent, items = self._agent(structured), self._input(prompt, image)
        if mode == "async":
            return self._end(await Runner.run(agent, items, **self._options()))
        result = Runner.run_streamed(agent, items, **self._options())
        async for _ in result.stream_events():
            pass
        return self._end(result)

    def _end(self, result: Any) -> str:
        self.messages = result.to_input_list()
        output = result.final_output
        return str(output.number if isinstance(output, Answer) else output)

    def sent(self, messages: Sequence[Any]) -> list[Sent]:
        sent: list[Sent] = []
        for item in messages:
            part = _part(item)
            if sent and sent[-1].role == part.role == "assistant":
                before = sent.pop()
                text = "\n".join(filter(None, (before.text, part.text)))
                part = Sent("assistant", text, before.calls + part.calls)
            sent.append(part)
        return sent


def _part(item: dict[str, Any]) -> Sent:
    kind = item.get("type") or "message"
    if kind == "function_call":
        return Sent("assistant", calls=(item["call_id"],))
    if kind == "function_call_output":
        return Sent("tool", item["output"], call_id=item["call_id"])
    assert kind == "message", kind
    content = item["content"]
    if isinstance(content, str):
        return Sent(item["role"], content)
    images = sum(block["type"] == "input_image" for block in content)
    return Sent(
        item["role"], "\n".join(block.get("text", "") for block in content).strip(), images=images
    )
