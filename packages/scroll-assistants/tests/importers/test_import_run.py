"""Importing from Python: whole or not at all, apart from what is there, with errors that speak
Python.
"""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from scroll_context.errors import BadInput, NotAStore, SessionBusy, UnreadableMessages
from scroll_context.events import Draft, Kind, Scope
from scroll_context.importing.run import import_file
from scroll_context.log.journal import Journal
from scroll_context.store import Store
from scroll_context.upkeep.transfer import export

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}


def write(path: Path, *messages: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(message) + "\n" for message in messages))
    return path


def sessions(store: Store) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for event in store.log.iterate():
        found.setdefault(event.session_id, []).append(event.content)
    return found


def test_a_file_a_path_and_a_stream_are_imported(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "chat.jsonl", USER, REPLY)
    report = import_file(store, path, agent_id="helper")
    assert (report.messages, report.added, report.known, report.bad) == (2, 2, 0, 0)
    assert {event.agent_id for event in store.log.iterate()} == {"helper"}
    assert import_file(store, str(path), agent_id="helper").known == 2
    stream = io.BytesIO(json.dumps({"role": "user", "content": "from a stream"}).encode())
    assert import_file(store, stream, session_id="streamed").added == 1
    assert sessions(store) == {"chat": ["hi", "hello"], "streamed": ["from a stream"]}


def test_two_files_of_one_name_are_two_sessions(store: Store, tmp_path: Path) -> None:
    rome = [USER, {"role": "assistant", "content": "about Rome"}]
    oslo = [USER, {"role": "assistant", "content": "about Oslo"}]
    bern = [{"role": "user", "content": "Bern?"}]
    files = [
        write(tmp_path / name / "chat.jsonl", *what)
        for name, what in zip("abc", (rome, oslo, bern), strict=True)
    ]
    reports = [import_file(store, file) for file in files]
    assert [report.renamed for report in reports] == [{}, {"chat": "chat-2"}, {"chat": "chat-3"}]
    apart = {"chat": ["hi", "about Rome"], "chat-2": ["hi", "about Oslo"], "chat-3": ["Bern?"]}
    assert sessions(store) == apart
    assert [import_file(store, file).added for file in files] == [0, 0, 0]
    write(files[1], *oslo, {"role": "user", "content": "thanks"})
    assert import_file(store, files[1]).added == 1
    assert sessions(store) == apart | {"chat-2": ["hi", "about Oslo", "thanks"]}


def test_an_import_does_not_join_a_session_that_was_begun_here(
    store: Store, tmp_path: Path
) -> None:
    store.append(Draft(session_id="work", role="user", content="my own words"))
    path = write(tmp_path / "x.jsonl", {**USER, "session_id": "work"})
    assert import_file(store, path).renamed == {"work": "work-2"}
    assert sessions(store) == {"work": ["my own words"], "work-2": ["hi"]}
    assert import_file(store, path).added == 0
    own = write(tmp_path / "work.jsonl", REPLY)
    assert import_file(store, own, session_id="work").renamed == {"work": "work-3"}
    assert import_file(store, own, session_id="work", join=True).added == 1
    assert sessions(store)["work"] == ["my own words", "hello"]


def test_a_session_that_was_imported_and_gone_on_with_still_belongs_to_its_file(
    store: Store, tmp_path: Path
) -> None:
    path = write(tmp_path / "chat.jsonl", USER)
    import_file(store, path)
    store.append(Draft(session_id="chat", role="user", content="typed here"))
    write(path, USER, REPLY)
    assert import_file(store, path).renamed == {}
    assert sessions(store) == {"chat": ["hi", "typed here", "hello"]}


@pytest.mark.parametrize("kind", sorted(set(Kind) - {"conversation", "tool_call", "tool_result"}))
def test_the_kinds_that_mean_something_to_a_session_are_reserved(
    store: Store, tmp_path: Path, kind: str
) -> None:
    path = write(tmp_path / "x.jsonl", {**USER, "kind": kind})
    with pytest.raises(UnreadableMessages, match=f"kind '{kind}' is reserved"):
        import_file(store, path)
    with pytest.raises(BadInput, match="reserved"):
        import_file(store, write(tmp_path / "y.jsonl", USER), kind=kind)
    assert store.log.last_seq() == 0


def test_imported_messages_are_foreign_and_own_events_are_not(store: Store, tmp_path: Path) -> None:
    import_file(store, write(tmp_path / "x.jsonl", USER))
    store.append(Draft(content="own"))
    assert [event.is_foreign for event in store.log.iterate()] == [True, False]


def test_a_compressed_export_is_read(store: Store, tmp_path: Path) -> None:
    store.append(Draft(content="words " * 20_000))
    out = io.BytesIO()
    export(store.log, out)
    packed = tmp_path / "e.gz"
    packed.write_bytes(gzip.compress(out.getvalue()))
    with Store(tmp_path / "other", create=True) as other:
        assert import_file(other, packed, trust=True).added == 1
        assert list(other.log.iterate()) == list(store.log.iterate())
        messages = tmp_path / "chat.jsonl.gz"
        messages.write_bytes(gzip.compress(json.dumps(USER).encode()))
        import_file(other, messages)
        assert sessions(other)["chat"] == ["hi"]
        for damage in (packed.read_bytes()[:-20], packed.read_bytes()[:50] + b"x" * 200):
            packed.write_bytes(damage)
            with pytest.raises(BadInput, match="gzip and damaged or cut short"):
                import_file(other, packed)


def test_errors_speak_python(store: Store, tmp_path: Path) -> None:
    some = tmp_path / "some.jsonl"
    some.write_text(json.dumps(USER) + "\nnoise\n")
    with pytest.raises(
        UnreadableMessages, match=r"1 message cannot be read.*skip_bad=True imports the others"
    ) as one:
        import_file(store, some)
    assert f"{some}:2: not JSON" in str(one.value)
    none = tmp_path / "none.jsonl"
    none.write_text("noise\n" * 30)
    for skip_bad in (False, True):
        with pytest.raises(UnreadableMessages) as all_bad:
            import_file(store, none, skip_bad=skip_bad)
        assert "30 messages cannot be read" in str(all_bad.value) and "others" not in str(
            all_bad.value
        )
        assert "10 more" in str(all_bad.value)
    assert import_file(store, some, skip_bad=True).faults[0].line == 2
    with pytest.raises(
        NotAStore, match=r"Store\('.*nowhere', create=True\) creates one"
    ) as nowhere:
        Store(tmp_path / "nowhere")
    assert "scroll " not in str(nowhere.value)


def test_an_import_does_not_add_to_a_session_that_is_open(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "chat.jsonl", USER)
    import_file(store, path)
    write(path, USER, REPLY)
    journal = Journal(store.log, Scope("chat"))
    with pytest.raises(SessionBusy, match="'chat' is open elsewhere"):
        import_file(store, path)
    assert store.log.last_seq() == 1
    journal.close()
    assert import_file(store, path).added == 1
