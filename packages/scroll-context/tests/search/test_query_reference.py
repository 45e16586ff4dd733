"""The query language against a naive reading of it: every query finds exactly the events that it
describes.

The reference below knows the events as lists of words and decides by looking at each of them; it
shares no code with the parser, the analyzers or the engine. Queries go as deep as the language
does: words in their grammatical forms, phrases, prefixes, ids, signs, scripts without spaces, AND,
OR, NOT, brackets and words side by side.
"""

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from forms import form
from scroll_context.events import Draft
from scroll_context.store import Store

PLAIN = ("red", "redder", "reed", "blue", "bluebell", "harbour", "harbours", "green", "x7")
FORMS = {"harbour": {"harbour", "harbours"}, "harbours": {"harbour", "harbours"}}
SPECIAL = {
    "call_9f3a": ("call", "9f3a"),
    "v1.2": ("v1", "2"),
    "C++": ("c",),
    "Ünïcode": ("unicode",),
    "東京都": (),
    "京都": (),
}
"""How else a piece of an event may look, and the words that it then is."""
EVENTS = 60


class Text(msgspec.Struct, frozen=True):
    """One event as the reference sees it."""

    words: tuple[str, ...]
    signs: tuple[str, ...]
    runs: tuple[str, ...]


Holds = Callable[[Text, bool], bool]
"""Whether an event is meant; the flag says that words count only as they are written, as they do
after NOT.
"""


def _text(pieces: Sequence[str]) -> Text:
    words = [word for piece in pieces for word in SPECIAL.get(piece, (piece,))]
    return Text(
        tuple(words),
        tuple(piece.lower() for piece in pieces if piece == "C++"),
        tuple(piece for piece in pieces if piece in ("東京都", "京都")),
    )


def _in_a_row(words: Sequence[str], row: Sequence[str], *, prefix: bool = False) -> bool:
    for at in range(len(words) - len(row) + 1):
        part = words[at : at + len(row)]
        if list(part[:-1]) == list(row[:-1]) and (
            part[-1].startswith(row[-1]) if prefix else part[-1] == row[-1]
        ):
            return True
    return False


class Writer:
    """Writes a query from numbers, and beside it what it means; without more numbers it ends as
    soon as it can.
    """

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = iter(numbers)
        self.loose = (
            False  # whether words stand side by side, of which some will do when all find little
        )

    def pick(self, ways: Sequence[str]) -> str:
        return ways[next(self._numbers, 0) % len(ways)]

    def leaf(self) -> tuple[str, Holds]:
        match self.pick(
            ["word", "word", "word", "phrase", "quoted", "prefix", "id", "id prefix", "sign", "run"]
        ):
            case "word":
                word = self.pick(PLAIN)
                return word, lambda text, exact: any(
                    form in text.words for form in ({word} if exact else FORMS.get(word, {word}))
                )
            case "phrase":
                row = [self.pick(PLAIN) for _ in range(2 + len(self.pick(["", "x"])))]
                return f'"{" ".join(row)}"', lambda text, _: _in_a_row(text.words, row)
            case "quoted":
                only = self.pick(PLAIN)
                return f"“{only}”", lambda text, _: only in text.words
            case "prefix":
                start = self.pick(["re", "red", "blue", "b", "harb", "zz", "9"])
                return f"{start}*", lambda text, _: any(
                    word.startswith(start) for word in text.words
                )
            case "id":
                name = self.pick(["call_9f3a", "v1.2", "CALL_9F3A", "Ünïcode"])
                row = list(SPECIAL.get(name) or SPECIAL[name.lower()])
                return name, lambda text, _: _in_a_row(text.words, row)
            case "id prefix":
                return "call_9f*", lambda text, _: _in_a_row(
                    text.words, ["call", "9f"], prefix=True
                )
            case "sign":
                return "c++", lambda text, _: "c++" in text.signs
        part = self.pick(["東京都", "東京", "京都", "京", "都"])
        return part, lambda text, _: any(part in run for run in text.runs)

    def operand(self, depth: int) -> tuple[str, Holds]:
        if depth < 4 and self.pick(["", "", "group"]):
            text, holds = self.any_of(depth + 1)
            return f"({text})", holds
        return self.leaf()

    def all_of(self, depth: int) -> tuple[str, Holds]:
        """Operands joined by AND or by nothing, some of them negated, at least one of them not."""
        first, holds = self.operand(depth)
        text, wanted, unwanted, strict = first, [holds], list[Holds](), False
        while more := self.pick(["", "", " ", " AND ", " NOT ", " AND NOT "]):
            written, holds = self.operand(depth)
            if self.pick(["", "", "", "in front"]) and more == " NOT ":
                text = f"NOT {written} {text}"
            else:
                text += more + written
            (unwanted if "NOT" in more else wanted).append(holds)
            strict |= "AND" in more
        self.loose |= len(wanted) > 1 and not strict
        return (
            text,
            lambda one, exact: (
                all(each(one, exact) for each in wanted)
                and not any(each(one, True) for each in unwanted)
            ),
        )

    def any_of(self, depth: int = 0) -> tuple[str, Holds]:
        text, holds = self.all_of(depth)
        parts = [holds]
        while self.pick(["", "", "OR"]):
            more, holds = self.all_of(depth)
            text += f" OR {more}"
            parts.append(holds)
        return text, lambda one, exact: any(each(one, exact) for each in parts)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, list[Text]]]:
    chance = random.Random(5)
    pieces = [
        [chance.choice([*PLAIN, *SPECIAL]) for _ in range(chance.randrange(8))]
        for _ in range(EVENTS)
    ]
    with Store(tmp_path_factory.mktemp("corpus") / "store", create=True) as store:
        store.log.append_many(
            Draft(role=chance.choice(["user", "assistant"]), content=" ".join(one))
            for one in pieces
        )
        yield store, [_text(one) for one in pieces]


def found(store: Store, query: str) -> set[int]:
    hits = store.index.search(query, k=2 * EVENTS, patience=60)
    assert not hits.behind
    return {hit.seq for hit in hits}


def meant(texts: list[Text], holds: Callable[[Text], bool]) -> set[int]:
    return {seq for seq, text in enumerate(texts, 1) if holds(text)}


numbers = st.lists(st.integers(0, 719), max_size=40)


@settings(max_examples=form(120, 400))
@given(numbers)
def test_an_expression_finds_exactly_what_it_says(
    corpus: tuple[Store, list[Text]], drawn: list[int]
) -> None:
    store, texts = corpus
    writer = Writer(drawn)
    query, holds = writer.any_of()
    if not any(
        f" {operator} " in f" {query} ".replace("(", " ") for operator in ("AND", "OR", "NOT")
    ):
        query = f"{query} OR {query}"
    expected = meant(texts, lambda text: holds(text, False))
    event("none" if not expected else "all" if len(expected) == EVENTS else "some")
    hits = found(store, query)
    assert hits >= expected if writer.loose else hits == expected, query


@settings(max_examples=form(60, 200))
@given(st.lists(numbers, min_size=1, max_size=6))
def test_bare_words_find_what_holds_any_of_them_and_every_phrase(
    corpus: tuple[Store, list[Text]], drawn: list[list[int]]
) -> None:
    store, texts = corpus
    leaves = [Writer(one).leaf() for one in drawn]
    quoted = [phrase for text, phrase in leaves if text[0] in '"“']
    pairs = [
        text[at : at + 2]
        for text, _ in leaves
        if len(text) > 2 and text[0] == "東"
        for at in range(2)
    ]

    def holds(text: Text) -> bool:
        if quoted:
            return all(phrase(text, False) for phrase in quoted)
        return any(leaf(text, False) for _, leaf in leaves) or any(
            pair in run for run in text.runs for pair in pairs
        )

    assert found(store, " ".join(text for text, _ in leaves)) == meant(texts, holds)


BROKEN = (
    "AND",
    "OR",
    "NOT",
    "(",
    ")",
    '"',
    "*",
    "()",
    "((",
    '""',
    "-",
    "…",
    "AND NOT",
    "\x00",
    "’s",
)


@settings(max_examples=form(120, 400))
@given(st.lists(st.one_of(numbers, st.sampled_from(BROKEN)), max_size=10), st.booleans())
@example(["NOT", [0]], False)
@example([[0], "OR", "NOT", [0]], False)
def test_no_query_is_wider_than_its_words(
    corpus: tuple[Store, list[Text]], drawn: list[list[int] | str], glued: bool
) -> None:
    """However it is broken: an event that holds none of the words is not found."""
    store, texts = corpus
    leaves = [one if isinstance(one, str) else Writer(one).leaf() for one in drawn]
    written = [one if isinstance(one, str) else one[0] for one in leaves]
    query = " ".join(written)
    for mark in "()" if glued else "":
        query = query.replace(f" {mark}", mark).replace(f"{mark} ", mark)
    words = {word for one in leaves if not isinstance(one, str) for word in _parts(one[0])}
    widest = meant(texts, lambda text: any(_touches(text, word) for word in words))
    assert found(store, query) <= widest, query


@settings(max_examples=form(60, 200))
@given(st.text(max_size=40) | st.text(st.characters(), max_size=40), st.integers(1, 5))
def test_no_text_is_an_error(corpus: tuple[Store, list[Text]], text: str, k: int) -> None:
    assert len(corpus[0].index.search(text, k=k)) <= k


def _parts(leaf: str) -> list[str]:
    return [
        *leaf.strip('"“”*')
        .replace("_", " ")
        .replace(".", " ")
        .lower()
        .replace("ü", "u")
        .replace("ï", "i")
        .split()
    ]


def _touches(text: Text, part: str) -> bool:
    """Whether an event holds a word that begins so, or one of its forms, or a run that shares a
    pair with it.
    """
    begins = {part, *FORMS.get(part, ())}
    pairs = {part[at : at + 2] for at in range(len(part) - 1)} or {part}
    return any(
        word.startswith(start) for word in (*text.words, *text.signs) for start in begins
    ) or any(pair in run for run in text.runs for pair in pairs)
