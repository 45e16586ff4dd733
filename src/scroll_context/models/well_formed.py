"""Making a list of messages one that every provider accepts.

Providers answer HTTP 400 to a tool result without its call, to a call without its result and to an empty
text. The view does not produce them; a hand-made or imported history can. What is left out here is only
what says nothing (an empty message) or answers nothing (a result without its call): the log still has it.
"""

from collections.abc import Iterable

import msgspec

from scroll_context.messages import Message

NO_OUTPUT = "(no output)"
NO_RESULT = "(no result was recorded for this call)"


def well_formed(messages: Iterable[Message]) -> list[Message]:
    """The messages with every call answered exactly once, right after it, and without empty texts."""
    out: list[Message] = []
    open_calls: dict[str, str] = {}  # id to tool name: asked for by the newest assistant message, not answered

    def answer_the_rest() -> None:
        for call_id, name in open_calls.items():
            out.append(Message(role="tool", text=NO_RESULT, tool_call_id=call_id, name=name))
        open_calls.clear()

    for message in messages:
        if message.role == "tool":
            if message.tool_call_id in open_calls:
                name = open_calls.pop(message.tool_call_id)
                text = message.text if message.text.strip() else NO_OUTPUT
                out.append(msgspec.structs.replace(message, text=text, name=message.name or name))
            continue
        answer_the_rest()
        if message.role == "assistant":
            open_calls.update((call.id, call.name) for call in message.tool_calls)
            if message.text.strip() or message.tool_calls:
                out.append(message)
        elif message.text.strip():
            out.append(message)
    answer_the_rest()
    return out
