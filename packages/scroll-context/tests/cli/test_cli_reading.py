"""search, show, sessions, stats, sql: data on stdout, nothing created, nothing changed."""

import contextlib
import hashlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scroll_context.events import Draft, Kind
from scroll_context.projects import project_task, remember_project
from scroll_context.store import Store


def lines(result: Any) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_search_finds_the_preference(filled: Any) -> None:
    result = filled("search", "we avoid toll roads")
    assert result.exit_code == 0
    line = "7  user  conversation  trip-1-ideas  2026-02-03T18:18:00  score "
    assert line in result.stdout
    hits = json.loads(filled("search", "toll roads", "--json", "-k", 2).stdout)
    assert len(hits) == 2
    unquoted = json.loads(filled("search", "toll", "roads", "--json", "-k", 2).stdout)
    assert unquoted == hits
    [preference] = [hit for hit in hits if hit["seq"] == 7]
    assert preference["content"].startswith("We will rent a car")
    assert {"session_id", "role", "kind", "created_at", "score", "snippet"} <= set(preference)


@pytest.mark.parametrize(
    ("args", "test"),
    [
        (["--session", "trip-2-booking"], lambda hit: hit["session_id"] == "trip-2-booking"),
        (["--role", "assistant"], lambda hit: hit["role"] == "assistant"),
        (["--role", "user", "--role", "system"], lambda hit: hit["role"] == "user"),
        (["--kind", "conversation"], lambda hit: hit["kind"] == "conversation"),
        (["--seq", "1-10"], lambda hit: hit["seq"] <= 10),
        (["--seq", "18"], lambda hit: hit["seq"] == 18),
        (
            ["--from", "2026-02-20", "--to", "2026-02-21"],
            lambda hit: hit["session_id"] == "trip-2-booking",
        ),
        (["--from", "2026-02-21T10:00:00+01:00"], lambda hit: hit["seq"] > 10),
    ],
)
def test_search_filters(filled: Any, args: list[str], test: Any) -> None:
    hits = json.loads(filled("search", "francs budget", "--json", "-k", 50, *args).stdout)
    assert hits
    assert all(test(hit) for hit in hits)


@pytest.mark.parametrize("args", [["--agent", "nobody"], ["--task", "none"], ["--kind", "cell"]])
def test_search_without_a_hit_says_so_and_is_no_error(filled: Any, args: list[str]) -> None:
    result = filled("search", "budget", *args)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing found for 'budget'" in result.stderr
    assert json.loads(filled("search", "budget", "--json", *args).stdout) == []


def test_show_one_and_a_range(filled: Any) -> None:
    result = filled("show", 5)
    assert result.exit_code == 0
    assert (
        "5  user  conversation  trip-1-ideas  2026-02-03T18:12:00\nI always fly economy."
        in result.stdout
    )
    events = lines(filled("show", "9-12", "--json"))
    assert [event["seq"] for event in events] == [9, 10, 11, 12]
    assert len(events[0]["chain"]) == 64
    assert [event["seq"] for event in lines(filled("show", "29-99", "--json"))] == [29, 30]


def test_show_what_is_not_there(filled: Any) -> None:
    for span in ("31", "0", "99-120"):
        result = filled("show", span)
        assert result.exit_code == 1
        assert "the log ends at 30" in result.stderr
    for span in ("x", "9-3", "-4", "1-", "1" * 30, "٣"):
        assert filled("show", "--", span).exit_code == 2


def test_long_texts_are_cut_and_full_prints_them(filled: Any, tmp_path: Path) -> None:
    medium, large = "medium " * 1_000, "large " * 20_000
    path = tmp_path / "long.jsonl"
    path.write_text(
        "".join(json.dumps({"role": "user", "content": text}) + "\n" for text in (medium, large))
    )
    filled("import", path)
    short = filled("show", "31-32").stdout
    assert len(short) < 6_000
    assert "more characters; --full prints them" in short
    assert "preview; --full prints the full payload" in short
    assert "120,000 bytes" in short
    full = filled("show", "31-32", "--full").stdout
    assert medium in full
    assert large in full
    events = lines(filled("show", "31-32", "--full", "--json"))
    assert [event["content"] for event in events] == [medium, large]
    assert len(lines(filled("show", 32, "--json"))[0]["content"]) < 3_000


def test_a_payload_that_is_missing_or_altered_is_told_with_its_preview(
    filled: Any, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"role": "user", "content": "precious " * 10_000}) + "\n")
    filled("import", path)
    with Store(folder) as store:
        payload = store.log.get(31).payload
        assert payload is not None
        file = store.payloads.path(payload.digest)
    whole = file.read_bytes()
    for damage, said in (("alter", "no longer matches"), ("remove", "is missing")):
        if damage == "alter":
            file.write_bytes(whole[:-1] + b"!")
        else:
            file.unlink()
        result = filled("show", 31, "--full")
        assert result.exit_code == 1
        assert said in result.stderr
        assert "precious precious" in result.stdout
        assert filled("show", 31).exit_code == 0
        result = filled("read", "long")
        assert (result.exit_code, said in result.stderr) == (0, True)
        assert "precious precious" in result.stdout
        assert filled("read", "long", "--steps").exit_code == 0
        result = filled("verify")
        assert result.exit_code == 1
        assert f"bad: seq 31: payload {payload.digest[:12]}… {said}" in result.stdout
    file.write_bytes(whole)
    assert filled("verify").exit_code == 0


def test_control_characters_of_stored_text_do_not_reach_a_terminal(
    filled: Any, tmp_path: Path
) -> None:
    path = tmp_path / "evil.jsonl"
    evil = "\x1b]0;owned\x07 zebra \x1b[2J\x9b31m"
    path.write_text(
        json.dumps({"role": "user", "content": evil, "session_id": "\x1b[1m", "headline": evil})
        + "\n"
    )
    filled("import", path)
    for args in (
        ["show", 31],
        ["search", "zebra"],
        ["sessions"],
        ["sql", "SELECT content FROM hist.events"],
    ):
        text = filled(*args).stdout
        assert "zebra" in text or args == ["sessions"]
        assert "\\x1b" in text
        assert not any(character in text for character in "\x1b\x07\x9b")
    assert lines(filled("show", 31, "--json"))[0]["content"] == evil


def test_json_escapes_whatever_a_terminal_would_obey(scroll: Any, tmp_path: Path) -> None:
    evil = "zebra \x7f \x9b31m \u202e \u2028 \U000e0041 naïve 漢字 👩‍💻"
    file = tmp_path / "evil.jsonl"
    file.write_text(json.dumps({"role": "user", "content": evil, "session_id": "s\x9bx"}))
    assert scroll("import", file).exit_code == 0
    commands = (
        ["show", "1"],
        ["search", "zebra"],
        ["sessions"],
        ["stats"],
        ["sql", "SELECT content FROM hist.events"],
    )
    for command in commands:
        result = scroll(*command, "--json")
        assert not any(
            character in result.stdout for character in "\x7f\x9b\u202e\u2028\U000e0041"
        ), command
    [row] = json.loads(scroll("sql", "SELECT content FROM hist.events", "--json").stdout)["rows"]
    assert row["content"] == evil


def test_sessions(filled: Any) -> None:
    text = filled("sessions").stdout.splitlines()
    assert text[0].split() == ["session", "events", "seqs", "first", "last", "title"]
    assert text[1].split()[:3] == ["trip-1-ideas", "10", "1-10"]
    assert text[1].endswith("  I want to take my sister Nadia to Portugal in May for her fortieth…")
    found = json.loads(filled("sessions", "--json").stdout)
    assert [info["events"] for info in found] == [10, 10, 10]
    assert found[2]["title"].startswith("In Lisbon I would like to stay in Graça again")


def test_show_a_session(filled: Any) -> None:
    assert [
        event["seq"] for event in lines(filled("show", "--session", "trip-2-booking", "--json"))
    ] == list(range(11, 21))
    assert [
        event["seq"]
        for event in lines(filled("show", "9-12", "--session", "trip-2-booking", "--json"))
    ] == [
        11,
        12,
    ]
    missing = filled("show", "--session", "nobody")
    assert missing.exit_code == 1 and "there is no session 'nobody'" in missing.stderr
    assert filled("show").exit_code == 2


def test_stats(filled: Any, folder: Path) -> None:
    found = json.loads(filled("stats", "--json").stdout)
    assert (found["events"], found["sessions"], found["kinds"]) == (30, 3, {"conversation": 30})
    assert found["indexed_seq"] == 30
    with Store(folder) as store:
        assert found["head"] == store.log.get(30).chain.hex()
    assert f"head      {found['head']}" in filled("stats").stdout


def test_sql(filled: Any) -> None:
    query = "SELECT role, count(*) AS n FROM hist.conversation_history GROUP BY role ORDER BY role"
    assert [line.split() for line in filled("sql", query).stdout.splitlines()] == [
        ["role", "n"],
        ["assistant", "15"],
        ["user", "15"],
    ]
    found = json.loads(filled("sql", query, "--json", "--session", "trip-1-ideas").stdout)
    assert found == {
        "columns": ["role", "n"],
        "rows": [{"role": "assistant", "n": 5}, {"role": "user", "n": 5}],
        "note": "",
    }


def test_sql_that_is_refused_or_limited(filled: Any) -> None:
    for query in (
        "DELETE FROM hist.events",
        "SELECT * FROM sqlite_master",
        "SELECT printf('x')",
        "SELECT",
        "PRAGMA user_version",
    ):
        result = filled("sql", query)
        assert result.exit_code == 1
        assert result.stderr.startswith("scroll: ")
        assert len(result.stderr.splitlines()) == 1
    result = filled("sql", "SELECT a.seq FROM hist.events a, hist.events b, hist.events c")
    assert result.exit_code == 0
    assert "only the first 1,000 rows" in result.stderr


@pytest.mark.parametrize(
    "command", [["search", "x"], ["show", "1"], ["sessions"], ["stats"], ["sql", "SELECT 1"]]
)
def test_reading_never_creates_a_store(scroll: Any, folder: Path, command: list[str]) -> None:
    result = scroll(*command)
    assert result.exit_code == 1
    assert "there is no store in" in result.stderr
    assert not folder.exists()


def test_reading_leaves_the_log_as_it_is(filled: Any, folder: Path) -> None:
    log = folder / "log.db"
    before = hashlib.sha256(log.read_bytes()).digest()
    for command in (["search", "budget"], ["show", "1-30"], ["sessions"], ["stats"], ["verify"]):
        assert filled(*command).exit_code == 0
    assert hashlib.sha256(log.read_bytes()).digest() == before


@pytest.mark.parametrize("unseen", [-1, 1e9])
def test_bars_are_for_terminals_and_for_work_that_takes_its_time(
    filled: Any, folder: Path, trip: Path, unseen: float
) -> None:
    code = f"from scroll_context.cli import main, output; output.UNSEEN = {unseen}; main.main()"
    for command, label in (
        (["verify"], "verifying"),
        (["import", str(trip)], "importing"),
        (["repair", "--index"], "indexing"),
    ):
        terminal, end = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-c", code, *command],
            env={**os.environ, "SCROLL_STORE": str(folder)},
            stdout=subprocess.PIPE,
            stderr=end,
        ) as started:
            os.close(end)
            assert started.stdout is not None
            out = started.stdout.read()
            shown = everything_on(terminal)
        os.close(terminal)
        assert started.returncode == 0
        assert (label in shown) is (unseen < 0)
        assert b"\x1b" not in out
        assert filled(*command).stderr == ""


def on_terminal(process: Any, *command: str, columns: int = 80, **variables: str) -> str:
    """What a command shows on a terminal of so many columns."""
    terminal, end = pty.openpty()
    prefix = (
        "env",
        "-u",
        "NO_COLOR",
        "-u",
        "TERM",
        f"COLUMNS={columns}",
        *(f"{name}={value}" for name, value in variables.items()),
    )
    with process(*command, prefix=prefix, stdout=end):
        os.close(end)
        shown = everything_on(terminal)
    os.close(terminal)
    return shown.replace("\r\n", "\n")


def test_tables_on_narrow_terminals_lose_nothing_but_the_end_of_long_texts(
    filled: Any, process: Any
) -> None:
    query = "SELECT seq, content FROM hist.conversation_history LIMIT 4"
    cut = on_terminal(process, "sql", query, columns=30, NO_COLOR="1").splitlines()
    assert len(cut) == 5 and all(len(line) <= 30 and line.endswith("…") for line in cut[1:])
    assert "…" not in filled("sql", query).stdout


@pytest.mark.parametrize("columns", [40, 32])
def test_a_table_that_is_too_wide_becomes_blocks(filled: Any, process: Any, columns: int) -> None:
    shown = on_terminal(process, "sessions", columns=columns, NO_COLOR="1")
    assert max(map(len, shown.splitlines())) <= columns
    assert shown.splitlines()[:3] == ["trip-1-ideas", "  events  10", "  seqs    1-10"]
    said = " ".join(shown.split())
    assert "title I want to take my sister Nadia to Portugal in May for her" in said


def test_hits_stand_out_and_words_are_not_broken(filled: Any, process: Any) -> None:
    search = ("search", "rent toll road", "--role", "user", "-k", "1")
    shown = on_terminal(process, *search, columns=40, TERM="xterm")
    marked = re.findall(r"\x1b\[33m\x1b\[1m(\w+)\x1b\[0m", shown)
    assert {"toll", "roads"} <= set(marked)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()[1:]
    assert all(line.startswith("    ") and len(line) <= 40 for line in plain)
    assert " ".join(" ".join(plain).split()) in " ".join(filled("show", 7).stdout.split())
    for variables in ({"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}):
        assert "\x1b" not in on_terminal(process, "search", "toll", **variables)


SAID = {
    "user": "# Not a heading\n<script>alert(1)</script> [x](javascript:alert(1))\x1b[2J",
    "assistant": "Here:\n```python\n# a comment\nprint('```')\n```\n## user · forged",
}


def test_read_a_session_as_markdown_and_as_a_page(
    scroll: Any, folder: Path, process: Any, tmp_path: Path
) -> None:
    file = tmp_path / "talk.jsonl"
    messages = [{"role": role, "content": text, "session_id": "r"} for role, text in SAID.items()]
    file.write_text("".join(json.dumps(message) + "\n" for message in messages))
    scroll("import", file)
    text = scroll("read", "r").stdout
    assert re.findall("^## .*", text, re.MULTILINE) == [
        line for line in text.splitlines() if re.match(r"## (user|assistant) · \d{4}-", line)
    ]
    assert (
        "### Not a heading" in text and "#### user · forged" in text and "\n# a comment\n" in text
    )
    assert "\x1b" not in text and "\\x1b[2J" in text
    page = scroll("read", "r", "--html").stdout
    assert "<script" not in page and "&lt;script&gt;" in page and 'href="javascript' not in page
    assert "default-src 'none'" in page and page.count("<section") == 2
    assert scroll("read", "r", "--html", "-o", tmp_path / "talk.html").exit_code == 0
    assert (tmp_path / "talk.html").read_text() == page
    shown = on_terminal(process, "read", "r", columns=40, TERM="xterm")
    assert "\x1b[2J" not in shown and "\x1b]8" not in shown and "Not a heading" in shown
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in shown.splitlines()) <= 40
    missing = scroll("read", "nobody")
    assert missing.exit_code == 1 and "`scroll sessions" in missing.stderr


def test_no_color_is_obeyed(filled: Any, process: Any) -> None:
    assert "\x1b[1m" in on_terminal(process, "show", "1")
    assert "\x1b" not in on_terminal(process, "show", "1", NO_COLOR="1")


def everything_on(terminal: int) -> str:
    shown = b""
    with contextlib.suppress(OSError):  # the other end of the terminal was closed
        while piece := os.read(terminal, 65536):
            shown += piece
    return shown.decode()


def test_a_query_on_another_table_is_told_which_there_are(filled: Any) -> None:
    refused = filled("sql", "SELECT * FROM messages")
    assert refused.exit_code == 1
    assert "Tables: hist.conversation_history and hist.events. Columns: seq, " in refused.stderr


def test_a_session_is_found_by_any_unique_beginning_of_its_name(filled: Any) -> None:
    assert filled("read", "trip-2").stdout == filled("read", "trip-2-booking").stdout
    assert filled("show", "--session", "trip-2").exit_code == 0
    several = filled("read", "trip")
    assert several.exit_code == 1
    assert "several sessions begin with 'trip': trip-1-ideas, trip-2-booking" in several.stderr
    found = json.loads(filled("search", "allergy", "--session", "trip-2", "--json").stdout)
    assert {hit["session_id"] for hit in found} == {"trip-2-booking"}
    kept = filled("erase", "--session", "trip-2", "--dry-run", "--json")
    assert json.loads(kept.stdout)["asked"] == [], "sessions to erase need their full names"


def test_sessions_can_be_narrowed(filled: Any, folder: Path) -> None:
    project = folder.parent / "garden"
    with Store(folder) as store:
        store.append(
            Draft(
                session_id="shed",
                task_id=project_task(project),
                role="user",
                content="Build a shed",
            )
        )

    def names(*options: str) -> list[str]:
        rows = json.loads(filled("sessions", "--json", *options).stdout)
        return [row["session_id"] for row in rows]

    everything = ["trip-1-ideas", "trip-2-booking", "trip-3-details", "shed"]
    assert names() == everything
    assert names("--limit", "2") == everything[-2:]
    assert names("--project", "garden") == names("--project", str(project)) == ["shed"]
    assert names("--from", "yesterday") == names("--from", "2h") == ["shed"]
    assert names("--from", "2026-02-10", "--to", "2026-02") == ["trip-2-booking"]
    assert "no session matches" in filled("sessions", "--to", "1999").stderr
    unknown = filled("sessions", "--project", "attic")
    assert unknown.exit_code == 1 and "there is no project 'attic'" in unknown.stderr
    assert filled("sessions", "--project", "garden", "--task", "x").exit_code == 2


def test_a_session_keeps_the_title_of_its_source(scroll: Any, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    messages = [{"role": "user", "content": "Where do we stay in Porto?"}]
    path.write_text(json.dumps({"title": "Spring\nplans", "messages": messages}))
    scroll("import", path)
    assert [row["title"] for row in json.loads(scroll("sessions", "--json").stdout)] == [
        "Spring plans"
    ]


def test_read_as_json(filled: Any) -> None:
    document = json.loads(filled("read", "trip-2", "--json").stdout)
    assert document["session_id"] == "trip-2-booking" and len(document["messages"]) == 10
    assert document["messages"][0]["seq"] == 11 and document["messages"][0]["role"] == "user"
    assert filled("read", "trip-2", "--json", "--html").exit_code == 2


EDITS: dict[str, dict[str, Any]] = {
    "Edit": {"file_path": "a.py", "old_string": "x = 1\ny = 2", "new_string": "x = 3\ny = 2"},
    "edit": {"filePath": "a.py", "oldString": "x = 1", "newString": "x = 3"},
    "MultiEdit": {"file_path": "a.py", "edits": [{"old_string": "x = 1", "new_string": "x = 3"}]},
    "apply_patch": {"input": "*** Begin Patch\n*** Update File: a.py\n-x = 1\n+x = 3\n"},
}


@pytest.mark.parametrize("name", EDITS)
def test_edits_are_shown_as_diffs(scroll: Any, folder: Path, name: str) -> None:
    with Store(folder, create=True) as store:
        call = json.dumps(EDITS[name])
        store.append(Draft(session_id="s", kind=Kind.TOOL_CALL, name=name, content=call))
        store.append(Draft(session_id="s", kind=Kind.TOOL_CALL, name="ls", content='{"path": "."}'))
    for shown in (scroll("show", 1).stdout, scroll("read", "s", "--cells").stdout):
        assert "\n-x = 1\n" in shown and "\n+x = 3\n" in shown and "old_string" not in shown
    assert json.loads(scroll("show", 1, "--json").stdout)["content"] == call
    assert '{"path": "."}' in scroll("show", 2).stdout


def test_a_project_is_read_with_the_tasks_that_it_had_before(
    filled: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder.parent / "state"))
    project = folder.parent / "garden"
    part = project / "api"
    part.mkdir(parents=True)
    # Before the folder was a repository, its subfolder was a project by itself.
    earlier = project_task(part)
    (project / ".git").mkdir()
    (project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    remember_project(part)
    with Store(folder) as store:
        for name, task in (("shed", project_task(project)), ("pond", earlier)):
            content = f"The {name} has a kingfisher on its weathervane."
            store.append(Draft(session_id=name, task_id=task, role="user", content=content))

    def names(*words: str) -> set[str]:
        rows = json.loads(filled(*words, "--json").stdout)
        return {row["session_id"] for row in rows}

    for named in (str(project), str(part), "garden"):
        narrowing = ("--project", named)
        assert names("sessions", *narrowing) == {"shed", "pond"}
        assert names("search", "kingfisher", *narrowing) == {"shed", "pond"}
    query = "SELECT DISTINCT session_id FROM hist.events"
    document = json.loads(filled("sql", query, "--project", "garden", "--json").stdout)
    assert {row["session_id"] for row in document["rows"]} == {"shed", "pond"}
    prompt = "Which weathervane has the kingfisher?"
    offer = json.loads(filled("brief", prompt, "--project", "garden", "--json").stdout)
    assert {row["session_id"] for row in offer["quotations"]} == {"shed", "pond"}
    plan = json.loads(filled("erase", "--project", "garden", "--dry-run", "--json").stdout)
    assert len(plan["asked"]) == 2
