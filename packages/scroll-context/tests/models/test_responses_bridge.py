"""The bridge to OpenAI's responses protocol: reasoning goes back with the items it belongs to, or
not at all.
"""

from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="the models extra is not installed")

import msgspec

from provider_server import Exchange, ProviderServer
from scroll_context.messages import Message, ToolSpec
from scroll_context.models import Request, connect

EXEC = ToolSpec(
    "exec", "Run a cell.", {"type": "object", "properties": {"source": {"type": "string"}}}
)
ASK = Message(role="user", text="What is in x?")
REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "sealed"}
CALL = {
    "id": "fc_1",
    "type": "function_call",
    "call_id": "a",
    "name": "exec",
    "arguments": '{"source": "x"}',
    "status": "completed",
}


def play(exchange: Exchange) -> None:
    """Sealed reasoning, then a call."""
    response: dict[str, Any] = {
        "id": "r1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5.2",
        "output": [],
        "status": "in_progress",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    exchange.start_stream()
    number = 0

    def send(kind: str, **fields: Any) -> None:
        nonlocal number
        exchange.send({"type": kind, "sequence_number": number, **fields}, event=kind)
        number += 1

    send("response.created", response=response)
    for index, item in enumerate((REASONING, CALL)):
        send("response.output_item.added", output_index=index, item=item)
        send("response.output_item.done", output_index=index, item=item)
    usage = {
        "input_tokens": 50,
        "input_tokens_details": {"cached_tokens": 40},
        "output_tokens": 8,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 58,
    }
    done = {**response, "status": "completed", "output": [REASONING, CALL], "usage": usage}
    send("response.completed", response=done)
    exchange.end_stream()


def test_reasoning_and_its_items_travel_together() -> None:
    with ProviderServer(play) as server:
        model = connect("openai-responses:gpt-5.2", base_url=server.url + "/v1", api_key="k")
        reply = model.reply(Request((ASK,), (EXEC,)))
        assert [(call.id, call.arguments) for call in reply.tool_calls] == [("a", {"source": "x"})]
        assert reply.thinking[0].signature
        assert (reply.usage.input_tokens, reply.usage.cache_read_tokens) == (50, 40)
        result = Message(role="tool", text="4", tool_call_id="a", name="exec")
        model.reply(Request((ASK, reply.message(), result), (EXEC,)))
        plain = msgspec.structs.replace(reply.message(), thinking=())
        model.reply(Request((ASK, plain, result), (EXEC,)))
    assert server.paths == ["/v1/responses"] * 3
    kept, dropped = (body["input"] for body in server.bodies[1:])
    assert [item.get("type", item.get("role")) for item in kept] == [
        "user",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert (kept[1]["id"], kept[1]["encrypted_content"], kept[2]["id"]) == (
        "rs_1",
        "sealed",
        "fc_1",
    )
    assert [item.get("type", item.get("role")) for item in dropped] == [
        "user",
        "function_call",
        "function_call_output",
    ]
    assert "id" not in dropped[1]
