"""Near-duplicates to fold.

Two texts are near-duplicates when they have almost the same runs of words and exactly the same
numbers: "scored 70 %" and "scored 85 %" are never folded, since the difference is what a reader
looks for.
"""

import math
import re
import zlib
from functools import cached_property, lru_cache

from scroll_context.text.words import STOP_WORDS, stem, words

# Words of a shingle; `_Text.shingles` makes them.
SHINGLE = 3
# Share of common shingles from which two texts are near-duplicates.
SAME = 0.85
# Least hashes by which a near-duplicate is looked up.
BANDS = 6
# Characters at the beginning, middle or end of a text. A near-duplicate has at least one of these.
GLANCE = 24
# Characters of a text that are compared.
READ = 4_000

# The logarithms of the lengths of near-duplicates differ by at most this.
_LENGTH_STEP = -math.log(SAME)
_NUMBER = re.compile(r"\d[\d.,:/-]*")


@lru_cache(maxsize=1 << 16)
def _word_hash(word: str) -> int:
    return zlib.crc32(word.encode())


class _Text:
    """A text, with its shingles and numbers, which are made when they are first needed."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def shingles(self) -> frozenset[int]:
        """Its runs of words, hashed."""
        hashes = list(map(_word_hash, words(self.text[:READ])))
        if len(hashes) <= SHINGLE:
            return frozenset((hash(tuple(hashes)),))
        runs = zip(hashes, hashes[1:], hashes[2:], strict=False)
        # Tuples of integers hash alike in every process, unlike texts.
        return frozenset(map(hash, runs))

    @cached_property
    def numbers(self) -> list[str]:
        return _NUMBER.findall(self.text[:READ])

    def repeats(self, other: "_Text") -> bool:
        if self.text == other.text:
            return True
        # Numbers are compared first: they cost less, and mostly differ.
        if self.numbers != other.numbers:
            return False
        common = len(self.shingles & other.shingles)
        return common >= SAME * (len(self.shingles) + len(other.shingles) - common)


class Folder:
    """Texts in order, gathered into groups of near-duplicates.

    Each group is known by the number of its first text.
    """

    def __init__(self) -> None:
        self._groups: list[_Text] = []
        self._by_band: dict[int, list[int]] = {}

    def add(self, text: str) -> tuple[int, bool]:
        """The number of the group that a text belongs to, and whether it is the first of it."""
        new = _Text(text[:READ])
        bands = sorted(new.shingles)[:BANDS]
        candidates: set[int] = set()
        for band in bands:
            candidates.update(self._by_band.get(band, ()))
        for group in sorted(candidates):
            if new.repeats(self._groups[group]):
                return group, False
        self._groups.append(new)
        for band in bands:
            self._by_band.setdefault(band, []).append(len(self._groups) - 1)
        return len(self._groups) - 1, True


class Repeats:
    """Finds texts that nearly repeat an earlier one. A short comparison tells most texts apart."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[_Text]] = {}

    def is_repeat(self, text: str) -> bool:
        """Whether an earlier text was nearly the same; else this one is remembered."""
        new = _Text(text)
        place = int(math.log(len(text) + 1) / _LENGTH_STEP)
        near: list[_Text] = []
        for length in (place - 1, place, place + 1):
            near += self._by_length.get(length, ())
        middle = len(text) // 2
        begin = text[:GLANCE]
        inside = text[middle : middle + GLANCE]
        end = text[-GLANCE:]
        for other in near:
            theirs = other.text
            is_candidate = begin in theirs or inside in theirs or end in theirs
            if is_candidate and new.repeats(other):
                return True
        self._by_length.setdefault(place, []).append(new)
        return False


def content_stems(text: str) -> frozenset[str]:
    """The stems of the words that carry a subject."""
    return frozenset(stem(word) for word in words(text[:READ]) if word not in STOP_WORDS)
