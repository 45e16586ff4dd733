"""Bookkeeping that is not as this program writes it: from an import, or after a flipped bit."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from scroll_context.events import Draft, Grant, Kind
from scroll_context.session.accounts import accounts, trajectory
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools.ask import AskModel, AskReply
from served import Serve, Site


def spoil(folder: Path, seq: int, metadata: str = '{"usage": {"input') -> None:
    """Let a bit flip in the metadata of an event."""
    with sqlite3.connect(folder / "log.db") as log:
        for (name,) in log.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            log.execute(f'DROP TRIGGER "{name}"')
        log.execute("UPDATE event SET metadata = ? WHERE seq = ?", [metadata, seq])
    log.close()


VALUES: list[object] = [
    None,
    "x",
    -1,
    1.5,
    1e300,
    10**18,
    [],
    [1],
    {},
    {"a": [1]},
    True,
    "9" * 500,
    [["x"]],
    [{}],
]
NAMES = (
    "usage",
    "cost",
    "tokens",
    "window",
    "tools",
    "tool_calls",
    "thinking",
    "bound",
    "seqs",
    "inside_cell",
    "at_seq",
    "session_id",
    "bytes",
    "settings",
    "context",
    "marks",
    "echo",
    "cut",
    "unknown",
    "hash",
    "plan",
    "effects",
)
CONTENTS = (
    "",
    "x",
    "{",
    "[]",
    "null",
    '{"saved": [{}]}',
    '{"evicted": [[1, "x"]]}',
    '{"spans": [[9, 1]]}',
)


def malformed(store: Store) -> list[int]:
    """A session whose bookkeeping is nonsense, beside one that is as it should be."""
    store.append(Draft(session_id="good", role="user", content="tea"))
    drafts = []
    for number, kind in enumerate(Kind):
        for at in range(len(VALUES)):
            metadata = {
                name: VALUES[(at + place) % len(VALUES)] for place, name in enumerate(NAMES)
            }
            content = CONTENTS[(at + number) % len(CONTENTS)]
            role = ("user", "assistant", "tool")[at % 3]
            drafts.append(
                Draft(session_id="bad", kind=kind, role=role, content=content, metadata=metadata)
            )
    return [store.append(draft) for draft in drafts if draft.kind != Kind.ERASURE]


@pytest.fixture
def site(folder: Path, serve: Serve) -> Iterator[Site]:
    with Store(folder, create=True) as store:
        seqs = malformed(store)
        spoiled = store.append(Draft(session_id="spoiled", role="assistant", content="coffee"))
        request = store.append(Draft(session_id="spoiled", kind=Kind.REQUEST))
        fork = store.append(Draft(session_id="spoiled", kind=Kind.FORK))
    for seq in (seqs[0], spoiled, request, fork):
        spoil(folder, seq)
    with serve(folder) as site:
        yield site


def test_the_list_of_sessions_stands_whatever_the_metadata(site: Site) -> None:
    page = site.get("/")
    assert page.status == 200
    assert all(f"/session/{name}" in page.text for name in ("good", "bad", "spoiled"))


def test_no_page_fails_because_of_malformed_bookkeeping(site: Site) -> None:
    store = site.inspector.store
    last = store.log.last_seq()
    pages = [
        f"/{page}/{session}"
        for page in ("session", "steps", "pressure")
        for session in ("bad", "spoiled", "good")
    ]
    for seq in range(1, last + 1, 3):
        pages += [
            f"/event/{seq}",
            f"/request/{seq}",
            f"/request/{seq}/index",
            f"/request/{seq}/variables",
        ]
        pages += [
            f"/request/{seq}?about=2",
            f"/request/{seq}/message/0",
            f"/request/{seq}/left/{seq}",
        ]
    failed = {page: answer.status for page in pages if (answer := site.get(page)).status >= 500}
    assert not failed


@pytest.mark.parametrize("digits", [18, 19, 4_400])
def test_a_number_of_any_length_in_a_path_is_a_page_that_is_not_there(
    site: Site, digits: int
) -> None:
    number = "9" * digits
    for page in (f"/event/{number}", f"/request/{number}/left/1", f"/events/1-{number}"):
        assert site.get(page).status in (200, 400, 404)


def test_a_page_that_is_not_there_does_not_tell_how_long_the_log_is(
    folder: Path, serve: Serve
) -> None:
    with Store(folder, create=True) as store:
        store.append(Draft(session_id="mine", role="user", content="tea"))
        for _ in range(1_233):
            store.append(Draft(session_id="theirs", role="user", content="coffee"))
    with serve(folder, Grant(session_id="mine")) as site:
        for seq in (2, 1_234, 5_000):
            page = site.get(f"/event/{seq}")
            assert page.status == 404
            assert "log ends" not in page.text and ("1234" not in page.text or seq == 1_234)


def test_ask_goes_on_in_a_session_whose_metadata_is_spoilt(folder: Path) -> None:
    model = AskModel("small", lambda *_: AskReply("yes", 10))
    with Store(folder, create=True) as store:
        with Session.open(store, session_id="s", ask=model) as session:
            session.run("print(ask('is it?', 'tea'))", "call-1")
        asked = [event.seq for event in store.log.iterate(session_id="s") if event.name == "ask"]
        assert asked
    spoil(folder, asked[0])
    with Store(folder) as store, Session.resume(store, "s", ask=model) as session:
        assert "yes" in session.run("print(ask('is it still?', 'tea'))", "call-2").content


@pytest.mark.parametrize("content", ["x", "[]", '{"saved": [{}]}', '{"cell": "x"}'])
def test_a_snapshot_that_cannot_be_read_does_not_stop_a_resume(store: Store, content: str) -> None:
    with Session.open(store, session_id="s") as session:
        session.run("kept = 7", "call-1")
    snapshot = store.append(Draft(session_id="s", kind=Kind.SNAPSHOT, content=content))
    with Session.resume(store, "s") as session:
        assert session.run("print(kept)", "call-2").content.startswith("7")
    notices = [event.content for event in store.log.iterate(session_id="s", kind=Kind.NOTICE)]
    assert any(f"variables of seq {snapshot}" in notice for notice in notices)


def test_accounts_and_steps_pass_over_what_they_cannot_read(store: Store) -> None:
    malformed(store)
    events = list(store.log.iterate(session_id="bad"))
    assert accounts(events).events == len(events)
    assert trajectory(events, store.log.text)["steps"]
