"""Erasing on purpose: the words leave every file, addresses and the chain stay, whatever happens
meanwhile.
"""

import hashlib
import io
import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forms import form
from scroll_context.errors import BadInput, PayloadMissing, UnknownSeq
from scroll_context.events import Draft, Kind, Scope
from scroll_context.importing.run import import_file
from scroll_context.log import erasing as row_erasing
from scroll_context.log.backend import LogBackend
from scroll_context.log.chain import leaf_of
from scroll_context.log.journal import Journal
from scroll_context.log.payload_folder import PayloadFolder
from scroll_context.log.rows import ERASED, ERASED_METADATA, TableRow
from scroll_context.store import Store
from scroll_context.upkeep import erase as erasing
from scroll_context.upkeep.erase import has_chores
from scroll_context.upkeep.integrity import verify
from scroll_context.upkeep.salvage import salvage
from scroll_context.upkeep.transfer import backup, export

SECRET = "heron-4711-zebra"

pytestmark = pytest.mark.usefixtures("key_file")


def holding(folder: Path, *words: str) -> list[str]:
    """The files of a store in which any of the words occurs, in UTF-8 or UTF-16."""
    forms = [word.encode(encoding) for word in words for encoding in ("utf-8", "utf-16-le")]
    return [
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and any(form in file.read_bytes() for form in forms)
    ]


def fill(store: Store) -> int:
    """A history in which one event holds the secret, with neighbours before and behind; its seq."""
    store.log.append_many(Draft(content=f"before {n}", source_key=f"b{n}") for n in range(20))
    seq = store.append(
        Draft(
            session_id="s",
            role="user",
            name="alice",
            headline=f"about {SECRET}",
            content=f"the code is {SECRET}",
            metadata={"note": SECRET},
            source_key=f"import:{SECRET}:0",
        )
    )
    store.log.append_many(Draft(content=f"behind {n}") for n in range(20))
    store.index.catch_up()
    return seq


def test_an_erased_event_is_gone_from_every_file_and_keeps_its_address(
    store: Store, folder: Path
) -> None:
    seq = fill(store)
    head, before = verify(store.log).head, store.log.get(seq)
    assert holding(folder, SECRET)
    report = store.erase(seqs=[seq], reason="secret", by="the operator")
    assert (report.asked, report.copies, report.unfinished) == ((seq,), (), "")
    assert holding(folder, SECRET, "alice") == []
    after = store.log.get(seq)
    assert after.is_erased and after.content == ERASED and not after.is_searchable
    kept = ("seq", "session_id", "kind", "role", "created_at", "recorded_at", "chain")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    assert (after.name, after.headline, after.payload) == ("", "", None)
    # With the nonce, the hash that stays would tell whether a guess of the content is right.
    assert store.log.query("SELECT nonce FROM event WHERE seq = ?", [seq]) == [(None,)]
    record = store.log.get(report.seq or 0)
    assert record.kind == Kind.ERASURE and record.metadata["spans"] == [[seq, seq]]
    assert (record.metadata["reason"], record.metadata["by"]) == ("secret", "the operator")
    verdict = verify(store.log)
    assert verdict.ok and store.log.get(seq + 20).chain.hex() == head
    assert not store.index.search("heron") and len(store.index.search("behind", k=50)) == 20
    assert store.append(Draft(content="life goes on")) == (report.seq or 0) + 1
    assert store.log.newest_erasure() == report.seq


def test_the_guards_stand_again_and_a_tampered_leaf_is_found(store: Store, folder: Path) -> None:
    seq = fill(store)
    store.erase(seqs=[seq])
    store.close()

    def tampered(statement: str) -> list[int]:
        copy = folder.parent / f"copy-{abs(hash(statement))}"
        with Store(folder) as source:
            backup(source.log, copy)
        database = sqlite3.connect(copy / "log.db", isolation_level=None)
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute(statement)
        database.execute("DROP TRIGGER event_no_update")
        database.execute(statement)
        database.close()
        with Store(copy) as changed:
            return [seq for seq, _ in verify(changed.log).bad]

    assert tampered(f"UPDATE event SET leaf = randomblob(32) WHERE seq = {seq}") == [seq]
    assert tampered(f"UPDATE event SET leaf = CAST(leaf || x'00' AS BLOB) WHERE seq = {seq}") == [
        seq
    ]
    assert tampered(f"UPDATE event SET content = 'planted' WHERE seq = {seq}") == [seq]
    by_hand = "content = '[erased]', metadata = '{\"erased\":true}', nonce = NULL, leaf = chain"
    assert tampered(f"UPDATE event SET {by_hand} WHERE seq = {seq - 1}")[0] == seq - 1


def test_erasing_neither_hides_an_alteration_nor_passes_without_a_record(
    store: Store, folder: Path
) -> None:
    fill(store)
    store.close()
    database = sqlite3.connect(folder / "log.db", isolation_level=None)
    guards = [
        sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger'")
    ]
    database.executescript(
        "DROP TRIGGER event_no_update; UPDATE event SET content = 'forged' WHERE seq = 5"
    )
    row = TableRow(*database.execute("SELECT * FROM event WHERE seq = 7").fetchone())
    database.execute(  # as an erasure would do it, but by hand
        "UPDATE event SET content = ?, metadata = ?, leaf = ?, nonce = NULL WHERE seq = 7",
        [ERASED, ERASED_METADATA, leaf_of(row.nonce or b"", row.columns)],
    )
    database.execute(next(sql for sql in guards if "event_no_update" in sql))
    database.close()
    with Store(folder) as again:
        assert [seq for seq, _ in verify(again.log).bad] == [5, 7]
        again.erase(seqs=[5])
        assert [seq for seq, _ in verify(again.log).bad] == [5, 7]


def test_copies_are_named_and_erased_when_asked(store: Store, folder: Path) -> None:
    seq = fill(store)
    cell = store.append(Draft(kind=Kind.CELL, content="print(ms.search('code'))"))
    printed = store.append(
        Draft(kind=Kind.OBSERVATION, reply_to=cell, content=SECRET, metadata={"seqs": [seq]})
    )
    question = store.append(
        Draft(
            kind=Kind.TOOL_CALL,
            name="ask",
            content=json.dumps({"prompt": "?", "context": f"the code is {SECRET}"}),
        )
    )
    answer = store.append(
        Draft(
            kind=Kind.TOOL_RESULT,
            name="ask",
            reply_to=question,
            content="a bird",
            source_key="ask:1",
        )
    )
    long = store.append(
        Draft(role="assistant", content=f"You said:\nthe code is {SECRET}\n" + "padding " * 9_000)
    )
    word = store.append(Draft(role="assistant", content=f"I wrote {SECRET} down"))
    plain = store.append(Draft(content="nothing of the kind"))
    dry = store.erase(seqs=[seq], dry_run=True)
    assert (
        dry.copies == dry.remaining == (printed, question, answer, long)
        and dry.seq is None
        and dry.payloads == 0
    )
    assert store.erase(seqs=[seq], words=[SECRET], dry_run=True).copies == (
        printed,
        question,
        answer,
        long,
        word,
    )
    assert not store.log.get(seq).is_erased and has_words(folder)
    left = store.erase(seqs=[seq], words=[SECRET])
    assert left.remaining == (printed, question, answer, long, word) and has_words(folder)
    done = store.erase(seqs=[seq, printed], words=[SECRET], copies=True)
    assert done.asked == (printed,) and done.copies == (question, answer, long, word)
    assert not has_words(folder) and verify(store.log).ok
    assert store.log.get(plain).content == "nothing of the kind"
    with pytest.raises(PayloadMissing):
        store.payloads.read("0" * 64)
    assert not list(store.payloads.digests())


def has_words(folder: Path) -> bool:
    return bool(holding(folder, SECRET))


def test_an_import_with_nonsense_in_its_metadata_does_not_stop_an_erasure(
    store: Store, folder: Path
) -> None:
    seq = fill(store)
    nonsense = {
        "inside_cell": {},
        "seqs": [[], {}],
        "plan": 7,
        "earlier": {"topics": [1]},
        "session_id": [],
        "at_seq": [],
    }
    for number, kind in enumerate((Kind.TOOL_RESULT, Kind.EVICTION, Kind.FORK, Kind.SNAPSHOT)):
        store.append(
            Draft(kind=kind, content="[]", metadata=nonsense, source_key=f"import:{number}")
        )
    store.erase(seqs=[seq], words=[SECRET], copies=True)
    assert holding(folder, SECRET) == []


def test_a_name_inside_the_id_and_state_of_an_imported_call_is_erased(
    store: Store, folder: Path
) -> None:
    named = {
        "tool_call_id": f"call-{SECRET}-1",
        "tool_state": f"state of {SECRET}",
        "name": SECRET,
        "role": SECRET,
    }
    asked = store.append(
        Draft(kind=Kind.TOOL_RESULT, content="done", source_key=f"import:{SECRET}:1", **named)
    )
    copy = store.append(
        Draft(kind=Kind.TOOL_CALL, content="{}", source_key="import:x:2", tool_call_id=SECRET)
    )
    own = store.append(Draft(kind=Kind.TOOL_CALL, content="{}", tool_call_id="call_1"))
    report = store.erase(seqs=[asked], words=[SECRET], copies=True)
    assert report.copies == (copy,) and holding(folder, SECRET) == []
    assert store.log.get(own).tool_call_id == "call_1" and verify(store.log).ok


def test_media_in_a_result_that_is_erased_go_with_it(store: Store) -> None:
    call = store.append(Draft(kind=Kind.TOOL_CALL, content="{}"))
    picture = store.payloads.put(b"picture " * 500, "image/png")
    media = store.append(
        Draft(kind=Kind.ARTIFACT, reply_to=call, content="[image/png]", payload=picture)
    )
    result = store.append(Draft(kind=Kind.TOOL_RESULT, reply_to=call, content='{"artifact": 2}'))
    assert store.erase(seqs=[result], copies=True).copies == (media,)
    assert not list(store.payloads.digests()) and not store.log.get(call).is_erased


def test_a_payload_that_another_event_needs_stays(store: Store) -> None:
    body = "shared words " * 9_000
    one, two = store.append(Draft(content=body)), store.append(Draft(content=body))
    report = store.erase(seqs=[one])
    assert (report.payloads, report.copies) == (0, (two,))
    assert store.log.text(store.log.get(two)) == body
    assert store.erase(seqs=[two]).payloads == 1
    assert not list(store.payloads.digests())


def test_snapshots_of_the_session_and_of_its_forks_go_too(store: Store, folder: Path) -> None:
    seq = store.append(Draft(session_id="s", content=f"the code is {SECRET}"))
    blob = store.payloads.put(b"pickled " * 500, "application/octet-stream").digest
    saved = {"name": "code", "group": 1, "digest": blob, "cells": [1]}
    snapshot = {"cell": 1, "saved": [saved], "sources": {"1": [seq]}}
    mine = store.append(Draft(session_id="s", kind=Kind.SNAPSHOT, content=json.dumps(snapshot)))
    store.append(
        Draft(session_id="f", kind=Kind.FORK, metadata={"session_id": "s", "at_seq": mine})
    )
    forked = store.append(
        Draft(session_id="f", kind=Kind.SNAPSHOT, content='{"cell": 2, "saved": [{"name": "x"}]}')
    )
    derived = store.append(Draft(session_id="d", kind=Kind.SNAPSHOT, content=json.dumps(snapshot)))
    other = store.append(
        Draft(session_id="o", kind=Kind.SNAPSHOT, content='{"cell": 4, "saved": [{"name": "y"}]}')
    )
    report = store.erase(seqs=[seq])
    assert report.snapshots == (mine, forked, derived)
    assert report.variables == ("code", "x") and report.payloads == 1
    assert not list(store.payloads.digests()) and not store.log.get(other).is_erased
    assert verify(store.log).ok


def test_what_was_erased_does_not_come_back_with_its_file(
    store: Store, tmp_path: Path, key_file: Path
) -> None:
    path = tmp_path / "chat.jsonl"
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": SECRET},
        {"role": "user", "content": "ok"},
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in messages))
    import_file(store, path)
    store.erase(seqs=[2])
    assert import_file(store, path).added == 0
    assert [event.content for event in store.log.iterate(session_id="chat")] == ["hi", ERASED, "ok"]
    assert not holding(store.folder, SECRET, "import:" + SECRET)
    assert key_file.stat().st_mode & 0o777 == 0o600 and not holding(
        store.folder, key_file.read_text().strip()
    )


def test_selections(store: Store) -> None:
    for agent, task, session, key in (
        ("a", "t", "s1", "x:1"),
        ("a", "u", "s2", "x:2"),
        ("b", "t", "s2", "y:1"),
    ):
        store.append(
            Draft(
                agent_id=agent,
                task_id=task,
                session_id=session,
                source_key=key,
                content=f"{agent}{task}",
            )
        )
    dry = {"dry_run": True}
    assert store.erase(agent_id="a", **dry).asked == (1, 2)
    assert store.erase(task_id="t", agent_id="b", **dry).asked == (3,)
    assert store.erase(session_id="s2", **dry).asked == (2, 3)
    assert store.erase(source="x:", **dry).asked == (1, 2)
    assert store.erase(source="x:", seqs=[2, 3], **dry).asked == (2,)
    with pytest.raises(BadInput, match="name the events"):
        store.erase()
    with pytest.raises(UnknownSeq, match="seq 9"):
        store.erase(seqs=[1, 9])
    with pytest.raises(BadInput, match="a reason is one of"):
        store.erase(seqs=[1], reason="because of Bob")  # type: ignore[arg-type]
    assert store.erase(session_id="nobody").seq is None
    record = store.erase(seqs=[1]).seq
    assert (
        store.erase(seqs=[1, record or 0]).asked == ()
    )  # neither what is erased nor the record of it


def test_an_erased_log_is_copied_exported_salvaged_and_merged(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    seq = fill(store)
    store.erase(seqs=[seq])
    events = list(store.log.iterate())
    backup(store.log, tmp_path / "backup")
    out = io.BytesIO()
    export(store.log, out)
    for trust in (True, False):
        with Store(tmp_path / f"import-{trust}", create=True) as copy:
            import_file(copy, io.BytesIO(out.getvalue()), trust=trust)
            arrived = copy.log.get(seq)
            assert verify(copy.log).ok
            foreign = (arrived.kind, arrived.metadata.get("kind")) == (
                "foreign",
                events[seq - 1].kind,
            )
            assert arrived.is_erased if trust else foreign
            assert not trust or list(copy.log.iterate()) == events
    store.close()
    salvage(folder)
    for name in ("backup", "store"):
        with Store(tmp_path / name) as copy:
            assert list(copy.log.iterate(until=len(events))) == events and verify(copy.log).ok


def test_a_planted_content_in_an_erased_row_of_an_export_is_refused(
    store: Store, tmp_path: Path
) -> None:
    store.append(Draft(content="x"))
    store.erase(seqs=[1])
    out = io.BytesIO()
    export(store.log, out)
    data = out.getvalue().replace(b'"[erased]"', b'"planted!"')
    with (
        Store(tmp_path / "other", create=True) as other,
        pytest.raises(BadInput, match="does not match its hash"),
    ):
        import_file(other, io.BytesIO(data), trust=True)


def test_others_go_on_reading_writing_and_searching_meanwhile(store: Store, folder: Path) -> None:
    seq = fill(store)
    stop, failures, written = threading.Event(), [], []

    def work(what: str) -> None:
        try:
            with Store(folder) as other:
                while not stop.is_set():
                    if what == "write":
                        written.append(other.append(Draft(content="meanwhile")))
                    elif what == "read":
                        assert len(list(other.log.iterate(until=41))) == 41
                    else:
                        other.index.search("behind", k=50, patience=1.0)
        except Exception as error:
            failures.append((what, error))

    threads = [threading.Thread(target=work, args=(what,)) for what in ("write", "read", "search")]
    for thread in threads:
        thread.start()
    try:
        reports = [store.erase(seqs=[seq]), *(store.erase(seqs=[n]) for n in (3, 30))]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures and written
    assert verify(store.log).ok and all(report.seq for report in reports)
    store.close()
    with Store(folder) as again:  # finishes whatever a reader was in the way of
        assert again.log.last_seq()
    assert not has_words(folder)


KILLED = """
import sys, threading, os, time
from scroll_context.store import Store
store = Store(sys.argv[1])
def end():
    sys.stdin.readline()
    time.sleep(float(sys.argv[2]))
    os.kill(os.getpid(), 9)
threading.Thread(target=end, daemon=True).start()
print("ready", flush=True)
store.erase(seqs=[int(sys.argv[3])], words=[sys.argv[4]], copies=True)
store.close()
"""


def test_a_kill_at_any_moment_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    kills = form(5, 40)
    outcomes = set()
    for number in range(kills):
        folder = tmp_path / str(number)
        with Store(folder, create=True) as store:
            seq = fill(store)
            store.log.append_many(
                Draft(content=f"copy of the code is {SECRET} {n} " * 20) for n in range(300)
            )
            store.append(Draft(content=f"the code is {SECRET}\n" * 5_000))
            last = store.log.last_seq()
        delay = 0.2 * number / kills
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder), str(delay), str(seq), SECRET],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        child.stdin.write(b"go\n")
        child.stdin.close()
        ended = child.wait(60)
        child.stdout.close()
        assert ended in (0, -signal.SIGKILL)
        with Store(folder) as store:
            assert verify(store.log).ok
            assert [event.seq for event in store.log.iterate(until=last)] == list(
                range(1, last + 1)
            )
            is_new = store.log.get(seq).is_erased
            assert is_new == bool(store.log.newest_erasure())
            outcomes.add(is_new)
            assert has_words(folder) is not is_new
            assert len(store.index.search("behind", k=50)) == 20
            assert store.append(Draft(content="goes on")) > last
    assert outcomes


class ErasedMeanwhile(PayloadFolder):
    """A folder of payloads in which something happens between the storing of a body and the append
    of its event.
    """

    then: Callable[[], None] | None = None

    def sync(self, name: str) -> None:
        super().sync(name)
        then, self.then = self.then, None
        if then:
            then()


@pytest.mark.parametrize("way", ["log", "journal", "body", "once"])
def test_a_body_that_is_stored_while_an_equal_one_is_erased_is_not_lost(
    store: Store, folder: Path, way: str
) -> None:
    text = f"the code is {SECRET}\n" * 5_000
    seq = store.append(Draft(session_id="old", content=text))
    with Store(folder) as other:
        place = ErasedMeanwhile(folder / "payloads")
        other.log.payloads.place = place
        journal = Journal(other.log, Scope("new"))
        place.then = lambda: store.erase(seqs=[seq]) and None
        if way == "log":
            other.log.append(Draft(session_id="new", content=text))
        elif way == "journal":
            journal.append(journal.draft(Kind.TOOL_RESULT, content=text))
        elif way == "body":
            journal.append(journal.draft(Kind.TOOL_RESULT, content="short"), body=text)
        else:
            journal.append_once("key", journal.draft(Kind.TOOL_RESULT, content=text))
        journal.close()
        assert store.log.get(seq).is_erased and place.then is None
        (event,) = other.log.iterate(session_id="new")
        assert other.log.text(event) == text and verify(other.log).ok


def test_a_body_that_is_stored_while_the_files_are_cleaned_is_not_lost(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"the code is {SECRET}\n" * 5_000
    seq = store.append(Draft(session_id="old", content=text))
    named_payloads = row_erasing.named_payloads
    appended: list[int] = []

    with Store(folder) as other:

        def append_then(backend: LogBackend, after: int = 0) -> set[str]:
            names = named_payloads(backend, after)
            if not appended:
                appended.append(other.append(Draft(session_id="new", content=text)))
            return names

        monkeypatch.setattr(row_erasing, "named_payloads", append_then)
        store.erase(seqs=[seq])
        assert store.log.get(seq).is_erased
        assert other.log.text(other.log.get(appended[0])) == text and verify(other.log).ok


def test_a_large_body_that_is_imported_again_leaves_nothing_behind(
    store: Store, folder: Path
) -> None:
    draft = Draft(session_id="s", content=f"the code is {SECRET}\n" * 5_000, source_key="import:1")
    seq = store.append(draft)
    store.erase(seqs=[seq], copies=True)
    assert store.append(draft) == seq and holding(folder, SECRET) == []
    journal = Journal(store.log, Scope("s"))
    event, is_new = journal.append_once("import:1", replace(draft, source_key=""))
    journal.close()
    assert (
        event.seq == seq and not is_new and holding(folder, SECRET) == [] and verify(store.log).ok
    )


def test_no_copy_is_left_in_pages_that_were_split(store: Store, folder: Path) -> None:
    # Keys that come in no order split the pages of their index. A split leaves copies behind, unless
    # SQLite was built to overwrite what it frees, as it was on some systems.
    order = sorted(range(600), key=lambda number: hashlib.sha256(b"%d" % number).digest())
    store.append(Draft(content="opens the connection"))
    store.log.backend.writer.connection.execute("PRAGMA secure_delete = OFF")
    for number in order:
        key = f"{number:04}:{SECRET}:{'k' * 60}"
        store.append(Draft(session_id="s", content="x", source_key=key))
    store.erase(session_id="s")
    assert holding(folder, SECRET) == []


def test_an_erasure_that_comes_while_another_is_cleaned_up_is_cleaned_up_too(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (
        store.append(Draft(content=f"the code is {word}")) for word in (SECRET, "quetzalcoatl")
    )
    vacuum = erasing._vacuum
    came: list[int] = []
    facts = {"reason": "request", "by": "me"}

    def vacuum_and_erase(database: sqlite3.Connection) -> bool:
        is_done = vacuum(database)
        if not came:
            # A process that was killed just now left a copy, behind the place where the first erasure looks for some.
            (folder / ".creating-0123abcd").write_text("quetzalcoatl")
            came.append(store.log.backend.erase([second], [], facts).seq)
        return is_done

    monkeypatch.setattr(erasing, "_vacuum", vacuum_and_erase)
    assert store.erase(seqs=[first]).unfinished == ""
    assert came and not has_chores(store.log)
    assert holding(folder, SECRET, "quetzalcoatl") == []


def test_files_that_a_salvage_or_a_killed_process_left_go_and_others_stay(
    store: Store, folder: Path
) -> None:
    seq = fill(store)
    store.payloads.put(b"x" * 100, "text/plain")  # makes the folders
    left = [
        folder / "log.db.damaged-20260102-030405-000006", folder / "log.db.damaged-20260102-030405-000006-wal",
        folder / ".creating-0123abcd", folder / "payloads/tmp/0123456789abcdef.part",
    ]  # fmt: skip
    others = [
        folder / "log.db.damaged.txt",
        folder / "creating-notes",
        folder / "payloads/tmp/notes.part",
    ]
    for path in (*left, *others):
        path.write_text(SECRET if path in left else "a file of the user")
        path.chmod(0o600)
    assert store.erase(seqs=[seq]).unfinished == ""
    assert holding(folder, SECRET) == []
    assert [path for path in (*left, *others) if path.exists()] == others


def test_what_a_killed_erasure_left_to_do_survives_a_salvage(store: Store, folder: Path) -> None:
    seq = store.append(Draft(content=f"the code is {SECRET}\n" * 5_000))
    digest = store.log.get(seq).payload
    assert digest is not None
    store.log.backend.erase(
        [seq], [digest.digest], {"reason": "request", "by": "me"}
    )  # killed here
    store.close()
    salvage(folder)
    assert holding(folder, SECRET)
    with Store(folder) as opened:
        assert verify(opened.log).ok and not has_chores(opened.log)  # the first use has finished it
        assert holding(folder, SECRET) == []


words = st.sampled_from(["alpha-one-bird", "beta-two-fish", "gamma-three-frog", "delta-four-newt"])
event = st.tuples(st.sampled_from("stu"), words, st.booleans())


@settings(max_examples=form(6, 15))
@given(
    st.lists(event, min_size=1, max_size=12), st.lists(words, min_size=1, max_size=2), st.booleans()
)
def test_no_erased_word_is_left_whatever_the_history(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[tuple[str, str, bool]],
    gone: list[str],
    reopen: bool,
) -> None:
    folder = tmp_path_factory.mktemp("erase") / "store"
    store = Store(folder, create=True)
    for session, word, is_long in history:
        store.append(
            Draft(session_id=session, content=f"a {word} was here " * (3_000 if is_long else 1))
        )
    store.index.catch_up()
    if reopen:
        store.close()
        store = Store(folder)
    chosen = [
        event.seq for event in store.log.iterate() if any(word in event.content for word in gone)
    ]
    if chosen:
        report = store.erase(seqs=chosen[:1], words=gone, copies=True)
        assert report.unfinished == ""
        assert {*report.asked, *report.copies} == set(chosen)
    assert holding(folder, *gone) == []
    assert [event.seq for event in store.log.iterate(until=len(history))] == list(
        range(1, len(history) + 1)
    )
    assert verify(store.log).ok
    kept = {word for _, word, _ in history} - set(gone)
    assert all(holding(folder, word) for word in kept)
    out = io.BytesIO()
    export(store.log, out)
    for trust in (True, False):
        with Store(folder.parent / f"copy-{trust}", create=True) as copy:
            import_file(copy, io.BytesIO(out.getvalue()), trust=trust)
            assert verify(copy.log).ok and holding(copy.folder, *gone) == []
            assert [one.content for one in copy.log.iterate(until=len(history))] == [
                one.content for one in store.log.iterate(until=len(history))
            ]
    store.close()


def test_a_call_id_with_words_in_it_is_erased_and_one_that_a_program_drew_stays(
    store: Store,
) -> None:
    drawn = f"call_{'0f' * 16}"
    first = store.append(
        Draft(kind=Kind.TOOL_RESULT, role="tool", tool_call_id="call-Ada-4417", tool_state="Ada")
    )
    second = store.append(
        Draft(kind=Kind.TOOL_RESULT, role="tool", tool_call_id=drawn, tool_state="ok")
    )
    store.erase(seqs=[first, second])
    assert (store.log.get(first).tool_call_id, store.log.get(first).tool_state) == ("", "")
    assert (store.log.get(second).tool_call_id, store.log.get(second).tool_state) == (drawn, "ok")
    for file in filter(Path.is_file, store.folder.rglob("*")):
        assert b"Ada-4417" not in file.read_bytes()
