"""Every program in examples/ runs as it is and prints what it promises; a user's typing mistake is a type error."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

PRINTS = {
    "async_service": ["['Noted, ada.', 'Noted, grace.', 'Noted, ada.']", "ada saw another user's secret: False"],
    "drive_it_yourself": ["60 messages in the host's history; about True", "Question 3."],
    "first_agent": ["answered - LX0 is the cheapest.", "answered - I still have all 2000 of them."],
    "images_and_files": ["It is 640 by 480.", "image/png True"],
    "import_and_search": ["3 messages imported", "0 new when it is imported again", "seq 1: I always fly economy."],
    "limits_and_resume": ["steps 2", "answered All four steps are done."],
    "pydantic_ai_agent": ["The code of report 3 is 4711-3."],
    "streaming": ["observation: clear", "answer: The sky over Graz is clear."],
    "tools_and_consent": ["may send_mail run for edsger@tools.example? no", "really sent: ada@tools.example, grace@"],
    "typed_answer": ["LX707 for 62 after 2 tries"],
}


def test_each_example_is_tested() -> None:
    assert sorted(file.stem for file in EXAMPLES.glob("*.py")) == sorted(PRINTS)


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    if name == "pydantic_ai_agent":
        pytest.importorskip("pydantic_ai")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for line in PRINTS[name]:
        assert line in done.stdout
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"


def test_a_misspelt_option_is_a_type_error(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    right = "from scroll_context import Session, SessionOptions, Store\n\nwith Store('x', create=True) as store:\n"
    right += "    Session.open(store, session_id='a', options=SessionOptions(reach='session'))\n"
    program.write_text(right)
    assert _mypy(program) == 0
    for wrong in (right.replace("session_id=", "sesion_id="), right.replace("reach=", "reech="),
                  right.replace("reach='session'", "reach='sesion'")):  # fmt: skip
        program.write_text(wrong)
        assert _mypy(program) == 1, wrong


def _mypy(file: Path) -> int:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(file)]
    return subprocess.run(command, capture_output=True, text=True, cwd=file.parent, check=False).returncode
