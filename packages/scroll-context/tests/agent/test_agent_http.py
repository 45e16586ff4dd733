"""The whole agent against a real HTTP server on loopback that speaks the OpenAI protocol, faults
included.
"""

import json
from collections.abc import Callable

import pytest

pytest.importorskip("pydantic_ai", reason="the extra `models` is not installed")

from openai_server import call_delta, cut, streamed, text_deltas
from provider_server import Play, ProviderServer, fault
from scroll_context.agent.agent import Agent
from scroll_context.events import Kind
from scroll_context.models import connect, with_retries
from scroll_context.session.session import Session

Opened = Callable[..., Session]


def cell(source: str, call_id: str = "call_1") -> Play:
    arguments = json.dumps({"source": source, "headline": "work | going on | next | ok"})
    return streamed(call_delta(0, call_id, "exec", arguments), finish="tool_calls")


def said(text: str) -> Play:
    return streamed(*text_deltas(text))


def agent_at(server: ProviderServer, session: Session, **options: int) -> Agent:
    model = connect(
        "openai:tiny", base_url=server.url + "/v1", api_key="sk-test-1234567890abcdef", **options
    )
    return Agent(session, with_retries(model, attempts=3, first_wait=0.01))


def test_a_turn_over_http(opened: Opened) -> None:
    session = opened()
    with ProviderServer(cell("n = 6 * 7\nprint(n)"), said("It is 42.")) as server:
        run = agent_at(server, session).run("Six times seven?")
    assert (run.state, run.answer, run.totals.input_tokens) == ("answered", "It is 42.", 240)
    first, second = server.bodies
    assert [tool["function"]["name"] for tool in first["tools"]] == ["exec"]
    assert [message["role"] for message in second["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert second["messages"][3]["content"] == "42"
    assert (
        "n" in second["messages"][4]["content"] and "42" in second["messages"][4]["content"]
    )  # the digest, last
    assert json.loads(second["messages"][2]["tool_calls"][0]["function"]["arguments"])[
        "source"
    ].startswith("n = 6")


def test_faults_are_retried_and_nothing_is_lost(opened: Opened) -> None:
    session = opened()
    slow = fault(429, {"error": {"message": "slow down"}}, {"Retry-After": "0"})
    broken = fault(500, {"error": {"message": "oops"}})
    with ProviderServer(
        slow, cell("x = 1\nprint(x)"), broken, cut("half an ans", chunked=True), said("done")
    ) as server:
        run = agent_at(server, session).run("go")
    assert run.answer == "done" and len(server.bodies) == 5
    assert server.bodies[2]["messages"] == server.bodies[4]["messages"]
    assert [e.content for e in session.events() if e.kind == Kind.CONVERSATION] == [
        "go",
        "",
        "done",
    ]


def test_an_overflow_on_the_wire_evicts_and_goes_on(opened: Opened) -> None:
    session = opened()
    overflow = fault(
        400, {"error": {"message": "maximum context length", "code": "context_length_exceeded"}}
    )
    steps = [cell(f"print('{n} ' * 900)", f"call_{n}") for n in range(8)]
    with ProviderServer(*steps, overflow, said("made it")) as server:
        run = agent_at(server, session, window=32_000).run("go")
    assert run.answer == "made it"
    refused, accepted = (len(json.dumps(body["messages"])) for body in server.bodies[-2:])
    assert accepted < refused
    assert any(event.kind == Kind.EVICTION for event in session.events())


def test_malformed_arguments_and_missing_usage(opened: Opened) -> None:
    session = opened()
    garbled = streamed(
        call_delta(0, "call_1", "exec", '{"source": "print(1)'), finish="tool_calls", usage=None
    )
    with ProviderServer(garbled, streamed(*text_deltas("I will try again."), usage=None)) as server:
        run = agent_at(server, session).run("go")
    assert run.answer == "I will try again." and run.totals.input_tokens == 0
    answered = server.bodies[1]["messages"][-2:]
    assert any("not a JSON object" in str(message["content"]) for message in answered)
    assert not any(event.kind == Kind.CELL for event in session.events())
