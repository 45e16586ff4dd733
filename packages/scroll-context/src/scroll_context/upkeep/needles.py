"""Texts that must not remain, and how they are recognised in other events.

*Words* are named by the person who erases. They are compared the way search compares words:
full-width letters, case, accents and the plural make no difference, nor does what stands between
the words of a phrase. A word that occurs as it is written counts in any case, inside other words
too.

The *texts* of the erased events are looked for as they are: short ones anywhere in another text,
long ones line by line. Texts that people say every day ("go ahead") are not looked for.

*Values* are numbers and ids that a cell computed from erased events. Nothing says where a later
answer has them from, so they are recognised by their look: many digits, new to the session, and
from an output that has few of them.
"""

import json
import re
from collections.abc import Collection, Iterable

import msgspec

from scroll_context.search import tokenize

SHORTEST = 8  # characters of a text that can be told from a coincidence, if it has a digit,
SHORTEST_PLAIN = 20  # and if it has none
LONGEST = 2_000  # characters of a text that is looked for as a whole; of longer ones, each line is
LINE = 20  # characters of such a line
MOST_TEXTS = (
    200  # texts that are looked for inside other texts; with more, only whole lines are compared
)
FEW_VALUES = 20  # of an output whose values are looked for in what follows

_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|[nrtbf"/\\])')
_NUMBER = re.compile(r"[A-Za-z0-9][\w.,:/'’-]*")
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d\d?[./]\d\d?[./]\d{4}|\d\d?:\d\d")
_BETWEEN = re.compile(r"[,'’_]")


class _Word(msgspec.Struct, frozen=True):
    """One word or phrase, in the forms in which it is compared."""

    as_written: frozenset[str]
    stems: str  # of its words, between spaces; "" when it has none
    runs: tuple[str, ...]  # of scripts without spaces
    start: str  # what a lower-case ASCII text has, if it has the word


class Needles:
    """Everything that must not remain."""

    def __init__(self, words: Collection[str] = ()) -> None:
        self._words = [_word(word.strip()) for word in words]
        self._parts: set[str] = set()
        self._lines: set[str] = set()

    def add(self, text: str) -> None:
        """Look for a text of an event that is erased."""
        text = text.strip()
        if len(text) < (SHORTEST if any(map(str.isdigit, text)) else SHORTEST_PLAIN):
            return
        if len(text) <= LONGEST and len(self._parts) < 3 * MOST_TEXTS:
            self._parts.update(_forms(text))
        self._lines.update(line for line in map(str.strip, text.splitlines()) if len(line) >= LINE)

    def has_word(self, text: str) -> bool:
        """Whether a text has one of the words."""
        if not self._words or not text:
            return False
        if any(form in text for word in self._words for form in word.as_written):
            return True
        plain = _unescaped(text)
        low = plain.lower()
        if plain.isascii() and not any(word.start in low for word in self._words):
            return False
        plain = tokenize.normal(plain)
        stems = _stems(plain)
        folded = plain.casefold()
        return any(
            (not word.stems or word.stems in stems) and all(run in folded for run in word.runs)
            for word in self._words
            if word.stems or word.runs
        )

    def has_text(self, text: str) -> bool:
        """Whether a text repeats one of the texts, or a line of one."""
        if not text or not (self._parts or self._lines):
            return False
        if any(part in text and _stands_alone(part, text) for part in self._parts):
            return True
        lines = map(str.strip, _unescaped(text).splitlines())
        return not self._lines.isdisjoint(lines)


def _stands_alone(part: str, text: str) -> bool:
    """Whether a part occurs in a text with no letter or digit beside it: 101 is not part of 1012."""
    at = text.find(part)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(part) : at + len(part) + 1]
        if not (before.isalnum() and part[0].isalnum()) and not (
            after.isalnum() and part[-1].isalnum()
        ):
            return True
        at = text.find(part, at + 1)
    return False


def is_too_short(word: str) -> bool:
    """Whether a word would be found nearly everywhere."""
    word = word.strip()
    return len(word) < (2 if tokenize.runs(tokenize.normal(word)) else 3)


def _word(text: str) -> _Word:
    plain = tokenize.normal(text)
    tokens = tokenize.words(plain)
    stem = tokenize.stem(tokens[0]) or tokens[0] if tokens else ""
    start = stem[: max(3, len(stem) - 1)]  # study and studies share "stud", not the stem "studi"
    runs = tuple(run.casefold() for run in tokenize.runs(plain))
    return _Word(frozenset(_forms(text)), _stems(plain) if tokens else "", runs, start)


def _stems(text: str) -> str:
    """The words of normal text by their stems, between spaces."""
    return f" {' '.join(tokenize.stem(word) or word for word in tokenize.words(text))} "


def _forms(text: str) -> set[str]:
    """A text as it is, and as it stands inside JSON."""
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _unescaped(text: str) -> str:
    """A text with the escapes of JSON resolved: it may be JSON, or hold some."""
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else "\n", text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def values(text: str) -> set[str]:
    """The numbers and ids in a text that hardly occur by chance, without the signs that group
    digits.
    """
    found: set[str] = set()
    for match in _NUMBER.findall(text):
        value = match.rstrip(".,:/'’-")
        digits = sum(map(str.isdigit, value))
        if digits >= (4 if re.search(r"\d[.,]\d", value) else 5) and not _DATE.search(value):
            found.add(_BETWEEN.sub("", value).casefold())
    return found


class NewValues:
    """The values that one session has computed from erased events and had not known before."""

    def __init__(self, earlier: Iterable[str]) -> None:
        self._known: set[str] = set()
        for text in earlier:
            self._known |= values(text)
        self._new: set[str] = set()

    def computed(self, text: str) -> None:
        """An output that was made from erased events."""
        fresh = values(text) - self._known
        if len(fresh) <= FEW_VALUES:
            self._new |= fresh

    def repeated_in(self, text: str) -> bool:
        """Whether a later text has one of them. What else it has is known from then on."""
        if not self._new and not text:
            return False
        found = values(text)
        if not self._new.isdisjoint(found):
            return True
        self._known |= found
        return False
