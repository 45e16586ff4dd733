"""Programs of the real SDKs through a gateway, against an upstream that enforces the rules of the
providers."""

import base64
import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import httpx2
import pytest

from forms import form
from gateways import (
    AGENT,
    PROMPT,
    SESSION,
    WINDOW,
    Json,
    changes_between_evictions,
    events_of,
    gateway,
    missing_bytes,
    sessions_of,
    talk,
)
from scripted_upstream import (
    OVERLOADED,
    TOO_LONG,
    ScriptedUpstream,
    reading,
)
from scroll_context.events import Kind
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_gateway import conversations
from sdk_programs import PROGRAMS, start

every_api = pytest.mark.parametrize("name", sorted(PROGRAMS))
TURNS = {"chat": form(24, 150), "messages": form(30, 150), "responses": form(16, 150)}
CLAUDE = {SESSION: "0b7e4f6a-1111-4222-8333-444455556666"}
TOOLS = [{"name": "read_file", "input_schema": {"type": "object"}}]


def by_session(headers: Mapping[str, str], _: Json) -> str:
    return headers.get(SESSION, "") + headers.get(AGENT, "")


@every_api
def test_a_long_conversation_stays_in_its_window(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with (
        ScriptedUpstream(reading(TURNS[name]), window=WINDOW) as upstream,
        gateway(folder, upstream) as running,
    ):
        listed = talk(name, running.url, headers=CLAUDE, stream=True)
        sums = running.sums()
    assert [request.refusal for request in upstream.requests if request.status != 200] == []
    assert len(upstream.requests) == TURNS[name] + 1
    assert len(json.dumps(listed)) * 2 // 7 > 1.2 * WINDOW
    events = events_of(folder)
    assert changes_between_evictions(upstream.requests, events) == []
    assert sums.evictions == upstream.prefix_changes > 0
    assert sums.faults == 0
    sent = sum(request.tokens for request in upstream.requests)
    assert sums.sent.tokens == pytest.approx(sent, rel=0.05)
    repeated = sum(request.repeated for request in upstream.requests)
    assert sums.sent.repeated == pytest.approx(repeated, rel=0.05)
    assert sums.direct.tokens > sums.sent.tokens
    assert sums.sent.cost < sums.direct.cost


def test_every_message_comes_back_to_the_byte(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with ScriptedUpstream(reading(9), window=WINDOW) as upstream, gateway(folder, upstream) as run:
        listed = talk("chat", run.url, headers=CLAUDE)
        # The last reply is in no request, so its bytes are not known yet.
        question = {"role": "user", "content": "And now?"}
        talk("chat", run.url, [*listed, question], headers=CLAUDE, stop=1)
    newest = [event for event in events_of(folder) if event.role == "assistant"][-1]
    reply = {"role": "assistant", "content": newest.content}
    complete = [*listed, question, reply]
    # The system prompt is not recorded as a message.
    assert missing_bytes("chat", complete, folder, CLAUDE[SESSION]) == [len(complete) - 2]


@every_api
def test_refusals_cut_streams_and_too_long_requests(name: str, tmp_path: Path) -> None:
    script = reading(12, events={3: OVERLOADED, 5: "cut", 8: TOO_LONG})
    folder = tmp_path / "store"
    with (
        ScriptedUpstream(script, window=WINDOW) as upstream,
        gateway(folder, upstream) as running,
    ):
        listed = talk(name, running.url, headers=CLAUDE, stream=True)
    assert upstream.broken_rules == []
    refused = [request.status for request in upstream.requests if request.status != 200]
    assert refused == [529, 400]
    number = next(n for n, request in enumerate(upstream.requests) if request.status == 400)
    assert upstream.requests[number + 1].tokens < upstream.requests[number].tokens
    assert len(listed) > 20
    replies = [
        event
        for event in events_of(folder)
        if event.kind == Kind.CONVERSATION and event.role == "assistant"
    ]
    assert len(replies) == 13


def test_an_error_passes_unchanged(tmp_path: Path) -> None:
    with ScriptedUpstream(reading(2)) as upstream, gateway(tmp_path / "store", upstream) as running:
        body = {"model": "m", "messages": [], "tools": TOOLS}
        through = httpx2.post(f"{running.url}/v1/messages", json=body)
        direct = httpx2.post(f"{upstream.url}/v1/messages", json=body)
    assert through.status_code == direct.status_code == 400
    assert through.content == direct.content


def test_two_conversations_at_once_are_two_sessions(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with (
        ScriptedUpstream(reading(12), window=WINDOW, conversation=by_session) as upstream,
        gateway(folder, upstream) as running,
    ):
        names = ("first-conversation", "second-conversation")
        threads = [
            threading.Thread(
                target=talk, args=("messages", running.url), kwargs={"headers": {SESSION: name}}
            )
            for name in names
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert upstream.broken_rules == []
    assert sorted(sessions_of(folder)) == sorted(names)
    for name in names:
        requests = [request for request in upstream.requests if request.conversation == name]
        assert len(requests) == 13
        assert changes_between_evictions(requests, events_of(folder, name)) == []


def test_a_sub_agent_has_a_session_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with (
        ScriptedUpstream(reading(4), window=WINDOW, conversation=by_session) as upstream,
        gateway(folder, upstream) as running,
    ):
        listed = talk("messages", running.url, headers={SESSION: "main"}, stop=2)
        child = [{"role": "user", "content": "Look into the tests."}]
        talk("messages", running.url, child, headers={SESSION: "main", AGENT: "a1"})
        talk("messages", running.url, listed, headers={SESSION: "main"})
    assert upstream.broken_rules == []
    assert sessions_of(folder) == ["main", "main/a1"]
    assert not [event for event in events_of(folder) if event.kind == Kind.RETRACTION]


@pytest.mark.parametrize("headers", [CLAUDE, None], ids=["named", "unnamed"])
def test_a_restart_does_not_change_the_prefix(
    headers: Mapping[str, str] | None, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    listed = start("messages", PROMPT)
    with ScriptedUpstream(reading(16), window=WINDOW) as upstream:
        for stop in (9, 4, 99):
            with gateway(folder, upstream) as running:
                talk("messages", running.url, listed, headers=headers, stop=stop)
    assert upstream.broken_rules == []
    assert upstream.prefix_changes > 0
    assert changes_between_evictions(upstream.requests, events_of(folder)) == []
    assert len(sessions_of(folder)) == 1


def test_a_rewound_conversation_keeps_its_folds(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with ScriptedUpstream(reading(16), window=WINDOW) as upstream, gateway(folder, upstream) as run:
        listed = talk("messages", run.url, headers=CLAUDE, stop=14)
        before = upstream.requests[-1]
        talk("messages", run.url, listed[:25], headers=CLAUDE, stop=1)
    assert upstream.broken_rules == []
    after = upstream.requests[-1]
    assert after.repeated > 0.5 * after.tokens
    assert after.tokens < before.tokens
    assert [e.kind for e in events_of(folder) if e.kind == Kind.RETRACTION]


def test_a_new_name_with_a_known_list_forks_with_the_folds(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with ScriptedUpstream(reading(16), window=WINDOW) as upstream, gateway(folder, upstream) as run:
        listed = talk("messages", run.url, headers=CLAUDE, stop=12)
        talk("messages", run.url, list(listed), headers={SESSION: "the-fork"}, stop=2)
    assert upstream.broken_rules == []
    assert upstream.requests[12].extends
    assert "the-fork" in sessions_of(folder)
    forks = [event for event in events_of(folder, "the-fork") if event.kind == Kind.FORK]
    assert [event.metadata["session_id"] for event in forks] == [CLAUDE[SESSION]]


def test_conversations_without_a_name_are_known_by_their_lists(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    script = reading(6)
    with (
        ScriptedUpstream(script, conversation=lambda _, body: body["messages"][1]["content"]) as up,
        gateway(folder, up) as running,
    ):
        lists = [start("chat", f"Read the files of {name}.") for name in ("Ada", "Grace")]
        for _ in range(3):
            for listed in lists:
                talk("chat", running.url, listed, stop=2)
    assert len(sessions_of(folder)) == 2
    assert not [event for event in events_of(folder) if event.kind == Kind.RETRACTION]


def test_a_title_passes_beside_the_conversation(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with (
        ScriptedUpstream(reading(3), conversation=lambda _, body: body["model"]) as upstream,
        gateway(folder, upstream) as running,
    ):
        title = {"model": "title", "max_tokens": 9, "messages": [{"role": "user", "content": "T"}]}
        before = httpx2.post(f"{running.url}/v1/messages", json=title, headers=CLAUDE)
        listed = talk("messages", running.url, headers=CLAUDE, stop=2)
        after = httpx2.post(f"{running.url}/v1/messages", json=title, headers=CLAUDE)
        talk("messages", running.url, listed, headers=CLAUDE)
    assert before.status_code == after.status_code == 200
    titles = [request.body for request in upstream.requests if request.conversation == "title"]
    assert titles == [before.request.content, after.request.content]
    assert "T" not in [event.content for event in events_of(folder)]
    assert not [event for event in events_of(folder) if event.kind == Kind.RETRACTION]


def test_a_fault_of_ours_sends_the_clients_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process has the session open."""
    folder = tmp_path / "store"
    with (
        ScriptedUpstream(reading(2)) as upstream,
        gateway(folder, upstream) as running,
        Store(folder) as store,
        Session.open_or_resume(store, CLAUDE[SESSION]),
        caplog.at_level(logging.WARNING),
    ):
        talk("messages", running.url, headers=CLAUDE)
        assert running.sums().faults == 3
    with ScriptedUpstream(reading(2)) as plain:
        talk("messages", plain.url, headers=CLAUDE)
    assert [request.body for request in upstream.requests] == [
        request.body for request in plain.requests
    ]
    assert "is sent as it came" in caplog.text


def test_a_fault_is_recorded_and_the_conversation_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    with ScriptedUpstream(reading(8), window=WINDOW) as upstream, gateway(folder, upstream) as run:
        listed = talk("chat", run.url, headers=CLAUDE, stop=2)
        with monkeypatch.context() as patch:
            patch.setattr(Session, "follow", broken)
            talk("chat", run.url, listed, headers=CLAUDE, stop=1)
        talk("chat", run.url, listed, headers=CLAUDE)
    failures = [event.content for event in events_of(folder) if event.kind == Kind.FAILURE]
    assert failures == ["the request was sent as it came: RuntimeError: out of order"]
    assert upstream.broken_rules == []
    assert len(upstream.requests) == 9


def test_images_pass_and_are_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    picture = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
    source = {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(picture).decode(),
    }
    content = [{"type": "text", "text": PROMPT}, {"type": "image", "source": source}]
    with ScriptedUpstream(reading(14), window=WINDOW) as upstream, gateway(folder, upstream) as run:
        talk("messages", run.url, [{"role": "user", "content": content}], headers=CLAUDE)
    assert upstream.broken_rules == []
    assert source["data"] in upstream.requests[0].body.decode()
    assert changes_between_evictions(upstream.requests, events_of(folder)) == []
    with Store(folder, read_only=True) as store:
        payloads = [
            store.log.payloads.read(event.payload.digest)
            for event in store.log.iterate(kind=Kind.ARTIFACT)
            if event.payload
        ]
    assert picture in payloads


def test_recalled_content_is_an_echo(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    call = {"type": "tool_use", "id": "c1", "name": "mcp__scroll__expand", "input": {"seqs": "3"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "[3] the kingfisher"}
    messages = [
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    body = {"model": "m", "max_tokens": 9, "messages": messages, "tools": TOOLS}
    with ScriptedUpstream(reading(1)) as upstream, gateway(folder, upstream) as running:
        httpx2.post(f"{running.url}/v1/messages", json=body, headers=CLAUDE).raise_for_status()
    (event,) = [event for event in events_of(folder) if event.kind == Kind.TOOL_RESULT]
    assert event.is_echo


def test_a_refused_second_reading_names_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    refusal = (
        "Wasted call — file unchanged since your last Read. Refer to that earlier tool_result."
    )
    messages: list[Json] = [{"role": "user", "content": PROMPT}]
    for number, text in enumerate(["the kingfisher", "the heron", refusal]):
        path = "/a" if number != 1 else "/b"
        call = {
            "type": "tool_use",
            "id": f"c{number}",
            "name": "Read",
            "input": {"file_path": path},
        }
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": text}
        messages += [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
    body = {"model": "m", "max_tokens": 9, "messages": messages, "tools": TOOLS}
    with ScriptedUpstream(reading(3)) as upstream:
        for _ in range(2):
            with gateway(folder, upstream) as running:
                httpx2.post(f"{running.url}/v1/messages", json=body, headers=CLAUDE)
    first = next(event for event in events_of(folder) if event.content == "the kingfisher")
    last = json.loads(upstream.requests[0].body)["messages"][-1]["content"][0]
    assert last["content"] == (
        f"{refusal}\n[scroll: the earlier result is seq {first.seq} · "
        f"mcp__scroll__expand({first.seq}) returns it]"
    )
    assert upstream.requests[1].body == upstream.requests[0].body


def test_message_threads_are_answered_so_that_the_client_sends_its_list(tmp_path: Path) -> None:
    with ScriptedUpstream(reading(1)) as upstream, gateway(tmp_path / "store", upstream) as running:
        body = {"model": "m", "thread": {"id": "t"}, "messages": [], "tools": TOOLS}
        response = httpx2.post(f"{running.url}/v1/messages", json=body)
    assert response.status_code == 400
    details = response.json()["error"]["details"]
    assert details["error_code"] == "thread_unsupported_request"
    assert upstream.requests == []


def test_a_request_whose_conversation_the_provider_keeps_passes(tmp_path: Path) -> None:
    with ScriptedUpstream(reading(1)) as upstream, gateway(tmp_path / "store", upstream) as running:
        body = {"model": "m", "previous_response_id": "r1", "input": "Hi"}
        httpx2.post(f"{running.url}/v1/responses", json=body).raise_for_status()
    assert json.loads(upstream.requests[0].body) == body


def test_other_paths_pass(tmp_path: Path) -> None:
    with ScriptedUpstream(reading(1)) as upstream, gateway(tmp_path / "store", upstream) as running:
        counted = httpx2.post(f"{running.url}/v1/messages/count_tokens?beta=true", json={"a": 1})
        probed = httpx2.head(f"{running.url}/")
        missing = httpx2.get(f"{running.url}/v1/models")
    assert "input_tokens" in counted.json()
    assert probed.status_code == 200
    assert missing.status_code == 404


def test_a_client_that_leaves_is_not_answered_in_the_record(tmp_path: Path) -> None:
    """A reply of which the client saw only a part does not count."""
    folder = tmp_path / "store"
    with (
        ScriptedUpstream(reading(2, events={1: "cut"})) as upstream,
        gateway(folder, upstream) as running,
    ):
        body = {"model": "m", "max_tokens": 9, "stream": True, "tools": TOOLS}
        body |= {"messages": [{"role": "user", "content": PROMPT}]}
        with pytest.raises(httpx2.TransportError):
            httpx2.post(f"{running.url}/v1/messages", json=body, headers=CLAUDE)
    assert not [event for event in events_of(folder) if event.role == "assistant"]


def test_an_upstream_out_of_reach_is_reported(tmp_path: Path) -> None:
    with ScriptedUpstream(reading(1)) as upstream:
        pass
    with gateway(tmp_path / "store", upstream) as running:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
        response = httpx2.post(f"{running.url}/v1/messages", json=body, headers=CLAUDE)
    assert response.status_code == 502
    assert "cannot reach" in response.json()["error"]["message"]


def test_an_idle_conversation_is_evicted_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {SESSION: "idle"}
    with ScriptedUpstream(reading(9)) as upstream, gateway(tmp_path, upstream) as running:
        listed = talk("messages", running.url, headers=headers, stop=6)
        assert running.sums().evictions == 0
        # As if the provider's cache had expired since the last request.
        monkeypatch.setattr(conversations, "CACHE_SECONDS", {False: -1.0, True: -1.0})
        talk("messages", running.url, listed, headers=headers, stop=1)
        assert running.sums().evictions == 1
    assert upstream.broken_rules == []


def test_a_list_that_the_client_compacted_keeps_the_old_one_in_the_index(tmp_path: Path) -> None:
    headers = {SESSION: "compacted"}
    summary = [{"role": "user", "content": "This session continues another one: six files."}]
    with ScriptedUpstream(reading(9)) as upstream, gateway(tmp_path, upstream) as running:
        talk("messages", running.url, headers=headers, stop=6)
        talk("messages", running.url, summary, headers=headers, stop=1)
        sent = upstream.requests[-1].body.decode()
    assert upstream.broken_rules == []
    assert sessions_of(tmp_path) == ["compacted"]
    events = events_of(tmp_path)
    (retraction,) = [event for event in events if event.kind == Kind.RETRACTION]
    assert retraction.metadata["retraction"]["to_index"]
    assert "index of earlier work" in sent
    first = next(event for event in events if event.kind == Kind.TOOL_RESULT)
    assert f"{first.seq}" in sent
    assert first.content.startswith("part-0001")
