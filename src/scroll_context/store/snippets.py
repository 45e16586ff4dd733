"""The part of a text that a query matched, in about three hundred characters.

A pure function of the text and the terms. It looks for the words as written, so it may miss what only the index
knows (an accent, a full-width letter); the beginning of the text is then the snippet.
"""

import re
from collections.abc import Sequence
from itertools import islice

import msgspec

from scroll_context.store import analysis
from scroll_context.store.query import Field, Term

LENGTH = 300
BEFORE = 40  # characters shown before the first match
CUT = " ... "

_WORD = re.compile(r"[^\W_]*")
_MOST_PLACES = 3  # places of one term that are weighed,
_MOST_LOOKS = 12  # of so many that are looked at


class Needle(msgspec.Struct, frozen=True):
    """What one term looks like in a text, in lower case."""

    text: str = ""
    stem: str = ""  # any word that begins with the text and has this stem will do
    ends_open: bool = False  # the word may go on behind the text
    pattern: re.Pattern[str] | None = None  # several words in a row, whatever stands between them

    @classmethod
    def of(cls, term: Term) -> "Needle":
        first = term.tokens[0]
        if term.field is Field.PAIRS:
            return cls(first + "".join(pair[1:] for pair in term.tokens[1:]), ends_open=True)
        if len(term.tokens) > 1:
            return cls(pattern=re.compile(r"[\W_]{1,9}".join(map(re.escape, term.tokens))))
        if term.is_word and analysis.has_forms(first):
            stem = analysis.stem(first)
            return cls(stem[: max(3, len(stem) - 1)], stem)  # study and studies share "stud", not the stem "studi"
        return cls(first, ends_open=term.prefix)

    def places(self, low: str) -> list[int]:
        """Where it stands in lower-case text, the first few times."""
        if self.pattern is not None:
            return [match.start() for match in islice(self.pattern.finditer(low), _MOST_PLACES)]
        found: list[int] = []
        at = low.find(self.text)
        for _ in range(_MOST_LOOKS):
            if at < 0 or len(found) == _MOST_PLACES:
                break
            if self._stands(low, at):
                found.append(at)
            at = low.find(self.text, at + 1)
        return found

    def _stands(self, low: str, start: int) -> bool:
        """Whether the word begins and ends here; where nothing separates words, any place will do."""
        if start and low[start - 1].isalnum() and low[start].isascii():
            return False
        end = start + len(self.text)
        if self.stem:
            return analysis.stem(_word_at(low, start)) == self.stem
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


def _word_at(text: str, at: int) -> str:
    word = _WORD.match(text, at)
    return word[0] if word else ""


def _word_start(text: str, at: int) -> int:
    """The beginning of the next word, when one begins soon."""
    space = text.find(" ", at, at + BEFORE // 2)
    return at if space < 0 else space + 1
