"""Programs with a tool loop, written with the real SDKs of OpenAI and Anthropic.

Each takes a client, sync or async, and its own list of messages, which begins with a prompt. It
answers the model's calls until there are none, or until it has asked `stop` times, and keeps the
list. `file_text` is what the tool returns for a path.
"""

import inspect
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anthropic
import httpx2
import openai

Json = dict[str, Any]

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
DESCRIPTION = "Returns the text of a file."
MANY = 10_000
SYSTEM = "You read files, one after the other."


def file_text(path: str) -> str:
    """A text of 9 kB that is different for each path."""
    lines = (f'{path}, line {number}: "déjà vu" and more words.\n' for number in range(190))
    return "".join(lines)


async def _value(result: Any) -> Any:
    """The result of a sync or an async client."""
    return await result if inspect.isawaitable(result) else result


async def _all(stream: Any) -> list[Any]:
    """The events of a sync or an async stream."""
    if hasattr(stream, "__aiter__"):
        return [event async for event in stream]
    return list(stream)


async def _patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask once more if the connection breaks in the middle of a stream."""
    try:
        return await ask()
    except (httpx2.TransportError, openai.APIConnectionError, anthropic.APIConnectionError):
        return await ask()


def _arguments(text: str) -> Json:
    arguments: Json = json.loads(text)
    return arguments


# Chat Completions -------------------------------------------------------------------------------

_CHAT_TOOL = {
    "type": "function",
    "function": {"name": "read_file", "description": DESCRIPTION, "parameters": SCHEMA},
}


async def chat(
    client: Any, messages: list[Json], *, stream: bool = False, stop: int = MANY
) -> None:
    for _ in range(stop):
        reply = await _patiently(partial(_chat_reply, client, messages, stream=stream))
        messages.append(reply)
        if not reply.get("tool_calls"):
            return
        for call in reply["tool_calls"]:
            path = _arguments(call["function"]["arguments"])["path"]
            messages.append(
                {"role": "tool", "tool_call_id": call["id"], "content": file_text(path)}
            )


async def _chat_reply(client: Any, messages: list[Json], *, stream: bool) -> Json:
    arguments: Json = {"model": "m", "messages": messages, "tools": [_CHAT_TOOL]}
    if not stream:
        response = await _value(client.chat.completions.create(**arguments))
        reply: Json = response.choices[0].message.model_dump(exclude_none=True)
        return reply
    options = {"include_usage": True}
    arguments |= {"stream": True, "stream_options": options}
    events = await _all(await _value(client.chat.completions.create(**arguments)))
    text, calls = "", {}
    for event in events:
        for choice in event.choices:
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(piece.index, {"id": piece.id, "type": "function"})
                function = call.setdefault("function", {"name": piece.function.name})
                function["arguments"] = function.get("arguments", "") + piece.function.arguments
    message: Json = {"role": "assistant", "content": text}
    return {**message, "tool_calls": list(calls.values())} if calls else message


# Responses --------------------------------------------------------------------------------------

_RESPONSES_TOOL = {
    "type": "function",
    "name": "read_file",
    "description": DESCRIPTION,
    "parameters": SCHEMA,
    "strict": False,
}


async def responses(
    client: Any, items: list[Json], *, stream: bool = False, stop: int = MANY
) -> None:
    for _ in range(stop):
        arguments: Json = {"model": "m", "instructions": SYSTEM, "input": items}
        arguments |= {"tools": [_RESPONSES_TOOL], "store": False, "stream": stream}
        response = await _patiently(partial(_response, client, arguments))
        output = [item.model_dump(exclude_none=True) for item in response.output]
        items += output
        calls = [item for item in output if item["type"] == "function_call"]
        if not calls:
            return
        for call in calls:
            text = file_text(_arguments(call["arguments"])["path"])
            items.append(
                {"type": "function_call_output", "call_id": call["call_id"], "output": text}
            )


async def _response(client: Any, arguments: Json) -> Any:
    response = await _value(client.responses.create(**arguments))
    return (await _all(response))[-1].response if arguments["stream"] else response


# Messages ---------------------------------------------------------------------------------------

_MESSAGES_TOOL = {"name": "read_file", "description": DESCRIPTION, "input_schema": SCHEMA}


async def messages(
    client: Any, listed: list[Json], *, stream: bool = False, stop: int = MANY
) -> None:
    """The cache mark moves with the newest message, as in coding assistants."""
    for _ in range(stop):
        arguments: Json = {"model": "m", "max_tokens": 1000, "system": SYSTEM}
        arguments |= {"messages": _marked(listed), "tools": [_MESSAGES_TOOL]}
        ask = _streamed_message if stream else _message
        response = await _patiently(partial(ask, client, arguments))
        content = [block.model_dump(exclude_none=True) for block in response.content]
        listed.append({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            return
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call["id"],
                "content": file_text(call["input"]["path"]),
            }
            for call in calls
        ]
        listed.append({"role": "user", "content": results})


def _marked(listed: list[Json]) -> list[Json]:
    last = listed[-1]
    content = last["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    return [*listed[:-1], {**last, "content": [*content[:-1], {**content[-1], **mark}]}]


async def _message(client: Any, arguments: Json) -> Any:
    return await _value(client.messages.create(**arguments))


async def _streamed_message(client: Any, arguments: Json) -> Any:
    manager = client.messages.stream(**arguments)
    if hasattr(manager, "__aenter__"):
        async with manager as stream:
            return await stream.get_final_message()
    with manager as stream:
        return stream.get_final_message()


PROGRAMS: dict[str, Any] = {"chat": chat, "responses": responses, "messages": messages}


def start(name: str, prompt: str) -> list[Json]:
    """The list of a program that has asked nothing yet."""
    user = {"role": "user", "content": prompt}
    return [{"role": "system", "content": SYSTEM}, user] if name == "chat" else [user]
