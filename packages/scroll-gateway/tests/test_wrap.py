"""`wrap` under the real SDKs of OpenAI and Anthropic, against an upstream that enforces the rules
of the providers.
"""

import asyncio
import base64
import inspect
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anthropic", reason="the extra `anthropic` is not installed")
pytest.importorskip("openai", reason="the extra `openai` is not installed")

import anthropic
import httpx2
import openai

from forms import form
from scripted_upstream import OVERLOADED, RATE_LIMITED, TOO_LONG, ScriptedUpstream, reading
from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.session.media import wire_bytes
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_gateway.sdk_client import wrap
from scroll_gateway.wire.requests import ListReader
from scroll_gateway.wire.session import PROTOCOLS, Exchange, WiredSession
from sdk_programs import PROGRAMS, file_text, start
from wire_bodies import PIXEL

WINDOW = 30_000
PROMPT = "Read all files."
MESSAGES = (Kind.CONVERSATION, Kind.TOOL_RESULT, Kind.NOTICE)


def client_for(name: str, url: str, *, is_async: bool = False) -> Any:
    if name == "messages":
        kind: Any = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
        return kind(api_key="key", base_url=url)
    kind = openai.AsyncOpenAI if is_async else openai.OpenAI
    return kind(api_key="key", base_url=f"{url}/v1")


def run(name: str, client: Any, listed: list[Any] | None = None, **options: Any) -> list[Any]:
    """Let a program work with a client, and close the client."""
    messages = start(name, PROMPT) if listed is None else listed

    async def work() -> None:
        await PROGRAMS[name](client, messages, **options)
        closing = client.close()
        if inspect.isawaitable(closing):
            await closing

    asyncio.run(work())
    return messages


def recorded(folder: Path) -> Iterator[tuple[Event, str]]:
    """The messages of a session, with their complete texts."""
    with Store(folder, read_only=True) as store:
        for event in store.log.iterate():
            if event.kind in MESSAGES:
                yield event, store.log.text(event)


def assert_all_recorded(name: str, listed: list[Any], folder: Path) -> None:
    """Every message of the program's list is in the log, once, in order, to the character."""
    protocol = next(protocol for protocol in PROTOCOLS if protocol.name == name)
    body = json.dumps({protocol.list_field: listed}).encode()
    messages = [
        message for message in ListReader(protocol).read(body).messages if message.role != "system"
    ]
    events = list(recorded(folder))
    assert [text for _, text in events] == [message.text for message in messages]
    for (event, _), message in zip(events, messages, strict=True):
        calls = event.metadata.get("tool_calls", [])
        assert [(call["id"], call["arguments"]) for call in calls] == [
            (call.id, call.arguments) for call in message.calls
        ]


def all_events(folder: Path) -> list[Event]:
    with Store(folder, read_only=True) as store:
        return list(store.log.iterate())


def assert_changes_only_at_evictions(upstream: ScriptedUpstream, folder: Path) -> None:
    """Each request begins with the one before, unless something was evicted in between."""
    evicted = []
    is_evicted = False
    for event in all_events(folder):
        if event.kind == Kind.EVICTION:
            is_evicted = True
        elif event.kind == Kind.REQUEST:
            evicted.append(is_evicted)
            is_evicted = False
    assert len(evicted) == len(upstream.requests)
    assert any(evicted)
    for number, request in enumerate(upstream.requests):
        assert request.extends or evicted[number], f"request {number}"


every_api = pytest.mark.parametrize("name", sorted(PROGRAMS))
TURNS = {
    "chat": form(30, 150),
    "messages": form(30, 150),
    # The SDK of OpenAI takes seconds to check a long list of items.
    "responses": form(18, 150),
}


@pytest.fixture
def client_bodies(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that the SDK wrote, before anything was folded."""
    bodies: list[bytes] = []
    exchange = WiredSession.exchange

    def spy(wired: WiredSession, method: str, path: str, body: bytes) -> Exchange | None:
        bodies.append(body)
        return exchange(wired, method, path, body)

    monkeypatch.setattr(WiredSession, "exchange", spy)
    return bodies


def assert_bytes_come_back(name: str, bodies: list[bytes], folder: Path) -> None:
    """Each message has the bytes by its seq in which the client first sent it."""
    protocol = next(protocol for protocol in PROTOCOLS if protocol.name == name)
    first_sight: list[bytes] = []
    for body in bodies:
        messages = ListReader(protocol).read(body).messages
        slices = [message.raw for message in messages if message.role != "system"]
        first_sight += slices[len(first_sight) :]
    with Store(folder, read_only=True) as store:
        events = [event for event in store.log.iterate() if event.kind in MESSAGES]
        # The last reply did not come back from the client.
        assert [wire_bytes(store.log, event) for event in events[:-1]] == first_sight


@every_api
def test_a_long_conversation_stays_in_its_window(
    name: str, tmp_path: Path, client_bodies: list[bytes]
) -> None:
    turns = TURNS[name]
    folder = tmp_path / "store"
    with ScriptedUpstream(reading(turns), window=WINDOW) as upstream:
        client = client_for(name, upstream.url)
        listed = run(name, wrap(client, folder, session="work", window=WINDOW))
        assert [request.refusal for request in upstream.requests if request.status != 200] == []
    assert len(upstream.requests) == turns + 1
    assert len(json.dumps(listed)) * 2 // 7 > 2 * WINDOW
    assert_changes_only_at_evictions(upstream, folder)
    assert_all_recorded(name, listed, folder)
    assert_bytes_come_back(name, client_bodies, folder)


@every_api
def test_an_async_streamed_conversation_survives_errors(name: str, tmp_path: Path) -> None:
    """Overload, a rate limit, a stream that is cut, and a provider that counts more tokens."""
    events = {3: OVERLOADED, 5: RATE_LIMITED, 7: "cut", 9: TOO_LONG, 11: "cut"}
    script = reading(14, events=events)
    folder = tmp_path / "store"
    with ScriptedUpstream(script, window=WINDOW) as upstream:
        client = client_for(name, upstream.url, is_async=True)
        wrapped = wrap(client, folder, session="work", window=WINDOW)
        listed = run(name, wrapped, stream=True)
    assert upstream.broken_rules == []
    refused = [request.status for request in upstream.requests if request.status != 200]
    assert refused == [529, 429, 400]
    too_long = next(
        number for number, request in enumerate(upstream.requests) if request.status == 400
    )
    assert upstream.requests[too_long + 1].tokens < upstream.requests[too_long].tokens
    assert_all_recorded(name, listed, folder)


@every_api
def test_a_new_process_continues_the_conversation_with_the_same_prefix(
    name: str, tmp_path: Path
) -> None:
    """A program that sends its old list through a new client records nothing twice."""
    folder = tmp_path / "store"
    listed = start(name, PROMPT)
    with ScriptedUpstream(reading(11), window=WINDOW) as upstream:
        for stop in (7, 99):
            client = client_for(name, upstream.url)
            wrapped = wrap(client, folder, session="work", window=WINDOW)
            run(name, wrapped, listed, stop=stop)
    assert upstream.broken_rules == []
    assert len(upstream.requests) == 12
    assert_changes_only_at_evictions(upstream, folder)
    assert_all_recorded(name, listed, folder)


@every_api
def test_a_fault_of_ours_sends_the_clients_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(Session, "follow", broken)
    with ScriptedUpstream(reading(3)) as upstream, caplog.at_level(logging.WARNING):
        wrapped = wrap(client_for(name, upstream.url), tmp_path / "store", session="work")
        listed = run(name, wrapped)
    plain = ScriptedUpstream(reading(3))
    with plain:
        run(name, client_for(name, plain.url))
    assert [request.body for request in upstream.requests] == [
        request.body for request in plain.requests
    ]
    assert len(listed) > 4
    assert "is sent as it came" in caplog.text
    assert "out of order" in caplog.text


def test_a_request_on_the_side_does_not_enter_the_conversation(tmp_path: Path) -> None:
    """A title, say: no tools, and another beginning."""
    with ScriptedUpstream(reading(4), conversation=lambda _, body: body["model"]) as upstream:
        client = client_for("chat", upstream.url)
        wrapped = wrap(client, tmp_path / "store", session="work", window=WINDOW)
        listed = start("chat", PROMPT)
        asyncio.run(PROGRAMS["chat"](wrapped, listed, stop=2))
        title = [{"role": "user", "content": "Name this conversation."}]
        wrapped.chat.completions.create(model="title", messages=title)
        run("chat", wrapped, listed)
    assert upstream.broken_rules == []
    assert_all_recorded("chat", listed, tmp_path / "store")


def test_an_image_is_sent_as_it_is_and_recorded(tmp_path: Path) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    question = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    folder = tmp_path / "store"
    with ScriptedUpstream(reading(2)) as upstream:
        client = client_for("messages", upstream.url)
        wrapped = wrap(client, folder, session="work", window=WINDOW)
        run("messages", wrapped, [{"role": "user", "content": question}])
        assert upstream.broken_rules == []
        assert all(PIXEL.encode() in request.body for request in upstream.requests)
    with Store(folder, read_only=True) as store:
        event = next(event for event in store.log.iterate() if event.kind == Kind.CONVERSATION)
        assert store.log.text(event) == "What is this?"
        (media,) = event.metadata["media"]
        assert store.log.payloads.read(media["digest"]) == base64.b64decode(PIXEL)


def test_folded_results_come_back_by_their_seq(tmp_path: Path) -> None:
    with ScriptedUpstream(reading(18), window=WINDOW) as upstream:
        client: Any = client_for("messages", upstream.url)
        wrapped: Any = wrap(client, tmp_path / "store", session="work", window=WINDOW)
        listed = start("messages", PROMPT)
        asyncio.run(PROGRAMS["messages"](wrapped, listed))
        body = upstream.requests[-1].body.decode()
        seq = int(re.findall(r"folded seq (\d+)", body)[0])
        row = wrapped.recall.expand(seq)["rows"][0]
        number = int(re.findall(r"part-(\d+)", row["content"])[0])
        assert row["content"] == file_text(f"part-{number:04d}")
        assert "part-0001" in str(wrapped.recall.search("part-0001")["rows"])
        assert {spec.name for spec in wrapped.recall.specs} == {"search", "expand"}
        wrapped.close()


def test_a_store_that_the_program_opened_stays_open(tmp_path: Path) -> None:
    with (
        Store(tmp_path / "store", create=True) as store,
        ScriptedUpstream(reading(2)) as upstream,
    ):
        with wrap(client_for("chat", upstream.url), store, session="work") as wrapped:
            asyncio.run(PROGRAMS["chat"](wrapped, start("chat", PROMPT)))
        assert any(event.kind == Kind.TOOL_RESULT for event in store.log.iterate())


def test_the_programs_own_http_client_sends_the_requests(tmp_path: Path) -> None:
    own = httpx2.Client(headers={"x-through": "mine"})
    with ScriptedUpstream(reading(1)) as upstream:
        sent = []
        own.event_hooks["request"].append(lambda request: sent.append(request.url.path))
        client = openai.OpenAI(api_key="k", base_url=f"{upstream.url}/v1", http_client=own)
        wrapped = wrap(client, tmp_path / "store", session="work", http_client=own)
        run("chat", wrapped)
    assert sent == ["/v1/chat/completions"] * 2


def test_what_is_no_client_of_the_sdks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="wrap takes an OpenAI"):
        wrap(object(), tmp_path / "store", session="work")
    assert not (tmp_path / "store").exists()
