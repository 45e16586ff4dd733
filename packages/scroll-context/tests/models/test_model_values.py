"""Messages, requests and replies have one byte form; providers are loaded only when a model is
made.
"""

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.errors import BadInput
from scroll_context.messages import Message, Thinking, ToolCall, ToolSpec, canonical
from scroll_context.models import Reply, Request, Settings, Usage, connect
from scroll_context.models.protocol import well_formed

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
scalars: st.SearchStrategy[Any] = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)
objects = st.dictionaries(texts, values, max_size=3)
calls = st.builds(ToolCall, texts, texts, objects | texts, texts, objects)
thoughts = st.builds(Thinking, texts, texts, texts, objects)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    text=texts,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    tool_call_id=texts,
    name=texts,
    thinking=st.lists(thoughts, max_size=2).map(tuple),
    cache_mark=st.booleans(),
)


@given(st.lists(messages, max_size=3), objects)
def test_requests_survive_their_canonical_form(some: list[Message], schema: dict[str, Any]) -> None:
    request = Request(
        tuple(some), (ToolSpec("t", "d", schema),), Settings(max_tokens=5, extra=schema)
    )
    data = canonical(request)
    again = msgspec.json.decode(data, type=Request)
    assert again == request
    assert canonical(again) == data


def test_replies_survive_their_canonical_form() -> None:
    reply = Reply(
        text="x",
        tool_calls=(ToolCall("a", "exec", "raw"),),
        thinking=(Thinking("t", "s", "anthropic", {"id": "i"}),),
        usage=Usage(input_tokens=3),
        cost=0.25,
    )
    assert msgspec.json.decode(canonical(reply), type=Reply) == reply
    assert reply.message().tool_calls == reply.tool_calls


def test_the_order_of_keys_does_not_matter() -> None:
    assert canonical(ToolCall("a", "f", {"x": 1, "y": 2})) == canonical(
        ToolCall("a", "f", {"y": 2, "x": 1})
    )


short_ids = st.sampled_from(["a", "b", "c"])
loose = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool"]),
    text=st.sampled_from(["", " ", "words"]),
    tool_calls=st.lists(short_ids, unique=True, max_size=2).map(
        lambda ids: tuple(ToolCall(i, "f") for i in ids)
    ),
    tool_call_id=short_ids,
)


@given(st.lists(loose, max_size=10))
def test_well_formed_pairs_every_call_with_one_result(some: list[Message]) -> None:
    some = [
        message if message.role == "assistant" else msgspec.structs.replace(message, tool_calls=())
        for message in some
    ]
    result = well_formed(some)
    assert well_formed(result) == result
    waiting: list[str] = []
    for message in result:
        if message.role == "tool":
            waiting.remove(message.tool_call_id)
            assert message.text.strip()
            continue
        assert not waiting
        assert message.text.strip() or message.tool_calls
        waiting = [call.id for call in message.tool_calls]
    assert not waiting
    assert [m for m in result if m.role == "user"] == [
        m for m in some if m.role == "user" and m.text.strip()
    ]


def test_importing_the_models_loads_no_provider() -> None:
    program = """
import sys
import scroll_context.models
loaded = {"pydantic_ai", "openai", "anthropic", "httpx2", "asyncio"} & set(sys.modules)
sys.exit(f"loaded: {loaded}" if loaded else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_named() -> None:
    program = """
import sys
sys.modules["pydantic_ai"] = None
from scroll_context.errors import BadInput
from scroll_context.models import connect
try:
    connect("openai:x", api_key="k")
except BadInput as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert "scroll-context[models]" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("gpt", "provider:model"),
        ("nobody:gpt", "nobody:gpt"),
        ("anthropic:claude-sonnet-5", "ANTHROPIC_API_KEY"),
    ],
)
def test_what_cannot_be_connected_to(spec: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic_ai", reason="the models extra is not installed")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(BadInput, match=says):
        connect(spec)
