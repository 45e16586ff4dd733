"""Foreign text as HTML: escaped, with hidden characters made visible, with links and highlighting.

`environment` gives the templates. Whatever a template prints passes `visible` and is escaped,
unless it is `Markup` that a function of this module made. Highlighted code and Markdown are kept
for the next load of the page.
"""

import re
from functools import lru_cache, partial
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from scroll_context.text.printable import visible
from scroll_context.view.wording import MARK
from scroll_inspector import trees
from scroll_inspector.glossary import TERMS

LONGEST_CODE = 20_000
"""Characters that are highlighted."""


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
        # A name that no longer exists is an error, and not an empty place on the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        path=address_of,
        number=lambda value: f"{value:,}",
        count=count,
        estimated=lambda tokens: f"about {count(tokens, 'token')}",
        size=size,
        time=short_time,
        seconds=seconds,
        python=python,
        markdown=markdown,
        addresses=partial(addresses, exported=exported),
        sent=sent,
        tree=trees.text_tree,
        value_tree=trees.tree,
        marked=marked,
        dollars=lambda value: f"${value:,.4f}" if value < 1 else f"${value:,.2f}",
    )
    templates.globals.update(exported=exported, terms=TERMS)
    return templates


def forget() -> None:
    """Clear the caches after an erasure: they may hold erased text."""
    for cached_function in (python, markdown, trees.cached_tree):
        cached_function.cache_clear()


def address_of(name: str) -> str:
    """A name as the last part of an address.

    Browsers resolve `.` and `..` there, so these get a `~` before them.
    """
    return quote(f"~{name}" if re.fullmatch(r"~*\.\.?", name) else name, safe="")


def name_of(address: str) -> str:
    """The name that an address stands for, which is unquoted already."""
    return address[1:] if re.fullmatch(r"~+\.\.?", address) else address


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 event, 2 events."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(number: float) -> str:
    """Bytes for a person."""
    for unit in ("bytes", "kB", "MB"):
        if number < 1000:
            digits = 0 if unit == "bytes" or number >= 10 else 1
            return f"{number:,.{digits}f} {unit}"
        number /= 1000
    return f"{number:,.1f} GB"


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

    escaped = str(escape(visible(text)))
    return Markup(_ADDRESS.sub(lambda match: _RUN.sub(run, match[0]), escaped))


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
        pieces.append(escape(text[at : match.start()]))
        pieces.append(Markup("<mark>{}</mark>").format(match[0]))
        at = match.end()
    return Markup("").join([*pieces, escape(text[at:])])
