"""The state of the work: facts that outlive the steps they come from, bounded, and changed only when
steps leave the view.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coding_session import REQUEST, CodingRun, coding_run
from scroll_context.contents import Retraction
from scroll_context.events import Event, Kind
from scroll_context.view.actions import action, merged_names, written_names
from scroll_context.view.index import state_limit
from scroll_context.view.state import (
    STATE_TOKENS,
    Fact,
    FactKind,
    fitted,
    state_tokens,
    written,
)
from scroll_context.view.steps import Step
from scroll_context.view.tokens import estimate
from scroll_context.view.wording import MARK
from scroll_context.view.working import WorkingView
from view_histories import Scribe

FAILED = (
    "F\n=== FAILURES ===\nE   assert 401 == 200\n=== 1 failed, 3 passed in 0.3s ===\n" + "x" * 400
)


def bash(scribe: Scribe, command: str, result: str, state: str = "ok") -> Event:
    reply = scribe.reply("", [("c", "Bash", {"command": command})])
    return scribe.native(reply, "c", "Bash", result, state)


def state_of(scribe: Scribe) -> str:
    """The state of the work once the oldest step has left."""
    first = next(entry for entry in scribe.view.entries if isinstance(entry, Step))
    facts = scribe.view.facts()
    scribe.view.add_to_index([scribe.view.evict(first.seq)], 10_000, facts)
    return written(scribe.view.index.state)


def test_the_last_outcome_of_each_command_is_known() -> None:
    scribe = Scribe(10**6)
    scribe.user("Fix the login.")
    bash(scribe, "pytest -x", "4 passed in 0.1s")
    bash(scribe, "ruff check .", "Found 2 errors.", state="error")
    bash(scribe, "cd /app && ruff check . 2>&1 | tail -5", "All checks passed!")
    last = bash(scribe, "pytest -x", FAILED)
    text = state_of(scribe)
    assert f"pytest -x: 1 failed, 3 passed; assert 401 == 200 (seq {last.seq})" in text
    assert "ruff check .: ok: All checks passed!" in text and "Found 2 errors" not in text
    assert text.splitlines()[-1] == "- open: pytest -x fails"


def test_files_effects_and_listed_work_are_known() -> None:
    scribe = Scribe(10**6)
    scribe.user("Fix the login.")
    todos = [
        {"content": "write docs", "status": "pending"},
        {"content": "x", "status": "completed"},
    ]
    for name, arguments in (
        ("Read", {"file_path": "src/a.py"}),
        ("Read", {"file_path": "src/b.py"}),
        ("Edit", {"file_path": "src/a.py", "old_string": "a", "new_string": "b\nc"}),
        ("Read", {"file_path": "src/a.py"}),
        ("TodoWrite", {"todos": todos}),
        ("Bash", {"command": "git push origin main"}),
    ):
        reply = scribe.reply("", [("c", name, arguments)])
        scribe.native(reply, "c", name, "done")
    text = state_of(scribe)
    assert "src/a.py edited +2 −1 (seq 10)" in text and "src/b.py read" in text
    assert "- completed, not to be done again: git push origin main: done" in text
    assert "- open: listed work: write docs" in text
    assert "- request, seq 1: Fix the login." in text


def test_a_call_with_effects_counts_once_it_completed() -> None:
    scribe = Scribe(10**6)
    scribe.user("Mail the members.")
    reply = scribe.reply("", [("c", "exec", {"source": "send()"})])
    cell = scribe.write(Kind.CELL, "send()", tool_call_id="c", reply_to=reply.seq)
    for to, state in (("ada", "ok"), ("bob", "error"), ("cyd", "")):
        inside = {"inside_cell": cell.seq, "effects": True}
        call = scribe.write(Kind.TOOL_CALL, f'{{"to": "{to}"}}', name="send", metadata=inside)
        if state:
            metadata = {"inside_cell": cell.seq}
            scribe.write(
                Kind.TOOL_RESULT, "", reply_to=call.seq, tool_state=state, metadata=metadata
            )
    scribe.write(Kind.OBSERVATION, "?", reply_to=cell.seq, tool_call_id="c", tool_state="ok")
    text = state_of(scribe)
    assert "send(ada)" in text and "send(bob)" not in text and "send(cyd)" not in text


def test_a_call_without_a_result_and_the_next_action_are_open() -> None:
    scribe = Scribe(10**6)
    scribe.user("Total the invoices.")
    bash(scribe, "ls", "a.csv")
    scribe.reply(
        "", [("d", "Bash", {"command": "make all"})], "invoices | read | sum May | running"
    )
    text = state_of(scribe)
    assert "make all: no result was recorded" in text and "next: sum May" in text


def test_a_conversation_without_calls_has_no_state() -> None:
    scribe = Scribe(10**6)
    scribe.user("How far is Porto?")
    scribe.reply("300 km.")
    assert state_of(scribe) == ""


def test_messages_that_a_host_takes_back_leave_the_state() -> None:
    scribe = Scribe(10**6)
    scribe.user("Fix the login.")
    bash(scribe, "ls", "a.csv")
    result = bash(scribe, "pytest -x", FAILED)
    assert "pytest" in state_of(scribe)
    retraction = Retraction(seqs=(result.seq,))
    scribe.write(Kind.RETRACTION, metadata=retraction.metadata())
    assert "pytest" not in written(scribe.view.index.state)


def test_messages_that_a_host_compacts_leave_their_state() -> None:
    scribe = Scribe(10**6)
    scribe.user("Fix the login.")
    reply = bash(scribe, "pytest -x", FAILED).seq - 2
    retraction = Retraction(seqs=(reply,), to_index=True, index_tokens=2_000)
    scribe.write(Kind.RETRACTION, metadata=retraction.metadata())
    assert "pytest -x: 1 failed" in written(scribe.view.index.state)


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=90)
facts = st.lists(
    st.builds(
        Fact,
        st.sampled_from(FactKind),
        words,
        words,
        st.lists(st.integers(1, 999), min_size=1, max_size=3).map(tuple),
        st.booleans(),
    ),
    max_size=60,
    unique_by=lambda fact: fact.key,
)


@given(facts, st.integers(0, 400))
def test_facts_fit_and_the_most_important_stay(drawn: list[Fact], limit: int) -> None:
    kept = fitted(drawn, limit)
    assert state_tokens(kept) <= limit
    assert [fact for fact in drawn if fact in kept] == list(kept), "in order"
    assert fitted(kept, limit) == kept


def test_the_state_stays_within_its_share_of_the_index() -> None:
    assert state_limit(3_000) == STATE_TOKENS and state_limit(300) == 100


# actions and names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "label"),
    [
        ("Bash", {"command": "cd /app && pytest -x 2>&1 | tail -40"}, "Bash(pytest -x)"),
        ("shell", {"command": ["bash", "-lc", "ls -la"]}, "shell(ls -la)"),
        ("Grep", {"pattern": "def total", "path": "src"}, "Grep(def total in src)"),
        ("Read", {"file_path": "/home/me/app/src/a.py"}, "Read(app/src/a.py)"),
        ("apply_patch", {"input": "*** Update File: a.py\n@@\n-x\n+y"}, "apply_patch(a.py)"),
        ("str_replace_based_edit_tool", {"command": "view", "path": "a.py"}, None),
        ("fetch", {"page": 3}, "fetch(3)"),
        ("fetch", "not json", "fetch(not json)"),
        ("exec", {}, "exec()"),
    ],
)
def test_an_action_names_what_the_call_is_about(
    name: str, arguments: object, label: str | None
) -> None:
    act = action(name, arguments)
    assert act.label == (label or f"{name}(a.py)")
    assert act.edits is (name == "apply_patch")


def test_numbered_names_merge_into_a_range() -> None:
    names = merged_names([[f"rows_{n}", "src/a.py"] for n in range(9)])
    assert written_names(names, 80) == "rows_0…rows_8, src/a.py"
    again = merged_names([names, ["rows_12", "src/a.py"]])
    assert "rows_0…rows_12" in written_names(again, 80)


@given(st.lists(st.lists(words, max_size=9), max_size=9), st.integers(0, 200))
def test_merged_names_are_bounded(lists: list[list[str]], limit: int) -> None:
    assert len(written_names(merged_names(lists), limit)) <= max(limit, 0)


# a long coding session --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> CodingRun:
    return coding_run()


def test_after_200_steps_the_view_knows_failures_files_and_open_work(run: CodingRun) -> None:
    index = run.index
    state = written(run.scribe.view.index.state)
    assert REQUEST[:150] in state
    assert "pytest tests/test_login.py -x: " in state
    assert all(f"src/auth/{module}.py edited +2 −1" in state for module in ("clock", "store"))
    assert "git commit" in state and "remove the sleep in test_refresh" in state
    assert (
        "1 failed, 40 passed; tests/test_login.py::test_login_refresh; assert 401 == 200" in index
    )
    assert index.count("Fix the flaky login test") == 2, "above its steps, and in the state"
    merged = [line for line in run.scribe.view.index.lines if line.entries > 1]
    assert merged and all("src/auth/" in line.text for line in merged)
    assert any("failed: pytest tests/test_login.py" in line.text for line in merged)


def test_a_long_session_stays_within_its_window_and_warm(run: CodingRun) -> None:
    view = run.scribe.view
    assert all(sent.tokens <= 0.8 * 30_000 for sent in run.scribe.sent)
    assert view.index.tokens <= 3_000
    assert state_tokens(view.index.state) <= STATE_TOKENS
    assert estimate(written(view.index.state)) <= STATE_TOKENS
    # It was .9626 before stubs and lines had outcomes.
    assert run.reuse >= 0.9626
    assert WorkingView.replay(run.scribe.log).index == view.index


def test_the_state_changes_only_where_steps_leave(run: CodingRun) -> None:
    view = WorkingView()
    changes = 0
    for event in run.scribe.log:
        before = view.index.state
        view.add(event)
        if view.index.state != before:
            changes += 1
            assert event.kind == Kind.EVICTION and event.metadata["plan"]["evicted"]
    assert changes >= 2


def test_stubs_are_smaller_than_what_they_replace(run: CodingRun) -> None:
    sizes = {event.seq: len(event.content) for event in run.scribe.log}
    stubs = [
        result.body
        for entry in run.scribe.view.entries
        if isinstance(entry, Step)
        for result in entry.results
        if result and result.body.shown.startswith(MARK)
    ]
    assert stubs and all(len(stub.shown) < sizes[stub.seq] for stub in stubs)
