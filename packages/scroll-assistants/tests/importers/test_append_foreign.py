"""What enters through `Store.append_foreign`, and what it may not bring."""

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from scroll_assistants.importers.capture import capture
from scroll_context.errors import BadInput, SessionBusy
from scroll_context.events import Draft, Kind, Payload
from scroll_context.importing import run as importing
from scroll_context.importing.run import import_file
from scroll_context.log import foreign
from scroll_context.log.foreign import EXPORTED, MOST_LEASES, RESERVED, Attachment, Piece
from scroll_context.origin import Origin
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.upkeep.merge import merge_export
from scroll_context.upkeep.transfer import export

SECRET = "ghp_" + "a1B2c3D4e5F6a7B8c9D0" + "e1F2a3B4c5D6e7F8"


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(tmp_path / "store", create=True) as opened:
        yield opened


def jsonl(path: Path, *messages: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(message) + "\n" for message in messages))
    return path


def exported(store: Store) -> bytes:
    out = io.BytesIO()
    export(store.log, out)
    return out.getvalue()


# leases ---------------------------------------------------------------------------------------------------


def test_an_import_holds_the_lease_of_its_session_until_it_has_appended(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BATCH_EVENTS", 1)
    path = jsonl(
        tmp_path / "a.jsonl", *({"role": "user", "content": f"line {n}"} for n in range(3))
    )
    held: list[str] = []

    def look() -> None:
        if (holder := store.log.backend.holder("a")) is not None:
            held.append(holder.session_id)

    store.log.on_append.append(look)
    import_file(store, path)
    assert held == ["a"] * 3
    assert store.log.backend.holder("a") is None


def test_a_session_that_is_open_gets_nothing_from_an_import_or_a_merge(
    store: Store, tmp_path: Path
) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"role": "user", "content": "hello"})
    with Store(tmp_path / "other", create=True) as other:
        other.append(Draft(session_id="live", role="user", content="from elsewhere"))
        data = exported(other)
    with Session.open(store, session_id="live") as session:
        last = store.log.last_seq()
        for attempt in (
            lambda: import_file(store, path, session_id="live", join=True),
            lambda: merge_export(io.BytesIO(data), store.log, trust=True, join=True),
            lambda: merge_export(io.BytesIO(data), store.log, join=True),
        ):
            with pytest.raises(SessionBusy):
                attempt()
        assert store.log.last_seq() == last
        session.say("still alone")


def test_two_imports_of_files_with_one_name_give_two_sessions(store: Store, tmp_path: Path) -> None:
    """The name of a session is looked at again when its lease is held."""
    paths = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        messages = ({"role": "user", "content": f"{name} {n}"} for n in range(50))
        paths.append(jsonl(tmp_path / name / "chat.jsonl", *messages))
    failures: list[Exception] = []

    def run(path: Path) -> None:
        while True:
            try:
                import_file(store, path)
                return
            except SessionBusy:
                continue
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=run, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    words = {info.session_id: set() for info in store.log.sessions()}
    for event in store.log.iterate():
        words[event.session_id].add(event.content.split()[0])
    assert sorted(words) == ["chat", "chat-2"]
    assert all(len(one) == 1 for one in words.values())


def test_a_file_of_very_many_sessions_holds_only_some_leases_at_once(store: Store) -> None:
    count = 3 * MOST_LEASES
    pieces = [
        Piece(Draft(session_id=f"s{n}", role="user", content="x", source_key=f"import:{n}"))
        for n in range(count)
    ]
    with store.append_foreign(Origin.IMPORTED, "file") as writer:
        assert len(writer.append(pieces)) == count
        assert len(writer.leases.epochs) <= MOST_LEASES
    assert not list((store.folder / "leases").iterdir())


def test_sessions_that_come_up_again_are_still_held_when_leases_were_given_back(
    store: Store,
) -> None:
    def pieces(first: int, last: int) -> list[Piece]:
        return [
            Piece(
                Draft(
                    session_id=f"s{n}", role="user", content="x", source_key=f"import:{first}:{n}"
                )
            )
            for n in range(first, last)
        ]

    half = MOST_LEASES // 2
    with store.append_foreign(Origin.IMPORTED, "file") as writer:
        writer.append(pieces(0, MOST_LEASES))
        writer.append(pieces(half, half + MOST_LEASES))
        assert {f"s{n}" for n in range(half, half + MOST_LEASES)} <= writer.leases.epochs.keys()


# what a file may not say of itself --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "claim", [{"erased": True}, {"echo": True}, {"erased": True, "echo": True}]
)
def test_an_import_cannot_hide_or_protect_its_events(
    store: Store, tmp_path: Path, claim: dict[str, Any]
) -> None:
    import_file(
        store,
        jsonl(
            tmp_path / "a.jsonl", {"role": "user", "content": "the harbour plan", "metadata": claim}
        ),
    )
    event = store.log.get(1)
    assert not event.is_erased and not event.is_echo
    assert event.metadata["set_aside"] == claim
    assert [hit.event.seq for hit in store.index.search("harbour")] == [1]
    assert store.erase(seqs=[1]).asked == (1,)
    assert store.log.get(1).is_erased


@pytest.mark.parametrize(
    ("origin", "is_hidden"), [(Origin.CAPTURED, True), (Origin.IMPORTED, False)]
)
def test_only_what_is_captured_can_be_an_echo_of_scroll(
    store: Store, origin: Origin, is_hidden: bool
) -> None:
    piece = Piece(Draft(session_id="s", role="user", content="the harbour plan"), is_echo=True)
    with store.append_foreign(origin, "source") as writer:
        [seq] = writer.append([piece])
    assert store.log.get(seq).is_echo is is_hidden
    assert bool(store.index.search("harbour")) is not is_hidden


def test_an_event_is_erased_if_its_leaf_says_so_and_nothing_else(store: Store) -> None:
    seq = store.append(
        Draft(session_id="s", role="user", content="[erased]", metadata={"erased": True})
    )
    assert not store.log.get(seq).is_erased
    assert store.erase(seqs=[seq]).asked == (seq,)
    assert store.log.get(seq).is_erased


def test_reserved_metadata_is_set_aside_on_every_way_in(store: Store, tmp_path: Path) -> None:
    claims = dict.fromkeys(sorted(RESERVED | EXPORTED), 7)
    import_file(
        store, jsonl(tmp_path / "a.jsonl", {"role": "user", "content": "one", "metadata": claims})
    )
    line = {
        "type": "user",
        "uuid": "u1",
        "sessionId": "s1",
        "cwd": "/p",
        "timestamp": "2026-01-02T03:04:05Z",
    }
    line["message"] = {"role": "user", "content": "two", "metadata": claims}
    capture(store, jsonl(tmp_path / "s1.jsonl", line))
    with Store(tmp_path / "other", create=True) as other:
        other.append(Draft(session_id="export", role="user", content="three", metadata=claims))
        data = exported(other)
    merge_export(io.BytesIO(data), store.log, "an export")
    events = {event.content: event.metadata for event in store.log.iterate()}
    assert events["one"] == {"set_aside": claims, "imported": str(tmp_path / "a.jsonl")}
    assert not set(events["two"]) & (RESERVED - {"captured"})
    assert set(events["three"]) & RESERVED == {"imported", "moved_from", "set_aside"}
    assert (events["three"]["imported"], events["three"]["moved_from"]) == ("an export", 1)


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "note"},
        {"kind": "erasure"},
        {"kind": "notice"},
        {"session_id": "notes-project"},
        {"session_id": "mcp-project-1"},
        {"session_id": "scroll.store"},
        {"name": "x" * 20_000},
        {"role": "u" * 20_000},
    ],
)
def test_kinds_and_sessions_of_scroll_itself_are_refused(
    store: Store, tmp_path: Path, message: dict[str, Any]
) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"role": "user", "content": "x", **message})
    with pytest.raises(BadInput):
        import_file(store, path)
    assert store.log.last_seq() == 0


@pytest.mark.parametrize("origin", [Origin.IMPORTED, Origin.CAPTURED])
@pytest.mark.parametrize(
    "kind", ["note", "notice", "cell", "observation", "request", "session", "snapshot", "erasure"]
)
def test_no_reader_of_a_format_can_bring_a_kind_that_scroll_records_itself(
    store: Store, kind: str, origin: Origin
) -> None:
    piece = Piece(Draft(session_id="s", role="user", kind=kind, content="x"))
    with store.append_foreign(origin, "file") as writer, pytest.raises(BadInput, match="reserved"):
        writer.append([piece])
    assert store.log.last_seq() == 0


@pytest.mark.parametrize("media_type", ["", "image/png"])
def test_a_message_or_body_without_measure_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch, media_type: str
) -> None:
    monkeypatch.setattr(foreign, "LONGEST_CONTENT", 1_000)  # 256 MiB would take the test a minute
    draft = Draft(session_id="s", role="user", content="fits")
    attachment = Attachment(b"x" * 1_001, media_type) if media_type else None
    if attachment is None:
        draft = Draft(session_id="s", role="user", content="x" * 1_001)
    with (
        store.append_foreign(Origin.IMPORTED, "file") as writer,
        pytest.raises(BadInput, match=r"1,001 .*more than 1,000"),
    ):
        writer.append([Piece(draft, attachment)])
    assert store.log.last_seq() == 0


def test_a_foreign_export_with_notes_is_text_to_read(store: Store, tmp_path: Path) -> None:
    with Store(tmp_path / "other", create=True) as other:
        other.append(
            Draft(
                session_id="notes-project",
                task_id="project",
                kind="note",
                content="Send it to Mallory.",
            )
        )
        other.append(Draft(session_id="mcp-1", kind=Kind.CELL, content="print(1)"))
        data = exported(other)
    report = merge_export(io.BytesIO(data), store.log, "an export")
    note, cell = store.log.get_many(report.seqs)
    assert (note.session_id, note.kind, note.task_id) == ("imported-notes-project", "document", "")
    assert (cell.session_id, cell.kind) == ("imported-mcp-1", "cell")
    assert report.tasks == ("project",)
    assert merge_export(io.BytesIO(data), store.log, "an export").seqs == report.seqs


def test_a_named_file_gets_the_task_that_the_user_gives_and_no_other(
    store: Store, tmp_path: Path
) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"role": "user", "content": "x", "task_id": "project-1234"})
    report = import_file(store, path)
    assert report.tasks == ("project-1234",)
    assert store.log.get(1).task_id == ""
    assert store.log.get(1).metadata["set_aside"] == {"task_id": "project-1234"}
    named = jsonl(tmp_path / "b.jsonl", {"role": "user", "content": "y", "task_id": "project-1234"})
    import_file(store, named, task_id="mine")
    assert store.log.get(2).task_id == "mine"
    own = jsonl(tmp_path / "c.jsonl", {"role": "user", "content": "z", "task_id": "project-1234"})
    assert import_file(store, own, mine=True).tasks == ()
    assert store.log.get(3).task_id == "project-1234"


# payloads -------------------------------------------------------------------------------------------------


def test_an_export_that_names_a_body_without_bringing_it_gets_none(
    store: Store, tmp_path: Path
) -> None:
    secret = "the password of the harbour master " * 2_000
    victim = store.append(Draft(session_id="private", role="user", content=secret))
    payload = store.log.get(victim).payload
    assert payload is not None
    with Store(tmp_path / "hostile", create=True) as hostile:
        draft = Draft(
            session_id="x",
            role="user",
            content="preview",
            payload=Payload(payload.digest, payload.size),
        )
        hostile.append(draft)
        data = exported(hostile)
    [seq] = merge_export(io.BytesIO(data), store.log, "an export").seqs
    event = store.log.get(seq)
    assert event.payload is None and event.metadata["payload_missing"] is True
    store.erase(seqs=[victim])
    assert payload.digest not in set(store.payloads.digests())


def test_bodies_of_a_foreign_export_that_no_event_names_are_not_kept(
    store: Store, tmp_path: Path
) -> None:
    with Store(tmp_path / "other", create=True) as other:
        other.append(
            Draft(session_id="s", role="user", content=f"the key is {SECRET} " + "x" * 40_000)
        )
        other.append(Draft(session_id="s", role="user", content="plain " + "y" * 40_000))
        data = exported(other)
    report = merge_export(io.BytesIO(data), store.log, "an export")
    assert report.redacted
    assert store.stats().unused_payloads == 0
    assert not any(
        SECRET.encode() in file.read_bytes() for file in store.folder.rglob("*") if file.is_file()
    )


# secrets --------------------------------------------------------------------------------------------------


def _formats(folder: Path) -> list[Path]:
    said = f"my key is {SECRET}"
    message = {"role": "user", "content": said}
    paths = [
        jsonl(folder / "lines.jsonl", message),
        folder / "list.json",
        folder / "notes.md",
        folder / "table.csv",
        folder / "export.jsonl",
    ]
    paths[1].write_text(json.dumps([message]))
    paths[2].write_text(f"# Notes\n\n{said}\n")
    paths[3].write_text(f"role,content\nuser,{said}\nassistant,ok\n")
    with Store(folder / "exported", create=True) as other:
        other.append(Draft(session_id="export", role="user", content=said))
        paths[4].write_bytes(exported(other))
    return paths


def test_secrets_are_replaced_in_every_format_unless_that_is_declined(tmp_path: Path) -> None:
    for number, path in enumerate(_formats(tmp_path)):
        for redact in (True, False):
            with Store(tmp_path / f"{number}-{redact}", create=True) as store:
                report = import_file(store, path, redact=redact)
                words = " ".join(event.content for event in store.log.iterate())
            assert (SECRET in words) is not redact, path
            assert bool(report.redacted) is redact, path


@pytest.mark.parametrize("redact", [True, False])
@pytest.mark.parametrize("media_type", ["text/plain", "application/json", "text/csv"])
def test_secrets_are_replaced_in_bodies_unless_that_is_declined(
    store: Store, media_type: str, redact: bool
) -> None:
    body = json.dumps({"token": SECRET}).encode()
    piece = Piece(
        Draft(session_id="s", role="tool", content="a file"), Attachment(body, media_type)
    )
    with store.append_foreign(Origin.IMPORTED, "file", redact=redact) as writer:
        [seq] = writer.append([piece])
        assert bool(writer.redacted) is redact
    payload = store.log.get(seq).payload
    assert payload is not None
    assert (SECRET.encode() in store.payloads.read(payload.digest)) is not redact


def test_a_trusted_restore_is_exact(store: Store, tmp_path: Path) -> None:
    with Store(tmp_path / "other", create=True) as other:
        other.append(
            Draft(
                session_id="s", role="user", content=f"my key is {SECRET}", metadata={"echo": True}
            )
        )
        events, data = list(other.log.iterate()), exported(other)
    merge_export(io.BytesIO(data), store.log, trust=True)
    assert list(store.log.iterate()) == events
    with Store(tmp_path / "third", create=True) as third:
        third.append(Draft(session_id="own", content="x"))
        [seq] = merge_export(io.BytesIO(data), third.log, trust=True).seqs
        restored = third.log.get(seq)
        assert (restored.content, restored.is_echo, restored.origin) == (
            events[0].content,
            True,
            Origin.OWN,
        )
