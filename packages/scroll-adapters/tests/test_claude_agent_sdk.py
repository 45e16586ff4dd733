"""Scroll under the Claude Agent SDK: its conformance suite, and a run of the real program."""

import asyncio
import contextlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="claude-agent-sdk is not installed: make test-hosts")
pytest.importorskip("scroll_assistants", reason="the importer of Claude Code is not installed")

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ResultMessage,
    delete_session_via_store,
    list_sessions_from_store,
    query,
)
from claude_agent_sdk.testing import run_session_store_conformance

from anthropic_server import streamed
from assistant_runs import loopback_up
from claude_code_driver import last_words
from provider_server import Exchange, ProviderServer
from scroll_adapters.claude_agent_sdk import ScrollSessionStore
from scroll_context import import_file
from scroll_context.events import BOOKKEEPING, Event, Kind
from scroll_context.store import Store
from snippets import run_snippet

ASKED = "Please write notes.txt about the heron."
HELPER = "Let a helper look for the kingfisher."


class Api:
    """Plays the model: it writes a file, starts a sub-agent, and answers."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._numbers = itertools.count()

    def play(self, exchange: Exchange) -> None:
        messages = exchange.body["messages"]
        asked, results = last_words(messages)
        self.requests.append(json.dumps(messages))
        tools = [tool["name"] for tool in exchange.body.get("tools", [])]
        name = f"msg_{next(self._numbers)}_{os.getpid()}"
        call = {"type": "tool_use", "id": f"toolu_{name}"}
        if ASKED in asked and not results:
            arguments = {"file_path": "notes.txt", "content": "The heron.\n"}
            call |= {"name": "Write", "input": json.dumps(arguments)}
        elif HELPER in asked and not results:
            arguments = {
                "description": "Look",
                "prompt": "Where does the kingfisher nest?",
                "subagent_type": "general-purpose",
            }
            agent = "Agent" if "Agent" in tools else "Task"
            call |= {"name": agent, "input": json.dumps(arguments)}
        else:
            answer = f"By the weir, says number {name}."
            return streamed({"type": "text", "text": answer}, name=name)(exchange)
        return streamed(call, stop="tool_use", name=name)(exchange)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    # A network namespace begins with loopback off, and elsewhere it is on.
    with contextlib.suppress(OSError):
        loopback_up()
    return folder


def talk(store: Any, api: Api, project: Path, home: Path, prompt: str, **options: Any) -> str:
    """One query with the real program; the id of its session."""

    async def run(url: str) -> str:
        environment = {
            "HOME": str(home),
            "CLAUDE_CONFIG_DIR": str(home / "config"),
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-ant-none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        }
        settings = ClaudeAgentOptions(
            session_store=store,
            env=environment,
            cwd=project,
            allowed_tools=["Write", "Agent", "Task"],
            permission_mode="acceptEdits",
            **options,
        )
        session = ""
        async for message in query(prompt=prompt, options=settings):
            if isinstance(message, ResultMessage):
                assert not message.is_error, message
                session = message.session_id
        return session

    home.mkdir(exist_ok=True)
    with ProviderServer(api.play) as server:
        return asyncio.run(run(server.url))


def spoken(store: Store) -> list[tuple[str, ...]]:
    """The events that are no bookkeeping, without their addresses."""
    return [
        (event.session_id, event.kind, event.role, event.name, store.log.text(event))
        for event in store.log.iterate()
        if event.kind not in BOOKKEEPING
    ]


def test_the_conformance_suite_of_the_sdk(tmp_path: Path) -> None:
    numbers = itertools.count()
    asyncio.run(
        run_session_store_conformance(lambda: ScrollSessionStore(tmp_path / str(next(numbers))))
    )
    # One for each of its contracts, and one to look at.
    assert next(numbers) >= 14
    kind = ScrollSessionStore
    assert (kind.bounds, kind.stores, kind.executes) == (False, True, False)


def messages_in(lines: list[Any]) -> list[str]:
    """The ids of the lines with messages.

    The program completes some fields, such as the token counts, between the file and the mirror.
    """
    ids = [line["uuid"] for line in lines if line["type"] in ("user", "assistant")]
    assert len(ids) == 4
    return ids


class Recording(ScrollSessionStore):
    """Keeps a copy of every batch that the SDK sends."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.batches: list[tuple[dict[str, str], str]] = []

    async def append(self, key: Any, entries: Any) -> None:
        self.batches.append((dict(key), json.dumps(entries)))
        await super().append(key, entries)

    def sent(self, key: dict[str, str]) -> list[Any]:
        parts = [json.loads(batch) for batch_key, batch in self.batches if batch_key == key]
        return list(itertools.chain.from_iterable(parts))


def write_transcript(sessions: Recording, key: dict[str, str], folder: Path) -> Path:
    """The files of a session as Claude Code has them, from the store."""
    session = key["session_id"]
    keys = {f"{session}.jsonl": key}
    for subpath in asyncio.run(sessions.list_subkeys(key)):
        keys[f"{session}/{subpath}.jsonl"] = {**key, "subpath": subpath}
    for name, file_key in keys.items():
        lines = asyncio.run(sessions.load(file_key))
        assert lines == sessions.sent(file_key)
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert len(keys) == 2, "one sub-agent was started"
    return folder / f"{session}.jsonl"


def test_the_real_program_is_mirrored_searched_and_resumed(tmp_path: Path, project: Path) -> None:
    api = Api()
    with Recording(tmp_path / "store") as sessions:
        session = talk(sessions, api, project, tmp_path / "home", ASKED)
        assert (project / "notes.txt").read_text() == "The heron.\n"
        (original,) = (tmp_path / "home" / "config" / "projects").glob(f"*/{session}.jsonl")
        key = {"project_key": original.parent.name, "session_id": session}
        written = [json.loads(line) for line in original.read_text().splitlines()]
        assert messages_in(asyncio.run(sessions.load(key))) == messages_in(written)
        # Nothing but the store is needed to resume it elsewhere.
        other = tmp_path / "other"
        assert talk(sessions, api, project, other, HELPER, resume=session) == session
        assert ASKED in api.requests[-1] and HELPER in api.requests[-1]
        # The messages are those of an import of the same transcript.
        transcript = write_transcript(sessions, key, tmp_path / "files")
        with Store(tmp_path / "imported", create=True) as imported:
            import_file(imported, transcript, mine=True)
            assert sorted(spoken(imported)) == sorted(spoken(sessions.store))
        own = [text[1:] for text in spoken(sessions.store) if text[0] == session]
        assert ("conversation", "user", "", ASKED) in own
        calls = [text[:3] for text in own if text[2] == "Write"]
        assert calls == [("tool_call", "assistant", "Write"), ("tool_result", "tool", "Write")]
        hits = sessions.store.index.search("heron")
        assert {hit.event.session_id for hit in hits} == {session}
        check_listing_and_deletion(sessions, key, project)


def check_listing_and_deletion(sessions: Recording, key: dict[str, str], project: Path) -> None:
    listed = asyncio.run(list_sessions_from_store(sessions, directory=str(project)))
    assert [info.session_id for info in listed] == [key["session_id"]]
    assert listed[0].first_prompt == ASKED
    asyncio.run(delete_session_via_store(sessions, key["session_id"], directory=str(project)))
    assert asyncio.run(sessions.load(key)) is None
    assert sessions.store.index.search("heron") == []


def entry(number: int, text: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "user",
        "uuid": f"00000000-0000-0000-0000-{number:012}",
        "sessionId": "trip",
        "timestamp": "2026-03-01T09:30:00.000Z",
        "message": {"role": "user", "content": text},
        **fields,
    }


KEY = {"project_key": "project", "session_id": "trip"}


def append(sessions: ScrollSessionStore, *entries: dict[str, Any]) -> None:
    asyncio.run(sessions.append(KEY, list(entries)))


def load(sessions: ScrollSessionStore) -> Any:
    return asyncio.run(sessions.load(KEY))


def events(sessions: ScrollSessionStore, kind: str) -> list[Event]:
    return list(sessions.store.log.iterate(kind=[kind]))


def test_a_batch_that_is_sent_again_is_recorded_once(folder: Path) -> None:
    batch = [entry(1, "Hello."), entry(2, "Where to?")]
    with ScrollSessionStore(folder) as sessions:
        append(sessions, *batch)
        append(sessions, batch[1], entry(3, "To Lisbon."))
        assert load(sessions) == [*batch, entry(3, "To Lisbon.")]
    with ScrollSessionStore(folder) as sessions:
        append(sessions, *batch)
        assert len(events(sessions, Kind.WIRE)) == len(events(sessions, Kind.CONVERSATION)) == 3


def test_any_json_comes_back_unchanged(folder: Path) -> None:
    odd = [
        {"type": "title", "title": "\ud800 \x00 ü 漢字 😀", "big": 2**70, "none": None},
        {"type": "title", "title": "again"},
        {"type": "title", "title": "again"},
        entry(1, "x" * 200_000),
        entry(2, "", message={"role": "user", "content": {"not": "a message"}}),
    ]
    with ScrollSessionStore(folder) as sessions:
        append(sessions, *odd)
    with ScrollSessionStore(folder) as sessions:
        assert load(sessions) == odd


def test_results_name_their_tool_after_a_restart(folder: Path) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "notes.txt"}
    with ScrollSessionStore(folder) as sessions:
        reply = {"role": "assistant", "id": "m1", "content": [call]}
        append(sessions, entry(1, "", type="assistant", message=reply))
    with ScrollSessionStore(folder) as sessions:
        append(sessions, entry(2, "", message={"role": "user", "content": [result]}))
        (event,) = events(sessions, Kind.TOOL_RESULT)
        assert (event.name, event.content) == ("Bash", "notes.txt")


def test_secrets_are_replaced_in_messages_and_kept_in_lines(folder: Path) -> None:
    secret = entry(1, "The key is ghp_" + "a1B2" * 9)
    with ScrollSessionStore(folder) as sessions:
        append(sessions, secret)
        assert load(sessions) == [secret]
        (event,) = events(sessions, Kind.CONVERSATION)
        assert "a1B2" not in event.content and "The key is" in event.content


def test_a_capture_of_the_same_transcript_adds_nothing(folder: Path, tmp_path: Path) -> None:
    lines = [entry(1, "Hello."), entry(2, "Where to?")]
    transcript = tmp_path / "trip.jsonl"
    transcript.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with ScrollSessionStore(folder) as sessions:
        append(sessions, {"type": "mode", "mode": "normal"}, *lines)
        report = import_file(sessions.store, transcript, mine=True)
        assert (report.added, report.known, report.renamed) == (0, 2, {})


def test_the_snippet_of_the_documentation(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-none")
    monkeypatch.setenv("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
    with ProviderServer(Api().play) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        run_snippet("FRAMEWORKS.md", "Claude Agent SDK", {})
    with Store(project / "work.scroll") as store:
        assert "Where do we go?" in [text[-1] for text in spoken(store)]
