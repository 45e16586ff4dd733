"""The numbers in docs/RESULTS.md: they come from the results of a run, and from nowhere else."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- numbers:begin -->", "<!-- numbers:end -->"

RESULTS = {
    "machine": {
        "cores": 4,
        "processor": "x86_64",
        "kernel": "Linux 6.1",
        "python": "3.12.1",
        "sqlite": "3.45.0",
        "load at start": 0.2,
    },
    "seconds": {"store": 12.0},
    "lines": [
        {
            "what": "durable append",
            "ours": 0.45,
            "unit": "ms",
            "command": "store.py",
            "beside": "raw SQLite",
            "other": 0.4,
            "target": 0.3,
            "floor": 0.24,
        },
        {
            "what": "bulk import",
            "ours": 6000.0,
            "unit": "/s",
            "command": "store.py",
            "beside": "SQLite FTS5",
            "other": 3000.0,
            "target": 8000,
            "more_is_better": True,
        },
        {
            "what": "cell, round trip",
            "ours": 0.05,
            "unit": "ms",
            "command": "kernel.py",
            "beside": "ipykernel",
        },
        {
            "what": "repeated prefix",
            "ours": 0.957,
            "unit": "%",
            "command": "agent.py",
            "target": 0.9,
            "more_is_better": True,
        },
    ],
    "series": {
        "search": [
            {"messages": 1000, "ours": 0.1, "fts5": 2.0},
            {"messages": 10000, "ours": 0.3, "fts5": 30.0},
        ],
        "sent": {
            "32000": [900, 1800, 1000],
            "128000": [900, 1800, 2700],
            "1000000": [900, 1800, 2700],
        },
        "index": [
            {"evicted": 8, "blocks": 1, "tokens": 300},
            {"evicted": 90, "blocks": 5, "tokens": 900},
        ],
    },
}


def fill(folder: Path) -> subprocess.CompletedProcess[str]:
    """Draw and fill in a folder that holds results and a page."""
    places = [
        "--results",
        folder / "results.json",
        "--page",
        folder / "RESULTS.md",
        "--images",
        folder / "img",
    ]
    command = [sys.executable, ROOT / "benchmarks" / "run.py", "--fill", *places]
    return subprocess.run(command, capture_output=True, text=True)


def prepared(folder: Path) -> Path:
    (folder / "results.json").write_text(json.dumps(RESULTS))
    (folder / "RESULTS.md").write_text(f"# Title\n\n{BEGIN}\nold numbers\n{END}\n\n## After\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepared(tmp_path)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder after a fill, which no test changes, and what was printed."""
    folder = prepared(tmp_path_factory.mktemp("filled"))
    done = fill(folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_section_is_filled_from_the_results(filled: tuple[Path, str]) -> None:
    folder, _ = filled
    text = (folder / "RESULTS.md").read_text()
    assert text.startswith(f"# Title\n\n{BEGIN}\n")
    assert text.endswith(f"\n{END}\n\n## After\n")
    assert "old numbers" not in text
    assert (
        "4 cores (x86_64), Linux 6.1, Python 3.12.1, SQLite 3.45.0, load 0.2 at the start" in text
    )
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if "benchmarks/" in line
    ]
    assert rows == [
        [
            "durable append",
            "0.45 ms",
            "raw SQLite: 0.4 ms",
            "0.9×",
            "≤ 0.5 ms (1.25× raw SQLite)",
            "met",
            "`benchmarks/store.py`",
        ],
        [
            "bulk import",
            "6,000/s",
            "SQLite FTS5: 3,000/s",
            "2.0×",
            "≥ 8,000/s",
            "missed",
            "`benchmarks/store.py`",
        ],
        [
            "cell, round trip",
            "0.05 ms",
            "ipykernel: not installed",
            "",
            "",
            "",
            "`benchmarks/kernel.py`",
        ],
        ["repeated prefix", "95.7 %", "", "", "≥ 90 %", "met", "`benchmarks/agent.py`"],
    ]


def test_the_table_says_which_targets_are_met(filled: tuple[Path, str]) -> None:
    rows = {line[:18].strip(): " ".join(line.split()) for line in filled[1].splitlines()}
    assert rows["durable append"].endswith("0.9× ≤ 0.5 ms (1.25× raw SQLite) met")
    assert rows["bulk import"].endswith("2.0× ≥ 8,000/s missed")
    assert rows["repeated prefix"].endswith("95.7 % ≥ 90 % met")


def test_a_target_that_builds_on_a_floor_moves_with_it(folder: Path) -> None:
    lines = [RESULTS["lines"][0] | {"other": other} for other in (0.24, 0.8)]  # type: ignore[index]
    (folder / "results.json").write_text(json.dumps(RESULTS | {"lines": lines}))
    rows = [line for line in fill(folder).stdout.splitlines() if line.startswith("durable")]
    assert "≤ 0.3 ms" in rows[0] and rows[0].endswith("missed")
    assert "≤ 1 ms" in rows[1] and rows[1].endswith("met")


def test_a_target_says_when_it_was_set(folder: Path) -> None:
    line = RESULTS["lines"][0] | {"target_date": "2026-11-18"}  # type: ignore[index]
    (folder / "results.json").write_text(json.dumps(RESULTS | {"lines": [line]}))
    assert "≤ 0.5 ms (1.25× raw SQLite), set on 2026-11-18" in fill(folder).stdout


def test_the_published_page_shows_the_results_of_the_last_run(folder: Path) -> None:
    page, results = ROOT / "docs" / "RESULTS.md", ROOT / "benchmarks" / "results.json"
    (folder / "RESULTS.md").write_text(page.read_text())
    (folder / "results.json").write_text(results.read_text())
    assert fill(folder).returncode == 0
    assert (folder / "RESULTS.md").read_text() == page.read_text()


def test_the_plots_are_svg_and_linked(filled: tuple[Path, str]) -> None:
    folder, _ = filled
    text = (folder / "RESULTS.md").read_text()
    for name in ("search", "tokens", "index"):
        root = ElementTree.parse(folder / "img" / f"{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(root.findall(".//{*}path")) > 5
        assert f"](img/{name}.svg)" in text


def test_filling_again_changes_nothing(folder: Path) -> None:
    fill(folder)
    files = [folder / "RESULTS.md", *sorted((folder / "img").iterdir())]
    before = [file.read_bytes() for file in files]
    assert fill(folder).returncode == 0
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize(
    "text", ["# No place\n", f"# Half a place\n{BEGIN}\n", f"# Turned round\n{END}\n{BEGIN}\n"]
)
def test_without_markers_nothing_is_touched(folder: Path, text: str) -> None:
    (folder / "RESULTS.md").write_text(text)
    done = fill(folder)
    assert done.returncode == 1
    assert BEGIN in done.stderr and END in done.stderr and "Traceback" not in done.stderr
    assert (folder / "RESULTS.md").read_text() == text
    assert not (folder / "img").exists()


def test_without_results_it_says_what_to_do(folder: Path) -> None:
    (folder / "results.json").unlink()
    done = fill(folder)
    assert done.returncode == 1
    assert "measure first" in done.stderr and "Traceback" not in done.stderr


def test_the_page_of_the_project_is_in_step_with_its_results(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "RESULTS.md").write_bytes((ROOT / "docs" / "RESULTS.md").read_bytes())
    places = ["--page", tmp_path / "docs" / "RESULTS.md", "--images", tmp_path / "docs" / "img"]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "run.py", "--fill", *places], capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "docs" / "RESULTS.md").read_text() == (
        ROOT / "docs" / "RESULTS.md"
    ).read_text()
    for name in ("search", "tokens", "index"):
        assert (ROOT / "docs" / "img" / f"{name}.svg").exists()


def test_two_versions_are_compared_in_one_run(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    names = ["append", "search, six words", "recall cell", "import scroll_context, CPU"]
    options = [
        "--base",
        ROOT,
        "--rounds",
        2,
        "--messages",
        200,
        "--json",
        file,
        "--most",
        1e9,
        "--only",
        *names,
    ]
    command = [sys.executable, ROOT / "benchmarks" / "compare.py", *options]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert list(found) == names
    assert all(
        one["old"] > 0 and one["new"] > 0 and one["low"] <= one["ratio"] <= one["high"]
        for one in found.values()
    )
    assert "200 messages, 2 rounds" in done.stdout


def test_a_growing_store_is_measured_and_every_figure_has_a_row(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("<!-- large:begin -->\n<!-- large:end -->\n\n## After\n")
    places = [
        "--results",
        tmp_path / "large.json",
        "--page",
        page,
        "--image",
        tmp_path / "large.svg",
    ]
    script = ROOT / "benchmarks" / "large.py"
    command = [sys.executable, script, "--sizes", "200", "400", *places]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sizes = json.loads((tmp_path / "large.json").read_bytes())["sizes"]
    assert [size["messages"] for size in sizes] == [200, 400]
    assert all(value > 0 for size in sizes for value in size["figures"].values())
    text = page.read_text()
    assert text.endswith("<!-- large:end -->\n\n## After\n")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    # The head and the line below it are not figures.
    assert len(rows) - 2 == len(sizes[0]["figures"])
    assert (tmp_path / "large.svg").read_text().count("<svg") == 1
