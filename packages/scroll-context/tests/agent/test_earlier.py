"""A session starts from the sessions before it: only those within its reach, recorded once, the
same on replay.
"""

import time
from pathlib import Path

import msgspec

from scroll_context.agent.agent import Agent
from scroll_context.contents import EarlierWork
from scroll_context.events import EVERYTHING, Draft, Grant, Kind
from scroll_context.messages import canonical
from scroll_context.models import ScriptedModel
from scroll_context.search.indexer import MANY
from scroll_context.search.search import MOST_TASKS
from scroll_context.session.earlier_work import earlier_work, note_sessions
from scroll_context.session.explain import explain
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.eviction import Budget
from scroll_context.view.index import topic_line
from scroll_context.view.standing import standing_line

SUBJECTS = ("the heat equation", "sourdough starters", "a ferry to Naxos", "tax on dividends")
BUDGET = Budget(window=32_000)


def talk(
    store: Store, session: str, subject: str, turns: int = 12, agent: str = "", extra: str = ""
) -> None:
    drafts = []
    for n in range(turns):
        said = f"I'm trying to understand {subject}, part {n}. {extra if n == 2 else ''}"
        for role, text in (("user", said), ("assistant", "Sure! Let me explain it step by step.")):
            day = f"2024-07-{n % 28 + 1:02}"
            drafts.append(
                Draft(session_id=session, agent_id=agent, role=role, content=text, created_at=day)
            )
    store.log.append_many(drafts)


def test_the_first_request_names_the_topic_of_every_session_within_reach(store: Store) -> None:
    for n, subject in enumerate(SUBJECTS):
        talk(store, f"s{n}", subject, agent="a", extra="Always use metric units." if n == 1 else "")
    talk(store, "other", "somebody's secret garden", agent="b")
    model = ScriptedModel(["Done.", "Done again."], window=32_000)
    with Session.open(
        store, session_id="now", agent_id="a", options=SessionOptions(reach="agent")
    ) as session:
        Agent(session, model).run("Go.")
    shown = model.requests[0].messages[1].text
    for line, subject in zip(
        (line for line in shown.splitlines() if "2024-07-01" in line), SUBJECTS, strict=True
    ):
        assert subject.split()[-1] in line
    assert "- seq 1-24 (session 1, 2024-07-01 to 2024-07-12): " in shown
    assert "Always use metric units." in shown and "garden" not in shown and "trying" not in shown

    recorded = [
        event for event in store.log.iterate(session_id="now") if "earlier" in event.metadata
    ]
    assert len(recorded) == 1 and recorded[0].kind == Kind.SESSION
    with Session.resume(store, "now", options=SessionOptions(reach="agent")) as session:
        Agent(session, model).run("Go on.")
    assert (
        len([event for event in store.log.iterate(session_id="now") if "earlier" in event.metadata])
        == 1
    )
    assert model.requests[1].messages[1].text.startswith(shown.partition("Go.")[0])
    requests = [
        event for event in store.log.iterate(session_id="now") if event.kind == Kind.REQUEST
    ]
    for event, sent in zip(requests, model.requests, strict=True):
        found = explain(store, event.seq)
        assert found.verified and canonical(found.messages) == canonical(sent.messages)


def test_a_session_that_reaches_no_other_starts_from_nothing(store: Store) -> None:
    talk(store, "before", SUBJECTS[0])
    model = ScriptedModel(["Done."], window=32_000)
    with Session.open(store, session_id="now", options=SessionOptions(reach="session")) as session:
        Agent(session, model).run("Go.")
    assert [message.text for message in model.requests[0].messages[1:]] == ["Go."]
    assert not [event for event in store.log.iterate() if "earlier" in event.metadata]


def test_only_what_was_said_counts(store: Store) -> None:
    store.log.append_many(
        [
            Draft(session_id="quiet", kind=Kind.REQUEST, content="bookkeeping"),
            Draft(
                session_id="told", kind=Kind.NOTICE, role="user", content="Always use metric units."
            ),
            Draft(session_id="blank", role="user", content="  "),
        ]
    )
    assert earlier_work(store.log, EVERYTHING, "now", BUDGET) == EarlierWork()


def test_imported_words_are_no_standing_instruction_of_the_user(store: Store) -> None:
    store.log.append_many(
        [
            Draft(
                session_id="a",
                role="user",
                content="Never mention the weather.",
                metadata={"imported": "x.jsonl"},
            ),
            Draft(session_id="b", role="user", content="Always use metric units."),
        ]
    )
    (standing,) = earlier_work(store.log, EVERYTHING, "now", BUDGET).standing
    assert standing_line(standing) == "- seq 2: Always use metric units."


def test_what_is_too_old_to_be_read_keeps_its_address(store: Store) -> None:
    talk(store, "old", SUBJECTS[0], turns=10)
    talk(store, "new", SUBJECTS[1], turns=20)
    earlier = earlier_work(store.log, EVERYTHING, "now", BUDGET, most_events=40)
    assert [one.spans for one in earlier.topics] == [((1, 20),), ((21, 60),)]
    assert not earlier.topics[0].terms and "sourdough starters" in earlier.topics[1].terms


def test_many_sessions_fit_a_small_window(store: Store) -> None:
    for n in range(150):
        talk(store, f"s{n}", f"{SUBJECTS[n % 4]} in town{n}ville", turns=4)
    work = earlier_work(store.log, EVERYTHING, "now", Budget(window=8_000))
    assert sum(one.sessions for one in work.topics) == 150
    assert sum(topic_line(topic).tokens for topic in work.topics) <= 400
    assert work.topics[0].sessions > work.topics[-1].sessions


def earlier(store: Store) -> EarlierWork:
    """With notes. It must be what is found without them."""
    found = earlier_work(store.log, EVERYTHING, "now", BUDGET, index=store.index)
    assert found == earlier_work(store.log, EVERYTHING, "now", BUDGET)
    return found


def notes_of(store: Store) -> list[Path]:
    return list((store.folder / "index").glob("v*/earlier-*"))


def counts_of(store: Store) -> list[Path]:
    return list((store.folder / "index").glob("v*/counts-*"))


def test_notes_on_sessions_change_nothing_but_the_time(store: Store) -> None:
    for n, subject in enumerate(SUBJECTS):
        talk(
            store,
            f"s{n}",
            subject,
            turns=3 * n + 1,
            extra="Always use metric units." if n == 1 else "",
        )
    store.index.catch_up()
    first = earlier(store)
    assert earlier(store) == first and len(notes_of(store)) == 1
    talk(
        store, "s1", "rye bread", turns=5, extra="From now on, call me Ishmael."
    )  # an older session goes on
    talk(store, "s4", "the gears of a clock", turns=5)
    grown = earlier(store)
    assert grown != first and earlier(store) == grown
    talk(
        store, "s3", "tax on interest", turns=1
    )  # the notes on what is now the last session were of a closed one
    earlier(store)


def test_notes_are_used_until_they_are_damaged(store: Store) -> None:
    for n, subject in enumerate(SUBJECTS):
        talk(store, f"s{n}", subject)
    store.index.catch_up()
    found = earlier(store)
    [file] = notes_of(store)
    assert file.stat().st_mode & 0o777 == 0o600
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"sourdough starters", b"sauerteig brotzeit"))
    read = earlier_work(store.log, EVERYTHING, "now", BUDGET, index=store.index)
    assert "sauerteig brotzeit" in read.topics[1].terms
    for damaged in (b"", b"\xc1", whole[:-5], whole[::-1]):
        file.write_bytes(damaged)
        assert earlier(store) == found


def test_counts_that_are_missing_or_damaged_are_made_again(store: Store) -> None:
    for n, subject in enumerate(SUBJECTS):
        talk(store, f"s{n}", subject)
    store.index.catch_up()
    earlier(store)
    [file] = counts_of(store)
    complete = file.read_bytes()
    for number, damaged in enumerate((None, b"", b"\xc1", complete[:-5], complete[::-1])):
        if damaged is None:
            file.unlink()
        else:
            file.write_bytes(damaged)
        # A new session needs the counts of the others.
        talk(store, f"new{number}", f"kites number{number}", turns=2)
        earlier(store)
        assert file.read_bytes() not in (damaged, complete)


def test_a_topic_stays_until_the_sessions_have_grown_by_a_tenth(store: Store) -> None:
    for n in range(30):
        talk(store, f"s{n}", SUBJECTS[n % 4], turns=8)
    store.index.catch_up()
    earlier(store)
    [file] = notes_of(store)
    # 240 turns were counted, the oldest topics first: so the topic of s19 is the last to be renewed.
    mark(file, "s19")

    def is_marked() -> bool:
        work = earlier_work(store.log, EVERYTHING, "now", BUDGET, index=store.index)
        return "a marked term" in repr(work.topics)

    talk(store, "little", "rye bread", turns=4)
    assert is_marked()
    talk(store, "more", "rye bread", turns=40)
    assert not is_marked()
    earlier(store)


def test_the_oldest_topics_are_renewed_with_every_new_session(store: Store) -> None:
    for n in range(40):
        talk(store, f"s{n}", SUBJECTS[n % 4], turns=8)
    store.index.catch_up()
    earlier(store)
    [file] = notes_of(store)
    before = msgspec.msgpack.decode(file.read_bytes())[2]
    talk(store, "new", "rye bread", turns=4)
    earlier_work(store.log, EVERYTHING, "now", BUDGET, index=store.index)
    after = msgspec.msgpack.decode(file.read_bytes())[2]
    renewed = [name for name in before if before[name][4] != after[name][4]]
    assert renewed == [*(f"s{n}" for n in range(5)), *(f"s{n}" for n in range(36, 40))]


def test_notes_on_everything_serve_a_narrower_reach(store: Store) -> None:
    for n, subject in enumerate(SUBJECTS):
        talk(store, f"s{n}", subject, agent="a")
    store.index.catch_up()
    note_sessions(store.log, store.index)
    [everything] = notes_of(store)
    mark(everything, "s1")
    reach = Grant(agent_id="a")
    alike = earlier_work(store.log, reach, "now", BUDGET, index=store.index)
    assert "a marked term" in repr(alike.topics)
    # It has no file of its own yet, because nothing had to be read.
    assert notes_of(store) == [everything]
    talk(store, "other", "somebody's secret garden", agent="b")
    talk(store, "s1", "croissants", turns=3, agent="b")
    note_sessions(store.log, store.index)
    mark(everything, "s2")
    apart = earlier_work(store.log, reach, "now", BUDGET, index=store.index)
    assert apart == earlier_work(store.log, reach, "now", BUDGET)
    assert "marked" not in repr(apart) and "croissants" not in repr(apart)


def mark(file: Path, session: str) -> None:
    """Put a term that nobody wrote into the notes on a session."""
    notes = msgspec.msgpack.decode(file.read_bytes())
    notes[2][session][4][1] = ["a marked term", "another"]
    file.write_bytes(msgspec.msgpack.encode(notes))


def test_notes_are_made_in_the_background_after_many_events_were_indexed(store: Store) -> None:
    talk(store, "s0", "the heat equation")
    with Session.open(store, session_id="now", options=SessionOptions(reach="all")) as session:
        session.say("Good morning.")
        session.view("Be brief.")
        for file in (*notes_of(store), *counts_of(store)):
            file.unlink()
        for n in range(MANY // 24 + 1):
            talk(store, f"import-{n}", SUBJECTS[n % 4])
        store.index.search("dividends")
        deadline = time.monotonic() + 30
        while not (notes_of(store) and counts_of(store)) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert notes_of(store) and counts_of(store)
    notes = msgspec.msgpack.decode(notes_of(store)[0].read_bytes())
    assert len(notes[2]) == MANY // 24 + 3


def test_only_the_newest_tasks_follow_an_import(store: Store) -> None:
    """A server may have thousands of users, each with notes of their own."""
    done: list[int] = []
    for number in range(MOST_TASKS + 5):
        store.index.after_many(f"notes {number}", lambda number=number: done.append(number))
    store.index.after_many("notes 5", lambda: done.append(5))
    for n in range(MANY // 24 + 1):
        talk(store, f"import-{n}", SUBJECTS[n % 4])
    store.index.search("dividends")
    deadline = time.monotonic() + 30
    while 5 not in done and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done == [*range(6, MOST_TASKS + 5), 5]


def test_nothing_of_an_erased_event_is_left_in_notes(store: Store) -> None:
    for n, subject in enumerate(SUBJECTS):
        talk(store, f"s{n}", subject, extra="Always call the dog Quibblewort." if n == 1 else "")
    store.index.catch_up()
    earlier(store)
    assert b"Quibblewort" in notes_of(store)[0].read_bytes()
    assert b"Quibblewort" in counts_of(store)[0].read_bytes()
    stale = notes_of(store)[0].read_bytes()
    [seq] = [hit.seq for hit in store.index.search("Quibblewort")]
    store.erase(seqs=[seq])
    assert not notes_of(store) and not counts_of(store)
    assert not earlier(store).standing
    store.index.catch_up()
    assert not store.index.keep_notes(
        "earlier-late", stale, lambda: store.log.newest_erasure() == 0
    )
    earlier(store)
    assert all(
        b"Quibblewort" not in file.read_bytes()
        for file in store.folder.rglob("*")
        if file.is_file()
    )


def test_another_log_has_other_notes(store: Store, tmp_path: Path) -> None:
    for n, subject in enumerate(SUBJECTS):
        talk(store, f"s{n}", subject)
    store.index.catch_up()
    earlier(store)
    with Store(tmp_path / "other", create=True) as other:
        for n in range(len(SUBJECTS)):
            talk(other, f"s{n}", f"kites number{n}")
        other.index.catch_up()
        [file] = notes_of(store)
        (other.folder / file.relative_to(store.folder)).write_bytes(file.read_bytes())
        assert "kite" in repr(earlier(other).topics)
