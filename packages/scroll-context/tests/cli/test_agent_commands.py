"""run, resume, fork, explain and trajectory through the real command, with models that follow a
script.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

from scroll_context.events import Kind, Scope
from scroll_context.models import Reply, exec_cell
from scroll_context.session.session import fork
from scroll_context.store import Store

Run = Callable[..., Result]
Write = Callable[..., str]

TOOLS = '''
from pathlib import Path
from scroll_context.tools.tools import tool

@tool
def double(number: int) -> int:
    """Twice the number."""
    return 2 * number

@tool(effects=True)
def launch(rocket: str) -> str:
    """Launch a rocket."""
    with Path(__file__).with_name("launched").open("a") as file:
        file.write(rocket + "\\n")
    return f"{rocket} is up"
'''


@pytest.fixture
def script(tmp_path: Path) -> Write:
    """Write a script and name it as a model."""
    count = 0

    def write(*entries: Reply | str) -> str:
        nonlocal count
        count += 1
        file = tmp_path / f"script{count}.json"
        file.write_bytes(msgspec.json.encode(list(entries)))
        return f"scripted:{file}"

    return write


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    file = tmp_path / "my_tools.py"
    file.write_text(TOOLS)
    return file


def observations(scroll: Run, session: str) -> list[str]:
    """What each step printed, without the line that counts its calls."""
    steps = json.loads(scroll("read", session, "--steps", "--json").stdout)["steps"]
    return [
        re.sub(r"\n\[\d+ tool calls?, [\d.]+ s\]\Z", "", step.get("observation", ""))
        for step in steps
    ]


def test_run_prints_the_answer_and_only_the_answer(scroll: Run, script: Write) -> None:
    model = script(
        exec_cell("x = 6 * 7\nprint('computed', x)", text="Let me compute."),
        "It is 42.\n⟦ sum | 42 | none | done ⟧",
    )
    result = scroll("run", "What is six times seven?", "--model", model)
    assert result.exit_code == 0
    assert result.stdout == "It is 42.\n"
    assert "Let me compute." in result.stderr and "print('computed', x)" in result.stderr
    assert "│ computed 42" in result.stderr
    assert "scroll: session s-" in result.stderr


def test_run_gives_json_to_programs(scroll: Run, script: Write) -> None:
    result = scroll(
        "run",
        "-",
        "--model",
        script("Hello."),
        "--json",
        "-q",
        "--session",
        "mine",
        input="Say hello.",
    )
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["state"], found["answer"], found["session_id"]) == ("answered", "Hello.", "mine")
    assert found["totals"]["steps"] == 1 and found["totals"]["input_tokens"] > 0
    assert result.stderr == "scroll: session mine\n"


def test_a_limit_ends_with_status_3_and_resume_goes_on(scroll: Run, script: Write) -> None:
    first = scroll(
        "run",
        "Count.",
        "--session",
        "counting",
        "--steps",
        1,
        "--model",
        script(exec_cell("kept = [1, 2, 3]")),
    )
    assert first.exit_code == 3
    assert first.stdout == ""
    assert (
        "the limit of --steps" in first.stderr
        and "`scroll resume counting --model " in first.stderr
    )
    second = scroll(
        "resume", "counting", "--model", script(exec_cell("print(sum(kept))"), "Six."), "-q"
    )
    assert (second.exit_code, second.stdout) == (0, "Six.\n")
    assert observations(scroll, "counting")[1] == "6"
    again = scroll("resume", "counting", "--model", script("never asked"))
    assert again.exit_code == 1 and "has already answered" in again.stderr
    assert (
        scroll("resume", "counting", "And then?", "--model", script("Seven.")).stdout == "Seven.\n"
    )


def test_every_limit_is_told_apart(scroll: Run, script: Write) -> None:
    for option, value in (("--tokens", 1), ("--seconds", 0)):
        result = scroll(
            "run", "Go.", "--model", script(exec_cell("x = 1"), "done"), option, value, "--json"
        )
        assert result.exit_code == 3
        assert option in result.stderr
        assert json.loads(result.stdout)["answer"] == ""


def test_a_failing_model_is_a_fault_and_the_session_is_kept(scroll: Run, script: Write) -> None:
    result = scroll("run", "Go.", "--session", "cut", "--model", script(exec_cell("x = 1")))
    assert result.exit_code == 1
    assert "have been played" in result.stderr and "`scroll resume cut --model " in result.stderr
    assert scroll("resume", "cut", "--model", script("Done.")).stdout == "Done.\n"


@pytest.mark.parametrize("spec", ["", "nonsense", "scripted:missing.json"])
def test_a_wrong_model_leaves_nothing_behind(scroll: Run, folder: Path, spec: str) -> None:
    result = scroll("run", "Go.", "--model", spec)
    assert result.exit_code == 1
    assert result.stderr.startswith("scroll: ")
    assert not folder.exists()


def test_names_that_do_not_fit_are_refused(scroll: Run, script: Write) -> None:
    assert scroll("run", "Go.", "--session", "a", "--model", script("one")).exit_code == 0
    taken = scroll("run", "Go.", "--session", "a", "--model", script("two"))
    assert taken.exit_code == 1 and "`scroll resume a --model " in taken.stderr
    for command in (
        ("resume", "b", "--model", script("x")),
        ("read", "b", "--steps"),
        ("fork", "b", 1),
    ):
        assert scroll(*command).exit_code == 1
    assert scroll("run", " ", "--model", script("x")).exit_code == 1
    assert (
        "there is no context"
        in scroll("run", "Go.", "--context", "magic", "--model", script("x")).stderr
    )


def test_tools_of_a_file_are_called_from_cells(scroll: Run, script: Write, tools: Path) -> None:
    cell = exec_cell("print(double(21))")
    result = scroll("run", "Go.", "--session", "t", "--tools", tools, "--model", script(cell, "ok"))
    assert result.exit_code == 0
    assert "→ double ok" in result.stderr
    assert observations(scroll, "t")[0] == "42"


def test_effects_need_a_yes(scroll: Run, script: Write, tools: Path) -> None:
    cell = exec_cell(
        "try:\n    print(launch('Ariane'))\nexcept ToolFailed as error:\n    "
        "print('refused:', error)"
    )
    scroll("run", "Go.", "--session", "no", "--tools", tools, "--model", script(cell, "ok"))
    assert "--yes" in observations(scroll, "no")[0]
    assert not tools.with_name("launched").exists()
    result = scroll(
        "run", "Go.", "--session", "yes", "--tools", tools, "--yes", "--model", script(cell, "ok")
    )
    assert 'launch(rocket="Ariane")' in result.stderr
    assert observations(scroll, "yes")[0] == "Ariane is up"
    assert tools.with_name("launched").read_text() == "Ariane\n"


def test_plain_functions_are_tools_when_all_lists_them(
    scroll: Run, script: Write, tmp_path: Path
) -> None:
    (tmp_path / "neighbour.py").write_text("BASE = 40\n")
    file = tmp_path / "plain.py"
    file.write_text(
        "from neighbour import BASE\n__all__ = ['more']\n"
        "def more(number: int) -> int:\n    return BASE + number\ndef other(number: "
        "int) -> int:\n    return 0\n"
    )
    scroll(
        "run",
        "Go.",
        "--session",
        "p",
        "--tools",
        file,
        "--model",
        script(exec_cell("print(more(2))"), "ok"),
    )
    assert observations(scroll, "p")[0] == "42"
    assert "def other" not in recorded(scroll, "p")


def recorded(scroll: Run, session: str) -> str:
    rows = json.loads(
        scroll(
            "sql", f"SELECT content FROM hist.events WHERE session_id = '{session}'", "--json"
        ).stdout
    )
    return "\n".join(row["content"] for row in rows["rows"])


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("x = 1", "no tools in"),
        ("1 / 0", "ZeroDivisionError"),
        ("__all__ = ['x']\nx = 1", "not a function"),
        ("__all__ = ['f']\ndef f(x): pass", "no annotation"),
    ],
)
def test_a_file_without_usable_tools_is_refused(
    scroll: Run, script: Write, tmp_path: Path, source: str, complaint: str
) -> None:
    file = tmp_path / "bad.py"
    file.write_text(source)
    result = scroll("run", "Go.", "--tools", file, "--model", script("x"))
    assert result.exit_code == 1 and complaint in result.stderr
    assert (
        "there is no file"
        in scroll("run", "Go.", "--tools", tmp_path / "none.py", "--model", script("x")).stderr
    )


def test_an_mcp_server_is_mounted_by_its_command(scroll: Run, script: Write) -> None:
    pytest.importorskip("mcp", reason="the mcp extra is not installed")
    server = Path(__file__).parents[1] / "tools" / "mcp_server.py"
    command = f"'{sys.executable}' '{server}' stdio"
    model = script(exec_cell("print(Weather_more.add(a=40, b=2))"), "ok")
    result = scroll("run", "Go.", "--session", "m", "--mcp", command, "--model", model)
    assert result.exit_code == 0, result.stderr
    assert observations(scroll, "m")[0] == "42"
    assert scroll("run", "Go.", "--mcp", "'", "--model", script("x")).exit_code == 1
    assert (
        scroll("run", "Go.", "--mcp", "/nonexistent/server", "--model", script("x")).exit_code == 1
    )


def test_the_reach_is_what_the_model_can_read(filled: Run, script: Write) -> None:
    cell = exec_cell("print(len(ms.search('toll roads')))")
    for reach, found in (("all", True), ("session", False)):
        filled("run", "Go.", "--session", reach, "--reach", reach, "--model", script(cell, "ok"))
        assert (int(observations(filled, reach)[0].split()[0]) > 0) is found
    for reach in ("agent", "task"):
        refused = filled(
            "run", "Go.", "--session", reach, "--reach", reach, "--model", script("ok")
        )
        assert refused.exit_code == 1 and f"reach '{reach}' needs a {reach}_id" in refused.stderr


def test_resuming_prints_the_flags_of_recorded_settings_that_are_not_in_effect(
    filled: Run, script: Write, folder: Path
) -> None:
    with Store(folder) as store:
        settings = {"reach": "all", "packages": ["/home/me/.ssh"]}
        scope = Scope("theirs", "claude-code")
        store.append(scope.draft(Kind.SESSION, content="opened", metadata={"settings": settings}))
        store.append(scope.draft(Kind.CONVERSATION, role="user", content="hello"))
    cell = exec_cell("print(len(ms.search('toll roads')))")
    done = filled("resume", "theirs", "Go.", "--model", script(cell, "ok"))
    assert done.exit_code == 0 and observations(filled, "theirs")[0].startswith("0")
    assert "`scroll resume theirs --reach all" in done.stderr
    assert "SessionOptions(packages=('/home/me/.ssh',))" in done.stderr
    again = filled("resume", "theirs", "Go.", "--reach", "all", "--model", script(cell, "ok"))
    assert again.exit_code == 0 and "the session had --reach" not in again.stderr
    assert not any(text.startswith("0") for text in observations(filled, "theirs")[-2:])


def test_cells_ask_a_second_model(scroll: Run, script: Write, tmp_path: Path) -> None:
    cell = exec_cell("print(ask('How many?', ['a', 'b']), ask_many('Which?', ['x']))")
    model, second = script(cell, "done"), script("Two.", "This one.")
    result = scroll("run", "Go.", "--session", "asking", "--model", model, "--ask", second)
    assert result.exit_code == 0, result.stderr
    assert observations(scroll, "asking")[0] == "Two. ['This one.']"
    without = scroll("run", "Go.", "--session", "alone", "--model", script(cell, "done"))
    assert without.exit_code == 0 and "NameError" in observations(scroll, "alone")[0]
    nowhere = tmp_path / "nowhere"
    wrong = scroll(
        "run", "Go.", "--store", nowhere, "--model", script("x"), "--ask", "scripted:missing.json"
    )
    assert wrong.exit_code == 1 and not nowhere.exists()


def test_a_provider_that_is_busy_is_asked_again(scroll: Run) -> None:
    pytest.importorskip("pydantic_ai", reason="the extra `models` is not installed")
    from openai_server import streamed, text_deltas
    from provider_server import ProviderServer, fault

    busy = fault(429, {"error": {"message": "slow down"}}, {"Retry-After": "0"})
    with ProviderServer(busy, streamed(*text_deltas("Here I am."))) as server:
        result = scroll("run", "Go.", "--model", "openai:tiny", "--base-url", server.url + "/v1")
    assert (result.exit_code, result.stdout) == (0, "Here I am.\n"), result.stderr
    assert "slow down" in result.stderr and "trying again" in result.stderr


def test_an_imported_conversation_goes_on(
    scroll: Run, script: Write, tmp_path: Path, folder: Path
) -> None:
    file = tmp_path / "old.jsonl"
    file.write_text(json.dumps({"role": "user", "content": "The code is 4711.", "context": "work"}))
    assert scroll("import", file).exit_code == 0
    result = scroll("resume", "old", "What is it?", "--model", script("4711."))
    assert (result.exit_code, result.stdout) == (0, "4711.\n"), result.stderr
    with Store(folder) as store:
        fork(store, "old", 1, session_id="other").close()


def test_fork_continues_from_the_past_and_leaves_the_other_alone(
    scroll: Run, script: Write, folder: Path
) -> None:
    model = script(exec_cell("x = 1"), exec_cell("x = 2"), "two")
    scroll("run", "Go.", "--session", "a", "--model", model)
    with Store(folder) as store:
        second = [event for event in store.log.iterate(session_id="a") if event.kind == "request"][
            1
        ]
        before = store.log.last_seq()
    result = scroll("fork", "a", second.seq, "--as", "b")
    assert (result.exit_code, result.stdout) == (0, "b\n")
    scroll("resume", "b", "Print x.", "--model", script(exec_cell("print(x)"), "one"))
    assert observations(scroll, "b")[-2] == "1"
    with Store(folder) as store:
        assert store.log.tail(1, session_id="a")[0].seq <= before
    assert json.loads(scroll("fork", "a", second.seq, "--json").stdout)["parent"] == "a"
    assert "exists already" in scroll("fork", "a", second.seq, "--as", "b").stderr


def test_a_resumed_session_keeps_its_context(scroll: Run, script: Write) -> None:
    pytest.importorskip("scroll_evals", reason="scroll-evals is not installed")
    scroll("run", "Go.", "--session", "r", "--context", "react", "--model", script("one"))
    scroll("resume", "r", "More.", "--model", script("two"))
    rows = json.loads(scroll("sql", "SELECT max(seq) AS n FROM hist.events", "--json").stdout)[
        "rows"
    ]
    found = json.loads(scroll("explain", rows[0]["n"], "--json").stdout)
    assert found["context"] == "react" and found["verified"] is True


def test_explain_for_people_and_for_programs(scroll: Run, script: Write) -> None:
    cells = [
        exec_cell(f"print('{n}', 'word ' * 200)", headline=f"step {n} | s | n | ok")
        for n in range(14)
    ]
    scroll("run", "Count.", "--session", "e", "--window", 4000, "--model", script(*cells, "done"))
    rows = json.loads(scroll("sql", "SELECT max(seq) AS n FROM hist.events", "--json").stdout)[
        "rows"
    ]
    last = rows[0]["n"]
    shown = scroll("explain", last)
    assert shown.exit_code == 0
    assert "verified: these are the messages that were sent" in shown.stdout
    assert re.search(r"left by plan \d+: above the high mark", shown.stdout)
    assert re.search(r"\d+-\d+ +evicted +evict_old_steps +index: seq ", shown.stdout)
    assert "index of earlier work" in scroll("explain", last, "--full").stdout
    found: dict[str, Any] = json.loads(scroll("explain", last, "--json").stdout)
    assert found["verified"] and found["messages"][0]["role"] == "system"
    assert {one["how"] for one in found["departures"]} >= {"evicted"}
    evicted = next(one["seq"] for one in found["departures"] if one["how"] == "evicted")
    assert re.search(
        r"was later moved to the index by the rule evict_old_steps, in plan \d+: above the high mark "
        r"\([\d,]+ of [\d,]+ tokens before, [\d,]+ after\)",
        scroll("explain", evicted).stdout,
    )
    assert scroll("explain", 1).exit_code == 1
    assert scroll("explain", last + 1).exit_code == 1


def test_a_trajectory_is_written_once(scroll: Run, script: Write, tmp_path: Path) -> None:
    model = script(exec_cell("print('hi')", text="Looking."), "Answer.")
    scroll("run", "Go.", "--session", "t", "--task", "task-7", "--model", model)
    shown = scroll("read", "t", "--steps")
    assert shown.exit_code == 0 and "→ hi" in shown.stdout and "2 steps" in shown.stdout
    out = tmp_path / "steps.json"
    assert scroll("read", "t", "--steps", "--json", "--out", out).exit_code == 0
    found = json.loads(out.read_text())
    assert found["task_id"] == "task-7" and found["metrics"]["step_count"] == 2
    assert found["steps"][0]["action"] == {"tool": "exec", "args": {"source": "print('hi')"}}
    refused = scroll("read", "t", "--steps", "--json", "--out", out)
    assert refused.exit_code == 1 and "not overwritten" in refused.stderr


def test_a_missing_key_is_told_with_what_can_be_done_here(
    scroll: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pydantic_ai", reason="the models extra is not installed")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    refused = scroll("run", "Go.", "--model", "openai:gpt-5")
    assert refused.exit_code == 1 and "`OPENAI_API_KEY`" in refused.stderr
    assert "OpenAIProvider" not in refused.stderr
