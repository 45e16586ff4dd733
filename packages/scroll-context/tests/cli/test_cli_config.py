"""Which store and which settings a command uses, and the completion of shells."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from scroll_context.cli.app import app
from scroll_context.cli.options import complete_session
from scroll_context.cli.settings import settings_of
from scroll_context.events import Draft
from scroll_context.store import Store
from terminal import script

Run = Callable[..., Result]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and an empty home of its own."""
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("SCROLL_STORE", "SCROLL_MODEL", "SCROLL_BASE_URL", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def mine(here: Path, tmp_path: Path) -> Path:
    """Where the user's configuration file is."""
    file = tmp_path / "config" / "scroll" / "scroll.toml"
    file.parent.mkdir(parents=True)
    return file


def scroll(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, words, input=typed, catch_exceptions=False)


def test_the_default_store_is_in_the_users_folder_for_data(
    here: Path, trip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scroll("import", str(trip)).exit_code == 0
    assert (tmp_path / "home" / ".local" / "share" / "scroll" / "log.db").is_file()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert scroll("import", str(trip)).exit_code == 0
    assert (tmp_path / "data" / "scroll" / "log.db").is_file()
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    assert "30" in scroll("stats").stdout
    assert list(here.iterdir()) == []


def test_a_store_in_the_home_folder_is_the_default(here: Path, trip: Path, tmp_path: Path) -> None:
    short = tmp_path / "home" / ".scroll"
    short.mkdir()
    assert scroll("import", str(trip)).exit_code == 0
    assert not (short / "log.db").exists()  # an empty folder is not a store
    assert scroll("import", str(trip), "--store", str(short)).exit_code == 0
    assert scroll("import", str(trip), "--session", "another").exit_code == 0
    assert json.loads(scroll("stats", "--store", str(short), "--json").stdout)["events"] == 30
    for part in ("log.db", "log.db-wal", "log.db-shm"):
        (short / part).unlink(missing_ok=True)
    damaged = scroll("stats")  # never an empty store in place of a damaged one
    assert damaged.exit_code == 1 and "restore the file from a backup" in damaged.stderr


def test_a_store_in_the_working_folder_is_used_only_by_its_name(here: Path, trip: Path) -> None:
    assert scroll("import", str(trip), "--store", ".scroll").exit_code == 0
    ignored = scroll("stats")
    assert ignored.exit_code == 1 and "there is no store" in ignored.stderr
    assert ignored.stderr.count(".scroll in this folder is not used") == 1
    assert ignored.stderr.count("--store .scroll") == 1
    assert scroll("import", str(trip), "--session", "mine").exit_code == 0
    found = scroll("sessions", "--json")
    assert "is not used" in found.stderr and "is not used" not in found.stdout
    named = scroll("stats", "--store", ".scroll")
    assert named.exit_code == 0 and "is not used" not in named.stderr
    assert "is not used" not in scroll("--store", ".scroll", "stats").stderr


def test_the_home_folder_as_working_folder_needs_no_note(
    here: Path, trip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "home")
    assert scroll("import", str(trip), "--store", ".scroll").exit_code == 0
    done = scroll("stats")
    assert done.exit_code == 0 and done.stderr == ""


def test_a_settings_file_in_the_working_folder_sets_nothing(here: Path, tmp_path: Path) -> None:
    (here / "tools.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
    )
    model = script(tmp_path, "Hello.")
    (here / "scroll.toml").write_text(
        f'store = "theirs"\nmodel = "{model}"\ntools = ["tools.py"]\nreach = '
        '"all"\nagent = "claude-code"\n'
    )
    refused = scroll("run", "Go.")
    assert refused.exit_code == 1 and "no model is named" in refused.stderr
    done = scroll("run", "Go.", "--model", model)
    assert done.stdout == "Hello.\n" and "--reach session" in done.stderr
    assert not (here / "ran").exists() and not (here / "theirs").exists()
    assert scroll("trust").exit_code == 2


def test_the_users_file_chooses_store_model_and_reach(
    here: Path, mine: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, "Hello.")
    mine.write_text(f'store = "{tmp_path / "mine"}"\nmodel = "{model}"\nreach = "session"\n')
    done = scroll("run", "Go.")
    assert done.stdout == "Hello.\n" and "--reach session" in done.stderr
    assert (tmp_path / "mine" / "log.db").exists()
    assert scroll("--store", "other", "stats").exit_code == 1
    assert scroll("stats", "--store", "other").exit_code == 1
    assert scroll("--store", "other", "stats", "--store", str(tmp_path / "mine")).exit_code == 0
    mine.write_text('store = "beside"\n')
    assert f"no store in {mine.parent / 'beside'}" in scroll("stats").stderr
    mine.write_text('store = "postgresql://somebody@example.org/db?store=x"\n')
    assert settings_of("import")["store"] == "postgresql://somebody@example.org/db?store=x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stor = 'x'", "'stor', which is not a setting; there are store, model"),
        ("window = 'big'", "window to 'big'; it must be int"),
        ("tools = 'x.py'", "it must be a list of texts"),
        ("store = [", "cannot be read"),
    ],
)
def test_a_fault_in_the_users_file_is_reported(mine: Path, text: str, said: str) -> None:
    mine.write_text(text)
    refused = scroll("stats")
    assert refused.exit_code == 1 and said in refused.stderr and "scroll.toml" in refused.stderr


def test_run_takes_a_system_prompt(here: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("Answer in Latin.")
    for number, given in enumerate(("Answer in Latin.", f"@{tmp_path / 'prompt.md'}")):
        model = script(tmp_path, "Salve.")
        assert (
            scroll(
                "run", "Go.", "--session", f"s{number}", "--model", model, "--system", given
            ).exit_code
            == 0
        )
        assert "Answer in Latin." in scroll("show", "--session", f"s{number}", "--full").stdout
    missing = scroll("run", "Go.", "--model", script(tmp_path, "x"), "--system", "@missing.md")
    assert missing.exit_code == 1 and "missing.md cannot be read" in missing.stderr


COMPLETE = {
    "bash": """
eval "$(scroll completion bash)"
COMP_WORDS=({words}); COMP_CWORD={last}; COMPREPLY=()
_scroll_completion scroll
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "zsh": """
autoload -Uz compinit; compinit -u -d "$TMPDIR/zcompdump"
eval "$(scroll completion zsh)"
compadd() {{ print -l -- $completions }}
_describe() {{ print -l -- $completions_with_descriptions }}
words=({words}); CURRENT={last}+1
_scroll_completion
""",
    "fish": """
scroll completion fish | source
complete -C "{line}"
""",
}


@pytest.mark.parametrize("shell", COMPLETE)
def test_shells_complete_commands_and_sessions(
    shell: str, tmp_path: Path, trip: Path, folder: Path
) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    command = tmp_path / "bin" / "scroll"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom scroll_context.cli.main import main\nmain()\n")
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "SCROLL_STORE": str(folder),
        "TMPDIR": str(tmp_path),
        "HOME": str(tmp_path),
    }
    subprocess.run(
        [str(command), "import", str(trip)], env=environment, check=True, capture_output=True
    )
    for line, expected in (("scroll sess", "sessions"), ("scroll read trip-2", "trip-2-booking")):
        words = line.split()
        program = COMPLETE[shell].format(words=" ".join(words), last=len(words) - 1, line=line)
        done = subprocess.run(
            [found, "-c", program], env=environment, capture_output=True, text=True, timeout=120
        )
        assert expected in done.stdout, (done.stdout, done.stderr)


def test_completion_of_a_store_that_is_not_there_is_silent(here: Path) -> None:
    environment = {
        **os.environ,
        "_SCROLL_COMPLETE": "bash_complete",
        "COMP_WORDS": "scroll read x",
        "COMP_CWORD": "2",
    }
    command: list[Any] = [sys.executable, "-c", "from scroll_context.cli.main import main; main()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")


HOSTILE_NAMES = (
    "notes;touch${IFS}x",
    "$(touch x)",
    "`touch x`",
    "a b",
    "--yes",
    "x\ny",
    "'q",
    "*",
    "~root",
    "=ls",
    "a:b",
)


def test_completion_offers_only_names_that_a_shell_reads_as_a_word(folder: Path) -> None:
    with Store(folder, create=True) as store:
        for name in (*HOSTILE_NAMES, "notes-1", "grüße/2026.03"):
            store.append(Draft(session_id=name, kind="conversation", role="user", content="hello"))
    context = click.Context(click.Command("read"), info_name="read")
    context.params["store"] = folder
    argument = click.Argument(["session"])
    assert complete_session(context, argument, "") == ["notes-1", "grüße/2026.03"]
    assert complete_session(context, argument, "notes") == ["notes-1"]


@pytest.mark.parametrize("shell", COMPLETE)
def test_a_completed_command_line_runs_nothing_of_a_session_name(
    shell: str, tmp_path: Path, folder: Path, here: Path
) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    with Store(folder, create=True) as store:
        for name in HOSTILE_NAMES:
            store.append(Draft(session_id=name, kind="conversation", role="user", content="hello"))
    command = tmp_path / "bin" / "scroll"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom scroll_context.cli.main import main\nmain()\n")
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "SCROLL_STORE": str(folder),
        "TMPDIR": str(tmp_path),
        "HOME": str(tmp_path),
    }
    program = COMPLETE[shell].format(words="scroll read ''", last=2, line="scroll read ")
    done = subprocess.run(
        [found, "-c", program], env=environment, capture_output=True, text=True, timeout=120
    )
    assert "touch" not in done.stdout, (done.stdout, done.stderr)
