"""A tool with effects starts only while the cell that called it runs."""

import threading
import time

import pytest

from scroll_context.events import Event, Kind
from scroll_context.session.session import Session
from scroll_context.tools.toolbox import ToolUse
from scroll_context.tools.tools import tool


class Payments:
    """A tool with effects, and a user who takes their time to confirm it."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.questions: list[float] = []
        self.paid: list[int] = []
        self.answered = threading.Event()

    def confirm(self, _use: ToolUse) -> bool:
        self.questions.append(time.monotonic())
        time.sleep(self.seconds)
        self.answered.set()
        return True

    def tool(self):
        @tool(effects=True)
        def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        return pay


def results(session: Session) -> list[Event]:
    return [event for event in session.events() if event.kind == Kind.TOOL_RESULT]


def wait_for_results(session: Session, count: int) -> list[Event]:
    deadline = time.monotonic() + 20
    while len(results(session)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return results(session)


def test_a_payment_confirmed_after_its_cell_timed_out_does_not_start(opened) -> None:
    payments = Payments(seconds=3)
    session = opened(tools=[payments.tool()], confirm=payments.confirm)
    session.cell_timeout = 1.0
    assert "more than 1 s" in session.run("pay(5)").content
    assert payments.answered.wait(20)
    (result,) = wait_for_results(session, 1)
    assert result.tool_state == "refused"
    assert "the cell had ended before this call started" in result.content
    assert payments.paid == []


def test_an_interrupted_cell_asks_the_user_nothing_more(opened) -> None:
    payments = Payments(seconds=2)
    session = opened(tools=[payments.tool()], confirm=payments.confirm)
    source = """
import threading
threads = [threading.Thread(target=pay, args=(n,), daemon=True) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    threading.Timer(1.0, session.interrupt).start()
    session.run(source)
    assert {result.tool_state for result in wait_for_results(session, 3)} == {"refused"}
    assert len(payments.questions) == 1
    assert payments.paid == []


def test_a_pickle_that_calls_a_tool_during_the_save_is_refused(opened) -> None:
    payments = Payments()
    session = opened(tools=[payments.tool()], confirm=payments.confirm)
    source = """
class Sly:
    def __reduce__(self):
        ms.search("anything")
        try:
            pay(7)
        except Exception as error:
            return (str, (f"refused: {error}",))
        return (str, ("paid",))
sly = Sly()
"""
    session.run(source)
    session.environment.variables.wait_for_save()
    assert payments.questions == [] and payments.paid == []
    assert [result.tool_state for result in results(session)] == ["refused"]


def test_a_thread_of_an_earlier_cell_calls_no_tool_during_the_next(opened) -> None:
    payments = Payments()
    session = opened(tools=[payments.tool()], confirm=payments.confirm)
    left_running = """
import threading, time
go, told = threading.Event(), []
def later():
    go.wait(30)
    try:
        told.append(pay(9))
    except Exception as error:
        told.append(str(error))
thread = threading.Thread(target=later, daemon=True)
thread.start()
"""
    session.run(left_running)
    session.run("go.set(); thread.join(20); told.append(pay(1)); print(told)")
    assert payments.paid == [1]
    assert [result.tool_state for result in results(session)] == ["refused", "ok"]


@pytest.mark.parametrize("rounds", [3])
def test_threads_of_the_running_cell_call_tools_after_others_have_ended(opened, rounds) -> None:
    """The interpreter gives a new thread the ident of an ended one."""
    payments = Payments()
    session = opened(tools=[payments.tool()], confirm=payments.confirm)
    session.run("import threading, time\nthreading.Thread(target=time.sleep, args=(0.3,)).start()")
    for _ in range(rounds):
        session.run("time.sleep(0.2)\nmap_calls(pay, [{'amount': n} for n in range(4)])")
    assert len(payments.paid) == 4 * rounds
