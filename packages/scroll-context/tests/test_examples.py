"""Every program in examples/ runs as it is and prints what it promises."""

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"

PRINTS = {
    "async_service": [
        "['Noted, ada.', 'Noted, grace.', 'Noted, ada.']",
        "ada saw another user's secret: False",
    ],
    "drive_it_yourself": ["60 messages in the host's list; each request fits: True", "Question 3."],
    "first_agent": ["answered - LX0 is the cheapest.", "answered - I still have all 2000 of them."],
    "images_and_files": ["It is 640 by 480.", "image/png True"],
    "import_and_search": [
        "3 messages imported",
        "0 new when it is imported again",
        "seq 1: I always fly economy.",
    ],
    "limits_and_resume": ["steps 2", "answered All four steps are done."],
    "pydantic_ai_agent": ["The code of report 3 is 4711-3."],
    "streaming": ["observation: clear", "answer: The sky over Graz is clear."],
    "tools_and_consent": [
        "may send_mail run for edsger@tools.example? no",
        "really sent: ada@tools.example, grace@",
    ],
    "typed_answer": ["LX707 for 62 after 2 tries"],
}


def test_each_example_is_tested() -> None:
    assert sorted(file.stem for file in EXAMPLES.glob("*.py")) == sorted(PRINTS)


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    if name == "pydantic_ai_agent":
        pytest.importorskip("pydantic_ai")
        pytest.importorskip("scroll_adapters")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for line in PRINTS[name]:
        assert line in done.stdout
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"


def test_the_types_are_shipped() -> None:
    """So a user's typing mistake is a type error: tests/typing, which `make types` checks."""
    assert (resources.files("scroll_context") / "py.typed").is_file()
