"""Scroll under the Google Agent Development Kit: a plugin that keeps the context in a session.

    plugin = ScrollPlugin("work.scroll", session="trip")
    app = App(name="guide", root_agent=agent, plugins=[plugin])

Before each model call, the contents of the request are recorded in the session, and the model is
sent those that fit its window: the kit's own contents, apart from folded results and the index. The
events of the kit's session stay complete and untouched. A request that the provider refuses as too
long is evicted further and sent again, once. The model gets the tool `exec` without further setup.

One plugin serves one conversation of one agent: the first agent that asks a model. Requests of
other agents of the app pass unchanged, because each agent of the kit sees another list.

The kit removes the ids of calls that it made up itself before it sends a request. They are found
again in the events of the kit's session, because a session pairs calls and results by them.
"""

import asyncio
import json
import uuid
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from google.adk.agents.callback_context import CallbackContext
from google.adk.models import LlmRequest, LlmResponse
from google.adk.plugins import BasePlugin
from google.adk.tools import BaseTool, ToolContext
from google.genai import types

from scroll_context.hosts import (
    Drop,
    HostAdapter,
    HostMessage,
    Insert,
    Keep,
    Layout,
    Media,
    Replace,
    Reply,
    Thinking,
    ToolCall,
    ToolSpec,
    Usage,
)
from scroll_context.hosts.adapter import is_overflow_error

NEW_CALL_ID = "adk-{}"
"""The form of the ids that the kit makes up for calls that have none."""


class ScrollPlugin(HostAdapter, BasePlugin):
    """The context of an agent, kept in a session. See `HostAdapter` for the arguments."""

    name = "scroll"
    # The agent that this plugin serves.
    _agent_name = ""
    # The contents of the newest request as the kit made them, and their messages.
    _newest: tuple[list[types.Content], list["HostPart"]] | None = None

    @cached_property
    def tools(self) -> list[BaseTool]:
        """The tools of Scroll. The plugin adds them to each request itself."""
        return [_Tool(spec, self) for spec in self.specs]

    async def close(self) -> None:  # type: ignore[override]
        """Close what this plugin opened. A `Runner` does this when it is closed."""
        await asyncio.to_thread(self._close)

    def __exit__(self, *_: object) -> None:
        self._close()

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        self._agent_name = self._agent_name or callback_context.agent_name
        if callback_context.agent_name != self._agent_name:
            return None
        if self.instructions:
            llm_request.append_instructions([self.instructions])
        llm_request.append_tools(self.tools)
        ids = _CallIds(callback_context.session.events)
        self._newest = llm_request.contents, list(host_parts(llm_request.contents, ids))
        await asyncio.to_thread(self._bound, llm_request)
        return None

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        if callback_context.agent_name != self._agent_name or llm_response.partial:
            return None
        for call in llm_response.get_function_calls():
            # The kit would give one later, when the reply is recorded already.
            call.id = call.id or NEW_CALL_ID.format(uuid.uuid4())
        if llm_response.content and llm_response.content.parts:
            await asyncio.to_thread(self.session.replied, reply(llm_response))
        return None

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        if callback_context.agent_name != self._agent_name or not is_overflow_error(error):
            return None
        await asyncio.to_thread(self._bound, llm_request, overflowed=True)
        agent: Any = callback_context.get_invocation_context().agent
        responses = agent.canonical_model.generate_content_async(llm_request)
        complete = [response async for response in responses if not response.partial]
        return complete[-1] if complete else None

    def _bound(self, request: LlmRequest, *, overflowed: bool = False) -> None:
        """Leave the contents in a request that fit the window."""
        assert self._newest is not None
        contents, parts = self._newest
        layout = self.follow(
            [part.message for part in parts],
            system=_system_text(request.config.system_instruction),
            tools=[*_tool_specs(request.config)],
            model_name=request.model or "",
            overflowed=overflowed,
        )
        request.contents = apply(layout, contents, parts)


class _Tool(BaseTool):
    """A tool of Scroll."""

    def __init__(self, spec: ToolSpec, plugin: ScrollPlugin) -> None:
        super().__init__(name=spec.name, description=spec.description)
        self._spec = spec
        self._plugin = plugin

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self._spec.name,
            description=self._spec.description,
            parameters_json_schema=self._spec.parameters,
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> str:
        return await self._plugin.aanswer(self.name, args, tool_context.function_call_id or "")


class _CallIds:
    """The ids of calls in contents that have lost them.

    Calls are found by their names and arguments, in the order of the kit's events; a result belongs
    to the oldest call of its name that has none.
    """

    def __init__(self, events: Sequence[Any]) -> None:
        # By name and arguments, those of the events; by name, those of calls without a result.
        self._ids: dict[str, deque[str]] = defaultdict(deque)
        self._waiting: dict[str, deque[str]] = defaultdict(deque)
        for event in events:
            for call in event.get_function_calls():
                self._ids[_call_key(call)].append(call.id or "")

    def of_call(self, call: types.FunctionCall) -> str:
        ids = self._ids[_call_key(call)]
        recorded_id = ids.popleft() if ids else ""
        call_id = str(call.id or recorded_id)
        self._waiting[call.name or ""].append(call_id)
        return call_id

    def of_response(self, response: types.FunctionResponse) -> str:
        waiting = self._waiting[response.name or ""]
        if response.id:
            if response.id in waiting:
                waiting.remove(response.id)
            return str(response.id)
        return waiting.popleft() if waiting else ""


def _call_key(call: types.FunctionCall) -> str:
    return f"{call.name} {json.dumps(call.args, sort_keys=True, default=str)}"


class HostPart(NamedTuple):
    """One message for the session, and its parts in a content of the kit."""

    message: HostMessage
    place: int
    parts: range


def host_parts(contents: Sequence[types.Content], ids: _CallIds) -> Iterator[HostPart]:
    """The contents of a request, as a session needs to know them.

    The content of a model is one message. Of other contents, each result of a call is one, and so
    are the parts between two results.
    """
    for place, content in enumerate(contents):
        parts = content.parts or []
        if content.role == "model":
            yield HostPart(_reply_message(content, ids), place, range(len(parts)))
            continue
        start = 0
        for number, part in enumerate(parts):
            if part.function_response is None:
                continue
            if start < number:
                yield HostPart(_spoken(parts[start:number]), place, range(start, number))
            message = _result(part.function_response, ids)
            yield HostPart(message, place, range(number, number + 1))
            start = number + 1
        if start < len(parts):
            yield HostPart(_spoken(parts[start:]), place, range(start, len(parts)))


def _spoken(parts: Sequence[types.Part]) -> HostMessage:
    return HostMessage(role="user", text=_text(parts), media=_media(parts))


def _reply_message(content: types.Content, ids: _CallIds) -> HostMessage:
    parts = content.parts or []
    calls = [
        ToolCall(ids.of_call(part.function_call), part.function_call.name or "", _arguments(part))
        for part in parts
        if part.function_call is not None
    ]
    return HostMessage(
        role="assistant",
        text=_text(parts),
        calls=tuple(calls),
        thinking=_thinking(parts),
        media=_media(parts),
    )


def _result(response: types.FunctionResponse, ids: _CallIds) -> HostMessage:
    values = response.response or {}
    return HostMessage(
        role="tool",
        text=_result_text(values),
        call_id=ids.of_response(response),
        name=response.name or "",
        state="error" if "error" in values else "ok",
    )


def _result_text(values: dict[str, Any]) -> str:
    # The kit puts what a tool returns under this name, unless it is a dictionary already.
    result = values.get("result")
    if isinstance(result, str) and len(values) == 1:
        return result
    return json.dumps(values, ensure_ascii=False, default=str)


def reply(response: LlmResponse) -> Reply:
    """The reply of a model of the kit."""
    assert response.content is not None
    parts = response.content.parts or []
    calls = [
        ToolCall(part.function_call.id or "", part.function_call.name or "", _arguments(part))
        for part in parts
        if part.function_call is not None
    ]
    counted = response.usage_metadata
    usage = Usage()
    if counted is not None:
        usage = Usage(
            input_tokens=counted.prompt_token_count or 0,
            output_tokens=counted.candidates_token_count or 0,
            cache_read_tokens=counted.cached_content_token_count or 0,
        )
    return Reply(
        text=_text(parts),
        tool_calls=tuple(calls),
        thinking=_thinking(parts),
        usage=usage,
        model=response.model_version or "",
    )


def apply(
    layout: Layout, contents: Sequence[types.Content], parts: Sequence[HostPart]
) -> list[types.Content]:
    """The contents to send: the kit's own objects wherever nothing is folded."""
    remaining: dict[int, list[types.Part]] = {}
    # Contents of Scroll, and the places of the kit's own, whose parts are not all known yet.
    sent: list[types.Content | int] = []
    for item in layout:
        if isinstance(item, Insert):
            sent.append(_user_content(item.text))
            continue
        if isinstance(item, Drop):
            continue
        part = parts[item.index]
        if part.place not in remaining:
            remaining[part.place] = []
            sent.append(part.place)
        own = (contents[part.place].parts or [])[part.parts.start : part.parts.stop]
        remaining[part.place].extend(_sent_parts(own, item))
    if layout.tail:
        sent.append(_user_content(layout.tail))
    return [
        _content(contents[entry], remaining[entry]) if isinstance(entry, int) else entry
        for entry in sent
    ]


def _content(content: types.Content, parts: list[types.Part]) -> types.Content:
    own = content.parts or []
    is_complete = len(parts) == len(own) and all(
        new is old for new, old in zip(parts, own, strict=True)
    )
    return content if is_complete else content.model_copy(update={"parts": parts})


def _sent_parts(parts: Sequence[types.Part], item: Keep | Replace) -> list[types.Part]:
    if isinstance(item, Keep):
        return [part for part in parts if item.thinking or not part.thought]
    response = parts[0].function_response
    if response is not None:
        shorter = response.model_copy(update={"response": {"result": item.text}})
        return [parts[0].model_copy(update={"function_response": shorter})]
    sent: list[types.Part] = []
    if item.text:
        sent.append(types.Part(text=item.text))
    call_parts = [part for part in parts if part.function_call is not None]
    for number, part in enumerate(call_parts):
        if number < len(item.calls):
            sent.append(_with_arguments(part, item.calls[number].arguments))
        else:
            sent.append(part)
    return sent


def _with_arguments(part: types.Part, arguments: dict[str, Any] | str) -> types.Part:
    assert part.function_call is not None
    if not isinstance(arguments, dict):
        return part
    call = part.function_call.model_copy(update={"args": arguments})
    return part.model_copy(update={"function_call": call})


def _user_content(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


def _system_text(instruction: Any) -> str:
    if instruction is None or isinstance(instruction, str):
        return instruction or ""
    return _text(getattr(instruction, "parts", None) or [])


def _tool_specs(config: types.GenerateContentConfig) -> Iterator[ToolSpec]:
    """The declarations of a request besides its contents: functions, and the form of the answer."""
    for tool in config.tools or []:
        for function in getattr(tool, "function_declarations", None) or []:
            schema = function.parameters_json_schema
            if schema is None and function.parameters is not None:
                schema = function.parameters.model_dump(mode="json", exclude_none=True)
            yield ToolSpec(function.name or "", function.description or "", schema or {})
    answer = config.response_json_schema or config.response_schema
    if isinstance(answer, type) and hasattr(answer, "model_json_schema"):
        answer = answer.model_json_schema()
    if isinstance(answer, dict):
        yield ToolSpec("answer", "", answer)


def _text(parts: Sequence[types.Part]) -> str:
    return "\n".join(part.text for part in parts if part.text and not part.thought)


def _thinking(parts: Sequence[types.Part]) -> tuple[Thinking, ...]:
    return tuple(
        Thinking(text=part.text, provider="google") for part in parts if part.thought and part.text
    )


def _arguments(part: types.Part) -> dict[str, Any]:
    assert part.function_call is not None
    return dict(part.function_call.args or {})


def _media(parts: Sequence[types.Part]) -> tuple[Media, ...]:
    media: list[Media] = []
    for part in parts:
        if part.inline_data is not None:
            blob = part.inline_data
            media_type = blob.mime_type or "application/octet-stream"
            name = blob.display_name or ""
            media.append(Media(media_type=media_type, data=blob.data or b"", name=name))
        elif part.file_data is not None:
            file = part.file_data
            media_type = file.mime_type or "application/octet-stream"
            media.append(Media(media_type=media_type, url=file.file_uri or ""))
    return tuple(media)
