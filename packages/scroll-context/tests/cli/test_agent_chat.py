"""Chatting, and Ctrl-C: it stops what is under way and never costs the session."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

from scroll_context.agent.agent import Agent
from scroll_context.cli.agent_session import AgentOptions, stoppable
from scroll_context.cli.chat import Chat
from scroll_context.cli.watch import Consent, Screen, Watch
from scroll_context.events import Event, Kind
from scroll_context.models import Reply, Request, ScriptedModel, exec_cell
from scroll_context.models.scripted import Answer
from scroll_context.session.session import Session
from scroll_context.store import Store
from terminal import Terminal, script, wait_for

Run = Callable[..., Result]
Process = Callable[..., "subprocess.Popen[bytes]"]


ENDLESS = exec_cell("kept = 'still here'\nstarted()\nwhile True:\n    pass")

TOOLS = '''
from pathlib import Path
from scroll_context.tools.tools import tool

@tool
def started() -> None:
    """Say that the cell runs."""
    Path(__file__).with_name("started").touch()

@tool(effects=True)
def launch(rocket: str) -> str:
    """Launch a rocket."""
    return f"{rocket} is up"
'''


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    file = tmp_path / "my_tools.py"
    file.write_text(TOOLS)
    return file


def test_a_chat_streams_shows_and_counts(scroll: Run, folder: Path, tmp_path: Path) -> None:
    model = script(
        tmp_path,
        exec_cell("x = 7\nprint('x is', x)", text="One moment."),
        "It is 7.\n⟦ x | 7 | none | done ⟧",
        "Again.",
    )
    said = "What is x?\n\nMore?\n/vars\n/stats\n/help\n/nonsense\n"
    result = scroll("chat", "--model", model, "--session", "talk", input=said)
    assert result.exit_code == 0, result.output
    for shown in (
        "One moment.",
        "› x = 7",
        "│ x is 7",
        "It is 7.",
        "Again.",
        "3 requests",
        "/vars",
        "there is no /nonsense",
    ):
        assert shown in result.stdout
    assert "⟦" not in result.stdout
    assert (
        f"`scroll chat --session talk --model {model} --store {folder}` resumes it" in result.stdout
    )
    again = scroll(
        "chat",
        "--model",
        script(tmp_path, exec_cell("print(x + 1)"), "8"),
        "--session",
        "talk",
        input="Go on\n",
    )
    assert "│ 8" in again.stdout


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("It is 7.\n⟦ x | 7 | none | done ⟧\n", "It is 7."),
        ("⟦e⟧ is its meaning.\n\nMore.\n⟦ x | 7 | none | done ⟧", "⟦e⟧ is its meaning.\n\nMore."),
        ("As in ⟦e⟧. ⟦ x | 7 | none | done ⟧", "As in ⟦e⟧."),
        ("The key is\n⟦word⟧", "The key is\n⟦word⟧"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_of_a_streamed_reply_only_the_headline_is_held_back(
    said: str, shown: str, size: int
) -> None:
    console = Console(file=io.StringIO(), width=200)
    watch = Watch(Screen(console), stream=True)
    for at in range(0, len(said), size):
        watch.text(said[at : at + size])
    watch.end_line()
    assert isinstance(console.file, io.StringIO) and console.file.getvalue() == shown + "\n"


@pytest.mark.parametrize(
    ("attempts", "shown"),
    [
        (("The weir is ", "The weir ", "The weir is closed."), "The weir is closed."),
        (
            ("The weir is ", "It is closed."),
            "The weir is\n  · the reply starts again\nIt is closed.",
        ),
    ],
)
def test_a_reply_that_is_begun_again_is_not_shown_twice(
    attempts: tuple[str, ...], shown: str
) -> None:
    console = Console(file=io.StringIO(), width=200)
    watch = Watch(Screen(console), stream=True)
    for number, said in enumerate(attempts):
        if number:
            watch.again()
        for piece in said.split(" "):
            watch.text(piece if said.endswith(piece) else f"{piece} ")
    watch.end_line()
    assert (
        isinstance(console.file, io.StringIO)
        and console.file.getvalue().replace(" \n", "\n") == shown + "\n"
    )


def test_brackets_do_not_stop_the_stream() -> None:
    console = Console(file=io.StringIO(), width=200)
    Watch(Screen(console), stream=True).text("⟦e⟧ is its meaning.\nAnd this goes on")
    assert isinstance(console.file, io.StringIO) and "goes on" in console.file.getvalue()


def test_a_late_result_neither_doubles_nor_drops_a_word() -> None:
    """A call that outlived its cell ends in its own thread while the next reply is written."""
    console = Console(file=io.StringIO(), width=200)
    watch = Watch(Screen(console), stream=True)
    late = Event(
        kind=Kind.TOOL_RESULT,
        session_id="s",
        name="nap",
        metadata={"inside_cell": 8},
        seq=9,
        recorded_at="",
        chain=b"",
    )
    over = threading.Event()

    def results() -> None:
        while not over.is_set():
            watch.event(late)

    thread = threading.Thread(target=results)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for number in range(300):
            watch.text(f"⟦w{number}⟧")
            watch.text("\n")
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)
    watch.end_line()
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert [shown.count(f"⟦w{number}⟧") for number in range(300)] == [1] * 300


def test_a_message_can_have_several_lines(scroll: Run, folder: Path, tmp_path: Path) -> None:
    said = 'one \\\ntwo\n"""\n/help\n\n  indented\n"""\n/etc/hosts is a file\n'
    result = scroll(
        "chat", "--model", script(tmp_path, "a", "b", "c"), "--session", "s", input=said
    )
    assert result.exit_code == 0, result.output
    with Store(folder) as store:
        told = [
            event.content for event in store.log.iterate(session_id="s") if event.role == "user"
        ]
    assert told == ["one \ntwo", "/help\n\n  indented", "/etc/hosts is a file"]


def test_effects_are_asked_about(scroll: Run, tmp_path: Path, tools: Path) -> None:
    cell = exec_cell(
        "try:\n    print(launch('Ariane'))\nexcept ToolFailed as error:\n    print('not', error)"
    )
    for answer, shown in (
        ("y", "│ Ariane is up"),
        ("n", "the user refused it"),
        ("", "the user refused it"),
    ):
        model = script(tmp_path, cell, "ok")
        result = scroll("chat", "--model", model, "--tools", tools, input=f"Go.\n{answer}\n")
        assert 'launch(rocket="Ariane") has side effects. Run it?' in result.stdout
        assert shown in result.stdout


def test_a_failing_model_ends_the_turn_and_not_the_chat(scroll: Run, tmp_path: Path) -> None:
    result = scroll("chat", "--model", script(tmp_path, "one"), input="first\nsecond\n/stats\n")
    assert result.exit_code == 0
    assert "have been played" in result.stderr
    assert "2 requests" in result.stdout


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(), "the model sent only empty replies"),
        (Reply(text="Half a", finish_reason="length"), "the reply was truncated"),
    ],
)
def test_a_turn_without_an_answer_says_why(
    scroll: Run, tmp_path: Path, reply: Reply, why: str
) -> None:
    result = scroll("chat", "--model", script(tmp_path, *[reply] * 6), input="Go.\n")
    assert result.exit_code == 0
    assert why in result.stdout


def test_ctrl_c_stops_the_cell_and_resume_goes_on(
    scroll: Run, process: Process, tmp_path: Path, tools: Path
) -> None:
    command = (
        "run",
        "Go.",
        "--session",
        "s",
        "--tools",
        tools,
        "--model",
        script(tmp_path, ENDLESS, "not reached"),
    )
    running = process(*command)
    wait_for(tools.with_name("started"), running)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130
    assert out == b"" and b"`scroll resume s --model scripted:" in err
    model = script(tmp_path, exec_cell("print(kept)"), "Done.")
    done = scroll("resume", "s", "--tools", tools, "--model", model)
    assert (done.exit_code, done.stdout) == (0, "Done.\n")
    assert "│ still here" in done.stderr


def test_termination_closes_the_session_and_resume_goes_on(
    scroll: Run, process: Process, tmp_path: Path, tools: Path
) -> None:
    model = script(tmp_path, exec_cell("kept = 'still here'"), ENDLESS, "not reached")
    running = process("run", "Go.", "--session", "s", "--tools", tools, "--model", model)
    wait_for(tools.with_name("started"), running)
    running.terminate()
    _, err = running.communicate(timeout=120)
    assert running.returncode == 143 and b"Traceback" not in err
    done = scroll(
        "resume",
        "s",
        "--tools",
        tools,
        "--model",
        script(tmp_path, exec_cell("print(kept)"), "Done."),
    )
    assert (done.exit_code, done.stdout) == (0, "Done.\n")
    assert "│ still here" in done.stderr


def test_a_second_model_that_does_not_answer_keeps_no_chat_from_ending(tmp_path: Path) -> None:
    code = f"""
import threading
from pathlib import Path
from scroll_context.agent.agent import Agent
from scroll_context.session.session import Session
from scroll_context.models import ScriptedModel, exec_cell
from scroll_context.store import Store

def never(prompt, context):
    agent.stop()
    threading.Event().wait()

with Store(Path({str(tmp_path / "store")!r}), create=True) as store:
    with Session.open(store, session_id="s", ask=never) as session:
        cell = exec_cell("ask_many('what?', ['a', 'b'])")
        agent = Agent(session, ScriptedModel([cell, "not reached"]))
        print(agent.run("Go.").state)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


def test_ctrl_c_as_a_turn_ends_does_not_stop_the_next(folder: Path) -> None:
    release, stopped = threading.Event(), threading.Event()

    class Sluggish(Agent):
        def stop(self) -> None:
            release.wait(60)
            super().stop()
            stopped.set()

    with Store(folder, create=True) as store, Session.open(store, session_id="s") as session:
        agent = Sluggish(session, ScriptedModel(["one", "two"]))
        with stoppable(agent, Consent(Screen(Console(quiet=True)), "never")):
            agent.run("first")
            signal.raise_signal(signal.SIGINT)
            threading.Timer(0.1, release.set).start()
        assert stopped.is_set()
        assert agent.run("second").answer == "two"


def test_ctrl_c_between_two_turns_ends_no_chat(folder: Path, tmp_path: Path) -> None:
    """A second Ctrl-C, as the stopped reply ends, reaches neither the agent nor the prompt."""
    with Store(folder, create=True) as store, Session.open(store, session_id="s") as session:
        console = Console(file=io.StringIO(), width=200)
        consent = Consent(Screen(console), "never")
        chat = Chat(
            session,
            ScriptedModel(["one", "two"]),
            AgentOptions(),
            consent,
            Watch(Screen(console), stream=True),
        )
        watch = chat.watch
        end_line, pressed = watch.end_line, iter([True])

        def press() -> None:
            end_line()
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler and next(
                pressed, False
            ):
                signal.raise_signal(signal.SIGINT)

        watch.end_line = press  # type: ignore[method-assign]
        with standard_input(tmp_path, "first\nsecond\n"):
            chat.loop()
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "again leaves" in shown and "two" in shown and "resumes it" in shown


@contextlib.contextmanager
def standard_input(folder: Path, text: str) -> Iterator[None]:
    file = folder / "typed"
    file.write_text(text)
    before = sys.stdin
    with file.open() as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = before


def test_ctrl_c_stops_the_reply(folder: Path) -> None:
    def interrupted(request: Request) -> Answer:
        os.kill(os.getpid(), signal.SIGINT)
        return "word " * 20_000

    with Store(folder, create=True) as store, Session.open(store, session_id="s") as session:
        agent = Agent(session, ScriptedModel([interrupted, "on"], pace=0.005))
        with stoppable(agent, Consent(Screen(Console(quiet=True)), "never")):
            run = agent.run("Go.")
        assert run.state == "stopped"
        last = store.log.tail(1, session_id="s")[0]
        assert last.metadata["cut"] is True and len(last.content) < 100_000
        assert agent.run("And now?").answer == "on"


def test_ctrl_c_at_a_terminal(folder: Path, tmp_path: Path, tools: Path) -> None:
    model = script(tmp_path, ENDLESS, exec_cell("print(kept)\nprint(launch('Ariane'))"), "Well.")
    with Terminal(
        ["chat", "--session", "s", "--tools", str(tools), "--model", model], folder
    ) as at:
        at.expect("\n› ")
        at.type("Go.\n")
        wait_for(tools.with_name("started"), at.process)
        at.type("\x03")
        at.expect("stopped; type a message to continue")
        at.expect("\n› ")
        at.type("Print it.\n")
        at.expect("[y/N] ")
        at.type("y\n")
        assert "Ariane is up" in at.expect("Well.")
        at.expect("\n› ")
        at.press("\x03", "again leaves")
        at.expect("\n› ")
        at.press("\x03", "resumes it")
        assert at.process.wait(120) == 0
    with Store(folder) as store:
        kinds = [event.kind for event in store.log.iterate(session_id="s")]
        assert kinds.count(Kind.OBSERVATION) == 2


def test_ctrl_c_at_a_question_is_a_no(folder: Path, tmp_path: Path, tools: Path) -> None:
    model = script(tmp_path, exec_cell("print(launch('Ariane'))"), "not reached")
    with Terminal(
        ["chat", "--session", "s", "--tools", str(tools), "--model", model], folder
    ) as at:
        at.expect("\n› ")
        at.type("Go.\n")
        at.expect("[y/N] ")
        at.press("\x03", "stopped; type a message to continue")
        at.expect("\n› ")
        at.type("\x04")
        assert at.process.wait(120) == 0
    with Store(folder) as store:
        states = {event.kind: event.tool_state for event in store.log.iterate(session_id="s")}
        assert states[Kind.OBSERVATION] == "interrupted"
        assert (
            states.get(Kind.TOOL_RESULT, "refused") == "refused"
        )  # the process may end before it is recorded
