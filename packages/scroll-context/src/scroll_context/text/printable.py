"""Text of others made safe to show: without what a terminal or a model obeys and a reader cannot
see.
"""

import json
import re
from collections.abc import Callable

_ESCAPES = re.compile(
    # Colours and cursor moves.
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    # commands to the terminal, such as writing the clipboard
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
)
_UNSEEN = re.compile(
    # Control codes, except tab and newline.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    # Marks that turn the direction of text around.
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"
    # Separators and marks without width.
    "\u200b\u2028\u2029\u2060-\u2065\ufeff\ufff0-\ufffb"
    # Soft hyphens, grapheme joiners, inherent vowels.
    "\xad\u034f\u17b4\u17b5\u180b-\u180f"
    # Hangul fillers, which are letters without a shape.
    "\u115f\u1160\u3164\uffa0"
    # variation selectors and tags, which spell text that is not shown
    "\ufe00-\ufe0d\U000e0000-\U000e0fff"
    # format marks of shorthand and of musical notation
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    # Halves of characters.
    "\ud800-\udfff]"
)
_JOINERS = re.compile("[\u200c\u200d\ufe0e\ufe0f]+")
"""Marks that Persian, Hindi and emoji need behind a letter.

Strung together they would spell hidden text.
"""
_JOINER_RUNS = frozenset(("\u200c", "\u200d", "\ufe0e", "\ufe0f", "\ufe0f\u200d"))
_KEYCAP = "\u20e3"


def visible(text: str) -> str:
    """Text that does nothing to a terminal or a page but appear on it. Line ends and tabs stay."""
    return _replaced(text, lambda unseen: ascii(unseen[0])[1:-1])


def one_line(text: str, limit: int = 0) -> str:
    """A text on one line, safe to print; with a limit, the beginning of it."""
    beginning = text[: 4 * limit] if limit else text
    line = " ".join(visible(beginning).split())
    return line if not limit or len(line) <= limit else line[: limit - 1] + "…"


def visible_json(text: str) -> str:
    """JSON with the same value, in which everything that a terminal would obey is escaped, U+009B
    for one.
    """
    return _replaced(text, lambda unseen: json.dumps(unseen[0])[1:-1])


def printable(text: str) -> str:
    """The text without escape sequences, control codes, direction marks and invisible marks."""
    if text.isascii() and text.isprintable():
        return text
    return _replaced(_ESCAPES.sub("", text), lambda _: "")


def _replaced(text: str, replacement: "Callable[[re.Match[str]], str]") -> str:
    text = _UNSEEN.sub(replacement, text)
    if text.isascii():
        return text
    return _JOINERS.sub(lambda run: run[0] if _is_joining(run) else replacement(run), text)


def _is_joining(run: "re.Match[str]") -> bool:
    """Whether a run of joiners belongs to the character before it."""
    base = run.string[max(0, run.start() - 1) : run.start()]
    if run.string.startswith(_KEYCAP, run.end()):
        return run[0] == "\ufe0f"
    return run[0] in _JOINER_RUNS and not base.isascii()
