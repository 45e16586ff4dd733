"""Text of others made safe to show: without what a terminal or a model obeys and a reader cannot see."""

import re

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor moves
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # commands to the terminal, such as writing the clipboard
    r"|\x1b[ -/]*[0-~]?"
)
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control codes, except tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # marks that turn the direction of text around
    "\u180e\u200b\u2028\u2029\u2060-\u2065\ufeff\ufff9-\ufffb"  # separators and marks without width
    "\U000e0000-\U000e007f"  # tags, which spell text that is not shown
    "\ud800-\udfff]"  # halves of characters
)


def visible(text: str) -> str:
    """Text that does nothing to a terminal or a page but appear on it. Line ends and tabs stay."""
    return _UNSEEN.sub(lambda hidden: ascii(hidden[0])[1:-1], text)


def printable(text: str) -> str:
    """The text without escape sequences, control codes, direction marks and invisible characters."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub("", _ESCAPES.sub("", text))
