"""Scroll under a pydantic-ai agent: a capability that keeps the agent's context in a session.

    agent = Agent("anthropic:claude-x", capabilities=[ScrollCapability(session)])

Before each attempt at a request, what the agent's history has and the log lacks is recorded, and
the model is sent the session's bounded view in its place; the history that pydantic-ai keeps stays
whole and untouched. The model gets one more tool, `exec`, for cells with `ms` and the session's own
tools. A request that the provider refuses as too long is evicted further and sent again, once.
Messages are known by their run and time, so a history that is loaded from disk and handed over
again adds nothing. One session serves one conversation: do not share it between runs at the same
time.
"""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai import messages as foreign
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelContextWindowExceededError, RetryModelRequest
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.toolsets import FunctionToolset

from scroll_context.errors import BadInput
from scroll_context.messages import Message, ToolSpec
from scroll_context.models.protocol import DEFAULT_WINDOW, Request
from scroll_context.models.translate import history, reply
from scroll_context.session.prompt import exec_spec, system_prompt
from scroll_context.session.session import Session

EXEC = "exec"


class ScrollCapability(AbstractCapability[Any]):
    """The context of an agent, kept in a session.

    `window` is for models whose context window is not known.
    """

    def __init__(self, session: Session, *, window: int | None = None) -> None:
        self.session = session
        self._window = window
        self._refused = False  # the provider called the last request too long
        self._one_at_a_time = threading.Lock()

    def get_instructions(self) -> str:
        return system_prompt(self.session, (EXEC,))

    def get_toolset(self) -> FunctionToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset()
        # in order: a cell may use what the cell before it bound
        toolset.add_function(
            self._exec, name=EXEC, description=exec_spec(EXEC).description, sequential=True
        )
        return toolset

    async def _exec(self, ctx: RunContext[Any], source: str, headline: str = "") -> str:
        """Run one Python cell.

        Args:
            source: the Python source of the cell
            headline: task | verified state | next action | status, with exact names; at most 200 characters
        """
        return (await self.session.arun(source, ctx.tool_call_id or "", name=EXEC)).content

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        _refuse_structured_output(request_context)
        said, ids = observed(request_context.messages)
        request = await asyncio.to_thread(self._take_view, said, ids, request_context)
        provider = request_context.model.system
        request_context.messages = [
            *_system_parts(request_context.messages),
            *history(request.messages, provider),
        ]
        return request_context

    def _take_view(
        self, said: Sequence[Message], ids: Sequence[str], context: ModelRequestContext
    ) -> Request:
        parameters = context.model_request_parameters
        specs = [
            ToolSpec(one.name, one.description or "", one.parameters_json_schema)
            for one in parameters.function_tools
        ]
        instructions = [part.content for part in parameters.instruction_parts or ()]
        system = "\n\n".join(
            [*instructions, *(message.text for message in said if message.role == "system")]
        )
        window = self._window or getattr(context.model, "context_window", None) or DEFAULT_WINDOW
        with self._one_at_a_time:
            self.session.observe(said, ids)
            refused, self._refused = self._refused, False
            return self.session.view(
                system,
                tools=specs,
                window=window,
                model_name=context.model.model_id,
                overflowed=refused,
            )

    async def after_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: ModelRequestContext,
        response: foreign.ModelResponse,
    ) -> foreign.ModelResponse:
        await asyncio.to_thread(self.session.replied, reply(response))
        return response

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> foreign.ModelResponse:
        if isinstance(error, ModelContextWindowExceededError) and request_context.attempt == 1:
            self._refused = True
            raise RetryModelRequest from error
        raise error


def _refuse_structured_output(context: ModelRequestContext) -> None:
    """Refuse `output_type=`: pydantic-ai merges such requests, and turns would be recorded again
    and again.
    """
    parameters = context.model_request_parameters
    if parameters.output_tools or parameters.output_mode != "text":
        raise BadInput(
            "ScrollCapability does not support output_type= yet; nothing was sent. Leave out output_type=, or use "
            "scroll_context.Agent(answer=...), which returns typed answers."
        )


def observed(messages: Sequence[foreign.ModelMessage]) -> tuple[list[Message], list[str]]:
    """A history of pydantic-ai as Scroll's messages, each with an id of its run and time where it
    has one.
    """
    said: list[Message] = []
    ids: list[str] = []
    for message in messages:
        number = itertools.count()
        base = (
            f"{message.run_id}:{message.timestamp.isoformat()}"
            if message.run_id and message.timestamp
            else ""
        )
        found = (
            [reply(message).message()]
            if isinstance(message, foreign.ModelResponse)
            else _parts(message)
        )
        for one in found:
            said.append(one)
            ids.append(f"{base}:{next(number)}" if base else "")
    return said, ids


def _parts(request: foreign.ModelRequest) -> list[Message]:
    made: list[Message] = []
    for part in request.parts:
        match part:
            case foreign.SystemPromptPart():
                made.append(Message(role="system", text=part.content))
            case foreign.UserPromptPart():
                made.append(Message(role="user", text=_text(part.content)))
            case foreign.ToolReturnPart():
                if part.files:
                    raise _not_text(part.files[0])
                text = part.model_response_str()
                made.append(
                    Message(
                        role="tool", text=text, tool_call_id=part.tool_call_id, name=part.tool_name
                    )
                )
            case foreign.RetryPromptPart() if part.tool_name:
                text = part.model_response()
                made.append(
                    Message(
                        role="tool", text=text, tool_call_id=part.tool_call_id, name=part.tool_name
                    )
                )
            case foreign.RetryPromptPart():
                made.append(Message(role="user", text=part.model_response()))
    return made


def _text(content: str | Sequence[foreign.UserContent]) -> str:
    """A prompt as text.

    A part that is not text is refused: sent as text it would be lost unseen.
    """
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        if isinstance(part, foreign.CachePoint):
            continue
        text = part.content if isinstance(part, foreign.TextContent) else part
        if not isinstance(text, str):
            raise _not_text(part)
        texts.append(text)
    return "\n".join(texts)


def _not_text(part: object) -> BadInput:
    return BadInput(
        f"ScrollCapability takes text, and this history has a part of type {type(part).__name__}. Nothing was sent. "
        "Leave the capability out for runs with images or files."
    )


def _system_parts(messages: Sequence[foreign.ModelMessage]) -> list[foreign.ModelMessage]:
    """The system prompts in a history, which providers want first; instructions travel beside the
    messages.
    """
    parts = [
        part
        for message in messages
        if isinstance(message, foreign.ModelRequest)
        for part in message.parts
        if isinstance(part, foreign.SystemPromptPart)
    ]
    return [foreign.ModelRequest(parts=parts)] if parts else []
