"""erase, retention, scan: what they show, ask, do and refuse."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from scroll_context.events import Draft, Kind
from scroll_context.log.rows import prepare
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify

AWS = "AKIA" + "IOSFODNN7EXAMPLE"

pytestmark = pytest.mark.usefixtures("key_file")


def test_a_seq_behind_the_last_event_erases_nothing_else(filled: Any, folder: Path) -> None:
    with Store(folder) as store:
        session_id = store.log.get(1).session_id
        before = [event.content for event in store.log.iterate()]
    unknown = filled("erase", "99999", "--yes")
    assert unknown.exit_code == 1 and "no event has seq 99999" in unknown.stderr
    filled("erase", "99999", "--session", session_id, "--yes")
    with Store(folder) as store:
        assert [event.content for event in store.log.iterate()][: len(before)] == before


def test_an_erasure_that_matches_nothing_says_so(filled: Any) -> None:
    for command in (("--yes",), ("--dry-run",), ()):
        result = filled("erase", "--session", "nosuch", *command)
        assert result.exit_code == 0 and result.stdout == ""
        assert "nothing to erase: no event matches" in result.stderr
        assert "`scroll sessions" in result.stderr
    report = json.loads(filled("erase", "--source", "nosuch", "--json").stdout)
    assert report["asked"] == [] and report["seq"] is None


def test_erase_shows_asks_and_erases(filled: Any, folder: Path) -> None:
    with Store(folder) as store:
        store.append(Draft(session_id="x", content="I heard that my sister Nadia is coming"))
        total = store.log.last_seq()
    dry = filled("erase", "--search", "Nadia", "--word", "Nadia", "--dry-run")
    assert (
        dry.exit_code == 0
        and "erase  seq 1 " in dry.stdout
        and "copies would remain" not in dry.stdout
    )
    unasked = filled("erase", "1")
    assert unasked.exit_code == 1 and "--yes" in unasked.stderr
    left = filled("erase", "1", "--word", "Nadia", "--yes")
    assert (
        left.exit_code == 0
        and "1 event was erased" in left.stdout
        and "copies remain: " in left.stderr
    )
    done = filled(
        "erase",
        "2-3",
        "--word",
        "Nadia",
        "--copies",
        "--yes",
        "--json",
        "--reason",
        "other",
        "--by",
        "me",
    )
    report = json.loads(done.stdout)
    assert report["asked"] == [2, 3] and report["remaining"] == []
    assert "Backups and exports" in done.stderr
    assert not [
        file for file in folder.rglob("*") if file.is_file() and b"Nadia" in file.read_bytes()
    ]
    assert filled("verify").exit_code == 0 and "[erased]" in filled("show", "1").stdout
    with Store(folder) as store:
        record = store.log.get(report["seq"])
        assert record.kind == Kind.ERASURE and record.metadata["by"] == "me"
        assert store.log.last_seq() == total + 2
    for args, status in (
        ((), 1),
        (("x",), 2),
        (("9-3",), 2),
        (("1", "--reason", "Bob"), 2),
        (("99999",), 1),
    ):
        assert filled("erase", *args, "--yes").exit_code == status
    assert "nothing matches" in filled("erase", "--search", "zzzz", "--yes").stderr


def test_a_search_to_erase_means_all_words_and_counts_every_event(
    scroll: Any, folder: Path
) -> None:
    with Store(folder, create=True) as store:
        both = store.log.append_many(
            [Draft(content=f"red heron number {number}") for number in range(1_100)]
        )
        store.append(Draft(content="a red car"))
        store.append(Draft(content="two herons"))
    dry = scroll("erase", "--search", "red heron", "--dry-run")
    assert (
        dry.exit_code == 0
        and "1,100 events in 1 session" in dry.stdout
        and "1,080 more" in dry.stdout
    )
    assert dry.stdout.count("erase  seq ") == 20 and "red heron number 3" in dry.stdout
    assert len(
        json.loads(scroll("erase", "--search", "red heron", "--dry-run", "--json").stdout)["asked"]
    ) == len(both)
    some = scroll("erase", "--search", "red heron", "--any", "--dry-run", "--json")
    assert len(json.loads(some.stdout)["asked"]) == len(both) + 2
    none = scroll("erase", "--search", "red zebra", "--yes")
    assert (
        none.exit_code == 1
        and "no event has all words" in none.stderr
        and "1,101 events have" in none.stderr
    )
    assert scroll("erase", "1", "--any").exit_code == 1
    unnamed = scroll("erase", "--word", "heron")
    assert unnamed.exit_code == 1
    assert "name the events to erase: SEQ, LO-HI, --session" in unnamed.stderr


def test_a_word_is_erased_in_every_case_and_form(scroll: Any, folder: Path) -> None:
    with Store(folder, create=True) as store:
        first = store.append(Draft(content="Frau Müller was here"))
        texts = ("MULLER again", "Ｍüller", "the Müllers", '{"name": "M\\u00fcller"}')
        store.log.append_many([Draft(content=text) for text in texts])
        kept = store.append(Draft(content="the mullerian duct"))
    assert scroll("erase", first, "--word", "müller", "--copies", "--yes").exit_code == 0
    with Store(folder) as store:
        assert [event.content for event in store.log.iterate() if not event.is_erased][:-1] == [
            "the mullerian duct"
        ]
        assert store.log.get(kept).content == "the mullerian duct"
    names = ("müller", "muller again", "ｍüller", "m\\u00fcller")
    bodies = [
        file.read_bytes().decode(errors="replace").lower()
        for file in folder.rglob("*")
        if file.is_file()
    ]
    assert not [name for name in names for body in bodies if name in body]


def test_a_dry_run_shows_why_each_copy_would_go(scroll: Any, folder: Path) -> None:
    with Store(folder, create=True) as store:
        fact = store.append(
            Draft(
                session_id="Odile", role="user", content="Odile owes 48731.5 euros to the clinic."
            )
        )
        cell = store.append(Draft(kind=Kind.CELL, content="print(owed * 2)"))
        store.append(
            Draft(
                kind=Kind.OBSERVATION, reply_to=cell, content="97463.0", metadata={"seqs": [fact]}
            )
        )
        store.append(
            Draft(role="assistant", content="You said: Odile owes 48731.5 euros to the clinic.")
        )
        store.append(Draft(kind=Kind.OBSERVATION, content="in all 7", metadata={"unknown": True}))
    dry = scroll("erase", fact, "--word", "odile", "--copies", "--dry-run").stdout
    assert "1 copy: printed by a cell that had read it" in dry and "97463.0" in dry
    assert "1 copy: has one of the words" in dry and "You said" in dry
    assert "1 possible copy" in dry and "in all 7" in dry and "--possible" in dry
    done = scroll("erase", fact, "--word", "odile", "--copies", "--possible", "--yes")
    assert done.exit_code == 0 and "4 events were erased" in done.stdout
    assert "names remain" in done.stderr and "'Odile'" in done.stderr


def recorded_long_ago(folder: Path, drafts: list[Draft], days: int) -> None:
    past = (dt.datetime.now(dt.UTC) - dt.timedelta(days=days)).isoformat(timespec="microseconds")
    with Store(folder) as store:
        store.log.write([prepare(draft, past, store.payloads) for draft in drafts])


def test_retention_goes_by_the_time_of_recording(filled: Any, folder: Path) -> None:
    assert (
        "0 events in 0 sessions are due"
        in filled("retention", "--older-than", "1d", "--dry-run").stdout
    )  # its dates are older
    result = Draft(kind=Kind.TOOL_RESULT, content="a result " * 9_000)
    recorded_long_ago(folder, [*(Draft(content=f"old {n}") for n in range(11)), result], 40)
    shown = filled("retention", "--older-than", "30d", "--dry-run")
    assert "12 events in " in shown.stdout and "1 payload " in shown.stdout
    assert (
        "1 event in "
        in filled("retention", "--older-than", "30d", "--kind", "tool_result", "--dry-run").stdout
    )
    asked = filled("retention", "--older-than", "4w")
    assert asked.exit_code == 1 and "pass --yes if" in asked.stderr
    report = json.loads(filled("retention", "--older-than", "4w", "--yes", "--json").stdout)
    assert report["asked"] == list(range(31, 43)) and report["payloads"] == 1
    nothing = json.loads(filled("retention", "--older-than", "4w", "--json").stdout)
    assert nothing["asked"] == [] and nothing["seq"] == report["seq"] + 1
    with Store(folder) as store:
        record = store.log.get(report["seq"])
        assert record.metadata["reason"] == "retention" and record.metadata["spans"] == [[31, 42]]
        assert verify(store.log).ok
    for bad in ("30", "d", "-3d", "3m"):
        assert filled("retention", "--older-than", bad).exit_code == 2
    assert filled("retention", "--older-than", "0d").exit_code == 1


def test_scan_finds_secrets_and_erases_them_when_told(filled: Any, folder: Path) -> None:
    assert filled("scan").exit_code == 0
    with Store(folder) as store:
        seq = store.append(Draft(content=f"my key is {AWS}"))
    found = filled("scan")
    assert (
        found.exit_code == 1
        and f"seq {seq}  AWS Access Key" in found.stdout
        and AWS not in found.output
    )
    assert "1 secret in 1 event" in found.stdout and "scan --erase" in found.stderr
    assert filled("scan", "--erase").exit_code == 1  # nobody can be asked
    assert filled("scan", "--erase", "--dry-run").exit_code == 1
    done = filled("scan", "--erase", "--yes", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)[0]["seq"] == seq
    assert filled("scan").exit_code == 0


def test_a_service_erases_what_is_due(filled: Any, process: Any, folder: Path) -> None:
    pytest.importorskip("mcp")
    recorded_long_ago(folder, [Draft(content="an old word")], 40)
    service = process("mcp", "--retention", "30d")  # whose client says nothing, and is gone at once
    service.communicate(timeout=60)
    with Store(folder) as store:
        assert (
            store.log.get(31).is_erased
            and store.log.get(32).metadata["rule"]["older_than"] == 30 * 86_400
        )
    assert filled("mcp", "--retention", "long").exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("erase", "31"),
        ("erase", "--search", "lighthouse"),
        ("retention", "--older-than", "1d"),
        ("scan", "--erase"),
    ],
)
def test_what_destroys_names_the_store_the_projects_and_the_sessions_before_it_asks(
    filled: Any, folder: Path, words: tuple[str, ...]
) -> None:
    secret = f"lighthouse {AWS}"
    draft = Draft(session_id="night watch", task_id="harbour-1a2b", role="user", content=secret)
    recorded_long_ago(folder, [draft], 2)
    refused = filled(*words)
    assert refused.exit_code == 1 and "pass --yes if" in refused.stderr
    assert f"store: {folder}" in refused.stderr
    assert "projects: harbour-1a2b" in refused.stderr and "sessions: night watch" in refused.stderr
