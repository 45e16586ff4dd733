"""Distinctive terms: what a session was about, told by the words that set it apart from the others.

A term is a run of one to three words without a stop word or punctuation inside. What counts is in
how many of the user's turns it occurs: in the session, in everything else, and in the neighbouring
sessions (Dunning's log-likelihood ratio). The first terms of a session set it apart from all
others; the rest set it apart from its neighbours, which tend to share a subject. Counting is
incremental: a session is counted once, and when it is closed only its `KEPT` most frequent terms
stay in memory. Everything is a pure function of the turns in their order. Counts are kept on disk
(session/history.py): what changes them needs a new NOTES_VERSION there.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop

import msgspec

from scroll_context.text.words import STOP_WORDS, WORD, body, clip, prose, sentences, stem, words

KEPT = 300  # terms of a session that are counted on after it is closed
LONGEST = 3  # words of a term
NEIGHBOURS = 4  # sessions before and after
READ = 20_000  # characters of a turn that are looked at; what is longer was pasted
WIDTH = 7  # terms of a session
TITLE = 80  # characters
FIRST_TURNS = 4  # after which no title is looked for if there is one

APART_FROM_ALL = 6.6  # log-likelihood ratios, which one in a hundred terms would reach by chance,
APART_FROM_NEIGHBOURS = 5.0  # one in forty,
APART_AT_LEAST = 3.8  # one in twenty

_BREAK = re.compile(r"[^\w\s'’+#-]+|\n")
_HAN = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff]{2,}|[\u30a0-\u30ff]{3,}"
)  # and katakana, which writes names
_END = " . "  # in place of what ends a run of words: a word that is none
_SPACELESS = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")
_READABLE = re.compile(
    r"(?=.*(?:[^\W\d_]{3}|[\u3400-\u9fff]{2}))(?!.*[²³¹⁰-₟])(?!.*[a-z].*[α-ω])(?!.*[α-ω].*[a-z]).+"
)
"""A word with three letters in a row that is no piece of a formula."""
_FILLERS = frozenset(
    map(
        stem,
        """nope yup sense play run move moves bullet bullets hold holds true false stick stuck wait
        check check-in mind matter happen happens change changes side end chance sorry fine bad big
        huge tiny quick quickly slow easy easily turn turns side bring comes call set line lines
        word words bold header headers paragraph text format formatting reply response message
        messages chat conversation prompt""".split(),
    )
)
"""Words that people use whatever they speak about; a term of nothing else says nothing."""
_FORMULA_PIECE = re.compile(r".*_$|^(?:a?r?c?(?:sin|cos|tan|ln|log|in|os|an)[xyzt])$")
_VERB_LIKE = re.compile(r"\w{2}(?:ing|ed|ly)\Z")


class TermTable:
    """Counts of terms over sessions in order.

    The newest session may still grow; older ones are closed.
    """

    def __init__(self) -> None:
        self._sessions: list[_Counts] = []
        self._closed: Counter[str] = Counter()  # turns of the closed sessions, by term
        self._turns = 0  # of all sessions
        self._turns_with: Counter[str] = Counter()  # turns of all sessions, by stem
        self._rarities = _Rarities(1, self._turns_with)  # of stems, since the last turn was counted

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, turns: Iterable[str] = ()) -> int:
        """Begin a session with these turns of the user, and close the one before.

        Its number is returned.
        """
        self._append(_Counts())
        self.extend(turns)
        return len(self._sessions) - 1

    def add_counted(self, counted: "CountedTerms") -> None:
        """Add a session that was counted before, as its turns would be added.

        It cannot be the last one.
        """
        self._append(_Counts.of(counted))
        self._turns += counted.turns
        self._turns_with.update(counted.stems)

    def _append(self, counts: "_Counts") -> None:
        if self._sessions:
            closed = self._sessions[-1]
            closed.close()
            # of a single turn, all counts are 1, and a list is counted much faster than a mapping
            # is added
            self._closed.update(list(closed.turns_with) if closed.turns == 1 else closed.turns_with)
        self._sessions.append(counts)

    def extend(self, turns: Iterable[str]) -> None:
        """More turns of the newest session."""
        newest = self._sessions[-1]
        for turn in turns:
            self._turns += 1
            self._turns_with.update(newest.count(turn))
        self._rarities = _Rarities(self._turns + 1, self._turns_with)

    def terms(self, number: int, width: int = WIDTH) -> tuple[str, ...]:
        """The terms that tell this session from the others.

        Of seven, the first three are apart from all sessions, the next from the neighbours. A
        session that is like the others, or the only one, is told by its most frequent terms.
        """
        own = self._sessions[number]
        candidates = self._candidates(own)
        is_closed = (
            number < len(self._sessions) - 1
        )  # then its own turns are counted among the closed ones
        counted = {
            key: n
            for _, _, key in candidates
            if (n := self._closed[key] - is_closed * own.turns_with[key])
        }
        from_all = _scored(candidates, own.turns, counted, self._turns - own.turns)
        near = self._sessions[max(0, number - NEIGHBOURS) : number]
        near += self._sessions[number + 1 : number + 1 + NEIGHBOURS]
        nearby: dict[str, int] = {}
        for other in near:
            for key in own.turns_with.keys() & other.turns_with.keys():
                nearby[key] = nearby.get(key, 0) + other.turns_with[key]
        from_near = _scored(candidates, own.turns, nearby, sum(other.turns for other in near))
        chosen = _Choice(own, [key for _, _, key in candidates])
        chosen.take(from_all, APART_FROM_ALL, max(1, width * 3 // 7))
        chosen.take(from_near, APART_FROM_NEIGHBOURS, width)
        chosen.take(from_all, APART_AT_LEAST, width)
        if len(chosen.spellings) < min(width, 3):
            chosen.take(
                [(count, count * weight, key) for count, weight, key in candidates],
                1,
                min(width, 3),
            )
        return tuple(chosen.spellings)

    def _candidates(self, own: "_Counts") -> "list[_Candidate]":
        """The terms of a session, each with the weight of how well it reads.

        Longer terms and rarer words weigh more, verbs and adverbs less; formulas weigh nothing and
        are left out.
        """
        turns_with, spellings, rarities = own.turns_with, own.spellings, self._rarities
        whole = math.log(self._turns + 1)
        found = []
        for key in own.most_frequent():
            parts = key.split(" ")
            rarity = 0.0
            for part in parts:
                rarity += rarities[part]
            if rarity > 0 and not _FILLERS.issuperset(parts):
                length = len(parts)
                weight = (1 + 0.35 * (length - 1)) * rarity / length / whole
                if verbs := _verbs(spellings[key]):
                    weight *= 0.4**verbs
                found.append((turns_with[key], weight, key))
        return found


class _Rarities(dict[str, float]):
    """How rare words are among so many turns, by stem.

    A piece of a formula makes its whole term worthless.
    """

    def __init__(self, turns: int, turns_with: Mapping[str, int]) -> None:
        self._turns = turns
        self._turns_with = turns_with

    def __missing__(self, stem: str) -> float:
        is_word = _READABLE.match(stem) and not _FORMULA_PIECE.match(stem)
        rare = math.log(self._turns / self._turns_with[stem]) if is_word else -math.inf
        self[stem] = rare
        return rare


_Word = tuple[str, str]  # its stem, and how it is written
_Candidate = tuple[int, float, str]  # turns with a term, its weight, its key
_Scored = tuple[float, float, str]  # a ratio or a count, the score, the key


def _scored(
    candidates: list[_Candidate], turns: int, others: Mapping[str, int], other_turns: int
) -> list[_Scored]:
    """The candidates with the ratio that sets them apart from others, and the score."""
    scored = []
    ratios: dict[tuple[int, int], float] = {}
    for count, weight, key in candidates:
        place = count, others.get(key, 0)
        if (ratio := ratios.get(place)) is None:
            ratio = ratios[place] = log_likelihood(count, turns, place[1], other_turns)
        scored.append((ratio, ratio * weight, key))
    return scored


class CountedTerms(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a session when it is closed, so that it need not be counted again."""

    turns: int
    turns_with: dict[str, int]  # of the most frequent terms
    spellings: dict[str, str]  # of the same
    stems: dict[str, int]  # turns with each word


def counted_terms(turns: Iterable[str]) -> CountedTerms:
    """Count the user's turns of a session."""
    counts = _Counts()
    stems: Counter[str] = Counter()
    for turn in turns:
        stems.update(counts.count(turn))
    counts.close()
    return CountedTerms(counts.turns, counts.turns_with, dict(counts.spellings), dict(stems))


class _Counts:
    """How many turns of one session hold each term, and how it is spelt there."""

    def __init__(self) -> None:
        self.turns = 0
        self.turns_with: dict[str, int] = {}
        self._spelt: dict[
            str, str
        ] = {}  # the first spelling, or the one that is written most often
        self._respelt: dict[
            str, Counter[str]
        ] = {}  # all of them, of a term that is spelt in several ways
        self._to_spell: set[str] = (
            set()
        )  # those of them that were counted since the spelling was chosen
        self._most_frequent: list[str] | None = None

    @classmethod
    def of(cls, counted: CountedTerms) -> "_Counts":
        counts = cls()
        counts.turns, counts.turns_with, counts._spelt = (
            counted.turns,
            counted.turns_with,
            counted.spellings,
        )
        return counts

    def count(self, turn: str) -> list[str]:
        """Count a turn; its stems are returned."""
        stems: dict[str, str] = {}
        longer: dict[str, str] = {}
        before = before_that = None
        for word in marked_words(turn):
            if word is None:
                before = None
                continue
            root, written = word
            if root not in stems:
                stems[root] = written
            if before is not None:
                key = f"{before[0]} {root}"
                if key not in longer:
                    longer[key] = f"{before[1]} {written}"
                if before_that is not None:
                    key = f"{before_that[0]} {key}"
                    if key not in longer:
                        longer[key] = f"{before_that[1]} {before[1]} {written}"
            before_that, before = before, word
        self.turns += 1
        self._most_frequent = None
        turns_with, spelt = self.turns_with, self._spelt
        for found in (stems, longer):
            for key, spelling in found.items():
                if key not in turns_with:
                    turns_with[key] = 1
                    spelt[key] = spelling
                    continue
                if key in self._respelt:
                    self._respelt[key][spelling] += 1
                    self._to_spell.add(key)
                elif spelt[key] != spelling:
                    self._respelt[key] = Counter({spelt[key]: turns_with[key], spelling: 1})
                    self._to_spell.add(key)
                turns_with[key] += 1
        return list(stems)

    def most_frequent(self) -> list[str]:
        """The candidates, in no order: those in the most turns, where there are many; longer ones
        before equals.
        """
        if self._most_frequent is None:
            found = list(self.turns_with)
            if len(found) > KEPT:
                order = sorted(
                    [(-count * (key.count(" ") + 1), key) for key, count in self.turns_with.items()]
                )
                found = [key for _, key in order[:KEPT]]
            self._most_frequent = found
        return self._most_frequent

    def close(self) -> None:
        """Forget all but the most frequent terms."""
        kept, spellings = self.most_frequent(), self.spellings
        self._respelt = {}
        if len(kept) < len(self.turns_with):
            self._spelt = {key: spellings[key] for key in kept}
            self.turns_with = {key: self.turns_with[key] for key in kept}

    @property
    def spellings(self) -> Mapping[str, str]:
        """How each term is spelt most often."""
        for key in self._to_spell:
            self._spelt[key] = min(self._respelt[key].items(), key=lambda one: (-one[1], one[0]))[0]
        self._to_spell.clear()
        return self._spelt


class _Choice:
    """Terms chosen one after the other, no two of which share a word or the beginning of one."""

    def __init__(self, counts: _Counts, candidates: list[str]) -> None:
        self._counts = counts
        self._candidates = candidates
        self._begun: set[str] = set()
        self.spellings: list[str] = []

    def take(self, scored: list[_Scored], least: float, upto: int) -> None:
        """The best by score of those whose ratio is at least so much, until so many are chosen."""
        if len(self.spellings) >= upto:
            return
        queue = [(-score, key) for ratio, score, key in scored if ratio >= least]
        heapify(queue)  # a few are taken of hundreds: sorting them all takes longer
        while queue:
            _, key = heappop(queue)
            if self._begun.isdisjoint(_beginnings(key)):
                self._add(self._fuller(key))
                if len(self.spellings) >= upto:
                    return

    def _fuller(self, key: str) -> str:
        """A longer term around this one that at least half of its turns hold."""
        if key.count(" ") == LONGEST - 1:
            return key
        held = self._counts.turns_with
        around = [
            other
            for other in self._candidates
            if key in other
            and len(other) > len(key)
            and f" {key} " in f" {other} "
            and 2 * held[other] >= max(3, held[key])
            and self._begun.isdisjoint(_beginnings(other))
        ]
        return min(around, key=lambda other: (-held[other], -len(other), other), default=key)

    def _add(self, key: str) -> None:
        self._begun.update(_beginnings(key))
        self.spellings.append(self._counts.spellings[key])


@lru_cache(maxsize=1 << 16)
def _beginnings(key: str) -> frozenset[str]:
    """The first six letters of the words of a term: what converge and convergence, linear and
    linearity share.
    """
    return frozenset(
        part[:6] for word in key.split(" ") for part in word.split("-") if len(part) > 3
    ) or frozenset((key,))


def _verbs(written: str) -> int:
    """How many words of a term look like verbs or adverbs."""
    if (
        "ing" in written or "ed" in written or "ly" in written
    ):  # seldom, and a look at the words takes longer
        return sum(_VERB_LIKE.search(word) is not None for word in written.split(" "))
    return 0


def marked_words(text: str) -> "list[_Word | None]":
    """The words of a text, each as stem and as written; None wherever a stop word or punctuation
    ends a run of them.

    Chinese and Japanese put no spaces between words: there every pair of characters is a run of its
    own.
    """
    text = prose(body(text[:READ]))
    found: list[_Word | None] = []
    if not text.isascii():
        for run in _HAN.findall(text):
            pairs = [run] if run[0] < "\u3400" else [run[at : at + 2] for at in range(len(run) - 1)]
            found += (word for pair in pairs for word in ((pair, pair), None))
        text = _SPACELESS.sub(_END, text)
    found += map(_stemmed, _BREAK.sub(_END, text).split())
    return found


@lru_cache(maxsize=1 << 16)
def _stemmed(written: str) -> "_Word | None":
    """A word as stem and as written; None for a stop word, a number, or what is longer than words
    are.
    """
    bare = written.strip("'’-+")
    word = bare.lower().replace("’", "'")
    if not word or word in STOP_WORDS or len(word) > 40 or not any(map(str.isalpha, word)):
        return None
    root = stem(word)
    return (root, bare) if root else None


@lru_cache(maxsize=1 << 14)
def log_likelihood(count: int, turns: int, others: int, other_turns: int) -> float:
    """Dunning's ratio for a term in `count` of `turns` here and `others` of `other_turns`
    elsewhere.

    It is 0 for a term that is not more frequent here.
    """
    if other_turns <= 0 or turns <= 0 or count * other_turns <= others * turns:
        return 0.0
    both = count + others
    share = both / (turns + other_turns)

    def log(part: int, whole: int, expected: float) -> float:
        return part * math.log(part / (whole * expected)) if part else 0.0

    return 2 * (
        log(count, turns, share)
        + log(turns - count, turns, 1 - share)
        + log(others, other_turns, share)
        + log(other_turns - others, other_turns, 1 - share)
    )


def distinctive(sessions: Iterable[Iterable[str]], width: int = WIDTH) -> list[tuple[str, ...]]:
    """The distinctive terms of each session, given the user's turns of all of them in order."""
    table = TermTable()
    for turns in sessions:
        table.add(turns)
    return [table.terms(number, width) for number in range(len(table))]


def title(turns: Iterable[str], terms: Sequence[str] = (), chars: int = TITLE) -> str:
    """What a session is about in a few of the user's own words.

    It is the sentence of the first turns that has most of the session's terms, from its first word
    with a meaning on: "I'm trying to understand how the heat equation …" becomes "heat equation …".
    """
    wanted = {stem(word) for term in terms for word in words(term)}
    beginnings = {
        root.removesuffix("y") for root in wanted
    }  # every form of a word begins so: story, stories
    best, best_score = "", 0.0
    for number, turn in enumerate(turns):
        for sentence in sentences(prose(body(turn[:READ]))):
            low = sentence.lower().replace("’", "'")
            if sum([one in low for one in beginnings]) + 1 - number / 8 <= best_score:
                continue  # at a glance: it cannot be better
            roots = {stem(word) for word in WORD.findall(low) if word not in STOP_WORDS}
            score = len(roots & wanted) + min(len(roots), 4) / 4 - number / 8
            if score > best_score:
                best, best_score = sentence, score
        if number >= FIRST_TURNS and best:
            break
    return clip(without_opener(best), chars)


def opening(turns: Iterable[str], chars: int = TITLE) -> str:
    """The first sentence of a user that says something: a greeting, a command of a program or a yes
    says nothing.

    Without one, it is what was said first.
    """
    first = ""
    for turn in turns:
        first = first or turn
        for sentence in sentences(prose(body(turn[:READ]))):
            if len(
                {word for word in words(sentence) if word not in STOP_WORDS}
            ) >= 2 and not sentence.startswith("<"):
                return clip(sentence, chars)
    return clip(first, chars)


def without_opener(sentence: str) -> str:
    """A sentence from its first word that means something; what it denies stays denied."""
    for word in WORD.finditer(sentence):
        low = word[0].lower().replace("’", "'")
        if low not in STOP_WORDS or low in ("not", "never", "no", "without") or low.endswith("n't"):
            return sentence[word.start() :]
    return sentence
