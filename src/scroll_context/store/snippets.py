"""The part of a text that a query matched, in about three hundred characters.

A pure function of the text and the terms. It looks for the words as written, so it may miss what only the index
knows (an accent, a full-width letter); the beginning of the text is then the snippet.
"""

import re
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from scroll_context.store.query import Field, Term

LENGTH = 300
BEFORE = 40  # characters shown before the first match
CUT = " ... "

_FORMS = 4  # forms of a word that are looked for,
_PER_FORM = 3  # and places of each that are looked at


class Needle(msgspec.Struct, frozen=True):
    """What one term looks like in a text, in lower case."""

    forms: tuple[str, ...] = ()
    ends_open: bool = False  # the word may go on behind the form
    pattern: re.Pattern[str] | None = None  # several words in a row, whatever stands between them

    @classmethod
    def of(cls, term: Term, forms: Callable[[str], Sequence[str]]) -> "Needle":
        if term.field is Field.PAIRS:
            return cls((term.tokens[0] + "".join(pair[1:] for pair in term.tokens[1:]),), ends_open=True)
        if len(term.tokens) > 1:
            return cls(pattern=re.compile(r"[\W_]{1,9}".join(map(re.escape, term.tokens))))
        if term.is_word:
            return cls(tuple(forms(term.tokens[0])[:_FORMS]))
        return cls(term.tokens, ends_open=term.prefix)

    def places(self, low: str) -> list[int]:
        """Where it stands in lower-case text, the first few times."""
        if self.pattern is not None:
            return [match.start() for match in islice(self.pattern.finditer(low), _PER_FORM)]
        found = []
        for form in self.forms:
            at = low.find(form)
            for _ in range(_PER_FORM):
                if at < 0:
                    break
                if self._stands(low, at, at + len(form)):
                    found.append(at)
                at = low.find(form, at + 1)
        return found

    def _stands(self, low: str, start: int, end: int) -> bool:
        """Whether a word begins and ends here; where nothing separates words, any place will do."""
        if start and low[start - 1].isalnum() and low[start].isascii():
            return False
        return self.ends_open or not low[end : end + 1].isalnum()


def snippet(text: str, needles: Sequence[Needle], *, from_start: bool = True) -> str:
    """The stretch of text that holds the most of the needles; it begins with the text when that holds them.

    `from_start` is False for text that is itself a stretch of something longer.
    """
    if len(text) <= LENGTH and from_start:
        return text
    low = text.lower()
    places = sorted((place, number) for number, needle in enumerate(needles) for place in needle.places(low))
    first, last = _best_stretch(places) if places else (0, 0)
    start = 0 if last + BEFORE <= LENGTH else _word_start(text, max(0, first - BEFORE))
    end = min(len(text), start + LENGTH)
    cut_before = start > 0 or not from_start
    body = text[start:end].strip() if cut_before else text[:end].rstrip()
    return (CUT if cut_before else "") + body + (CUT.rstrip() if end < len(text) else "")


def _best_stretch(places: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """First and last place of the stretch with the most different needles; of equals, the earliest."""
    best, most, first = (places[0][0], places[0][0]), 0, 0
    for last, (end, _) in enumerate(places):
        while end - places[first][0] > LENGTH - 2 * BEFORE:
            first += 1
        different = len({number for _, number in places[first : last + 1]})
        if different > most:
            best, most = (places[first][0], end), different
    return best


def _word_start(text: str, at: int) -> int:
    """The beginning of the next word, when one begins soon."""
    space = text.find(" ", at, at + BEFORE // 2)
    return at if space < 0 else space + 1
