"""Scroll under smolagents: an agent's code in the jail, its tools on the host."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("smolagents", reason="smolagents is not installed: make test-hosts")

from smolagents import ChatMessage, CodeAgent, FinalAnswerTool, MessageRole, Model, tool
from smolagents.local_python_executor import InterpreterError, LocalPythonExecutor

from scroll_adapters.smolagents import ScrollExecutor
from scroll_context import SessionOptions
from scroll_context.errors import BadInput
from scroll_context.events import Kind
from scroll_context.jail.spec import JailSpec, default_read_only
from snippets import run_snippet


@tool
def read_report(number: int) -> str:
    """Read a report.

    Args:
        number: the number of the report
    """
    return f"report {number} code 4711-{number} " + "filler words " * 1_000


class FakeModel(Model):  # type: ignore[misc]
    """Plays a list of code blocks, and keeps the requests."""

    def __init__(self, *codes: str) -> None:
        super().__init__(model_id="fake")
        self.codes = list(codes)
        self.requests: list[str] = []

    def generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatMessage:
        texts = [part.get("text", "") for message in messages for part in message.content]
        self.requests.append("\n".join(texts))
        content = f"Thought: next.\n<code>\n{self.codes.pop(0)}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=content)


@pytest.fixture
def executor(folder: Path) -> Iterator[ScrollExecutor]:
    with ScrollExecutor(folder, "trip") as executor:
        yield executor


def agent(executor: ScrollExecutor, *codes: str, **options: Any) -> CodeAgent:
    return CodeAgent(
        [read_report], FakeModel(*codes), executor=executor, verbosity_level=-1, **options
    )


def texts(executor: ScrollExecutor, kind: str, name: str = "") -> list[str]:
    events = [event for event in executor.session.events() if event.kind == kind]
    log = executor.session.store.log
    return [log.text(log.get(event.seq)) for event in events if not name or event.name == name]


def test_an_agent_keeps_results_in_variables_and_answers(executor: ScrollExecutor) -> None:
    program = agent(
        executor,
        "reports = [read_report(number) for number in range(3)]\nprint(len(reports))",
        "codes = [text.split()[3] for text in reports]",
        "final_answer({'codes': codes})",
    )
    assert program.run("Which codes?") == {"codes": [f"4711-{number}" for number in range(3)]}
    assert texts(executor, Kind.TOOL_RESULT, "read_report") == [read_report(n) for n in range(3)]
    assert not any("filler" in request for request in program.model.requests)
    assert "Execution logs:\n3\n" in program.model.requests[-1]
    assert "It bound `codes`" in program.model.requests[-1]
    assert (executor.bounds, executor.stores, executor.executes) == (False, True, True)


def test_a_failed_cell_is_reported_and_the_run_continues(executor: ScrollExecutor) -> None:
    program = agent(executor, "kept = 7\nprint('begun')\n1 / 0", "final_answer(kept)")
    assert program.run("Divide.") == 7
    step = program.memory.steps[1]
    assert "begun" in str(step.error) and "ZeroDivisionError" in str(step.error)
    assert "ZeroDivisionError" in program.model.requests[-1]


def test_variables_of_the_agent_reach_the_cells(executor: ScrollExecutor) -> None:
    given = {"rows": [{"price": 3}, {"price": 4}], "blob": b"\x00\xff", "label": "prices"}
    code = "final_answer([sum(row['price'] for row in rows), len(blob), label])"
    assert agent(executor, code).run("Add up.", additional_args=given) == [7, 2, "prices"]
    with pytest.raises(BadInput, match="a b"):
        executor.send_variables({"a b": 1})


def test_a_later_process_has_the_variables_and_the_record(folder: Path) -> None:
    with ScrollExecutor(folder, "trip") as executor:
        agent(executor, "report = read_report(5)", "final_answer('kept')").run("Read report 5.")
    with ScrollExecutor(folder, "trip") as executor:
        program = agent(executor, "final_answer(report[:8])", "final_answer(read_report(6)[:8])")
        assert program.run("Which report?") == "report 5"
        assert program.run("And the next?") == "report 6"
        hit = executor.session.store.index.search("4711-5")[0].event
        assert (hit.kind, hit.name, hit.session_id) == (Kind.TOOL_RESULT, "read_report", "trip")


def test_nothing_is_called_after_the_final_answer(executor: ScrollExecutor) -> None:
    code = "for number in range(9):\n    final_answer(number)\n    read_report(number)"
    assert agent(executor, code).run("The first.") == 0
    assert len(texts(executor, Kind.TOOL_RESULT, "final_answer")) == 1
    (refusal,) = texts(executor, Kind.TOOL_RESULT, "read_report")
    assert "final_answer was called" in refusal


def test_a_final_answer_tool_of_ones_own(executor: ScrollExecutor) -> None:
    class Loud(FinalAnswerTool):  # type: ignore[misc]
        def forward(self, answer: Any) -> Any:
            return str(answer).upper()

    program = CodeAgent(
        [Loud()], FakeModel("final_answer('yes')"), executor=executor, verbosity_level=-1
    )
    assert program.run("Well?") == "YES"


def test_a_managed_agent_runs_on_the_host(executor: ScrollExecutor, tmp_path: Path) -> None:
    with ScrollExecutor(tmp_path / "other", "helper") as other:
        helper = agent(
            other, "final_answer(6 * 7)", name="helper", description="Calculates.", max_steps=2
        )
        program = agent(
            executor, "final_answer('42' in helper('What is 6 * 7?'))", managed_agents=[helper]
        )
        assert program.run("Ask the helper.") is True
    assert "42" in texts(executor, Kind.TOOL_RESULT, "helper")[0]


def test_a_value_that_cannot_cross_is_refused_by_name(executor: ScrollExecutor) -> None:
    @tool
    def picture() -> object:
        """Draw a picture."""
        from PIL import Image

        return Image.new("RGB", (1, 1))

    executor.send_tools({"picture": picture})
    with pytest.raises(InterpreterError, match=r"PIL\.Image\.Image cannot be given to a cell"):
        executor("picture()")


def test_cells_import_what_the_jail_lets_them_read(executor: ScrollExecutor) -> None:
    assert executor("import math, yaml\nprint(yaml.safe_load('a: 1'))").logs == "{'a': 1}\n"
    jail = JailSpec(read_only=default_read_only(), scratch="")
    options = SessionOptions(jail=jail)
    with ScrollExecutor(executor.session.store, "strict", options=options) as strict:
        assert strict("import math\nprint(math.floor(2.5))").logs == "2\n"
        with pytest.raises(InterpreterError, match="No module named 'yaml'"):
            strict("import yaml")


def test_code_without_an_end_is_stopped(folder: Path) -> None:
    options = SessionOptions(cell_timeout=1)
    with ScrollExecutor(folder, "trip", options=options) as executor:
        with pytest.raises(InterpreterError, match="more than 1 s"):
            executor("kept = 1\nwhile True:\n    pass")
        assert executor("print(kept)").logs == "1\n"


# attacks ----------------------------------------------------------------------------------------
#
# Each of these gives a value when smolagents' local executor runs it, with the imports that a user
# authorised, and reaches the host with it.

SECRET = "SCROLL_TEST_SECRET"

ATTACKS = {
    "environment": ("import random\nseen = '{0._os.environ}'.format(random)\nprint(seen)", []),
    "read a file": ("import pathlib\nprint(pathlib.Path(TARGET).read_text())", ["pathlib"]),
    "write a file": ("import pathlib\npathlib.Path(TARGET).write_text('taken')", ["pathlib"]),
    "list the host": ("import os\nprint(os.listdir(FOLDER))", ["os"]),
    "network": (
        "import socket\nserver = socket.socket()\nserver.bind(('127.0.0.1', 0))\nprint('open')",
        ["socket"],
    ),
    "another process": (
        "import subprocess\nprint(subprocess.check_output(['echo', 'started']).decode())",
        ["subprocess"],
    ),
    "memory": ("print(len('x' * (3 << 30)))", []),
}


def attack(name: str, target: Path) -> tuple[str, list[str]]:
    code, imports = ATTACKS[name]
    code = code.replace("FOLDER", repr(str(target.parent)))
    return code.replace("TARGET", repr(str(target))), imports


def outcome(executor: Any, code: str) -> str:
    """What a model gets to see."""
    try:
        return str(executor(code).logs)
    except InterpreterError as error:
        return f"failed: {error}"


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "memory"])
def test_an_attack_that_the_local_executor_allows(
    name: str, executor: ScrollExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET, "hunter2")
    target = tmp_path / "target.txt"
    target.write_text("hunter2")
    code, imports = attack(name, target)
    local = LocalPythonExecutor(imports)
    local.send_tools({})
    allowed = outcome(local, code)
    assert not allowed.startswith("failed"), "the sample shows nothing"
    if name in ("environment", "read a file"):
        assert "hunter2" in allowed

    target.write_text("hunter2")
    blocked = outcome(executor, code)
    assert "hunter2" not in blocked
    assert blocked.startswith("failed") or name == "environment"
    assert target.read_text() == "hunter2"
    assert os.environ[SECRET] == "hunter2"


def test_memory_of_the_host_is_not_used_up(executor: ScrollExecutor) -> None:
    code, _ = attack("memory", Path())
    assert "MemoryError" in outcome(executor, code)
    assert executor("print('alive')").logs == "alive\n"


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.fork()",
        "import ctypes\nctypes.CDLL(None).system(b'id')\nprint(open('/proc/self/environ').read())",
        "import sys\nprint(sys.modules['os'].listdir('/root'))",
    ],
)
def test_code_beyond_the_local_executor_is_stopped_too(executor: ScrollExecutor, code: str) -> None:
    assert outcome(executor, code).startswith("failed")
    assert executor("print('alive')").logs == "alive\n"


def test_an_executor_needs_a_kernel(folder: Path) -> None:
    with pytest.raises(BadInput, match="needs a kernel"):
        ScrollExecutor(folder, "trip", options=SessionOptions(context="plain"))


def test_the_snippet_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"model": FakeModel("final_answer('To Lisbon.')"), "tools": [read_report]}
    after = run_snippet("FRAMEWORKS.md", "smolagents", names)
    assert after["answer"] == "To Lisbon."
    with ScrollExecutor(tmp_path / "work.scroll", "trip") as executor:
        assert texts(executor, Kind.CELL) == ["final_answer('To Lisbon.')"]
