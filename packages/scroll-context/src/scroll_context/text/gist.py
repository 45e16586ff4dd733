"""An extract of a long stretch: its most informative sentences, spread evenly over it, in their own
words and order.

The stretch is divided into as many parts as sentences fit, each part gives its best sentence, and
the best of the rest fill the remaining room. A sentence is informative when it has the words that
recur in the stretch without being everywhere in it, and names, numbers and dates; words of earlier
choices count less, and near-duplicates are folded into the first of them. Scroll writes no sentence
itself: each one is shown with the seq that it comes from.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from scroll_context.text.similar import Folder
from scroll_context.text.words import STOP_WORDS, body, clip, prose, sentences, stem, words
from scroll_context.work import check as check_work

# Characters of a turn that are read.
READ = 8_000
# Characters of a sentence at most.
SENTENCE = 240
# Words with a meaning in a sentence, at least.
FEWEST = 3
# Characters of the sentence that a part gives, with its seq.
TYPICAL = 150
# Characters of a seq and the marks around it.
SEQ = 8
# Characters of a sentence at least; a smaller room stays empty.
SHORTEST = 60
# Factor of a word's weight after each sentence that has it.
REPEATED = 0.5

# A number, or a name inside a sentence.
_FACT = re.compile(r"\d|(?<=[\w,;] )[A-Z][a-z]+")
_REQUEST = re.compile(
    r"(?:,|;| -| –| —) ?(?:so |and |but |then )?"
    r"(?:(?:can|could|would|will|do|does|did|should|is|are) "
    r"(?:you|i|we|it|this|that|there|someone|anyone)|"
    r"(?:how|what|what's|which|where|why|any)) [^,;]*(?:,[^,;]*)?\?\W*\Z",
    re.IGNORECASE,
)
_STOP_STEMS = frozenset(map(stem, STOP_WORDS)) | STOP_WORDS


class Extract(msgspec.Struct, frozen=True):
    """A sentence, where it stands, and how many near-duplicates it stands for besides itself."""

    seq: int
    text: str
    repeats: int = 0


class _Sentence(msgspec.Struct):
    order: int
    seq: int
    text: str
    stems: frozenset[str]
    repeats: int = 0


def gist(
    turns: Iterable[tuple[int, str]],
    chars: int = 6_000,
    favour: Iterable[str] = (),
    typical: int = TYPICAL,
) -> list[Extract]:
    """The extract of these turns (seq and text, in order) within so many characters.

    Sentences with one of the stems in `favour` come first: those of a question, for example. There
    are as many parts as sentences of `typical` characters fit.
    """
    stretch = list(turns)
    count = max(1, min(len(stretch), chars // typical))
    parts: list[list[_Sentence]] = [[] for _ in range(count)]
    by_words: dict[tuple[str, ...], _Sentence] = {}
    for position, (seq, text) in enumerate(stretch):
        check_work()
        for sentence_text in sentences(prose(body(text[:READ]))):
            its_words = tuple(words(sentence_text))
            stems = frozenset(map(stem, its_words)) - _STOP_STEMS
            if len(stems) < FEWEST:
                continue
            earlier = by_words.get(its_words)
            if earlier is not None:
                earlier.repeats += 1
                continue
            sentence = _Sentence(len(by_words), seq, sentence_text, stems)
            by_words[its_words] = sentence
            parts[position * count // len(stretch)].append(sentence)
    chosen = _choose(parts, len(stretch), chars, frozenset(favour))
    chosen.sort(key=lambda sentence: sentence.order)
    return [Extract(sentence.seq, sentence.text, sentence.repeats) for sentence in chosen]


def _choose(
    parts: list[list[_Sentence]], turns: int, chars: int, favour: frozenset[str]
) -> list[_Sentence]:
    weights = _weights(parts, turns)
    alike = Folder()
    chosen: list[_Sentence] = []
    room = chars

    def score(sentence: _Sentence) -> tuple[float, int]:
        weight = sum(weights[word] for word in sentence.stems)
        worth = weight / math.sqrt(len(sentence.stems) + 4)
        facts = min(3, len(_FACT.findall(sentence.text)))
        preference = 3 if favour & sentence.stems else 1
        return worth * (1 + 0.15 * facts) * preference, -sentence.order

    def take(sentence: _Sentence, allowance: int) -> int:
        """Choose a sentence unless it repeats another, and return the characters that it takes."""
        group, is_first = alike.add(sentence.text)
        if not is_first:
            chosen[group].repeats += 1 + sentence.repeats
            return 0
        sentence.text = clip(_statement(sentence.text), min(SENTENCE, allowance))
        chosen.append(sentence)
        for word in sentence.stems:
            weights[word] *= REPEATED
        return len(sentence.text) + SEQ

    for number, part in enumerate(parts):
        allowance = room // (len(parts) - number) - SEQ
        if allowance < SHORTEST:
            continue
        for sentence in sorted(part, key=score, reverse=True):
            part.remove(sentence)
            size = take(sentence, allowance)
            room -= size
            if size:
                break
    rest: list[_Sentence] = []
    for part in parts:
        rest += part
    for sentence in sorted(rest, key=score, reverse=True):
        if room < SHORTEST + SEQ:
            break
        room -= take(sentence, room - SEQ)
    return chosen


def _statement(sentence: str) -> str:
    """The statement of a sentence, without the request at its end: "I run 5 km a day, can you make
    a plan?".
    """
    request = _REQUEST.search(sentence)
    if request is None:
        return sentence
    statement = sentence[: request.start()]
    content_words = set(words(statement)) - STOP_WORDS
    return statement + "…" if len(content_words) > FEWEST else sentence


def _weights(parts: Sequence[Sequence[_Sentence]], turns: int) -> dict[str, float]:
    """Words that recur without being everywhere weigh most."""
    counts: Counter[str] = Counter()
    for part in parts:
        for sentence in part:
            counts.update(sentence.stems)
    return {
        word: math.log(1 + count) * math.log(1 + (turns + 1) / count)
        for word, count in counts.items()
    }
