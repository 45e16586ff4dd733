"""The part of a text that matched a query.

A snippet is the stretch of text that holds the most terms of a query; needles say what a term looks
like inside a text.
"""

import re
from collections.abc import Sequence
from itertools import islice

import msgspec

from scroll_context.search import tokenize
from scroll_context.search.query import Field, Term

# Characters of a snippet.
LENGTH = 300
# Characters shown before the first match.
BEFORE = 40
CUT = " ... "

_WORD = re.compile(r"[^\W_]*")
_PART = re.compile(r"[A-Za-z][a-z]+")
# Places of one term that are weighed, and places that are tried to get them.
_MOST_PLACES = 3
_MOST_LOOKS = 12


class Needle(msgspec.Struct, frozen=True):
    """One term as it looks in a text, in lower case."""

    text: str = ""
    # Any word that begins with the text and has this stem matches.
    stem: str = ""
    # Whether the word may continue behind the text.
    ends_open: bool = False
    # Several words in a row, whatever stands between them.
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of(cls, term: Term) -> "Needle":
        first = term.tokens[0]
        if term.field is Field.PAIRS:
            return cls(first + "".join(pair[1:] for pair in term.tokens[1:]), ends_open=True)
        if len(term.tokens) > 1:
            return cls(pattern=re.compile(r"[\W_]{1,9}".join(map(re.escape, term.tokens))))
        stem = term.stem
        if stem:
            # "study" and "studies" share "stud", not their stem "studi".
            return cls(stem[: max(3, len(stem) - 1)], stem)
        return cls(first, ends_open=term.prefix)

    def places(self, low: str, text: str) -> list[int]:
        """Where it stands in a text, the first few times; `low` is the text in lower case."""
        if self.pattern is not None:
            return [match.start() for match in islice(self.pattern.finditer(low), _MOST_PLACES)]
        places: list[int] = []
        at = low.find(self.text)
        for _ in range(_MOST_LOOKS):
            if at < 0 or len(places) == _MOST_PLACES:
                break
            if self._stands(low, text, at):
                places.append(at)
            at = low.find(self.text, at + 1)
        return places

    def _stands(self, low: str, text: str, start: int) -> bool:
        """Whether the word begins and ends here; where nothing separates words, any place will do.

        A capital inside a word begins a part of it.
        """
        if start and low[start - 1].isalnum() and low[start].isascii():
            if not text[start : start + 1].isupper():
                return False
            return self._is_part(low, text, start)
        end = start + len(self.text)
        if self.stem:
            word = _word_at(low, start)
            is_form = (tokenize.stem(word) or word) == self.stem
            return is_form or self._is_part(low, text, start)
        return self.ends_open or not low[end : end + 1].isalnum()

    def _is_part(self, low: str, text: str, start: int) -> bool:
        part = _PART.match(text, start)
        word = low[start : part.end()] if part is not None else ""
        return bool(self.stem) and (tokenize.stem(word) or word) == self.stem


def snippet(text: str, needles: Sequence[Needle], *, from_start: bool = True) -> str:
    """The stretch of text that holds the most needles; the beginning of the text if that holds
    them.

    `from_start` is False for text that is itself a stretch of something longer.
    """
    if len(text) <= LENGTH and from_start:
        return text
    low = text.lower()
    places = sorted(
        (place, number)
        for number, needle in enumerate(needles)
        for place in needle.places(low, text)
    )
    first, last = _best_stretch(places) if places else (0, 0)
    start = 0
    if last + BEFORE > LENGTH:
        start = _word_start(text, max(0, first - BEFORE))
    end = min(len(text), start + LENGTH)
    stretch = text[start:end].rstrip()
    if start > 0 or not from_start:
        stretch = CUT + stretch.lstrip()
    if end < len(text):
        stretch += CUT.rstrip()
    return stretch


def _best_stretch(places: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """First and last place of the stretch with the most different needles; the earliest of
    equals."""
    best = (places[0][0], places[0][0])
    most = first = 0
    # How often each needle occurs within the stretch.
    inside: dict[int, int] = {}
    for end, number in places:
        inside[number] = inside.get(number, 0) + 1
        while end - places[first][0] > LENGTH - 2 * BEFORE:
            left = places[first][1]
            first += 1
            inside[left] -= 1
            if not inside[left]:
                del inside[left]
        if len(inside) > most:
            best, most = (places[first][0], end), len(inside)
    return best


def _word_at(text: str, at: int) -> str:
    word = _WORD.match(text, at)
    return word[0] if word else ""


def _word_start(text: str, at: int) -> int:
    """The beginning of the next word, when one begins soon."""
    space = text.find(" ", at, at + BEFORE // 2)
    return at if space < 0 else space + 1
