"""Text of others made safe to show: without what a terminal or a model obeys and a reader cannot see."""

import re

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor moves
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # commands to the terminal, such as writing the clipboard
    r"|\x1b[ -/]*[0-~]?"
)
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control codes, except tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of text around
    "\u200b\u2028\u2029\u2060-\u2065\ufeff"  # separators without width
    "\U000e0000-\U000e007f"  # tags, which spell text that is not shown
    "\ud800-\udfff]"
)

_HIDDEN = (  # control characters; marks of direction; what takes no room; separators of lines; tags
    *range(0x20), *range(0x7F, 0xA0), 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F),
    *range(0x2060, 0x2070), 0xFEFF, 0xFFF9, 0xFFFA, 0xFFFB, *range(0xE0000, 0xE0080),
)  # fmt: skip
_VISIBLE = {code: ascii(chr(code))[1:-1] for code in _HIDDEN if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    """Text that does nothing to a terminal or a page but appear on it. Line ends and tabs stay."""
    return text.translate(_VISIBLE)


def printable(text: str) -> str:
    """The text without escape sequences, control codes, direction marks and invisible characters."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub("", _ESCAPES.sub("", text))
