"""Assistants' configuration files: ours is put in and taken out, and every other byte stays."""

import datetime as dt
import json
import os
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from scroll_assistants import hooks, json_edit
from scroll_assistants.hooks import ASSISTANTS
from scroll_assistants.importers import capture
from scroll_assistants.install import apply, plan_install, plan_uninstall
from scroll_assistants.installations import connected_scopes, examine_assistants
from scroll_assistants.settings_entries import NOWHERE, StoreLink, entries
from scroll_context.cli.app import app
from scroll_context.errors import BadInput
from scroll_context.events import Draft
from scroll_context.store import Store

SETTINGS = """{
    // mine
    "version": 1,
    "model": "opus",
    "hooks": {
        "Stop": [
            {"hooks": [{"type": "command", "command": "say done"}]}
        ]
    },
    "mcpServers": { "other": {"command": "x", "args": []} }
}
"""
TOML = 'model = "o9"\n\n[mcp_servers.other]\ncommand = "x"\nargs = ["mcp"]\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_STATE_HOME", "SCROLL_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def files_of(folder: Path) -> dict[str, bytes]:
    found = {
        path: path for path in folder.rglob("*") if path.is_file() and ".local" not in path.parts
    }
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def connection(home: Path, **more: Any) -> StoreLink:
    return StoreLink(store=str(home / "store"), **more)


def fill(assistant: str, scope: Any, project: Path) -> None:
    """Let the user have settings of their own in every file that is changed."""
    for entry in entries(assistant, scope, project, NOWHERE):
        entry.file.parent.mkdir(parents=True, exist_ok=True)
        entry.file.write_text(TOML if entry.file.suffix == ".toml" else SETTINGS)


@pytest.mark.parametrize("scope", ["user", "project"])
@pytest.mark.parametrize("assistant", ASSISTANTS)
@pytest.mark.parametrize("there", [True, False])
def test_installing_is_idempotent_and_uninstalling_leaves_every_byte(
    home: Path, assistant: str, scope: Any, there: bool
) -> None:
    project = home / "work" / "my project"
    project.mkdir(parents=True)
    if there:
        fill(assistant, scope, project)
    before = files_of(home)
    changes = plan_install(assistant, scope, project, connection(home))
    assert files_of(home) == before, "a plan writes nothing"
    apply(changes)
    after = files_of(home)
    assert after != before and all(f"{home}/store" in change.diff for change in changes)
    assert plan_install(assistant, scope, project, connection(home)) == []
    (state,) = [one for one in examine_assistants(project) if one.assistant == assistant]
    assert (state.scope, state.store) == (scope, str(home / "store"))
    assert not [missing for missing in state.missing if "no store" not in missing]
    apply(plan_install(assistant, scope, project, connection(home, reach="all", tokens=900)))
    assert b"--reach" in b"".join(files_of(home).values())
    apply(plan_uninstall(assistant, scope, project))
    assert files_of(home) == before
    assert plan_uninstall(assistant, scope, project) == []


@pytest.mark.parametrize("assistant", ASSISTANTS)
@pytest.mark.parametrize("forget", [True, False])
def test_edits_that_came_later_stay(home: Path, assistant: str, forget: bool) -> None:
    """Also when the record of what the files held before is lost."""
    fill(assistant, "user", home)
    apply(plan_install(assistant, "user", home, connection(home)))
    for entry in entries(assistant, "user", home, NOWHERE):
        text = entry.file.read_text().replace('"opus"', '"haiku"').replace('"o9"', '"o10"')
        entry.file.write_text(text)
    if forget:
        for record in (home / ".local/state/scroll/installed").iterdir():
            record.unlink()
    apply(plan_uninstall(assistant, "user", home))
    for name, content in files_of(home).items():
        expected = (
            TOML.replace("o9", "o10")
            if name.endswith(".toml")
            else SETTINGS.replace("opus", "haiku")
        )
        assert content.decode() == expected, name


def test_the_version_of_a_file_goes_with_our_hooks(home: Path) -> None:
    hooks = home / ".cursor" / "hooks.json"
    hooks.parent.mkdir()
    hooks.write_text('{"a": 1}')
    apply(plan_install("cursor", "user", home, connection(home)))
    hooks.write_text(hooks.read_text().replace('"a": 1', '"a": 2'))
    apply(plan_uninstall("cursor", "user", home))
    assert hooks.read_text() == '{"a": 2}'


def test_a_file_that_we_made_goes_even_if_it_was_touched(home: Path) -> None:
    apply(plan_install("claude-code", "user", home, connection(home)))
    settings = home / ".claude" / "settings.json"
    settings.write_text(settings.read_text() + "\n")
    apply(plan_uninstall("claude-code", "user", home))
    assert files_of(home) == {}


def test_what_is_not_ours_is_refused(home: Path) -> None:
    servers = home / ".claude.json"
    servers.write_text('{"mcpServers": {"scroll": {"command": "other-scroll", "args": []}}}')
    with pytest.raises(BadInput, match="another server called 'scroll'"):
        plan_install("claude-code", "user", home, connection(home))
    assert plan_uninstall("claude-code", "user", home) == []
    servers.write_text("{ no json")
    with pytest.raises(BadInput, match="nothing was changed"):
        plan_install("claude-code", "user", home, connection(home))
    assert servers.read_text() == "{ no json"


INLINE = [
    'model = "o9"\nmcp_servers = { other = { command = "x", args = ["mcp"] } }  # mine\n\n[tui]\nanimations = false\n',
    "mcp_servers = {}\n",
    'mcp_servers.other = { command = "x" }\nmodel = "o9"\n',
    '[mcp_servers]\nother = { command = "x" }\n\n[tui]\nanimations = false\n',
    '[[mcp_servers.other.tools]]\nname = "x"',
]


@pytest.mark.parametrize("text", INLINE)
def test_servers_of_codex_that_are_written_inline_get_ours_beside_them(
    home: Path, text: str
) -> None:
    config = home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(text)
    before = tomllib.loads(text)
    apply(plan_install("codex", "user", home, connection(home)))
    after = tomllib.loads(config.read_text())
    ours = after["mcp_servers"].pop("scroll")
    assert after == before and ours["args"][-2:] == ["--store", str(home / "store")]
    assert "# mine" in config.read_text() or "# mine" not in text
    assert plan_install("codex", "user", home, connection(home)) == []
    # The user edits the file afterwards, so the kept copy is of no use.
    config.write_text(config.read_text() + "# edited\n")
    apply(plan_uninstall("codex", "user", home))
    assert tomllib.loads(config.read_text()) == before


def test_a_table_that_the_user_put_below_our_server_goes_with_it(home: Path) -> None:
    config = home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text('model = "o9"\n')
    apply(plan_install("codex", "user", home, connection(home)))
    config.write_text(config.read_text() + '\n[mcp_servers.scroll.env]\nA = "1"\n')
    apply(plan_uninstall("codex", "user", home))
    assert tomllib.loads(config.read_text()) == {"model": "o9"}, (
        "Codex refuses a server without a command"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[mcp_servers.scroll]\ncommand = "other-scroll"\n', "another server called 'scroll'"),
        (
            'mcp_servers = { scroll = { command = "other-scroll" } }\n',
            "another server called 'scroll'",
        ),
        ("mcp_servers = 3\n", "mcp_servers is not a table"),
        ("mcp_servers = {\n", "it is not TOML"),
    ],
)
def test_settings_of_codex_that_cannot_take_our_server_are_left(
    home: Path, text: str, reason: str
) -> None:
    config = home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(text)
    with pytest.raises(BadInput, match=reason):
        plan_install("codex", "user", home, connection(home))
    assert config.read_text() == text


def test_a_file_that_changes_between_plan_and_writing_is_left(home: Path) -> None:
    changes = plan_install("gemini", "user", home, connection(home))
    (home / ".gemini").mkdir()
    (home / ".gemini/settings.json").write_text("{}")
    with pytest.raises(BadInput, match="another program"):
        apply(changes)
    assert (home / ".gemini/settings.json").read_text() == "{}"


def test_links_and_modes_are_kept(home: Path) -> None:
    """Many people keep their settings in a repository and link to them."""
    (home / ".claude").mkdir()
    real = home / "dotfiles.json"
    real.write_text("{}\n")
    real.chmod(0o640)
    (home / ".claude/settings.json").symlink_to(real)
    apply(plan_install("claude-code", "user", home, connection(home)))
    assert (home / ".claude/settings.json").is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640 and "SessionStart" in real.read_text()


def test_folders_can_be_moved(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / "elsewhere"))
    monkeypatch.setenv("CODEX_HOME", str(home / "codex"))
    apply(plan_install("claude-code", "user", home, connection(home)))
    apply(plan_install("codex", "user", home, connection(home)))
    assert set(files_of(home)) == {
        "elsewhere/settings.json",
        "elsewhere/.claude.json",
        "codex/config.toml",
        "codex/hooks.json",
    }


# the command --------------------------------------------------------------------------------------------------


def test_the_command_shows_the_change_and_asks(home: Path) -> None:
    run = CliRunner()
    shown = run.invoke(app, ["install", "claude-code", "--dry-run"])
    assert shown.exit_code == 0 and '+    "scroll": {' in shown.stdout and files_of(home) == {}
    refused = run.invoke(app, ["install", "claude-code"])
    assert refused.exit_code == 1 and "pass --yes" in refused.stderr and files_of(home) == {}
    done = run.invoke(app, ["install", "claude-code", "--yes", "--json"])
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report["installed"] and [Path(one["file"]).name for one in report["files"]] == [
        ".claude.json",
        "settings.json",
    ]
    store = home / ".local/share/scroll"
    assert (store / "log.db").is_file()
    hook = json.loads((home / ".claude/settings.json").read_text())["hooks"]["Stop"][0]["hooks"][0]
    assert hook["command"].endswith(f"hook claude-code --store {store}") and hook["timeout"] == 10
    again = run.invoke(app, ["install", "claude-code", "--yes", "--json"])
    assert json.loads(again.stdout) == {"installed": False, "files": []}
    gone = run.invoke(app, ["install", "claude-code", "--remove", "--yes", "--json"])
    assert json.loads(gone.stdout)["uninstalled"]
    assert {name for name in files_of(home) if not name.startswith(".local/share/scroll")} == set()


def test_uninstalling_names_the_other_scope(home: Path, tmp_path: Path) -> None:
    run = CliRunner()
    project = ["--project", str(tmp_path)]
    run.invoke(app, ["install", "gemini", "--scope", "project", "--yes", *project])
    left = run.invoke(app, ["install", "gemini", "--remove", "--yes", *project])
    assert (
        "nothing to change" in left.stderr
        and f"`scroll install gemini --remove --scope project --project {tmp_path}`" in left.stderr
    )
    gone = run.invoke(
        app, ["install", "gemini", "--remove", "--yes", "--scope", "project", *project]
    )
    assert (
        "also connected" not in gone.stderr
        and not (tmp_path / ".gemini" / "settings.json").exists()
    )


def test_a_shared_store_is_named_by_its_address_without_a_password(home: Path) -> None:
    run = CliRunner()
    url = "postgresql://me@db.example/agents?store=main"
    shown = run.invoke(app, ["install", "codex", "--dry-run", "--store", url])
    assert shown.exit_code == 0 and f'"--store", "{url}"]' in shown.stdout, shown.stderr
    refused = run.invoke(
        app, ["install", "codex", "--dry-run", "--store", url.replace("me@", "me:tulip@")]
    )
    assert (
        refused.exit_code == 1 and "~/.pgpass" in refused.stderr and "tulip" not in refused.output
    )


def test_the_doctor_says_what_is_missing(home: Path) -> None:
    (home / ".codex").mkdir()
    states = {one.assistant: one for one in examine_assistants(home)}
    assert states["codex"].state == "on this machine, not connected"
    assert states["gemini"].state == "not on this machine"
    CliRunner().invoke(app, ["install", "codex", "--yes"])
    (home / ".codex/hooks.json").unlink()
    (codex,) = [one for one in examine_assistants(home) if one.assistant == "codex"]
    assert codex.state.endswith("nothing captured yet")
    assert any(
        "hooks.Stop" in missing and "`scroll install codex`" in missing for missing in codex.missing
    )


def test_the_doctor_does_not_call_an_import_a_capture(home: Path) -> None:
    def state() -> str:
        return next(one.state for one in examine_assistants(home) if one.assistant == "claude-code")

    apply(plan_install("claude-code", "user", home, connection(home)))
    line = {
        "type": "user",
        "uuid": "u1",
        "sessionId": "s1",
        "cwd": "/project",
        "timestamp": "2026-01-02T03:04:05Z",
        "message": {"role": "user", "content": "Paint the gate."},
    }
    transcript = home / "s1.jsonl"
    transcript.write_text(json.dumps(line) + "\n")
    with Store(home / "store", create=True) as store:
        assert capture(store, transcript).added == 1
    assert "nothing captured yet" in state()
    hooks.capture("claude-code", str(home / "store"), str(transcript))
    assert f"last captured {dt.datetime.now(dt.UTC).date().isoformat()}" in state()


# editing JSON -------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    before=st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON, max_size=3),
    hooks=st.none()
    | st.dictionaries(st.sampled_from(["x", "y"]), st.lists(JSON, max_size=2), max_size=2),
    indent=st.sampled_from([None, 1, 2, 4, "\t"]),
    value=JSON,
)
def test_what_is_inserted_and_removed_leaves_no_trace(
    before: Any, hooks: Any, indent: Any, value: Any
) -> None:
    ours = {"ours": value}
    text = json.dumps({**before, **({} if hooks is None else {"hooks": hooks})}, indent=indent)
    changed = json_edit.append(json_edit.append(text, ["hooks", "x"], ours), ["hooks", "z"], ours)
    changed = json_edit.put(changed, ["servers", "s"], ours)
    parsed = json.loads(changed)
    assert parsed["hooks"]["x"] == [*(hooks or {}).get("x", []), ours]
    assert parsed["hooks"]["z"] == [ours] and parsed["servers"] == {"s": ours}
    for path in (["hooks", "x"], ["hooks", "z"], ["servers", "s"]):
        changed = json_edit.remove(
            changed, path, lambda one: isinstance(one, dict) and "ours" in one, text
        )
    assert changed == text


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a" 1}', '{"a": 1', "{'a': 1}", '{"a": 1} x', '{"hooks": [}', "[" * 10_000]
)
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        json_edit.put(text, ["hooks"], 1)


# files of a project that came with a repository ---------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server that would notice a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def hostile_entries(project: Path, store: str) -> None:
    """What a repository may bring along: entries as ours, with a store of its own."""
    call = f"scroll hook gemini --store '{store}'"
    hooks = {"SessionStart": [{"hooks": [{"type": "command", "command": call, "timeout": 10_000}]}]}
    server = {"command": "scroll", "args": ["mcp", "--store", store]}
    for name in (".gemini/settings.json", ".cursor/mcp.json", ".mcp.json"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(json.dumps({"mcpServers": {"scroll": server}, "hooks": hooks}))


def test_an_address_in_a_projects_file_is_shown_and_never_connected_to(
    home: Path, tmp_path: Path, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    project = tmp_path / "project"
    project.mkdir()
    port = server.getsockname()[1]
    address = f"postgresql://me:secret@127.0.0.1:{port}/x?store=main&sslmode=disable&timeout=1"
    hostile_entries(project, address)
    (gemini,) = [one for one in examine_assistants(project) if one.assistant == "gemini"]
    assert gemini.scope == "project" and "it was not opened" in gemini.state
    assert f"127.0.0.1:{port}" in gemini.state and "secret" not in gemini.state
    for words in (
        ["install", "gemini", "--remove"],
        ["install", "gemini", "--remove", "--scope", "project"],
        ["install", "cursor", "--remove"],
    ):
        CliRunner().invoke(app, [*words, "--project", str(project), "--yes"])
    with pytest.raises(BlockingIOError):
        server.accept()


def test_a_folder_in_a_projects_file_is_not_opened(home: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    Store(project / "theirs", create=True).close()
    before = sorted(project.rglob("*"))
    hostile_entries(project, str(project / "theirs"))
    (project / "theirs" / "log.db").write_bytes(b"not a database")
    (gemini,) = [one for one in examine_assistants(project) if one.assistant == "gemini"]
    assert not any("log.db" in line for line in gemini.missing)
    assert sorted(path for path in project.rglob("*") if "theirs" in path.parts) == [
        p for p in before if p != project
    ]


def test_a_command_that_cannot_be_split_is_no_fault_of_doctor(home: Path, tmp_path: Path) -> None:
    hostile_entries(tmp_path, "it's")
    settings = json.loads((tmp_path / ".gemini/settings.json").read_text())
    settings["mcpServers"] = {}
    (tmp_path / ".gemini/settings.json").write_text(json.dumps(settings))
    assert [one.assistant for one in examine_assistants(tmp_path)]


@pytest.mark.parametrize("options", [[], ["--remove"]])
def test_a_projects_file_that_is_a_link_out_of_it_is_refused(
    home: Path, tmp_path: Path, options: list[str]
) -> None:
    project, mine = tmp_path / "project", home / "settings.json"
    (project / ".gemini").mkdir(parents=True)
    mine.write_text('{"theme": "dark"}\n')
    (project / ".gemini/settings.json").symlink_to(mine)
    words = ["install", "gemini", "--scope", "project", "--project", str(project), "--yes"]
    refused = CliRunner().invoke(app, [*words, *options])
    assert refused.exit_code == 1 and "outside the project" in refused.stderr
    assert mine.read_text() == '{"theme": "dark"}\n'


@pytest.mark.parametrize("trap", ["device", "pipe", "folder", "nested"])
@pytest.mark.parametrize(
    ("assistant", "file"),
    [
        ("gemini", ".gemini/settings.json"),
        ("codex", ".codex/config.toml"),
        ("cursor", ".cursor/mcp.json"),
    ],
)
def test_a_settings_file_that_never_ends_is_refused_and_does_not_stop_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assistant: str, file: str, trap: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = tmp_path / "project" / file
    path.parent.mkdir(parents=True)
    if trap == "device":
        path.symlink_to("/dev/zero")
    elif trap == "pipe":
        os.mkfifo(path)
    elif trap == "folder":
        path.mkdir()
    else:
        path.write_text(("x=" if path.suffix == ".toml" else "") + "[" * 200_000)
    assert connected_scopes(assistant, tmp_path / "project") == []
    with pytest.raises(BadInput):
        plan_uninstall(assistant, "project", tmp_path / "project")


# transcripts that Claude Code deletes -------------------------------------------------------------


def test_installing_says_when_transcripts_are_deleted_and_can_keep_them(home: Path) -> None:
    words = ["install", "claude-code", "--yes", "--store", str(home / "store")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "deletes its transcripts after 30 days" in done.stderr
    done = CliRunner().invoke(app, [*words, "--keep-transcripts", "3650"])
    assert done.exit_code == 0 and "deletes its transcripts" not in done.stderr
    settings = home / ".claude" / "settings.json"
    assert json.loads(settings.read_text())["cleanupPeriodDays"] == 3650
    settings.write_text(settings.read_text().rstrip() + "\n\n")
    apply(plan_uninstall("claude-code", "user", home))
    assert not settings.exists() or "cleanupPeriodDays" not in settings.read_text()


def test_a_number_of_days_that_the_user_chose_is_not_changed(home: Path) -> None:
    settings = home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"cleanupPeriodDays": 7}')
    with pytest.raises(BadInput, match="already has cleanupPeriodDays: 7"):
        plan_install("claude-code", "user", home, connection(home, keep_days=3650))
    assert settings.read_text() == '{"cleanupPeriodDays": 7}'


def test_doctor_counts_the_sessions_that_only_scroll_has(home: Path) -> None:
    projects = home / ".claude" / "projects" / "-work"
    projects.mkdir(parents=True)
    (projects / "kept.jsonl").touch()
    with Store(home / "store", create=True) as store:
        for name in ("kept", "gone", "gone/agent-1", "gone too"):
            store.append(Draft(role="user", agent_id="claude-code", session_id=name, content="x"))
        store.append(Draft(role="user", agent_id="codex", session_id="other", content="x"))
    apply(plan_install("claude-code", "user", home, connection(home)))
    (installed,) = [one for one in examine_assistants(home) if one.assistant == "claude-code"]
    assert installed.deleted == 2
    assert installed.state.endswith("2 sessions recorded here that it has deleted")
