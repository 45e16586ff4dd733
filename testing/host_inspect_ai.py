"""The scenario's program on Inspect AI: one `react` agent that works through many steps.

An agent of Inspect works on one sample, so a run is one turn. Its tokens are counted here, because
Inspect would download a tokenizer.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ModelOutput, get_model, modelapi
from inspect_ai.model._providers.mockllm import MockLLM
from inspect_ai.tool import Tool, ToolCall, tool

from host_scenario import WINDOW, Calls, Play, Refuses, Says, ScenarioHost, Sent, reading, report
from scroll_context.hosts.inspect_ai import ScrollCompaction
from scroll_context.view.tokens import estimate


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
        return report(number)

    return execute


class Host(ScenarioHost):
    """Its adapter is a `ScrollCompaction`, which has a session for each conversation."""

    def _watch(self, adapter: Any) -> None:
        """Its sessions begin later, so there is nothing to watch yet."""

    @classmethod
    def open(cls, place: Any, **parts: Any) -> "Host":
        return cls(ScrollCompaction(place, window=WINDOW, **parts))

    def answer(self, messages: Sequence[ChatMessage], *_: Any) -> ModelOutput:
        match self.play(self.sent(messages)):
            case Says(text):
                return ModelOutput.from_content("scripted", text)
            case Calls(calls, text):
                named = [ToolCall(self.call_id(), name, given) for name, given in calls]
                output = ModelOutput.from_content("scripted", text)
                output.choices[0].message.tool_calls = named
                output.choices[0].stop_reason = "tool_calls"
                return output
            case Refuses():
                return ModelOutput.from_content("scripted", "", stop_reason="model_length")
        raise AssertionError("a structured answer was not asked for")

    def run_task(self, prompt: Any, plays: Sequence[Play], folder: Path) -> str:
        """Evaluate one sample; the answer of its agent."""
        self._plays.extend(plays)
        model = get_model("scroll-scripted/model", custom_outputs=self.answer, memoize=False)
        recall = self.adapter.tools if self.adapter else []
        agent = react(
            prompt="You read reports.",
            tools=[read_report(), *recall],
            submit=False,
            compaction=self.adapter,
        )
        task = Task(dataset=[Sample(input=prompt)], solver=agent)
        (log,) = eval(task, model=model, display="none", log_dir=str(folder))
        assert log.status == "success", log.error
        (sample,) = log.samples
        self.messages = sample.messages
        assert not self._plays, f"not played: {self._plays}"
        return str(sample.output.completion)

    def work_for(self, steps: int) -> None:
        plays = [*map(reading, range(steps - 1)), Says("Done.")]
        with TemporaryDirectory() as folder:
            self.run_task("Read all the reports that you find.", plays, Path(folder))

    def sent(self, messages: Sequence[ChatMessage]) -> list[Sent]:
        return [
            Sent(
                message.role,
                message.text,
                _call_ids(message),
                getattr(message, "tool_call_id", None) or "" if message.role == "tool" else "",
                0
                if isinstance(message.content, str)
                else sum(part.type == "image" for part in message.content),
            )
            for message in messages
        ]


def _call_ids(message: ChatMessage) -> tuple[str, ...]:
    if not isinstance(message, ChatMessageAssistant):
        return ()
    return tuple(call.id for call in message.tool_calls or ())
