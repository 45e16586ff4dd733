"""scroll.toml, trust in it, and the completion of shells."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from terminal import script

from scroll_context.cli.app import app
from scroll_context.models import exec_cell

Run = Callable[..., Result]
HARMLESS = 'store = "history"\nwindow = 9000\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, and nothing from the user's."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("SCROLL_STORE", "SCROLL_MODEL", "SCROLL_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return folder


def scroll(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, words, input=typed, catch_exceptions=False)


def test_a_file_in_the_folder_names_the_store(here: Path, trip: Path) -> None:
    (here / "scroll.toml").write_text(HARMLESS)
    assert scroll("import", str(trip)).exit_code == 0
    assert (here / "history" / "log.db").exists()
    assert "30" in scroll("stats").stdout
    assert scroll("--store", "other", "stats").exit_code == 1
    assert scroll("stats", "--store", "other").exit_code == 1
    assert scroll("--store", "other", "stats", "--store", "history").exit_code == 0


def test_the_users_file_says_the_rest_and_the_folder_comes_first(here: Path, tmp_path: Path) -> None:
    (tmp_path / "config" / "scroll").mkdir(parents=True)
    mine = tmp_path / "config" / "scroll" / "scroll.toml"
    mine.write_text(f'store = "{tmp_path / "mine"}"\nmodel = "{script(tmp_path, "Hello.")}"\nreach = "session"\n')
    done = scroll("run", "Go.")
    assert done.stdout == "Hello.\n" and "--reach session" in done.stderr
    assert (tmp_path / "mine" / "log.db").exists()
    (here / "scroll.toml").write_text(HARMLESS)
    assert scroll("run", "Go.").exit_code == 0
    assert (here / "history" / "log.db").exists()


def test_a_cloned_file_runs_no_code_and_sends_no_word_away_until_it_is_trusted(here: Path, tmp_path: Path) -> None:
    (here / "tools.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
                                   "from scroll_context.surface.tools import tool\n"
                                   "@tool\ndef f() -> int:\n    return 1\n")  # fmt: skip
    model = script(tmp_path, exec_cell("print(f())"), "Done.")
    file = here / "scroll.toml"
    file.write_text(f'{HARMLESS}model = "{model}"\ntools = ["tools.py"]\nreach = "all"\nsystem = "Obey."\n')
    refused = scroll("run", "Go.")
    assert refused.exit_code == 1 and "no model is named" in refused.stderr
    assert "also sets model, tools, reach, system" in refused.stderr and "`scroll trust`" in refused.stderr
    mine = scroll("run", "Go.", "--model", script(tmp_path, "Fine."), "--session", "mine")
    assert "--reach agent" in mine.stderr and not (here / "ran").exists()
    trusted = scroll("trust")
    assert trusted.exit_code == 0 and "tools.py" in trusted.stdout
    done = scroll("run", "Go.", "--session", "theirs")
    assert done.stdout == "Done.\n" and "--reach all" in done.stderr and (here / "ran").exists()
    shown = scroll("show", "--session", "theirs", "--full").stdout
    assert "Obey." in shown
    file.write_text(file.read_text() + "# changed\n")
    assert "no model is named" in scroll("run", "Go.").stderr
    assert scroll("trust").exit_code == scroll("trust", "--remove").exit_code == 0
    assert "no model is named" in scroll("run", "Go.").stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stor = 'x'", "'stor', which is no setting; there are store, model"),
        ("window = 'big'", "window to 'big'; it must be int"),
        ("tools = 'x.py'", "it must be a list of texts"),
        ("store = [", "cannot be read"),
    ],
)
def test_a_file_that_is_wrong_is_told(here: Path, text: str, said: str) -> None:
    (here / "scroll.toml").write_text(text)
    refused = scroll("stats")
    assert refused.exit_code == 1 and said in refused.stderr and "scroll.toml" in refused.stderr


def test_run_takes_a_system_prompt(here: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("Answer in Latin.")
    for number, given in enumerate(("Answer in Latin.", f"@{tmp_path / 'prompt.md'}")):
        model = script(tmp_path, "Salve.")
        assert scroll("run", "Go.", "--session", f"s{number}", "--model", model, "--system", given).exit_code == 0
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
def test_shells_complete_commands_and_sessions(shell: str, tmp_path: Path, trip: Path, folder: Path) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    command = tmp_path / "bin" / "scroll"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom scroll_context.cli.main import main\nmain()\n")
    command.chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "SCROLL_STORE": str(folder),
        "TMPDIR": str(tmp_path), "HOME": str(tmp_path),
    }  # fmt: skip
    subprocess.run([str(command), "import", str(trip)], env=environment, check=True, capture_output=True)
    for line, expected in (("scroll sess", "sessions"), ("scroll read trip-2", "trip-2-booking")):
        words = line.split()
        program = COMPLETE[shell].format(words=" ".join(words), last=len(words) - 1, line=line)
        done = subprocess.run([found, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
        assert expected in done.stdout, (done.stdout, done.stderr)


def test_completion_of_a_store_that_is_not_there_is_silent(here: Path) -> None:
    environment = {**os.environ, "_SCROLL_COMPLETE": "bash_complete", "COMP_WORDS": "scroll read x", "COMP_CWORD": "2"}
    command: list[Any] = [sys.executable, "-c", "from scroll_context.cli.main import main; main()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_an_untrusted_file_cannot_send_the_history_to_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scroll_context.cli.app import NAME, default_map

    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).write_text('store = "postgresql://somebody@example.org/db?store=x&payloads=s3://b/p"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert default_map("import") == {}
    (tmp_path / "config" / "scroll").mkdir(parents=True)
    (tmp_path / NAME).rename(tmp_path / "config" / "scroll" / NAME)
    assert default_map("import")["store"].startswith("postgresql://somebody@example.org/db?store=x&payloads=s3://b/p")
