"""An extract of a long stretch: its most telling sentences, spread evenly over it, in their own
words and order.

The stretch is cut into as many parts as sentences fit, each part gives its best sentence, and what
room is left goes round once more. A sentence is telling when it has the words that recur in the
stretch without being everywhere in it, and names, numbers and dates; words that an earlier choice
has said count less, and near-duplicates are folded into the first of them. No sentence is written
by us: each one stands with the seq that it comes from.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from scroll_context.text.similar import Folder
from scroll_context.text.words import STOP_WORDS, body, clip, prose, sentences, stem, words
from scroll_context.work import check as check_work

READ = 8_000  # characters of a turn that are looked at
SENTENCE = 240  # characters of a sentence at most
FEWEST = 3  # words with a meaning in a sentence
TYPICAL = 150  # characters of the sentence that a part gives, with its seq
SEQ = 8  # characters of a seq and what sets it off
SHORTEST = 60  # characters; a smaller rest of the room stays empty
SAID = 0.5  # what is left of the weight of a word that was chosen once

_FACT = re.compile(r"\d|(?<=[\w,;] )[A-Z][a-z]+")  # a number, or a name inside a sentence
_REQUEST = re.compile(
    r"(?:,|;| -| –| —) ?(?:so |and |but |then )?"
    r"(?:(?:can|could|would|will|do|does|did|should|is|are) (?:you|i|we|it|this|that|there|someone|anyone)|"
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
    known: dict[tuple[str, ...], _Sentence] = {}
    for position, (seq, text) in enumerate(stretch):
        check_work()
        for sentence in sentences(prose(body(text[:READ]))):
            found = words(sentence)
            stems = frozenset(map(stem, found)) - _STOP_STEMS
            if len(stems) < FEWEST:
                continue
            if (one := known.get(tuple(found))) is not None:
                one.repeats += 1
                continue
            one = known[tuple(found)] = _Sentence(len(known), seq, sentence, stems)
            parts[position * count // len(stretch)].append(one)
    chosen = sorted(
        _chosen(parts, len(stretch), chars, frozenset(favour)), key=lambda one: one.order
    )
    return [Extract(one.seq, one.text, one.repeats) for one in chosen]


def _chosen(
    parts: list[list[_Sentence]], turns: int, chars: int, favour: frozenset[str]
) -> list[_Sentence]:
    weights = _weights(parts, turns)
    alike = Folder()
    chosen: list[_Sentence] = []
    room = chars

    def score(one: _Sentence) -> tuple[float, int]:
        worth = sum(weights[word] for word in one.stems) / math.sqrt(len(one.stems) + 4)
        facts = min(3, len(_FACT.findall(one.text)))
        return worth * (1 + 0.15 * facts) * (3 if favour & one.stems else 1), -one.order

    def take(one: _Sentence, allowance: int) -> int:
        """Choose a sentence unless it repeats one; the characters that it takes are returned."""
        group, is_first = alike.add(one.text)
        if not is_first:
            chosen[group].repeats += 1 + one.repeats
            return 0
        one.text = clip(_statement(one.text), min(SENTENCE, allowance))
        chosen.append(one)
        for word in one.stems:
            weights[word] *= SAID
        return len(one.text) + SEQ

    for number, part in enumerate(parts):
        allowance = room // (len(parts) - number) - SEQ
        for one in sorted(part, key=score, reverse=True) if allowance >= SHORTEST else ():
            part.remove(one)
            if taken := take(one, allowance):
                room -= taken
                break
    for one in sorted((one for part in parts for one in part), key=score, reverse=True):
        if room < SHORTEST + SEQ:
            break
        room -= take(one, room - SEQ)
    return chosen


def _statement(sentence: str) -> str:
    """What a sentence states, without the request at its end: "I run 5 km a day, can you make a
    plan?".
    """
    asked = _REQUEST.search(sentence)
    if (
        asked
        and len({word for word in words(sentence[: asked.start()]) if word not in STOP_WORDS})
        > FEWEST
    ):
        return sentence[: asked.start()] + "…"
    return sentence


def _weights(parts: Sequence[Sequence[_Sentence]], turns: int) -> dict[str, float]:
    """Words that recur without being everywhere weigh most."""
    held = Counter(word for part in parts for one in part for word in one.stems)
    return {
        word: math.log(1 + count) * math.log(1 + (turns + 1) / count)
        for word, count in held.items()
    }
