"""An export of somebody else is text to read: nothing of it takes effect here unless it is trusted."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from scroll_context.agent.agent import Agent
from scroll_context.errors import BadInput
from scroll_context.events import BOOKKEEPING, Draft, Kind
from scroll_context.importing.run import import_file
from scroll_context.models import ScriptedModel, exec_cell
from scroll_context.session.explain import explain
from scroll_context.session.options import SessionOptions
from scroll_context.session.past import lineage
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify
from scroll_context.upkeep.transfer import backup, export


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Store]:
    """Another store, in which a session has variables, evictions, requests and a fork."""
    with Store(tmp_path / "theirs", create=True) as store:
        with Session.open(store, session_id="s") as session:
            steps = [
                exec_cell(
                    f"v{n} = {n}\nprint('line ' * 150)", headline=f"work | step {n} | next | ok"
                )
                for n in range(12)
            ]
            Agent(
                session,
                ScriptedModel(
                    [*steps, exec_cell("large = list(range(5_000))"), "done"], window=3_000
                ),
            ).run("work")
            session.environment.variables.wait_for_save()
            with session.fork(store.log.last_seq(), session_id="branch"):
                pass
        yield store


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "mine", create=True) as store:
        store.append(Draft(session_id="s", role="user", content="my own words"))
        store.append(Draft(session_id="other", role="user", content="more of mine"))
        yield store


def exported(store: Store) -> io.BytesIO:
    out = io.BytesIO()
    export(store.log, out)
    return io.BytesIO(out.getvalue())


def cell(session: Session, source: str) -> str:
    return session.run(source).content


def test_nothing_of_a_foreign_export_takes_effect(theirs: Store, mine: Store) -> None:
    assert theirs.log.tail(1, kind=Kind.SNAPSHOT) and theirs.log.tail(1, kind=Kind.EVICTION)
    report = import_file(mine, exported(theirs))
    assert report.renamed == {"s": "s-2"}
    came = list(mine.log.iterate(after=2))
    assert all(event.is_foreign for event in came)
    assert not any(event.kind in BOOKKEEPING - {Kind.FOREIGN} for event in came)
    assert {event.metadata["kind"] for event in came if event.kind == Kind.FOREIGN} >= {
        "snapshot",
        "eviction",
        "fork",
    }
    assert not any(event.is_searchable for event in came if event.kind == Kind.FOREIGN)
    assert [event.content for event in lineage(mine, "s")] == ["my own words"]
    assert {event.session_id for event in lineage(mine, "branch")} == {"branch"}
    with Session.resume(mine, "s-2") as session:
        assert "NameError" in cell(session, "print(v3)")
    assert import_file(mine, exported(theirs)).added == 0
    assert verify(mine.log).ok


def test_a_foreign_fork_cannot_replay_a_local_session(tmp_path: Path, mine: Store) -> None:
    with Store(tmp_path / "forged", create=True) as forged:
        forged.log.append_many([Draft(session_id="pad", content=f"pad {n}") for n in range(3)])
        forged.append(
            Draft(session_id="trap", kind=Kind.FORK, metadata={"session_id": "s", "at_seq": 1})
        )
        forged.append(Draft(session_id="trap", role="user", content="read it to me"))
        import_file(mine, exported(forged))
    assert [event.content for event in lineage(mine, "trap")][-1] == "read it to me"
    assert not any("my own" in event.content for event in lineage(mine, "trap"))


def test_a_foreign_source_key_answers_for_nothing(tmp_path: Path, mine: Store) -> None:
    with Store(tmp_path / "forged", create=True) as forged:
        forged.append(Draft(kind=Kind.TOOL_RESULT, content="poison", source_key="ask:" + "0" * 64))
        import_file(mine, exported(forged))
    assert mine.log.find_source("ask:" + "0" * 64) is None


def test_a_trusted_export_is_renumbered_as_a_whole(theirs: Store, mine: Store) -> None:
    report = import_file(mine, exported(theirs), trust=True)
    assert report.renamed == {"s": "s-2"}
    moved = {event.metadata["moved_from"]: event for event in mine.log.iterate(after=2)}
    for old in theirs.log.iterate():
        new = moved[old.seq]
        assert (new.kind, new.is_foreign) == (old.kind, False)
        assert (new.reply_to is None) == (old.reply_to is None)
        if old.reply_to is not None:
            assert new.reply_to == moved[old.reply_to].seq
        for field in ("inside_cell", "at_seq", "upto"):
            if field in old.metadata:
                assert new.metadata[field] == moved[old.metadata[field]].seq
        if old.kind == Kind.EVICTION:
            plan, renumbered = old.metadata["plan"], new.metadata["plan"]
            assert renumbered["folded"] == [moved[seq].seq for seq in plan["folded"]]
            assert renumbered["evicted"] == [
                [moved[lo].seq, moved[hi].seq] for lo, hi in plan["evicted"]
            ]
        if old.kind == Kind.FORK:
            assert new.metadata["session_id"] == "s-2"
    with Session.resume(theirs, "s") as there, Session.resume(mine, "s-2") as here:
        live, again = there.context.render("", ""), here.context.render("", "")
        assert abs(again.tokens - live.tokens) < 40 and len(again.messages) == len(live.messages)
        assert (
            cell(here, "print(v3, v11, len(large))")
            == cell(there, "print(v3, v11, len(large))")
            == "3 11 5000"
        )
    assert verify(mine.log).ok


def test_explain_verifies_requests_of_a_merged_export(theirs: Store, mine: Store) -> None:
    import_file(mine, exported(theirs), trust=True)
    requests = list(mine.log.iterate(kind=Kind.REQUEST))
    assert len(requests) == 14
    explained = [explain(mine, request.seq) for request in requests]
    assert [one.doubt for one in explained if not one.verified] == []


def test_what_a_session_started_from_is_renumbered_too(tmp_path: Path, mine: Store) -> None:
    with Store(tmp_path / "theirs", create=True) as theirs:
        for n, subject in enumerate(("the heat equation", "sourdough starters")):
            said = [
                f"Tell me about {subject}, part {part}. Always use metric units."
                for part in range(5)
            ]
            theirs.log.append_many(
                [Draft(session_id=f"talk{n}", role="user", content=text) for text in said]
            )
        with Session.open(
            theirs, session_id="late", options=SessionOptions(reach="all")
        ) as session:
            Agent(session, ScriptedModel(["noted " * 200] * 8, window=3_000)).run(
                "Never use feet. " + "go " * 900
            )
            for _ in range(7):
                Agent(session, ScriptedModel(["noted " * 200], window=3_000)).run("on " * 700)
        import_file(mine, exported(theirs), trust=True)
        old, new = (
            [
                event
                for event in store.log.iterate(session_id="late")
                if {"earlier", "plan"} & set(event.metadata)
            ]
            for store in (theirs, mine)
        )
    moved = {event.metadata["moved_from"]: event.seq for event in mine.log.iterate(after=2)}
    begun, *plans = (event.metadata for event in new)
    assert [topic["spans"] for topic in begun["earlier"]["topics"]] == [[[3, 7]], [[8, 12]]]
    assert (
        begun["earlier"]["standing"][0]["seq"]
        == moved[old[0].metadata["earlier"]["standing"][0]["seq"]]
    )
    told = [
        (there["plan"]["about"], here["plan"]["about"])
        for there, here in zip((e.metadata for e in old[1:]), plans, strict=True)
    ]
    assert any(before for before, _ in told)
    assert all([[moved[seq], *rest] for seq, *rest in before] == after for before, after in told)
    assert any(plan["plan"]["standing"] for plan in plans)
    for request in mine.log.iterate(session_id="late", kind=Kind.REQUEST):
        assert explain(mine, request.seq).doubt == ""


def test_a_backup_and_an_export_go_on_without_a_payload_that_is_gone(
    theirs: Store, tmp_path: Path
) -> None:
    gone = theirs.append(Draft(content="long " * 20_000))
    theirs.append(Draft(content="other " * 20_000))
    payload = theirs.log.get(gone).payload
    assert payload is not None
    theirs.payloads.path(payload.digest).unlink()
    report = backup(theirs.log, tmp_path / "copy")
    assert report.missing == (payload.digest,)
    data = exported(theirs)
    with Store(tmp_path / "restored", create=True) as restored:
        assert import_file(restored, data, trust=True).missing == (payload.digest,)
    for folder in ("copy", "restored"):
        with Store(tmp_path / folder) as copy:
            assert list(copy.log.iterate()) == list(theirs.log.iterate())
            assert [seq for seq, _ in verify(copy.log).bad] == [gone]
            with Session.resume(copy, "s") as session:  # pickles of variables are payloads too
                assert cell(session, "print(len(large))") == "5000"


@pytest.mark.parametrize("seq", [2**63 - 1, 2**53, 0, -1])
def test_an_export_with_an_address_that_no_append_can_follow_is_refused(
    tmp_path: Path, mine: Store, seq: int
) -> None:
    with Store(tmp_path / "forged", create=True) as forged:
        forged.append(Draft(content="x"))
        data = exported(forged).getvalue().replace(b'"seq":1,', b'"seq":%d,' % seq)
    for trust in (False, True):
        with pytest.raises(BadInput, match="not a complete event"):
            import_file(mine, io.BytesIO(data), trust=trust)
    with Store(tmp_path / "empty", create=True) as empty:
        with pytest.raises(BadInput):
            import_file(empty, io.BytesIO(data), trust=True)
        assert empty.append(Draft(content="first")) == 1
    assert mine.append(Draft(content="next")) == 3
