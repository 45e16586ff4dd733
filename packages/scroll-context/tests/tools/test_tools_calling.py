"""Calling tools through a toolbox: what is recorded when, and what may keep a tool from running."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from open_journals import journal_of
from scroll_context.errors import BadInput, ToolFailed
from scroll_context.events import Event, Kind, Scope
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.log import EventLog
from scroll_context.tools.recorder import (
    close_unfinished_calls,
    count_started_calls,
    unfinished_calls,
)
from scroll_context.tools.toolbox import Toolbox, ToolUse
from scroll_context.tools.tools import tool
from scroll_context.work import Work

SCOPE = Scope("trip", "planner", "travel")


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool
def fail(text: str) -> None:
    raise ValueError(text)


def toolbox(log: EventLog, *tools: Any, **options: Any) -> Toolbox:
    return Toolbox(tools, journal=journal_of(log, SCOPE), **options)


def pair(log: EventLog) -> tuple[Event, Event]:
    """The newest call and its result."""
    call, result = log.tail(2)
    assert (call.kind, result.kind, result.reply_to) == (Kind.TOOL_CALL, Kind.TOOL_RESULT, call.seq)
    assert call.tool_call_id == result.tool_call_id
    # The first result of each type also has its shape.
    assert {**result.metadata, **call.metadata}.keys() - {"shape"} == call.metadata.keys()
    assert result.metadata.items() >= call.metadata.items()
    return call, result


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An event that is only set when the test is over, so that abandoned threads end."""
    event = threading.Event()
    yield event
    event.set()


# what is recorded -----------------------------------------------------------------------------------------


def test_a_call_from_a_cell_is_two_events(log: EventLog) -> None:
    outcome = toolbox(log, add).call("add", ("2",), {"b": 3}, cell_seq=41)
    call, result = pair(log)
    assert (outcome.value, outcome.ref) == (5, None)
    assert (outcome.call_seq, outcome.result_seq) == (call.seq, result.seq)
    assert (call.name, call.role, call.content) == ("add", "assistant", '{"a": "2", "b": 3}')
    assert (result.name, result.role, result.content, result.tool_state) == (
        "add",
        "tool",
        "5",
        "ok",
    )
    assert call.metadata == {"inside_cell": 41}
    assert (call.session_id, call.agent_id, call.task_id) == ("trip", "planner", "travel")
    assert call.tool_call_id


def test_calls_from_cells_have_ids_of_their_own_and_native_ones_keep_theirs(log: EventLog) -> None:
    box = toolbox(log, add)
    ids = {log.get(box.call("add", (n,), cell_seq=1).call_seq).tool_call_id for n in range(20)}
    assert len(ids) == 20
    box.call("add", kwargs={"a": 1}, tool_call_id="toolu_1")
    call, _ = pair(log)
    assert (call.tool_call_id, call.metadata) == ("toolu_1", {})


def test_arguments_are_canonical_whatever_their_order(log: EventLog) -> None:
    @tool
    def put(table: dict[str, Any], n: int) -> None: ...

    box = toolbox(log, put)
    box.call("put", kwargs={"n": 1, "table": {"b": b"x", "a": {2: None, "x": 1}}})
    box.call("put", ({"a": {"x": 1, 2: None}, "b": b"x"}, 1))
    contents = {event.content for event in log.iterate(kind=Kind.TOOL_CALL)}
    assert contents == {'{"n": 1, "table": {"a": {"2": null, "x": 1}, "b": {"base64": "eA=="}}}'}


def test_the_call_is_on_disk_before_the_tool_runs(log: EventLog) -> None:
    @tool
    def look() -> list[str]:
        return [f"{event.kind} {event.name}" for event in log.tail(5)]

    assert toolbox(log, look).call("look").value == ["tool_call look"]


def test_events_are_told_as_they_are_recorded(log: EventLog) -> None:
    told: list[int] = []
    journal_of(log, SCOPE).subscribe(lambda event: told.append(event.seq))

    @tool
    def peek() -> int:
        return len(told)

    outcome = toolbox(log, peek).call("peek")
    assert (outcome.value, told) == (1, [outcome.call_seq, outcome.result_seq])


def test_a_native_call_returns_its_result_event_even_when_it_fails(log: EventLog) -> None:
    box = toolbox(log, add, fail)
    assert box.call_native("add", {"a": 1}, tool_call_id="x").content == "2"
    result = box.call_native("fail", {"text": "no"}, tool_call_id="y")
    assert (result.tool_state, result.content, result.tool_call_id) == (
        "error",
        "ValueError: no",
        "y",
    )


# errors ---------------------------------------------------------------------------------------------------


def test_an_error_carries_the_tools_own_message(log: EventLog) -> None:
    with pytest.raises(ToolFailed) as caught:
        toolbox(log, fail).call("fail", ("no flights from XXX",), cell_seq=7)
    call, result = pair(log)
    assert str(caught.value) == "no flights from XXX"
    assert (caught.value.kind, caught.value.state) == ("ValueError", "error")
    assert (caught.value.call_seq, caught.value.result_seq) == (call.seq, result.seq)
    assert isinstance(caught.value.__cause__, ValueError)
    assert (result.tool_state, result.content) == ("error", "ValueError: no flights from XXX")


def test_a_tool_cannot_take_the_host_with_it(log: EventLog) -> None:
    @tool
    def leave() -> None:
        sys.exit(3)

    with pytest.raises(ToolFailed) as caught:
        toolbox(log, leave).call("leave")
    assert caught.value.kind == "SystemExit"


def test_strange_exceptions_are_errors_like_others(log: EventLog) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @tool
    def mute() -> None:
        raise Mute

    @tool
    async def cancel() -> None:
        raise asyncio.CancelledError

    for name, kind in (("mute", "Mute"), ("cancel", "CancelledError")):
        with pytest.raises(ToolFailed) as caught:
            toolbox(log, mute, cancel).call(name)
        assert (str(caught.value), caught.value.kind, pair(log)[1].tool_state) == (
            kind,
            kind,
            "error",
        )


def test_arguments_nested_beyond_reason_are_refused(log: EventLog) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ToolFailed):
        toolbox(log, add).call("add", (deep,))
    assert pair(log)[1].tool_state == "refused"


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "kind", "said", "sent"),
    [
        ("add", ("x",), {}, "TypeError", "parameter 'a' must be int, not 'x'", {"a": "x"}),
        ("add", (), {"c": 1}, "TypeError", "missing a required argument: 'a'", {"c": 1}),
        ("add", (1, 2, 3), {}, "TypeError", "too many positional arguments", {"*": [1, 2, 3]}),
        (
            "sub",
            (1,),
            {"b": 2},
            "NameError",
            "there is no tool 'sub'; the tools are: add, fail",
            {"*": [1], "b": 2},
        ),
        ("add", (), {"a": {(1, 2): 3}}, "TypeError", "parameter 'a' must be int", None),
    ],
)
def test_calls_that_cannot_start_are_recorded_too(
    log: EventLog, name: str, args: Any, kwargs: Any, kind: str, said: str, sent: Any
) -> None:
    with pytest.raises(ToolFailed) as caught:
        toolbox(log, fail, add).call(name, args, kwargs)
    call, result = pair(log)
    assert said in str(caught.value)
    assert (caught.value.kind, result.tool_state) == (
        kind,
        "error" if kind == "NameError" else "refused",
    )
    assert said in result.content
    assert sent is None or json.loads(call.content) == sent


# at the same time, and in time ----------------------------------------------------------------------------


def test_calls_from_threads_run_at_once(log: EventLog) -> None:
    meeting = threading.Barrier(20)

    @tool
    def meet(n: int) -> int:
        meeting.wait(timeout=50)  # passes only when all twenty are inside
        return n

    box = toolbox(log, meet)
    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(lambda n: box.call("meet", (n,), cell_seq=1), range(20)))
    assert [outcome.value for outcome in outcomes] == list(range(20))
    for outcome in outcomes:
        assert log.get(outcome.result_seq).reply_to == outcome.call_seq


def test_coroutines_run_on_a_loop_and_at_once(log: EventLog) -> None:
    waiting: list[asyncio.Event] = []

    @tool
    async def meet(n: int) -> int:
        mine = asyncio.Event()
        waiting.append(mine)
        if len(waiting) == 5:
            for other in waiting:
                other.set()
        await mine.wait()
        return n

    box = toolbox(log, meet)
    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(lambda n: box.call("meet", (n,)).value, range(5))) == list(range(5))


def test_a_tool_that_never_answers_is_abandoned(log: EventLog, never: threading.Event) -> None:
    @tool(timeout=0.5, effects=True)
    def hang() -> str:
        never.wait()
        return "late"

    with pytest.raises(ToolFailed, match="was abandoned; it may still be running") as caught:
        toolbox(log, hang).call("hang")
    _, result = pair(log)
    assert (caught.value.kind, caught.value.state, result.tool_state) == (
        "TimeoutError",
        "timeout",
        "timeout",
    )
    assert "its result will not be recorded" in result.content
    assert "check before you call it again" in result.content
    never.set()
    for thread in threading.enumerate():
        if thread.name == "scroll-tool-hang":
            thread.join()
    assert log.last_seq() == result.seq


def test_a_coroutine_that_never_answers_is_cancelled(log: EventLog) -> None:
    cancelled = threading.Event()

    @tool
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(ToolFailed, match="was cancelled"):
        toolbox(log, hang, default_timeout=0.5).call("hang")
    assert cancelled.wait(timeout=60)


def test_the_callers_deadline_comes_before_the_tools_timeout(
    log: EventLog, never: threading.Event
) -> None:
    @tool(timeout=600)
    def hang() -> None:
        never.wait()

    with pytest.raises(ToolFailed, match="gave no answer"):
        toolbox(log, hang).call("hang", deadline=time.monotonic() + 0.5)


def test_nothing_starts_after_the_deadline(log: EventLog) -> None:
    ran: list[int] = []

    @tool
    def run() -> None:
        ran.append(1)

    with pytest.raises(ToolFailed, match="was not started"):
        toolbox(log, run).call("run", deadline=time.monotonic() - 1)
    assert (pair(log)[1].tool_state, ran) == ("timeout", [])


def test_a_tools_own_timeout_error_is_an_error(log: EventLog) -> None:
    @tool
    def slow() -> None:
        raise TimeoutError("the airline did not answer")

    with pytest.raises(ToolFailed) as caught:
        toolbox(log, slow).call("slow")
    assert (str(caught.value), caught.value.state) == ("the airline did not answer", "error")


def test_an_interrupted_wait_is_recorded(log: EventLog, never: threading.Event) -> None:
    def interrupt(_: ToolUse) -> bool:
        raise KeyboardInterrupt

    @tool(effects=True)
    def act() -> None: ...

    with pytest.raises(KeyboardInterrupt):
        toolbox(log, act, confirm=interrupt).call("act")
    assert pair(log)[1].content == "interrupted before it started"


# limits ---------------------------------------------------------------------------------------------------


def test_a_tool_may_be_called_only_so_often(log: EventLog) -> None:
    @tool(max_calls=2)
    def rare() -> int:
        return 1

    box = toolbox(log, rare, add)
    assert [box.call("rare").value for _ in range(2)] == [1, 1]
    with pytest.raises(ToolFailed, match=r"used up its calls \(2\)") as caught:
        box.call("rare")
    assert (caught.value.state, pair(log)[1].tool_state) == ("refused", "refused")
    assert box.call("add", (1,)).value == 2


def test_calls_are_counted_across_a_resume_and_refused_ones_are_not(log: EventLog) -> None:
    @tool(max_calls=3, effects=True)
    def rare(fails: bool) -> int:
        return 1 // (not fails)

    assert toolbox(log, rare).call("rare", (False,)).value == 1
    with pytest.raises(ToolFailed, match="must be bool"):
        toolbox(log, rare).call("rare", ("perhaps",))
    refusing = toolbox(log, rare, confirm=lambda _: False)
    for _ in range(3):
        with pytest.raises(ToolFailed, match="the user refused"):
            refusing.call("rare", (False,))
    with pytest.raises(ToolFailed, match="division"):
        toolbox(log, rare).call("rare", (True,))  # it ran, so it counts
    log.append(Scope("another", "planner").draft(Kind.TOOL_CALL, name="rare"))
    log.append(SCOPE.draft(Kind.TOOL_CALL, name="rare", source_key="import:1"))
    last = toolbox(log, rare)
    assert last.call("rare", (False,)).value == 1
    for box in (last, toolbox(log, rare, confirm=lambda _: pytest.fail("asked for nothing"))):
        with pytest.raises(ToolFailed, match=r"used up its calls \(3\)"):
            box.call("rare", (False,))


def calls_left(box: Toolbox, name: str) -> int:
    """How many more calls a toolbox allows; this uses them up."""
    for left in range(10):
        try:
            box.call(name)
        except ToolFailed as error:
            assert "used up its calls" in str(error)
            return left
    raise AssertionError("no limit")


def test_a_call_refused_while_it_waits_for_its_place_is_not_counted(
    log: EventLog, never: threading.Event
) -> None:
    @tool(max_calls=3, max_concurrent=1)
    def rare() -> None:
        never.wait()

    box = toolbox(log, rare)
    cell = Work(time.monotonic() + 60)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(box.call, "rare")
        while box.started < 1:
            time.sleep(0.01)
        second = pool.submit(box.call, "rare", work=cell)
        while box.started < 2:
            time.sleep(0.01)
        cell.stop()
        never.set()
        assert first.result(60).value is None
        with pytest.raises(ToolFailed, match="the cell had ended"):
            second.result(60)
    # The count in the log and the count of the running session are the same.
    assert count_started_calls(journal_of(log, SCOPE), "rare") == 1
    assert calls_left(box, "rare") == 2


def test_a_call_that_was_never_asked_about_is_not_counted(
    log: EventLog, never: threading.Event
) -> None:
    asked = threading.Event()

    def confirm(_: ToolUse) -> bool:
        asked.set()
        return never.wait(60)

    @tool(max_calls=2, effects=True)
    def rare() -> None: ...

    box = toolbox(log, rare, confirm=confirm)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(box.call, "rare")
        assert asked.wait(60)
        with pytest.raises(ToolFailed, match="no time was left to ask") as caught:
            box.call("rare", deadline=time.monotonic() + 0.1)
        never.set()
        first.result(60)
    assert caught.value.state == "refused"
    assert count_started_calls(journal_of(log, SCOPE), "rare") == 1
    assert calls_left(box, "rare") == 1


def test_a_tool_that_refuses_by_itself_uses_up_no_call(log: EventLog) -> None:
    @tool(max_calls=1)
    def rare(fails: bool = False) -> None:
        if fails:
            raise ToolFailed("not today", state="refused")

    box = toolbox(log, rare)
    with pytest.raises(ToolFailed, match="not today"):
        box.call("rare", (True,))
    assert count_started_calls(journal_of(log, SCOPE), "rare") == 0
    assert calls_left(box, "rare") == 1


def test_no_more_than_so_many_run_at_once(log: EventLog) -> None:
    inside, most = [0], [0]
    lock = threading.Lock()
    meeting = threading.Barrier(2)

    @tool(max_concurrent=2)
    def narrow() -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        meeting.wait(timeout=50)  # passes only in twos
        with lock:
            inside[0] -= 1

    box = toolbox(log, narrow)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: box.call("narrow"), range(8)))
    assert most == [2]


def test_an_abandoned_call_keeps_its_place(log: EventLog, never: threading.Event) -> None:
    @tool(max_concurrent=1, timeout=1.0)
    def hang() -> str:
        never.wait()
        return "done"

    box = toolbox(log, hang)
    with pytest.raises(ToolFailed, match="abandoned"):
        box.call("hang")
    with pytest.raises(ToolFailed, match=r"still running \(at most 1 at once\)"):
        box.call("hang")
    never.set()
    assert box.call("hang", deadline=None).value == "done"


# effects --------------------------------------------------------------------------------------------------


@pytest.fixture
def booked() -> list[str]:
    return []


def booking(booked: list[str]) -> Any:
    @tool(effects=True)
    def book(flight: str, seats: int = 1) -> str:
        booked.append(flight)
        return f"booked {flight}"

    return book


def test_effects_are_confirmed_before_they_happen(log: EventLog, booked: list[str]) -> None:
    asked: list[ToolUse] = []

    def confirm(use: ToolUse) -> bool:
        assert not booked
        asked.append(use)
        return True

    box = toolbox(log, booking(booked), add, confirm=confirm)
    assert box.call("book", ("OS 1",), {"seats": "2"}, cell_seq=3).value == "booked OS 1"
    box.call("add", (1,))
    assert [(use.name, use.arguments, use.cell_seq) for use in asked] == [
        ("book", {"flight": "OS 1", "seats": "2"}, 3)
    ]
    assert log.get(1).metadata == {"inside_cell": 3, "effects": True}


def test_a_refusal_is_an_event_and_an_error(log: EventLog, booked: list[str]) -> None:
    with pytest.raises(ToolFailed, match="the user refused it") as caught:
        toolbox(log, booking(booked), confirm=lambda _: False).call("book", ("OS 1",))
    call, result = pair(log)
    assert (caught.value.kind, result.tool_state, call.metadata) == (
        "PermissionError",
        "refused",
        {"effects": True},
    )
    assert booked == []


def test_a_broken_callback_is_a_refusal(log: EventLog, booked: list[str]) -> None:
    def confirm(use: ToolUse) -> bool:
        raise OSError("no terminal")

    with pytest.raises(ToolFailed, match=r"asking the user failed \(OSError: no terminal\)"):
        toolbox(log, booking(booked), confirm=confirm).call("book", ("OS 1",))
    assert (booked, pair(log)[1].tool_state) == ([], "refused")


def test_a_coroutine_that_refuses_is_a_refusal(log: EventLog, booked: list[str]) -> None:
    async def confirm(use: ToolUse) -> bool:
        await asyncio.sleep(0)
        return False

    with pytest.raises(ToolFailed, match="the user refused it"):
        toolbox(log, booking(booked), confirm=confirm).call("book", ("OS 1",))
    assert (booked, pair(log)[1].tool_state) == ([], "refused")


def test_a_coroutine_that_allows_lets_the_tool_run(log: EventLog, booked: list[str]) -> None:
    async def confirm(use: ToolUse) -> bool:
        await asyncio.sleep(0)
        return True

    assert (
        toolbox(log, booking(booked), confirm=confirm).call("book", ("OS 1",)).value
        == "booked OS 1"
    )


@pytest.mark.parametrize("answer", ["no", 1, None, [False], object()])
def test_only_true_is_consent(log: EventLog, booked: list[str], answer: object) -> None:
    def confirm(use: ToolUse) -> Any:
        return answer

    with pytest.raises(ToolFailed, match="only True allows a call"):
        toolbox(log, booking(booked), confirm=confirm).call("book", ("OS 1",))
    assert booked == []


def test_a_coroutine_that_never_answers_ends_with_the_deadline(
    log: EventLog, booked: list[str]
) -> None:
    async def confirm(use: ToolUse) -> bool:
        await asyncio.sleep(3600)
        return True

    box = toolbox(log, booking(booked), confirm=confirm)
    with pytest.raises(ToolFailed, match="no answer came"):
        box.call("book", ("OS 1",), deadline=time.monotonic() + 0.2)
    assert booked == []


def test_a_confirm_that_cannot_be_called_is_refused_when_the_session_is_made(log: EventLog) -> None:
    with pytest.raises(BadInput, match="confirm must be a function"):
        toolbox(log, add, confirm=True)


def test_the_call_limit_holds_while_several_threads_wait_for_consent(
    log: EventLog, booked: list[str]
) -> None:
    @tool(effects=True, max_calls=1)
    def book_once(flight: str) -> str:
        booked.append(flight)
        return flight

    waiting = threading.Barrier(3, timeout=10)

    def call(number: int) -> str:
        waiting.wait()
        try:
            return str(box.call("book_once", (f"OS {number}",)).value)
        except ToolFailed as error:
            return error.state

    def confirm(use: ToolUse) -> bool:
        time.sleep(0.05)
        return True

    box = toolbox(log, book_once, confirm=confirm)
    with ThreadPoolExecutor(3) as pool:
        outcomes = sorted(pool.map(call, range(3)))
    assert len(booked) == 1 and outcomes.count("refused") == 2


def test_one_question_is_asked_at_a_time(log: EventLog, booked: list[str]) -> None:
    asking = threading.Lock()

    def confirm(use: ToolUse) -> bool:
        assert asking.acquire(blocking=False), "asked while another question was open"
        time.sleep(0.001)
        asking.release()
        return True

    box = toolbox(log, booking(booked), confirm=confirm)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: box.call("book", (f"OS {n}",)), range(8)))
    assert len(booked) == 8


def test_without_a_callback_mounted_tools_run(log: EventLog, booked: list[str]) -> None:
    assert toolbox(log, booking(booked)).call("book", ("OS 1",)).value == "booked OS 1"


# after a crash --------------------------------------------------------------------------------------------

CRASH = """
import os, sys
from pathlib import Path
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.log import EventLog
from scroll_context.events import Scope
from scroll_context.log.journal import Journal
from scroll_context.tools.toolbox import Toolbox
from scroll_context.tools.tools import tool

@tool(effects=True)
def book(flight: str) -> str:
    if flight == "fatal":
        os.kill(os.getpid(), 9)
    return "booked"

folder = Path(sys.argv[1])
log = EventLog(FileBackend(folder, create=True))
box = Toolbox([book], journal=Journal(log, Scope("trip", "planner", "travel")))
box.call("book", ("safe",))
box.call("book", ("fatal",), cell_seq=1, tool_call_id="same")
"""


def test_a_crash_leaves_the_call_visible(folder: Path) -> None:
    died = subprocess.run([sys.executable, "-c", CRASH, str(folder)], env=os.environ, check=False)
    assert died.returncode == -9
    log = EventLog(FileBackend(folder))
    log.append(Scope("other", "planner").draft(Kind.TOOL_RESULT, tool_call_id="same", reply_to=3))
    (call,) = unfinished_calls(log, SCOPE)
    assert (call.name, call.content, call.metadata["effects"]) == (
        "book",
        '{"flight": "fatal"}',
        True,
    )
    assert unfinished_calls(log, Scope("other", "planner")) == []
    assert unfinished_calls(log, Scope("trip", "somebody else")) == []

    assert [event.seq for event in close_unfinished_calls(journal_of(log, SCOPE))] == [call.seq]
    result = log.tail(1)[0]
    assert (result.reply_to, result.tool_state, result.metadata) == (
        call.seq,
        "unknown",
        call.metadata,
    )
    assert "whether it took effect is not known" in result.content
    assert unfinished_calls(log, SCOPE) == close_unfinished_calls(journal_of(log, SCOPE)) == []
    log.close()


def test_a_result_that_names_no_call_hides_no_unfinished_call(log: EventLog) -> None:
    call = log.append(
        SCOPE.draft(Kind.TOOL_CALL, name="book", content="{}", metadata={"effects": True})
    )
    log.append(SCOPE.draft(Kind.TOOL_RESULT, name="book", content="of another time", reply_to=None))
    assert [event.seq for event in unfinished_calls(log, SCOPE)] == [call]


def test_imported_calls_are_not_ours_to_finish(log: EventLog) -> None:
    log.append(SCOPE.draft(Kind.TOOL_CALL, name="book", content="{}", source_key="import:1"))
    assert unfinished_calls(log, SCOPE) == []


# the prompt -----------------------------------------------------------------------------------------------


def test_the_description_is_sorted_and_stable(log: EventLog) -> None:
    one, other = toolbox(log, fail, add).describe(), toolbox(log, add, fail).describe()
    assert one == other
    assert one.startswith("# map_calls(f, [")
    assert one.endswith(f"\n\n{add.stub}\n\n{fail.stub}")
    assert toolbox(log).describe() == ""


def test_the_user_is_announced_once_and_only_when_there_is_one(
    log: EventLog, booked: list[str]
) -> None:
    def asked(text: str) -> int:
        return text.count("The user may be asked")

    book = booking(booked)
    assert asked(toolbox(log, book, add, confirm=lambda _: True).describe()) == 1
    assert (
        asked(toolbox(log, book, add).describe())
        == asked(toolbox(log, add, confirm=lambda _: True).describe())
        == 0
    )
    for limit in (10_000, 520, 500):
        text = toolbox(log, book, add).describe(limit)
        assert text.count("never repeat its call") == 1, limit
        assert text.count("has effects") == 2, limit
    assert "effects" not in toolbox(log, add).describe()


def test_map_calls_is_described_as_these_tools_run(log: EventLog) -> None:
    single = tool(add._function, name="single", max_concurrent=1)
    assert "arguments, up to 16 at once." in toolbox(log, add).describe()
    assert "one after another, because" in toolbox(log, single).describe()
    assert "one at a time where the description" in toolbox(log, add, single).describe()


def test_the_description_gets_shorter_rather_than_longer_than_its_bound(log: EventLog) -> None:
    def some(text: str, number: int) -> str:
        """Do something.

        In many words that a short description leaves out.
        """
        return text

    box = toolbox(log, *(tool(some, name=f"some_{n:03}") for n in range(100)))
    few = toolbox(log, *(tool(some, name=f"some_{n:03}") for n in range(10))).describe()
    assert few.count("In many words") == 10
    shorter = box.describe()
    assert (shorter.count("# Do something. …"), shorter.count("In many words")) == (100, 0)
    assert "help(f) prints the complete description" in shorter
    bare = box.describe(limit=6_500)
    assert (bare.count("def some_"), bare.count("Do something")) == (100, 0)
    names = box.describe(limit=300)
    assert names.startswith("some_000, some_001") and names.endswith("…")
    assert all(
        len(text) <= limit for text, limit in ((shorter, 24_000), (bare, 6_500), (names, 300))
    )


def test_native_specs_are_sorted(log: EventLog) -> None:
    assert [spec.name for spec in toolbox(log, fail, add).specs()] == ["add", "fail"]


def test_two_tools_cannot_share_a_name(log: EventLog) -> None:
    with pytest.raises(BadInput, match="the name 'add' is already used"):
        toolbox(log, add, tool(fail._function, name="add"))
