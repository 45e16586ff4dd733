"""Distinctive terms: the words that set a session apart from the others, and so say what it was
about.

A term is a run of one to three words without a stop word or punctuation inside. It is rated by the
number of the user's turns that have it: in the session, in everything else, and in the neighbouring
sessions (Dunning's log-likelihood ratio). The first terms of a session set it apart from all
others; the rest set it apart from its neighbours, which tend to share a subject. Counting is
incremental: a session is counted once, and when it is closed only its `MOST_TERMS` most frequent
terms stay in memory. Everything is a pure function of the turns in their order. Counts are stored
on disk (session/earlier_work.py): a change that alters them needs a new NOTES_VERSION there."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop
from sys import intern

import msgspec

from scroll_context.text.words import STOP_WORDS, WORD, body, clip, prose, sentences, stem, words

# Terms of a session that stay counted after it is closed.
MOST_TERMS = 300
# Words of a term.
LONGEST = 3
# Neighbouring sessions on each side.
NEIGHBOURS = 4
# Characters of a turn that are read. The rest of a longer one was pasted.
READ = 20_000
# Terms that describe a session.
WIDTH = 7
# Characters of a title.
TITLE = 80
# After this many turns, the best title so far is taken.
FIRST_TURNS = 4

# Least log-likelihood ratios. By chance, one in a hundred, in forty, in twenty terms reaches them.
APART_FROM_ALL = 6.6
APART_FROM_NEIGHBOURS = 5.0
APART_AT_LEAST = 3.8

_BREAK = re.compile(r"[^\w\s'’+#-]+|\n")
# Han, and katakana, which writes names.
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]{2,}|[\u30a0-\u30ff]{3,}")
# Replaces everything that ends a run of words. It is not a word itself.
_END = " . "
_SPACELESS = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")
_READABLE = re.compile(
    r"(?=.*(?:[^\W\d_]{3}|[\u3400-\u9fff]{2}))(?!.*[²³¹⁰-₟])(?!.*[a-z].*[α-ω])(?!.*[α-ω].*[a-z]).+"
)
"""A word with three letters in a row that is not a piece of a formula."""
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
"""Words that people use on any subject; a term needs another word."""
_FORMULA_PIECE = re.compile(r".*_$|^(?:a?r?c?(?:sin|cos|tan|ln|log|in|os|an)[xyzt])$")
_VERB_LIKE = re.compile(r"\w{2}(?:ing|ed|ly)\Z")
# By the number of words in a term, and of those that look like verbs or adverbs.
_LENGTH_WEIGHTS = [1 + 0.35 * (length - 1) for length in range(LONGEST + 1)]
_VERB_WEIGHTS = [0.4**verbs for verbs in range(LONGEST + 1)]


class TermTable:
    """Counts of terms over sessions in order.

    The newest session may still grow; older ones are closed.
    """

    def __init__(self) -> None:
        self._sessions: list[_Counts] = []
        # Turns of the closed sessions, by term.
        self._closed: Counter[str] = Counter()
        # Turns of all sessions.
        self._turns = 0
        # Turns of all sessions, by stem.
        self._turns_with: Counter[str] = Counter()
        # Rarities of stems since the last turn was counted.
        self._rarities = _Rarities(1, self._turns_with)
        # The number of first sessions that are counted as closed already.
        self._summed = 0

    @classmethod
    def over(
        cls, sums: "SummedTerms", sessions: Mapping[int, "CountedTerms"], length: int
    ) -> "TermTable":
        """A table of so many closed sessions of which only the sums and some sessions are given.

        The terms of a session can be asked if its neighbours are given too.
        """
        table = cls()
        table._closed.update(sums.turns_with)
        table._turns = sums.turns
        table._turns_with.update(sums.stems)
        for number in range(length):
            counted = sessions.get(number)
            table._sessions.append(_Counts() if counted is None else _Counts.of(counted))
        table._summed = length
        return table

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, turns: Iterable[str] = ()) -> int:
        """Begin a session with these turns of the user, and close the previous one.

        Returns its number.
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

    def add_turn(self, turn: "CountedTurn") -> int:
        """Begin a session of one turn that was counted before. Returns its number."""
        self._append(_Counts.of_turn(turn))
        self._turns += 1
        self._turns_with.update(turn.stems)
        self._rarities = _Rarities(self._turns + 1, self._turns_with)
        return len(self._sessions) - 1

    def _append(self, counts: "_Counts") -> None:
        if len(self._sessions) > self._summed:
            closed = self._sessions[-1]
            closed.close()
            # All counts of a single turn are 1, and counting a list is much faster than adding a
            # mapping.
            if closed.turns == 1:
                self._closed.update(list(closed.turns_with))
            else:
                self._closed.update(closed.turns_with)
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
        session that is like the others, or the only one, is described by its most frequent terms.
        """
        own = self._sessions[number]
        candidates = self._candidates(own)
        # The turns of a closed session are counted among the closed ones.
        closed = self._closed.get
        if number < len(self._sessions) - 1:
            elsewhere = [closed(key, 0) - count for count, _, key in candidates]
        else:
            elsewhere = [closed(key, 0) for _, _, key in candidates]
        from_all = _scored(candidates, own.turns, elsewhere, self._turns - own.turns)
        near = self._sessions[max(0, number - NEIGHBOURS) : number]
        near += self._sessions[number + 1 : number + 1 + NEIGHBOURS]
        counts: dict[str, int] = {}
        for other in near:
            for key in own.turns_with.keys() & other.turns_with.keys():
                counts[key] = counts.get(key, 0) + other.turns_with[key]
        nearby = [counts.get(key, 0) for _, _, key in candidates]
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
        turns_with, rarities = own.turns_with, self._rarities
        most_rarity = math.log(self._turns + 1)
        candidates = []
        for key, parts, length_weight, verb_weight in own.readings():
            rarity = 0.0
            for part in parts:
                rarity += rarities[part]
            if rarity > 0:
                weight = length_weight * rarity / len(parts) / most_rarity * verb_weight
                candidates.append((turns_with[key], weight, key))
        return candidates


class _Rarities(dict[str, float]):
    """How rare words are among so many turns, by stem.

    A piece of a formula makes its term worthless.
    """

    def __init__(self, turns: int, turns_with: Mapping[str, int]) -> None:
        self._turns = turns
        self._turns_with = turns_with

    def __missing__(self, stem: str) -> float:
        is_word = _READABLE.match(stem) and not _FORMULA_PIECE.match(stem)
        rare = math.log(self._turns / self._turns_with[stem]) if is_word else -math.inf
        self[stem] = rare
        return rare


# The stem of a word, and how it is written.
_Word = tuple[str, str]
# The key of a term, its stems, and the weights of its length and of its verbs.
_Reading = tuple[str, tuple[str, ...], float, float]
# The number of turns with a term, its weight and its key.
_Candidate = tuple[int, float, str]
# The ratio or count of a term, its score and its key.
_Scored = tuple[float, float, str]


def _scored(
    candidates: list[_Candidate], turns: int, others: list[int], other_turns: int
) -> list[_Scored]:
    """The candidates with the ratio that sets them apart from others, and the score.

    `others` has the number of other turns with each candidate.
    """
    scored = []
    ratios: dict[tuple[int, int], float] = {}
    for (count, weight, key), other in zip(candidates, others, strict=True):
        ratio = ratios.get((count, other))
        if ratio is None:
            ratio = ratios[count, other] = log_likelihood(count, turns, other, other_turns)
        scored.append((ratio, ratio * weight, key))
    return scored


class CountedTerms(msgspec.Struct, frozen=True, array_like=True):
    """The counts of a closed session, so that it need not be counted again."""

    turns: int
    # The number of turns with each of the most frequent terms.
    turns_with: dict[str, int]
    # Their spellings.
    spellings: dict[str, str]
    # The number of turns with each word.
    stems: dict[str, int]


class SummedTerms(msgspec.Struct, array_like=True):
    """The counts of several closed sessions together."""

    turns: int = 0
    turns_with: dict[str, int] = {}
    stems: dict[str, int] = {}

    def add(self, counted: CountedTerms) -> None:
        self.turns += counted.turns
        for sums, counts in self._pairs(counted):
            for key, count in counts.items():
                sums[key] = sums.get(key, 0) + count

    def remove(self, counted: CountedTerms) -> None:
        self.turns -= counted.turns
        for sums, counts in self._pairs(counted):
            for key, count in counts.items():
                sums[key] -= count
                if not sums[key]:
                    del sums[key]

    def _pairs(self, counted: CountedTerms) -> list[tuple[dict[str, int], dict[str, int]]]:
        return [(self.turns_with, counted.turns_with), (self.stems, counted.stems)]


class CountedTurn(msgspec.Struct, frozen=True):
    """One turn alone, so that it need not be counted again."""

    # Its terms and how each is spelt.
    spellings: dict[str, str]
    stems: list[str]
    most_frequent: list[str]
    readings: list[_Reading]


def counted_turn(turn: str) -> CountedTurn:
    """Count one turn of a user, or one text of a model."""
    counts = _Counts()
    stems = counts.count(turn)
    return CountedTurn(counts._spelt, stems, counts.most_frequent(), counts.readings())


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
        # The first spelling, or the one that is written most often.
        self._spelt: dict[str, str] = {}
        # All spellings of each term that has several.
        self._respelt: dict[str, Counter[str]] = {}
        # Those terms that were counted since their spelling was chosen.
        self._to_spell: set[str] = set()
        self._most_frequent: list[str] | None = None
        # Of a turn that was counted before.
        self._readings: list[_Reading] | None = None

    @classmethod
    def of(cls, counted: CountedTerms) -> "_Counts":
        counts = cls()
        counts.turns = counted.turns
        counts.turns_with = counted.turns_with
        counts._spelt = counted.spellings
        return counts

    @classmethod
    def of_turn(cls, turn: CountedTurn) -> "_Counts":
        counts = cls()
        counts.turns = 1
        counts.turns_with = dict.fromkeys(turn.spellings, 1)
        counts._spelt = turn.spellings
        counts._most_frequent = turn.most_frequent
        counts._readings = turn.readings
        return counts

    def count(self, turn: str) -> list[str]:
        """Count a turn, and return its stems."""
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
        for terms in (stems, longer):
            for key, spelling in terms.items():
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
            keys = list(self.turns_with)
            if len(keys) > MOST_TERMS:
                order = sorted(
                    [(-count * (key.count(" ") + 1), key) for key, count in self.turns_with.items()]
                )
                keys = [key for _, key in order[:MOST_TERMS]]
            self._most_frequent = keys
        return self._most_frequent

    def readings(self) -> list[_Reading]:
        """The candidates that have more than fillers, with what makes them read well.

        Those of a single turn are kept with it. Those of a session take more memory than they save
        time.
        """
        if self._readings is not None:
            return self._readings
        spellings = self.spellings
        readings = []
        for key in self.most_frequent():
            parts = tuple(map(intern, key.split(" ")))
            if not _FILLERS.issuperset(parts):
                verbs = _verbs(spellings[key])
                readings.append((key, parts, _LENGTH_WEIGHTS[len(parts)], _VERB_WEIGHTS[verbs]))
        return readings

    def close(self) -> None:
        """Forget all but the most frequent terms."""
        keys, spellings = self.most_frequent(), self.spellings
        self._respelt = {}
        if len(keys) < len(self.turns_with):
            self._spelt = {key: spellings[key] for key in keys}
            self.turns_with = {key: self.turns_with[key] for key in keys}

    @property
    def spellings(self) -> Mapping[str, str]:
        """How each term is spelt most often."""
        for key in self._to_spell:
            counts = self._respelt[key]
            self._spelt[key] = min(counts, key=lambda spelling: (-counts[spelling], spelling))
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
        # Sorting takes longer, because only a few of hundreds are chosen.
        heapify(queue)
        while queue:
            _, key = heappop(queue)
            if self._begun.isdisjoint(_beginnings(key)):
                fuller = self._fuller(key)
                self._begun.update(_beginnings(fuller))
                self.spellings.append(self._counts.spellings[fuller])
                if len(self.spellings) >= upto:
                    return

    def _fuller(self, key: str) -> str:
        """A longer term around this one that at least half of its turns hold."""
        if key.count(" ") == LONGEST - 1:
            return key
        turns_with = self._counts.turns_with
        around = [
            other
            for other in self._candidates
            if key in other
            and len(other) > len(key)
            and f" {key} " in f" {other} "
            and 2 * turns_with[other] >= max(3, turns_with[key])
            and self._begun.isdisjoint(_beginnings(other))
        ]
        return min(around, key=lambda other: (-turns_with[other], -len(other), other), default=key)


@lru_cache(maxsize=1 << 16)
def _beginnings(key: str) -> frozenset[str]:
    """The first six letters of the words of a term, which converge and convergence, linear and
    linearity share.
    """
    parts = key.replace("-", " ").split(" ")
    return frozenset(part[:6] for part in parts if len(part) > 3) or frozenset((key,))


def _verbs(written: str) -> int:
    """How many words of a term look like verbs or adverbs."""
    # Few terms have such letters, and checking each word takes longer.
    if "ing" in written or "ed" in written or "ly" in written:
        return sum(_VERB_LIKE.search(word) is not None for word in written.split(" "))
    return 0


def marked_words(text: str) -> "list[_Word | None]":
    """The words of a text, each as stem and as written, and None wherever a stop word or
    punctuation ends a run of them.

    Chinese and Japanese put no spaces between words: there every pair of characters is a run of its
    own.
    """
    text = prose(body(text[:READ]))
    marked: list[_Word | None] = []
    if not text.isascii():
        for run in _HAN.findall(text):
            is_katakana = run[0] < "\u3400"
            pairs = [run] if is_katakana else [run[at : at + 2] for at in range(len(run) - 1)]
            for pair in pairs:
                marked += ((pair, pair), None)
        text = _SPACELESS.sub(_END, text)
    marked += map(_stemmed, _BREAK.sub(_END, text).split())
    return marked


@lru_cache(maxsize=1 << 16)
def _stemmed(written: str) -> "_Word | None":
    """A word as stem and as written; None for a stop word, a number, or a run that is too long
    for a word.
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


def distinctive(sessions: Iterable[Iterable[str]]) -> list[tuple[str, ...]]:
    """The distinctive terms of each session, given the user's turns of all of them in order."""
    table = TermTable()
    for turns in sessions:
        table.add(turns)
    return [table.terms(number) for number in range(len(table))]


def title(turns: Iterable[str], terms: Sequence[str] = (), chars: int = TITLE) -> str:
    """The subject of a session in a few of the user's own words.

    It is the sentence of the first turns that has most of the session's terms, from its first word
    with a meaning on: "I'm trying to understand how the heat equation …" becomes "heat equation …".
    """
    return title_among(map(title_sentences, turns), terms, chars)


def title_sentences(turn: str) -> list[str]:
    """The sentences of a turn that a title may be made of."""
    return list(sentences(prose(body(turn[:READ]))))


def title_among(
    sentences_by_turn: Iterable[Sequence[str]], terms: Sequence[str] = (), chars: int = TITLE
) -> str:
    """A title, given the sentences of each turn."""
    term_roots: set[str] = set()
    for term in terms:
        term_roots.update(_roots(term))
    # Every form of a word begins like this: story, stories.
    beginnings = {root.removesuffix("y") for root in term_roots}
    best, best_score = "", 0.0
    for number, turn in enumerate(sentences_by_turn):
        for sentence in turn:
            low = sentence.lower().replace("’", "'")
            most = sum([beginning in low for beginning in beginnings])
            if most + 1 - number / 8 <= best_score:
                # It cannot be better, and counting its words takes longer.
                continue
            roots = {stem(word) for word in WORD.findall(low) if word not in STOP_WORDS}
            score = len(roots & term_roots) + min(len(roots), 4) / 4 - number / 8
            if score > best_score:
                best, best_score = sentence, score
        if number >= FIRST_TURNS and best:
            break
    return clip(without_opener(best), chars)


@lru_cache(maxsize=1 << 12)
def _roots(term: str) -> frozenset[str]:
    """The stems of the words in a term."""
    return frozenset(map(stem, words(term)))


def opening(turns: Iterable[str], chars: int = TITLE) -> str:
    """The first sentence of a user with a subject, which a greeting, a command of a program or a
    yes lacks.

    Without one, it is the first turn.
    """
    first = ""
    for turn in turns:
        first = first or turn
        for sentence in sentences(prose(body(turn[:READ]))):
            content_words = set(words(sentence)) - STOP_WORDS
            if len(content_words) >= 2 and not sentence.startswith("<"):
                return clip(sentence, chars)
    return clip(first, chars)


def without_opener(sentence: str) -> str:
    """A sentence from its first word with a meaning on; a denial stays a denial."""
    for word in WORD.finditer(sentence):
        low = word[0].lower().replace("’", "'")
        if low not in STOP_WORDS or low in ("not", "never", "no", "without") or low.endswith("n't"):
            return sentence[word.start() :]
    return sentence
