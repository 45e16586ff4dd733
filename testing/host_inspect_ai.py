"""The scenario's program on Inspect AI: a `react` agent with a scripted model.

An agent of Inspect runs in a sample only, so each turn is an evaluation of one sample. Inspect has
no streamed way to run an agent. Tokens are counted here, because Inspect would download a
tokenizer.
"""

import asyncio
import base64
import threading
from collections.abc import Sequence
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

from inspect_ai import Task, eval, eval_async
from inspect_ai.agent import Agent, react
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, resolve_sample_attachments
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageUser,
    ContentImage,
    ContentText,
    GenerateConfig,
    Model,
    ModelOutput,
    ResponseSchema,
    get_model,
    modelapi,
)
from inspect_ai.model._providers.mockllm import MockLLM
from inspect_ai.tool import Tool, ToolCall, tool
from inspect_ai.util import json_schema

from host_scenario import SESSION, Answer, Calls, Mode, Play, ScenarioHost, Sent, report
from scroll_adapters.inspect_ai import ScrollCompaction
from scroll_context.events import Event, Kind
from scroll_context.view.tokens import estimate

ENDLESS = -2
"""The number of the report whose reader never ends."""
waiting = threading.Event()
"""Set when the reader of that report is at work."""


class Refused(Exception):
    """The provider refuses a request as too long, which Inspect's models say with a reply."""


class CountingModel(MockLLM):
    async def count_text_tokens(self, text: str) -> int:
        return estimate(text)

    def collapse_user_messages(self) -> bool:
        # As Anthropic's models need it.
        return True


@modelapi(name="scroll-scripted")
def scripted() -> type[CountingModel]:
    return CountingModel


@tool
def read_report() -> Tool:
    async def execute(number: int) -> str:
        """Read one report.

        Args:
            number: the number of the report
        """
        if number == ENDLESS:
            waiting.set()
            await asyncio.Event().wait()
        return report(number)

    return execute


class Host(ScenarioHost):
    heading = "Inspect AI"
    adapter_type = ScrollCompaction
    modes = ("async", "sync")
    adapter: ScrollCompaction | None

    def _watch(self, adapter: ScrollCompaction) -> None:
        super()._watch(adapter._conversations[SESSION].adapter)

    def model(self, structured: bool = False) -> Model:
        config = GenerateConfig()
        if structured:
            schema = ResponseSchema(name="answer", json_schema=json_schema(Answer))
            config = GenerateConfig(response_schema=schema)
        return get_model(
            "scroll-scripted/model", custom_outputs=self.answer, memoize=False, config=config
        )

    def _agent(self, model: Model) -> Agent:
        recall = self.adapter.tools if self.adapter else []
        return react(
            prompt="You read reports.",
            model=model,
            tools=[read_report(), *recall],
            submit=False,
            compaction=self.adapter,
        )

    def answer(self, messages: Sequence[ChatMessage], *_: Any) -> ModelOutput:
        try:
            played = self.play(self.sent(messages))
        except Refused:
            return ModelOutput.from_content("scripted", "", stop_reason="model_length")
        output = ModelOutput.from_content("scripted", played.text)
        if played.calls:
            calls = [ToolCall(call.id, call.name, call.arguments) for call in played.calls]
            output.choices[0].message.tool_calls = calls
            output.choices[0].stop_reason = "tool_calls"
        return output

    def overflow(self) -> Exception:
        return Refused()

    def _task(self, prompt: str, image: bytes, structured: bool) -> Task:
        """A task whose only sample is the conversation so far."""
        model = self.model(structured)
        sample = Sample(input=[*self.messages, _prompt(prompt, image)])
        return Task(dataset=[sample], solver=self._agent(model), model=model)

    def turn(self, prompt: str, image: bytes, structured: bool) -> str:
        task = self._task(prompt, image, structured)
        with TemporaryDirectory() as folder:
            return self._end(eval(task, display="none", log_dir=folder), structured)

    async def aturn(self, prompt: str, image: bytes, _: Mode, structured: bool) -> str:
        task = self._task(prompt, image, structured)
        with TemporaryDirectory() as folder:
            return self._end(await eval_async(task, log_dir=folder), structured)

    def _end(self, logs: Sequence[EvalLog], structured: bool) -> str:
        (log,) = logs
        assert log.status == "success", log.error
        # This reads the log from its folder. Images are kept beside the messages there.
        (condensed,) = log.samples
        sample = resolve_sample_attachments(condensed, "full")
        # The agent puts its prompt before the messages of each run.
        self.messages = [message for message in sample.messages if message.role != "system"]
        text = sample.output.completion
        return str(Answer.model_validate_json(text).number) if structured else text

    def parts(self) -> list[Any]:
        # Inspect marks the messages that an agent is given as its input.
        return [message.model_copy(update={"source": None}) for message in self.messages]

    def check_prefixes(self, events: Sequence[Event]) -> None:
        # Only compactions are recorded as requests, so those in which the beginning changes are
        # counted.
        changing = (Kind.EVICTION, Kind.RETRACTION)
        evictions = sum(event.kind in changing for event in events)
        changes = sum(after[: len(before)] != before for before, after in pairwise(self.requests))
        assert changes <= evictions, f"the prefix changed {changes} times, with {evictions} causes"

    def snippet_plays(self) -> list[Play]:
        return [Calls((("submit", {"answer": "To Lisbon."}),))]

    def snippet_names(self) -> dict[str, Any]:
        samples = [Sample(input="Where do we go?")]
        return {"model": self.model(), "tools": [read_report()], "samples": samples}

    def snippet_answer(self, names: dict[str, Any]) -> str:
        (log,) = names["logs"]
        return str(log.samples[0].output.completion)

    def sent(self, messages: Sequence[ChatMessage]) -> list[Sent]:
        return [
            Sent(
                message.role,
                message.text,
                _call_ids(message),
                _answered_call(message),
                _images(message),
            )
            for message in messages
        ]


def _prompt(prompt: str, image: bytes) -> ChatMessage:
    if not image:
        return ChatMessageUser(content=prompt)
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    return ChatMessageUser(content=[ContentText(text=prompt), ContentImage(image=url)])


def _call_ids(message: ChatMessage) -> tuple[str, ...]:
    if not isinstance(message, ChatMessageAssistant):
        return ()
    return tuple(call.id for call in message.tool_calls or ())


def _answered_call(message: ChatMessage) -> str:
    return message.tool_call_id or "" if message.role == "tool" else ""


def _images(message: ChatMessage) -> int:
    if isinstance(message.content, str):
        return 0
    return sum(part.type == "image" for part in message.content)
