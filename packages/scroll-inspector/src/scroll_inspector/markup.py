"""Foreign text as HTML: escaped, with hidden characters made visible, with links and highlighting.

`environment` gives the templates. Whatever a template prints passes `visible` and is escaped,
unless it is `Markup` that a function of this module made. Highlighted code and Markdown are kept
for the next load of the page.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from scroll_context.text.printable import visible
from scroll_context.view.wording import MARK

LONGEST_CODE = 20_000  # characters that are highlighted
LONGEST_TREE = 100_000  # characters of JSON that are shown as a tree
MOST_NODES = 5_000
OPEN_ITEMS = 6  # a list or object of at most this many items is shown open


def environment(exported: bool = False) -> Environment:
    """Templates in which every value is foreign text.

    In an exported page links lead to places of that page.
    """
    templates = Environment(
        loader=PackageLoader("scroll_inspector"),
        autoescape=True,
        finalize=lambda value: (
            value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)
        ),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        path=address_of,
        number=lambda value: f"{value:,}",
        size=size,
        time=short_time,
        seconds=seconds,
        python=python,
        markdown=markdown,
        addresses=partial(addresses, exported=exported),
        sent=sent,
        tree=tree,
        value_tree=lambda value: (
            tree(json.dumps(value, ensure_ascii=False)) or escape(visible(json.dumps(value)))
        ),
        marked=marked,
        dollars=lambda value: f"${value:,.4f}" if value < 1 else f"${value:,.2f}",
    )
    templates.globals["exported"] = exported
    return templates


def forget() -> None:
    """Clear the caches after an erasure: they may hold erased text."""
    for cached_function in (python, markdown, tree):
        cached_function.cache_clear()


def address_of(name: str) -> str:
    """A name as the last part of an address.

    Browsers resolve `.` and `..` there, so these get a `~` before them.
    """
    return quote(f"~{name}" if re.fullmatch(r"~*\.\.?", name) else name, safe="")


def name_of(address: str) -> str:
    """The name that an address stands for, which is unquoted already."""
    return address[1:] if re.fullmatch(r"~+\.\.?", address) else address


def size(count: int) -> str:
    """Bytes for a person."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            digits = 0 if unit == "bytes" or count >= 10 else 1
            return f"{count:,.{digits}f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:,.1f} GB"


def short_time(stamp: str) -> str:
    return stamp[:19].replace("T", " ")


def seconds(value: float | None) -> str:
    """A duration for a person."""
    if value is None:
        return ""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 100:
        return f"{value:.1f} s"
    return f"{value:,.0f} s"


@lru_cache(maxsize=1024)
def python(source: str) -> Markup:
    """Python, highlighted."""
    text = visible(source)
    if len(text) > LONGEST_CODE:
        return escape(text)
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    lexer = PythonLexer(stripnl=False, ensurenl=False)
    return Markup(highlight(text, lexer, HtmlFormatter(nowrap=True)))


@lru_cache(maxsize=1024)
def markdown(text: str) -> Markup:
    """Markdown. HTML in it is text, and nothing in it is loaded."""
    from markdown_it import MarkdownIt

    parser = (
        MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table").disable("image")
    )
    return Markup(parser.render(visible(text)))


_ADDRESS = re.compile(
    r"\bseq (\d{1,15})(?:-(\d{1,15}))?((?:, \d{1,15}(?:-\d{1,15})?)*)|\bms\.expand\((\d{1,15})\)"
)
_RUN = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?")


def addresses(text: str, exported: bool = False) -> Markup:
    """Text of the harness, with its seqs as links to what they stand for."""

    def run(match: re.Match[str]) -> str:
        lo, hi = match[1], match[2]
        if exported:
            return f'<a href="#seq-{lo}">{match[0]}</a>'
        if hi:
            return f'<a href="/events/{lo}-{hi}">{match[0]}</a>'
        return f'<a href="/event/{lo}">{lo}</a>'

    return Markup(_ADDRESS.sub(lambda match: _RUN.sub(run, match[0]), str(escape(visible(text)))))


def sent(text: str, most: int) -> Markup:
    """A text as the model got it: the seqs in what the harness wrote are links.

    A very long one is shown in part.
    """
    beginning = text if len(text) <= most else text[: most * 2 // 3]
    lines = [
        addresses(line) if line.startswith(MARK) else escape(visible(line))
        for line in beginning.split("\n")
    ]
    if len(text) > most:
        rest = f"… {len(text) - len(beginning):,} more characters; As JSON shows all"
        lines.append(Markup('<span class="faint">{}</span>').format(rest))
    return Markup("\n").join(lines)


def marked(snippet: str, words: re.Pattern[str]) -> Markup:
    """A snippet in which the words of a query stand out."""
    text = visible(snippet)
    pieces: list[Markup] = []
    at = 0
    for match in words.finditer(text):
        pieces += [escape(text[at : match.start()]), Markup("<mark>{}</mark>").format(match[0])]
        at = match.end()
    return Markup("").join([*pieces, escape(text[at:])])


@lru_cache(maxsize=1024)
def tree(text: str) -> Markup | None:
    """JSON as lists that fold; None if it is not JSON, too long, or a single value."""
    if not text.lstrip().startswith(("{", "[")) or len(text) > LONGEST_TREE:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    nodes = iter(range(MOST_NODES))
    try:
        return Markup("").join(_branch(value, nodes, 0))
    except (StopIteration, RuntimeError, RecursionError):  # more than a page should hold
        return None


def _branch(value: Any, nodes: Iterator[int], depth: int) -> Iterator[Markup]:
    if next(nodes, None) is None:
        raise RuntimeError
    if not isinstance(value, dict | list) or not value:
        kind = "string" if isinstance(value, str) else "value"
        yield Markup('<span class="json-{}">{}</span>').format(
            kind, visible(json.dumps(value, ensure_ascii=False, default=str))
        )
        return
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    brackets = "{}" if isinstance(value, dict) else "[]"
    opened = " open" if len(pairs) <= OPEN_ITEMS and depth < 2 else ""
    count = f"{len(pairs):,} {'item' if len(pairs) == 1 else 'items'}"
    yield Markup("<details{}><summary>{} <small>{}</small></summary><ul>").format(
        opened, brackets, count
    )
    for key, item in pairs:
        yield Markup("<li><span class=json-key>{}</span> ").format(visible(str(key)))
        yield from _branch(item, nodes, depth + 1)
        yield Markup("</li>")
    yield Markup("</ul></details>")
