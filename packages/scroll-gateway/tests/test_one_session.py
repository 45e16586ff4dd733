"""Hooks, a gateway and imports see the same conversation: it is one session, nothing twice."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateways import SESSION, events_of, gateway, sessions_of, talk
from scripted_upstream import ScriptedUpstream, reading
from scroll_assistants.importers.capture import capture
from scroll_context.events import Event, Kind
from scroll_context.importing.records import ImportReport
from scroll_context.store import Store
from upstream_wire import Answer

Json = dict[str, Any]

NAME = "9c1f1b0e-5d0a-4c55-9c58-0f0c8e7b7a11"
HEADERS = {SESSION: NAME}
MESSAGES = (Kind.CONVERSATION, Kind.TOOL_CALL, Kind.TOOL_RESULT, Kind.NOTICE)


def transcript(folder: Path, listed: Sequence[Json]) -> Path:
    """The file that Claude Code writes for a list: a line for each block of a reply."""
    lines = []
    for number, message in enumerate(listed):
        content = message["content"]
        is_reply = message["role"] == "assistant"
        contents = [[block] for block in content] if is_reply else [content]
        for part, blocks in enumerate(contents):
            envelope = {"role": message["role"], "content": blocks}
            if is_reply:
                envelope["id"] = f"msg_line_{number}"
            line = {
                "type": message["role"],
                "sessionId": NAME,
                "uuid": f"line-{number}-{part}",
                "cwd": "/project",
                "timestamp": "2026-11-17T10:00:00Z",
                "message": envelope,
            }
            lines.append(json.dumps(line))
    file = folder / f"{NAME}.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def captured(store: Path, file: Path) -> ImportReport:
    with Store(store, create=True) as opened:
        return capture(opened, file, wait=0.0)


def repeated(events: Sequence[Event]) -> list[str]:
    """Texts, calls and results that stand in the log more than once."""
    keys = []
    for event in events:
        if event.kind not in MESSAGES or event.is_echo:
            continue
        if event.kind == Kind.TOOL_RESULT:
            keys.append(f"result {event.tool_call_id}")
        elif event.kind == Kind.TOOL_CALL:
            keys.append(f"call {event.tool_call_id}")
        else:
            keys.append(event.content)
            calls = event.metadata.get("tool_calls", ())
            keys += [f"call {call['id']}" for call in calls]
    return [key for key, count in Counter(keys).items() if count > 1 and key]


def test_an_import_adds_nothing_to_a_conversation_that_a_gateway_recorded(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ScriptedUpstream(reading(8)) as upstream, gateway(store, upstream) as running:
        listed = talk("messages", running.url, headers=HEADERS)
        file = transcript(tmp_path, listed)
        busy = captured(store, file)
    assert busy.left and not busy.added
    later = captured(store, file)
    assert later.added == 0 and later.known > 16
    assert captured(store, file).added == 0
    assert sessions_of(store) == [NAME]
    assert repeated(events_of(store)) == []


def test_an_import_adds_what_the_gateway_did_not_see(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ScriptedUpstream(reading(3)) as upstream, gateway(store, upstream) as running:
        listed = talk("messages", running.url, headers=HEADERS)
    more = [
        {"role": "user", "content": "Thank you."},
        {"role": "assistant", "content": [{"type": "text", "text": "Any time."}]},
        {"role": "user", "content": "Thank you."},
    ]
    report = captured(store, transcript(tmp_path, [*listed, *more]))
    assert report.added == 3
    assert sessions_of(store) == [NAME]
    texts = [event.content for event in events_of(store)][-3:]
    assert texts == ["Thank you.", "Any time.", "Thank you."]


def test_the_same_words_said_three_times_are_three_messages(tmp_path: Path) -> None:
    store = tmp_path / "store"
    words: list[Json] = [{"role": "user", "content": "Go on."}]
    reply = {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}
    with ScriptedUpstream(reading(0)) as upstream, gateway(store, upstream) as running:
        talk("messages", running.url, [*words, reply, *words], headers=HEADERS)
    file = transcript(tmp_path, [*words, reply, *words])
    assert captured(store, file).added == 0
    file = transcript(tmp_path, [*words, reply, *words, reply, *words])
    # The reply of the model to the second one is not in this transcript.
    assert captured(store, file).added == 2


@pytest.mark.parametrize("secret", ["", " The key is sk-ant-api03-" + "a1B2" * 20])
def test_a_gateway_continues_a_session_that_hooks_captured(tmp_path: Path, secret: str) -> None:
    store = tmp_path / "store"
    prompt = {"role": "user", "content": f"Read all files.{secret}"}
    # In another store, so that only the transcript has it.
    other = tmp_path / "other"
    with ScriptedUpstream(reading(4)) as upstream, gateway(other, upstream) as running:
        listed = talk("messages", running.url, [prompt], headers=HEADERS)
    file = transcript(tmp_path, listed)
    first = captured(store, file)
    assert first.added > 8
    assert bool(first.redacted) == bool(secret)

    listed.append({"role": "user", "content": "And now the rest."})
    with (
        # Another provider, which did not issue the thinking of the first part.
        ScriptedUpstream(lambda _: Answer("That is all."), binds_thinking=False) as upstream,
        gateway(store, upstream) as running,
    ):
        listed = talk("messages", running.url, listed, headers=HEADERS)
        assert upstream.broken_rules == []
        sent = json.loads(upstream.requests[0].body)["messages"]
    assert len(sent) == 11
    assert sessions_of(store) == [NAME]
    events = events_of(store)
    assert repeated(events) == []
    assert not [event for event in events if event.kind == Kind.RETRACTION]
    assert captured(store, transcript(tmp_path, listed)).added == 0


@pytest.mark.parametrize("calls", [1, 2])
def test_a_captured_reply_with_texts_around_its_calls_is_not_recorded_again(
    tmp_path: Path, calls: int
) -> None:
    """Each block of a transcript is an event, and a text behind a call began another message."""
    store = tmp_path / "store"
    first = {"type": "tool_use", "id": "toolu_a", "name": "read_file", "input": {"path": "a"}}
    second = {**first, "id": "toolu_b", "input": {"path": "b"}}
    blocks = [{"type": "text", "text": "First a."}, first, {"type": "text", "text": "Then b."}]
    results = [{"type": "tool_result", "tool_use_id": "toolu_a", "content": "the text of a"}]
    if calls == 2:
        blocks.append(second)
        results.append({"type": "tool_result", "tool_use_id": "toolu_b", "content": "text of b"})
    listed: list[Json] = [
        {"role": "user", "content": "Read two files."},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": results},
    ]
    captured(store, transcript(tmp_path, listed))
    before = [event.seq for event in events_of(store) if event.kind in MESSAGES]
    with ScriptedUpstream(reading(0)) as upstream, gateway(store, upstream) as running:
        talk("messages", running.url, listed, headers=HEADERS)
    events = events_of(store)
    assert not [event for event in events if event.kind == Kind.RETRACTION]
    assert repeated(events) == []
    # The reply of the model is new, and nothing else.
    assert len([event for event in events if event.kind in MESSAGES]) == len(before) + 1
