"""Texts that must not remain, and how they are recognised in other events.

*Words* are named by the person who erases. They are compared the way search compares words:
full-width letters, case, accents and the plural make no difference, nor does what stands between
the words of a phrase. A word that occurs as it is written counts in any case, inside other words
too.

The *texts* of the erased events are searched for as they are: short ones anywhere in another text,
long ones line by line. Texts that people say every day ("go ahead") are not searched for.

*Values* are numbers and ids that a cell computed from erased events. Nothing says where a later
answer has them from, so they are recognised by their look: many digits, new to the session, and
from an output that has few of them.
"""

import json
import re
from collections.abc import Collection, Iterable

import msgspec

from scroll_context.search import tokenize

# A text must have this many characters to be more than a coincidence, with a digit and without one.
SHORTEST = 8
SHORTEST_PLAIN = 20
# A text of up to this many characters is searched for as it is, a longer one line by line.
LONGEST = 2_000
# Shorter lines are not searched for.
LINE = 20
# With more texts, only complete lines are compared.
MOST_TEXTS = 200
# The values of an output are searched for in later events if it has no more than these.
FEW_VALUES = 20

_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|[nrtbf"/\\])')
_NUMBER = re.compile(r"[A-Za-z0-9][\w.,:/'’-]*")
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d\d?[./]\d\d?[./]\d{4}|\d\d?:\d\d")
_BETWEEN = re.compile(r"[,'’_]")


class _Word(msgspec.Struct, frozen=True):
    """One word or phrase, in the forms in which it is compared."""

    as_written: frozenset[str]
    # The stems of its words, between spaces; "" when it has none.
    stems: str
    # Runs in scripts without spaces.
    runs: tuple[str, ...]
    # A part that every lower-case ASCII text with the word has.
    start: str

    def is_in(self, stems: str, folded: str) -> bool:
        """Whether a text, by its stems and without case, has the word in another form."""
        if not self.stems and not self.runs:
            return False
        has_stems = self.stems in stems
        return has_stems and all(run in folded for run in self.runs)


class Needles:
    """Everything that must not remain."""

    def __init__(self, words: Collection[str] = ()) -> None:
        self._words = [_word(word.strip()) for word in words]
        self._parts: set[str] = set()
        self._lines: set[str] = set()

    def add(self, text: str) -> None:
        """Search for a text of an event that is erased."""
        text = text.strip()
        has_digit = any(map(str.isdigit, text))
        if len(text) < (SHORTEST if has_digit else SHORTEST_PLAIN):
            return
        if len(text) <= LONGEST and len(self._parts) < 3 * MOST_TEXTS:
            self._parts.update(_forms(text))
        for line in map(str.strip, text.splitlines()):
            if len(line) >= LINE:
                self._lines.add(line)

    def has_word(self, text: str) -> bool:
        """Whether a text has one of the words."""
        if not self._words or not text:
            return False
        for word in self._words:
            if any(form in text for form in word.as_written):
                return True
        plain = _unescaped(text)
        low = plain.lower()
        if plain.isascii() and not any(word.start in low for word in self._words):
            return False
        plain = tokenize.normal(plain)
        stems = _stems(plain)
        folded = plain.casefold()
        return any(word.is_in(stems, folded) for word in self._words)

    def has_text(self, text: str) -> bool:
        """Whether a text repeats one of the texts, or a line of one."""
        if not text or not (self._parts or self._lines):
            return False
        if any(part in text and _stands_alone(part, text) for part in self._parts):
            return True
        lines = map(str.strip, _unescaped(text).splitlines())
        return not self._lines.isdisjoint(lines)


def _stands_alone(part: str, text: str) -> bool:
    """Whether a part occurs in a text with no letter or digit beside it: 101 is not in 1012."""
    at = text.find(part)
    while at >= 0:
        before = text[at - 1 : at]
        after = text[at + len(part) : at + len(part) + 1]
        continues_before = before.isalnum() and part[0].isalnum()
        continues_after = after.isalnum() and part[-1].isalnum()
        if not continues_before and not continues_after:
            return True
        at = text.find(part, at + 1)
    return False


def is_too_short(word: str) -> bool:
    """Whether a word would occur nearly everywhere."""
    word = word.strip()
    return len(word) < (2 if tokenize.runs(tokenize.normal(word)) else 3)


def _word(text: str) -> _Word:
    plain = tokenize.normal(text)
    tokens = tokenize.words(plain)
    stem = ""
    if tokens:
        stem = tokenize.stem(tokens[0]) or tokens[0]
    # "study" and "studies" share "stud", not the stem "studi".
    start = stem[: max(3, len(stem) - 1)]
    runs = tuple(run.casefold() for run in tokenize.runs(plain))
    return _Word(frozenset(_forms(text)), _stems(plain) if tokens else "", runs, start)


def _stems(text: str) -> str:
    """The words of normal text by their stems, between spaces."""
    stems = [tokenize.stem(word) or word for word in tokenize.words(text)]
    return f" {' '.join(stems)} "


def _forms(text: str) -> set[str]:
    """A text as it is, and as it stands inside JSON, between the quotes."""
    in_ascii = json.dumps(text)
    in_utf8 = json.dumps(text, ensure_ascii=False)
    return {text, in_ascii[1:-1], in_utf8[1:-1]}


def _unescaped(text: str) -> str:
    """A text with the escapes of JSON resolved: it may be JSON, or hold some."""
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_character, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(escape: re.Match[str]) -> str:
    """The character that an escape of JSON stands for; a line break for those without a number."""
    number = escape[1]
    return chr(int(number, 16)) if number else "\n"


def values(text: str) -> set[str]:
    """The numbers and ids in a text that hardly occur by chance, without grouping signs."""
    distinctive: set[str] = set()
    for match in _NUMBER.findall(text):
        value = match.rstrip(".,:/'’-")
        digits = sum(map(str.isdigit, value))
        fewest = 4 if re.search(r"\d[.,]\d", value) else 5
        if digits >= fewest and not _DATE.search(value):
            distinctive.add(_BETWEEN.sub("", value).casefold())
    return distinctive


class NewValues:
    """The values that one session computed from erased events and did not have before."""

    def __init__(self, earlier: Iterable[str]) -> None:
        self._old: set[str] = set()
        for text in earlier:
            self._old |= values(text)
        self._new: set[str] = set()

    def computed(self, text: str) -> None:
        """Add the values of an output that was made from erased events."""
        fresh = values(text) - self._old
        if len(fresh) <= FEW_VALUES:
            self._new |= fresh

    def repeated_in(self, text: str) -> bool:
        """Whether a later text has one of the new values. If not, its values count as old."""
        if not self._new and not text:
            return False
        later = values(text)
        if not self._new.isdisjoint(later):
            return True
        self._old |= later
        return False
