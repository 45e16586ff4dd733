"""The documentation: the README's program runs as printed, links lead somewhere, pages are listed."""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import api_reference
from scroll_context.cli.app import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted(ROOT.glob("packages/*/README.md")),
]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ASSISTANTS = ("claude", "codex", "opencode")
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


PROGRAM = re.compile(
    r"^```python\n(?P<source>.+?)^```\n(?:(?!^```).)*?^```text\n(?P<output>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
"""A program of a page, and the output that the page shows for it."""
TAUGHT = [*sorted(DOCS.glob("tutorial/*.md")), *sorted(DOCS.glob("howto/*.md"))]


@pytest.mark.parametrize(
    "page", [*TAUGHT, DOCS / "reference/errors.md"], ids=lambda page: page.name
)
def test_the_programs_of_a_page_print_the_output_that_it_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    programs = list(PROGRAM.finditer(text))
    assert len(programs) == text.count("```python\n"), "a program has no output"
    for program in programs:
        (tmp_path / "program.py").write_text(program["source"])
        # The page about crashes has a program that kills itself the first time.
        for _ in range(2 if "SIGKILL" in program["source"] else 1):
            done = subprocess.run(
                [sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path
            )
        assert (done.stdout, done.stderr) == (program["output"], "")


@pytest.mark.parametrize("name", sorted(api_reference.PAGES))
def test_the_reference_has_every_public_name_and_no_other(name: str) -> None:
    text = (api_reference.FOLDER / name).read_text()
    assert text == api_reference.page(name), "run: python testing/api_reference.py"


def test_each_environment_variable_is_documented_and_each_documented_one_is_read() -> None:
    # The name in `_SCROLL_COMPLETE`, which shells use for completion, is not a setting.
    variable = re.compile(r"(?<!_)\bSCROLL_[A-Z_]+\b")
    sources = [file.read_text() for file in ROOT.glob("packages/*/src/**/*.py")]
    read = {name for text in sources for name in variable.findall(text)}
    page = (DOCS / "reference" / "configuration.md").read_text()
    assert set(variable.findall(page)) == read


def test_commands_and_options_that_pages_name_exist() -> None:
    """Each line of a code block that calls `scroll` uses a command and options that exist."""
    wrong = []
    for page in PAGES:
        for block in FENCED.findall(page.read_text()):
            for line in re.findall(r"^(?:\$ )?scroll ([a-z].*)$", block, re.MULTILINE):
                wrong += [f"{page.name}: {fault}" for fault in unknown_parts(line)]
    assert wrong == []


def unknown_parts(line: str) -> list[str]:
    """The command or the options of a command line that do not exist."""
    words = line.partition("#")[0].split()
    # The rest of the line belongs to the program that the command starts.
    if words[0] == "wrap":
        words = words[: 1 + next((n for n, word in enumerate(words) if word in ASSISTANTS), 0)]
    command: click.Command = app
    context = click.Context(app, info_name="scroll")
    options = {option for parameter in app.params for option in parameter.opts}
    for word in words:
        if isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(context, word)
            if found is None:
                return [f"no command in: scroll {line}"]
            command = found
            options |= {
                name for item in found.params for name in (*item.opts, *item.secondary_opts)
            }
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    return [f"{option} in: scroll {line}" for option in sorted(given - options - {"--help", "--"})]


def test_calls_of_ms_that_pages_name_exist() -> None:
    """That each call has its section is tested beside `ms`."""
    prelude = ROOT / "packages/scroll-context/src/scroll_context/recall/ms_prelude.py"
    functions = re.findall(r"^def ([a-z]\w*)", prelude.read_text(), re.MULTILINE)
    assert len(functions) > 8
    named = {name for page in PAGES for name in re.findall(r"\bms\.(\w+)\(", page.read_text())}
    assert named - set(functions) == set()


def test_names_that_programs_of_pages_import_exist() -> None:
    missing = []
    for page in PAGES:
        for source in re.findall(r"^```python\n(.+?)^```$", page.read_text(), re.M | re.S):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("scroll_"):
                    missing += [f"{page.name}: {fault}" for fault in missing_names(node)]
    assert missing == []


def missing_names(statement: ast.ImportFrom) -> list[str]:
    """The names of an import that their module does not define; adapters need no framework here."""
    spec = importlib.util.find_spec(str(statement.module))
    if spec is None or spec.origin is None:
        return [str(statement.module)]
    if statement.module in ("scroll_context", "scroll_context.hosts", "scroll_gateway"):
        defined = set(importlib.import_module(statement.module).__all__)
    else:
        tree = ast.parse(Path(spec.origin).read_text())
        defined = {name for node in tree.body for name in [getattr(node, "name", "")]}
    return [alias.name for alias in statement.names if alias.name not in defined]


def test_the_readme_stays_short() -> None:
    assert len(prose(ROOT / "README.md").split()) <= 700


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
