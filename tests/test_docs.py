"""The documentation: the README's program runs as printed, links lead somewhere, pages are listed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def test_the_program_in_the_readme_runs_as_printed_and_resumes(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"^```python\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    output = re.search(r"^It prints:\n\n```\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    assert output is not None
    (tmp_path / "trip.py").write_text(program)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "trip.py"], capture_output=True, text=True, cwd=tmp_path, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == output[1]


def test_the_readme_stays_short() -> None:
    assert len(prose(ROOT / "README.md").split()) <= 750


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    missing = []
    for target in LINK.findall(prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            missing.append(target)
    assert missing == []


def test_the_index_lists_every_page() -> None:
    targets = {target.partition("#")[0] for target in LINK.findall(prose(DOCS / "README.md"))}
    names = {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")} - {"README.md"}
    assert names - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lists_begin_after_an_empty_line(page: Path) -> None:
    """A list that follows a paragraph directly is shown as part of the paragraph on the site."""
    item = re.compile(r"^(?:[-*]|1\.) ")
    lines = prose(page).splitlines()
    pairs = [(line, lines[number - 1]) for number, line in enumerate(lines) if number]
    glued = [line for line, before in pairs if item.match(line) and before[:1].isalnum()]
    assert glued == []


def test_the_site_builds_without_warnings_and_loads_nothing_from_other_hosts(
    tmp_path: Path,
) -> None:
    pytest.importorskip("mkdocs")
    command = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    loaded = re.compile(r"<(?:script|img|link)\b[^>]*\b(?:src|href)=\"(?:https?:)?//")
    assert [page.name for page in pages if loaded.search(page.read_text())] == []
