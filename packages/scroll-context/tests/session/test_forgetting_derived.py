"""Erasing a fact that was copied everywhere: values that cells computed from it go, and unrelated
events stay.

Every test greps all files of the store for the words of the fact and for the values that were
computed from it.
"""

import io
from pathlib import Path
from typing import Any

import pytest

from scroll_context.agent.agent import Agent
from scroll_context.events import Draft, Event, Kind
from scroll_context.importing.run import import_file
from scroll_context.models import ScriptedModel, exec_cell
from scroll_context.session.explain import explain
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools.ask import AskReply
from scroll_context.upkeep.erasure_plan import ErasureReport, Why
from scroll_context.upkeep.integrity import verify
from scroll_context.upkeep.transfer import export

FACT = "The patient Odile Brandt owes the clinic 48731.5 euros."
READ = "hits = ms.search('patient')\nowed = float(hits[0]['content'].split()[-2])"
EVERYTHING = SessionOptions(reach="all")

pytestmark = pytest.mark.usefixtures("key_file")


def holding(folder: Path, *words: str) -> list[tuple[str, str]]:
    """The files of a store in which any of the words occurs, with the word."""
    found = []
    for file in filter(Path.is_file, folder.rglob("*")):
        body = file.read_bytes()
        found += [(str(file.relative_to(folder)), word) for word in words if word.encode() in body]
    return found


@pytest.fixture
def fact(store: Store) -> Event:
    """The event that will be erased, in a session of its own."""
    with Session.open(store, session_id="origin") as session:
        session.say("Good morning. I have some notes for you about the clinic.")
        event = session.say(FACT)
        session.say("And the weather was fine in all of the 77123 villages.")
    return event


def cells(session: Session, *sources: str) -> list[Event]:
    return [session.run(source) for source in sources]


def erase(store: Store, event: Event, **options: Any) -> ErasureReport:
    report = store.erase(seqs=[event.seq], copies=True, **options)
    assert verify(store.log).ok
    assert report.unfinished == ""
    return report


def test_what_later_cells_print_of_computed_values_is_erased(
    store: Store, folder: Path, fact: Event
) -> None:
    with Session.open(store, session_id="work", options=EVERYTHING) as session:
        cells(session, READ, "twice = owed * 2")
        printed = cells(session, "print(twice)", "more = [twice + 1]", "print('sum', sum(more))")
        assert (printed[0].content, printed[2].content) == ("97463.0", "sum 97464.0")
        others = cells(session, "print('no 55512 here')", "n = 55513\nprint(n)")
    report = erase(store, fact)
    assert {printed[0].seq, printed[2].seq} <= set(report.why[Why.PRINTED])
    assert not {event.seq for event in others} & set(report.copies)
    assert holding(folder, "Odile", "48731", "97463", "97464") == []
    assert store.log.get(others[1].seq).content == "55513"


def test_variables_that_functions_aliases_and_globals_reach_are_followed(
    store: Store, folder: Path, fact: Event
) -> None:
    with Session.open(store, session_id="work", options=EVERYTHING) as session:
        cells(
            session,
            "def late():\n    return owed * 2\nkept = []\nalias = kept\nbox = {'f': lambda: owed * 3}",
            READ,
            "print(late())",
            "kept.append(owed * 4)",
            "print(alias)",
            "print(globals()['ow' + 'ed'] * 5)",
            "print(box['f']())",
            "with open('note.txt', 'w') as file:\n    file.write(str(owed * 6))",
            "with open('note.txt') as file:\n    print(file.read())",
        )
    assert holding(folder, "97463.0", "194926.0", "243657.5", "146194.5", "292389.0")
    erase(store, fact)
    assert holding(folder, "Odile", "48731", "97463", "194926", "243657", "146194", "292389") == []


def test_the_variables_that_requests_list_are_blanked(
    store: Store, folder: Path, fact: Event
) -> None:
    steps = [
        exec_cell("count = 31415\nprint('begun')"),
        exec_cell(READ + "\ndouble = owed * 2", headline="reading | a | b | c"),
        exec_cell("print('nothing to see')"),
        "It is done.",
    ]
    with Session.open(store, session_id="work", options=EVERYTHING) as session:
        Agent(session, ScriptedModel(steps, window=30_000)).run("What about the debt?")
    requests = list(store.log.iterate(session_id="work", kind=Kind.REQUEST))
    assert ["97463.0" in str(one.metadata["digest"]) for one in requests] == [
        False,
        False,
        True,
        True,
    ]
    report = erase(store, fact)
    assert report.why[Why.VARIABLES] == tuple(one.seq for one in requests[2:])
    assert holding(folder, "Odile", "48731", "97463") == []
    assert "31415" in str(store.log.get(requests[1].seq).metadata["digest"])
    explained = explain(store, requests[3].seq)
    assert not explained.verified and "erased" in explained.doubt
    with Session.resume(store, "work") as session:
        assert Agent(session, ScriptedModel(["here"], window=30_000)).run("Go on.").answer == "here"


def test_arguments_and_results_of_tool_calls_are_erased_from_the_moment_the_cell_has_read_it(
    store: Store, folder: Path, fact: Event
) -> None:
    def pay(amount: float) -> dict[str, float]:
        """Pay an amount."""
        return {"paid": amount, "fee": round(amount / 100, 4)}

    with Session.open(store, session_id="work", options=EVERYTHING, tools=[pay]) as session:
        cells(
            session,
            f"pay(61234.0)\n{READ}\npay(owed * 2)",
            "pay(owed * 3)",
            "pay(62345.0)",
        )
    calls = list(store.log.iterate(kind=Kind.TOOL_CALL))
    assert [call.content for call in calls] == [
        '{"amount": 61234.0}',
        '{"amount": 97463.0}',
        '{"amount": 146194.5}',
        '{"amount": 62345.0}',
    ]
    report = erase(store, fact)
    assert (
        report.why[Why.CALLED] == (calls[1].seq, calls[2].seq)
        and len(report.why[Why.RETURNED]) == 2
    )
    assert holding(folder, "Odile", "48731", "97463", "974.63", "146194", "1461.945") == []
    left = [
        event.content for event in store.log.iterate(kind=Kind.TOOL_CALL) if not event.is_erased
    ]
    assert left == ['{"amount": 61234.0}', '{"amount": 62345.0}']


def test_the_trail_leads_through_other_sessions_forks_and_resumed_kernels(
    store: Store, folder: Path, fact: Event
) -> None:
    with Session.open(store, session_id="first", options=EVERYTHING) as session:
        cells(session, READ, "half = owed / 2", "print('the half is', half)")
    with Session.resume(store, "first") as session:
        cells(session, "print(half + 1)")
        fork = session.fork(store.log.tail(1, session_id="first")[0].seq, session_id="forked")
        with fork:
            cells(fork, "third = half + 2", "print(third)")
    with Session.open(store, session_id="second", options=EVERYTHING) as session:
        cells(
            session,
            "found = ms.sql_query(\"SELECT seq, content FROM hist.events WHERE content LIKE 'the half is%'\")",
            "number = float(found[0]['content'].split()[-1]) + 3",
            "print(number)",
        )
        stays = cells(session, "print('an apple a day 24601')")[0]
    assert holding(folder, "24365.75", "24366.75", "24367.75", "24368.75")
    report = erase(store, fact)
    assert holding(folder, "Odile", "48731", "24365.75", "24366.75", "24367.75", "24368.75") == []
    assert set(report.sessions) == {"origin", "first", "forked", "second"}
    assert store.log.get(stays.seq).content == "an apple a day 24601"


def test_what_a_second_model_was_asked_and_answered_is_erased(
    store: Store, folder: Path, fact: Event
) -> None:
    def answer(prompt: str, context: str) -> AskReply:
        return AskReply(f"{prompt} {float(context) + 7}" if context else "nothing")

    with Session.open(store, session_id="work", options=EVERYTHING, ask=answer) as session:
        cells(
            session,
            READ,
            "said = ask('The amount is', str(owed * 2))",
            "print(said)",
            "print(ask('Well?'))",
        )
    report = erase(store, fact)
    assert holding(folder, "Odile", "48731", "97463", "97470") == []
    left = [
        event.content for event in store.log.iterate(kind=Kind.TOOL_RESULT) if not event.is_erased
    ]
    assert left == ["nothing"] and len(report.why[Why.CALLED]) == 1


def test_an_answer_that_repeats_a_computed_value_is_erased_and_its_index_line_too(
    store: Store, folder: Path, fact: Event
) -> None:
    steps = [
        exec_cell(READ + "\ndouble = owed * 2\nprint(double)", headline="doubling | a | b | c"),
        "Twice that is 97,463.0 euros.\n\n⟦ doubled | it is 97463.0 | none | done ⟧",
    ]
    with Session.open(store, session_id="work", options=EVERYTHING) as session:
        Agent(session, ScriptedModel(steps, window=3_000)).run("How much is twice the debt?")
        for number in range(8):
            model = ScriptedModel(["noted " * 150], window=3_000)
            Agent(session, model).run(f"Go on with part {number}. " + "on " * 300)
    assert list(store.log.iterate(kind=Kind.EVICTION))
    report = erase(store, fact)
    assert report.why[Why.VALUE]
    assert holding(folder, "Odile", "48731", "97463", "97,463") == []
    kept = [
        event
        for event in store.log.iterate(session_id="work", role="user")
        if "Go on" in event.content
    ]
    assert len(kept) == 8
    with Session.resume(store, "work") as session:
        assert Agent(session, ScriptedModel(["fine"], window=3_000)).run("Well?").answer == "fine"


def test_native_recall_tools_name_the_events_that_they_show(
    store: Store, folder: Path, fact: Event
) -> None:
    from scroll_context.messages import ToolCall
    from scroll_context.recall.memory import Memory
    from scroll_context.recall.memory_tools import recall_tools

    with Session.open(store, session_id="work", options=EVERYTHING) as session:
        memory = Memory(store, session.scope, "all", session)
        session.add_tools(recall_tools(memory, ("search", "grep", "sql_query"), "ms_"))
        shown = session.call_tool(ToolCall("c1", "ms_search", {"query": "patient"}))
        counted = session.call_tool(
            ToolCall("c2", "ms_sql_query", {"sql": "SELECT count(*) AS n FROM hist.events"})
        )
        unrelated = session.call_tool(ToolCall("c3", "ms_grep", {"text": "weather"}))
    assert shown.metadata["seqs"] == [fact.seq] and counted.metadata["unknown"] is True
    report = erase(store, fact)
    assert shown.seq in report.copies and report.possible == (counted.seq,)
    assert not store.log.get(unrelated.seq).is_erased and holding(folder, "Odile") == []


def test_results_of_queries_that_name_no_events_are_told_apart(
    store: Store, folder: Path, fact: Event
) -> None:
    total = "n = ms.sql_query(\"SELECT sum(length(content)) * 1009 AS n FROM hist.events\")[0]['n']\nprint(n)"
    with Session.open(store, session_id="narrow") as session:  # it cannot read the fact
        narrow = cells(session, total)[0]
    with Session.open(store, session_id="wide", options=EVERYTHING) as session:
        printed = cells(session, total, "print(n + 1)")
    report = store.erase(seqs=[fact.seq], copies=True, dry_run=True)
    assert report.possible == (printed[0].seq,) and printed[0].seq not in report.copies
    report = erase(store, fact, possible=True)
    assert {event.seq for event in printed} <= set(
        report.copies
    ) and narrow.seq not in report.copies
    assert store.log.get(printed[1].seq).is_erased and not store.log.get(narrow.seq).is_erased


def test_a_cell_that_was_given_thousands_of_events_is_found_by_any_of_them(
    store: Store, folder: Path
) -> None:
    with Session.open(store, session_id="origin") as session:
        seqs = [
            session.say(f"Entry {number}: the guest of room {number} is at home.").seq
            for number in range(2_500)
        ]
    with Session.open(store, session_id="work", options=EVERYTHING) as session:
        source = f"rows = ms.expand({seqs[0]}, {seqs[-1]})\nprint(len(rows) * 33331)"
        printed, other = cells(session, source, "print(2 + 2)")
    for entry in printed.metadata["seqs"]:
        assert isinstance(entry, int | list)
    report = store.erase(seqs=[seqs[-3]], copies=True, dry_run=True)
    assert printed.seq in report.copies and other.seq not in report.copies


def test_without_copies_they_are_named_and_stay(store: Store, fact: Event) -> None:
    with Session.open(store, session_id="work", options=EVERYTHING) as session:
        printed = cells(session, READ, "print(owed * 2)")[1]
    report = store.erase(seqs=[fact.seq])
    assert printed.seq in report.remaining and store.log.get(printed.seq).content == "97463.0"
    assert report.snapshots, "saved variables that were made from it go in any case"


def test_the_trail_survives_a_move_into_another_store(
    store: Store, folder: Path, fact: Event, tmp_path: Path
) -> None:
    with Session.open(store, session_id="work", options=EVERYTHING) as session:
        cells(session, "kept = 1", READ, "twice = owed * 2", "print(twice)")
    with Session.resume(store, "work", options=EVERYTHING) as session:
        cells(session, "print(twice + 1)")
    out = io.BytesIO()
    export(store.log, out)
    with Store(tmp_path / "other", create=True) as other:
        other.log.append_many(
            [Draft(content=f"of another history: {number}") for number in range(50)]
        )
        import_file(other, io.BytesIO(out.getvalue()), trust=True)
        moved = next(event for event in other.log.iterate() if event.content == FACT)
        assert moved.seq != fact.seq
        with Session.resume(other, "work", options=EVERYTHING) as session:
            cells(session, "print(twice + 2)")
        report = erase(other, moved)
        assert len(report.why[Why.PRINTED]) >= 3
        assert holding(tmp_path / "other", "Odile", "48731", "97463.0", "97464.0", "97465.0") == []


WRITE = "secret = str(owed)[::-1]\nprint('kept')"


@pytest.mark.parametrize(
    ("write", "read"),
    [
        ("o = open", "o('f.txt', 'w').write(secret)\nprint(o('f.txt').read())"),
        (
            "open('f.txt', 'w').write(secret)",
            "import linecache\nprint(linecache.getline('f.txt', 1))",
        ),
        ("open('m.py', 'w').write('x = ' + repr(secret))", "import m\nprint(m.x)"),
        (
            "open('f.py', 'w').write('print(' + repr(secret) + ')')",
            "import runpy\nrunpy.run_path('f.py')",
        ),
        (
            "open('f.txt', 'w').write(secret)",
            "import io\nprint(io.FileIO('f.txt').read().decode())",
        ),
    ],
    ids=["alias", "linecache", "import", "runpy", "FileIO"],
)
def test_a_copy_by_way_of_a_file_is_erased(
    store: Store, fact: Event, write: str, read: str
) -> None:
    change = "import os, sys\nos.chdir(os.environ.get('TMPDIR', '.'))\nsys.path.insert(0, '.')"
    with Session.open(store, options=EVERYTHING) as session:
        printed = cells(session, change, READ, WRITE, write, read)[-1]
    value = "5.13784"
    assert value in store.log.text(store.log.get(printed.seq))
    erase(store, fact)
    assert holding(store.folder, value) == []


@pytest.mark.parametrize(
    ("make", "put", "show"),
    [
        (
            "def numbers():\n    value = None\n    while True:\n        value = yield value\ng = numbers()\nnext(g)",
            "g.send(owed * 2)",
            "print(next(g) or g.gi_frame.f_locals)",
        ),
        ("import threading\nt = threading.local()", "t.value = owed * 2", "print(t.value)"),
        ("import queue\nq = queue.Queue()", "q.put(owed * 2)", "print(q.get())"),
        (
            "import sqlite3\nd = sqlite3.connect(':memory:')\n_ = d.execute('CREATE TABLE t (v)')",
            "_ = d.execute('INSERT INTO t VALUES (?)', [owed * 2])",
            "print(d.execute('SELECT v FROM t').fetchall())",
        ),
        (
            "import contextvars\nc = contextvars.ContextVar('c')",
            "_ = c.set(owed * 2)",
            "print(c.get(owed * 2))",
        ),
    ],
    ids=["generator", "thread local", "queue", "database", "context variable"],
)
def test_a_copy_in_a_value_whose_pickle_shows_nothing_is_erased(
    store: Store, fact: Event, make: str, put: str, show: str
) -> None:
    with Session.open(store, options=EVERYTHING) as session:
        cells(session, make, READ, put)
        session.environment.variables.wait_for_save()
        cells(session, "unrelated = 1")
        session.environment.variables.wait_for_save()
        cells(session, show.replace("owed * 2", "0"))
    erase(store, fact)
    assert holding(store.folder, "97463.0") == []
