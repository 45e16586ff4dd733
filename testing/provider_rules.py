"""What the providers demand of a request, and the words in which they refuse it.

`broken_rule` answers for the three protocols: calls and results are paired, texts are not empty, at
most four cache marks are set, and the items of a reply with reasoning are complete. `normal_form`
is a request as a provider's cache sees it: cache marks aside, and a single text block the same as a
string.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST_MARKS = 4

Json = dict[str, Any]


def broken_rule(protocol: str, body: Json) -> str:
    """Why a provider would answer HTTP 400; "" if it would not."""
    checks = {"messages": _messages_rules, "chat": _chat_rules, "responses": _responses_rules}
    return next(checks[protocol](body), "")


def normal_form(protocol: str, body: Json) -> list[bytes]:
    """The request in pieces: what stands before the list, then each message."""
    head = {name: body.get(name) for name in ("system", "instructions", "tools")}
    items = body["input" if protocol == "responses" else "messages"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if protocol == "responses":
        items = [_without_own_id(item) for item in items]
    return [_bytes(_plain(head)), *(_bytes(_plain(item)) for item in items)]


def extends(pieces: list[bytes], previous: list[bytes]) -> bool:
    """Whether a request begins with the one before.

    Its newest message may have more blocks now: opencode writes the next prompt into the message
    of a result that was not answered. Providers cache block by block.
    """
    *before, newest = previous
    count = len(before)
    if pieces[:count] != before or len(pieces) == count:
        return False
    return pieces[count] == newest or _has_grown(json.loads(newest), json.loads(pieces[count]))


def _has_grown(old: Json, new: Json) -> bool:
    """Whether a message is another one with more blocks at its end."""
    if {**old, "content": None} != {**new, "content": None} or not old.get("content"):
        return False
    blocks = _blocks(old["content"])
    return _blocks(new["content"])[: len(blocks)] == blocks


def _without_own_id(item: Json) -> Json:
    """Clients give ids to their own items, which no model sees: Codex makes new ones in a fork."""
    if _is_of_reply(item):
        return item
    return {name: value for name, value in item.items() if name != "id"}


def _bytes(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {name: _plain(item) for name, item in value.items() if name != "cache_control"}
    content = plain.get("content")
    if isinstance(content, list) and len(content) == 1 and set(content[0]) == {"type", "text"}:
        plain["content"] = content[0]["text"]
    return plain


# Messages ---------------------------------------------------------------------------------------


def _messages_rules(body: Json) -> Iterator[str]:
    messages = [{**message, "content": _blocks(message["content"])} for message in body["messages"]]
    yield from _missing_results(messages)
    yield from _missing_calls(messages)
    if not messages:
        yield "messages: at least one message is required"
    for message in messages:
        if not message["content"]:
            yield "messages: content must be non-empty"
        has_thinking = any(block["type"] == "thinking" for block in message["content"])
        for block in message["content"]:
            if block["type"] != "text" or block["text"].strip():
                continue
            # Beside thinking a space passes, which opencode relies on.
            if not (has_thinking and block["text"]):
                yield "messages: text content blocks must contain non-whitespace text"
    marks = json.dumps(body).count('"cache_control"')
    if marks > MOST_MARKS:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."


def _missing_results(messages: list[Json]) -> Iterator[str]:
    for position, message in enumerate(messages):
        after = messages[position + 1]["content"] if position + 1 < len(messages) else []
        answers = {block["tool_use_id"] for block in after if block["type"] == "tool_result"}
        for call_id in _ids(message["content"], "tool_use", "id"):
            if message["role"] == "assistant" and call_id not in answers:
                yield (
                    f"messages.{position}: `tool_use` ids were found without `tool_result` blocks "
                    f"immediately after: {call_id}."
                )


def _missing_calls(messages: list[Json]) -> Iterator[str]:
    for position, message in enumerate(messages):
        before = messages[position - 1]["content"] if position else []
        calls = set(_ids(before, "tool_use", "id"))
        for call_id in _ids(message["content"], "tool_result", "tool_use_id"):
            if call_id not in calls:
                yield (
                    f"messages.{position}: unexpected `tool_use_id` found in `tool_result` "
                    f"blocks: {call_id}."
                )


def _ids(blocks: list[Json], kind: str, field: str) -> list[str]:
    return [block[field] for block in blocks if block["type"] == kind]


def _blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


# Chat Completions -------------------------------------------------------------------------------


def _chat_rules(body: Json) -> Iterator[str]:
    open_calls: set[str] = set()
    for position, message in enumerate(body["messages"]):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                yield (
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    "preceeding message with 'tool_calls'."
                )
            open_calls.discard(message["tool_call_id"])
            continue
        yield from _unanswered(open_calls)
        open_calls = {call["id"] for call in message.get("tool_calls") or ()}
        if not open_calls and message.get("content") in (None, "", []):
            yield f"Invalid value for 'content' of messages.{position}: expected a text."
    yield from _unanswered(open_calls)
    if not body["messages"]:
        yield "Invalid 'messages': empty array."


def _unanswered(open_calls: set[str]) -> Iterator[str]:
    if open_calls:
        names = ", ".join(sorted(open_calls))
        yield (
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            f"to each 'tool_call_id'. The following did not have response messages: {names}"
        )


# Responses --------------------------------------------------------------------------------------


_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = tuple(f"{kind}_output" for kind in _CALLS)


def _responses_rules(body: Json) -> Iterator[str]:
    items = body["input"]
    if isinstance(items, str):
        return
    calls = {item["call_id"] for item in items if _type(item) in _CALLS}
    outputs = {item["call_id"] for item in items if _type(item) in _OUTPUTS}
    for call_id in sorted(calls - outputs):
        yield f"No tool output found for function call {call_id}."
    for call_id in sorted(outputs - calls):
        yield f"No tool call found for function call output with call_id {call_id}."
    for position, item in enumerate(items):
        if _type(item) == "reasoning":
            following = items[position + 1] if position + 1 < len(items) else {}
            if not _is_of_reply(following):
                yield (
                    f"Item '{item['id']}' of type 'reasoning' was provided without its required "
                    "following item."
                )
        if _type(item) == "message" and not item["content"]:
            yield f"Invalid value for 'input[{position}].content': expected a text."
    if not items:
        yield "Invalid 'input': empty array."


def _type(item: Mapping[str, Any]) -> str:
    return item.get("type") or "message"


def _is_of_reply(item: Mapping[str, Any]) -> bool:
    if _type(item) == "message":
        return item.get("role") == "assistant"
    return _type(item) in (*_CALLS, "reasoning")
