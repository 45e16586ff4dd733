"""The query language, as a pure function from text to a tree, and the part of a text that a query
matched.

Bare words ask for events with all of them, or with as many as possible when that finds too little;
of a complete question, words that say nothing about its subject are left out. "Quotes" make a
phrase, which is always required; word* finds the words that begin so.

Uppercase AND, OR and NOT make an expression. From tight to loose: parentheses, NOT, words side by
side and AND, OR. So `a b OR c d` is `(a b) OR (c d)`. What AND, NOT and quotes say holds strictly.
Words side by side are wanted together; when that finds too little, any of them will do (`relaxed`),
as with bare words, and the answer says so.

Whatever is malformed (a dangling operator, an unclosed bracket, nothing but NOT) is read as bare
words. No text is an error, and none asks for more than the events that hold one of its words: a
query of stop words alone finds nothing.
"""

import re
from enum import StrEnum
from functools import lru_cache

import msgspec

from scroll_context.search import tokenize

MAX_TERMS = 64
# A query of more words is a question.
KEYWORDS = 5
MAX_DEPTH = 32
# Characters; a longer query is cut.
MAX_LENGTH = 10_000

_LEXEMES = re.compile(r'"([^"]*)"|([()])|((?:[^\s()"]|\([^\s()"]*\))+)')
_OPERATORS = frozenset({"AND", "OR", "NOT"})
_QUOTES = str.maketrans("“”„‟«»", '""""""')
# The letters behind the apostrophe of a contraction.
_ENDINGS = frozenset({"d", "ll", "m", "re", "s", "t", "ve"})
_POSSESSIVE = re.compile(r"['’]s\Z", re.IGNORECASE)
_SIGNED = re.compile(r"[^\W_]+(?:\+\+|#)")
_PERCENT = re.compile(r"\d+(?:[.,]\d+)*%")


class Field(StrEnum):
    """The fields of the index that hold words."""

    TEXT = "text"
    STEMS = "stems"
    SIGNS = "signs"
    PAIRS = "pairs"


class Term(msgspec.Struct, frozen=True):
    """One thing to search for: a word in any of its forms, or words in a row."""

    tokens: tuple[str, ...]
    field: Field = Field.TEXT
    # Whether the last token is only the beginning of a word.
    prefix: bool = False
    # Whether an event must have exactly these tokens.
    quoted: bool = False
    # The parts of a compound: InternalError is also "internal error".
    parts: tuple[str, ...] = ()

    @property
    def is_word(self) -> bool:
        """Whether other grammatical forms of the word will do as well."""
        return (
            self.field is Field.TEXT
            and len(self.tokens) == 1
            and not self.prefix
            and not self.quoted
        )

    @property
    def stem(self) -> str:
        """The part that the grammatical forms of the word share; empty if it has no other forms."""
        return tokenize.stem(self.tokens[0]) if self.is_word else ""


class All(msgspec.Struct, frozen=True):
    """Every part, and none of `without`.

    `loose` parts stood side by side: without more, some of them will do.
    """

    parts: tuple["Node", ...]
    without: tuple["Node", ...] = ()
    loose: bool = False


class AnyOf(msgspec.Struct, frozen=True):
    """At least one part."""

    parts: tuple["Node", ...]


Node = Term | All | AnyOf


class Words(msgspec.Struct, frozen=True):
    """A query without operators."""

    # Quoted phrases.
    required: tuple[Term, ...]
    terms: tuple[Term, ...]
    # Whether it has so many words that an event need not hold them all.
    question: bool = False


class _Malformed(Exception):
    """The text is not an expression. This error never leaves the module."""


def parse(text: str, *, every_word: bool = False) -> Words | Node:
    """Read a query. An empty `Words` finds nothing.

    With `every_word`, a long query is not read as a question: no word but stop words is left out of
    it.
    """
    text = tokenize.normal(text[:MAX_LENGTH].encode(errors="replace").decode()).translate(_QUOTES)
    lexemes = _LEXEMES.findall(text)
    if any(word in _OPERATORS for _, _, word in lexemes):
        try:
            return _Expression(lexemes).read()
        except _Malformed:
            pass
    return _bare(lexemes, every_word)


def terms_of(query: Words | Node) -> list[Term]:
    """The terms that an event may have matched: all that are not negated."""
    match query:
        case Words(required, terms):
            return [*required, *terms]
        case Term():
            return [query]
        case All(parts) | AnyOf(parts):
            return [term for part in parts for term in terms_of(part)]


def relaxed(query: Node) -> Node:
    """The same query, in which any of the words that stand side by side will do; quoted ones stay
    required.
    """
    match query:
        case Term():
            return query
        case AnyOf(parts):
            return AnyOf(tuple(relaxed(part) for part in parts))
        case All(parts, without, loose):
            if not loose:
                return All(tuple(relaxed(part) for part in parts), without)
            quoted = tuple(part for part in parts if isinstance(part, Term) and part.quoted)
            others = tuple(relaxed(part) for part in parts if part not in quoted)
            return All((*quoted, AnyOf(others)) if others else quoted, without)


def _bare(lexemes: list[tuple[str, str, str]], every_word: bool) -> Words:
    distinct: dict[Term, None] = {}
    for phrase, _, word in lexemes:
        if word in _OPERATORS:
            continue
        for term in _phrase(phrase) if phrase else _word(word, spread=not every_word):
            if not _is_one_of(tokenize.STOP_WORDS, term):
                distinct[term] = None
    terms = list(distinct)[:MAX_TERMS]
    question = len(terms) > KEYWORDS and not every_word
    if question:
        terms = [term for term in terms if not _is_one_of(tokenize.WEAK_WORDS, term)] or terms
    required = tuple(term for term in terms if term.quoted)
    others = tuple(term for term in terms if not term.quoted)
    return Words(required, others, question)


def _is_one_of(words: frozenset[str], term: Term) -> bool:
    """Whether a term is just one of these words; of a contraction (I'm, what's) the first part
    decides.
    """
    if term.field is not Field.TEXT or term.quoted or term.prefix:
        return False
    first, *rest = term.tokens
    return first in words and all(token in _ENDINGS for token in rest)


def _phrase(text: str) -> list[Term]:
    terms = []
    tokens = tokenize.words(text)
    if tokens:
        terms.append(Term(tuple(tokens), quoted=True))
    for run in tokenize.runs(text):
        terms.append(_run(run, quoted=True))
    return terms


@lru_cache(maxsize=1 << 14)
def _word(word: str, *, spread: bool) -> tuple[Term, ...]:
    """The terms of one word as written; `spread` takes a spaceless run apart, for ranking by how
    much of it matches.
    """
    terms: list[Term] = []
    for run in tokenize.runs(word):
        if spread and len(run) > 2:
            terms += [Term((pair,), Field.PAIRS) for pair in tokenize.pairs(run)[:-1]]
        else:
            terms.append(_run(run))
    bare = word.strip(".,;:!?()[]{}<>\"'`")
    if _SIGNED.fullmatch(bare) or _PERCENT.fullmatch(bare):
        return (*terms, Term((bare.lower(),), Field.SIGNS))
    prefix = bare.endswith("*") and bare.rstrip("*")[-1:].isalnum()
    tokens = tokenize.words(_POSSESSIVE.sub("", bare))
    if tokens:
        terms.append(Term(tuple(tokens), prefix=prefix, parts=_parts(bare, tokens, prefix)))
    return tuple(terms)


def _parts(word: str, tokens: list[str], prefix: bool) -> tuple[str, ...]:
    """The parts of a query word that is one compound; of several words in a row, none."""
    if prefix or len(tokens) > 1:
        return ()
    parts = tokenize.words(" ".join(tokenize.compounds(word)))
    return tuple(parts) if len(parts) > 1 else ()


def _run(run: str, *, quoted: bool = False) -> Term:
    if len(run) == 1:
        # It begins some pair, or stands alone.
        return Term((run,), Field.PAIRS, prefix=True, quoted=quoted)
    return Term(tuple(tokenize.pairs(run)[:-1]), Field.PAIRS, quoted=quoted)


class _Expression:
    """A recursive descent over the lexemes of one expression."""

    def __init__(self, lexemes: list[tuple[str, str, str]]) -> None:
        self._lexemes = lexemes
        self._at = 0
        self._terms = 0

    def read(self) -> Node:
        node = self._any_of(0)
        if self._at < len(self._lexemes):
            raise _Malformed
        return node

    def _any_of(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _Malformed
        parts = [self._all(depth)]
        while self._take("OR"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all(self, depth: int) -> Node:
        parts: list[Node] = []
        without: list[Node] = []
        strict = False
        while True:
            negated = self._take("NOT")
            operand = self._operand(depth)
            if operand is not None:
                (without if negated else parts).append(operand)
            joined = self._take("AND")
            strict |= joined
            if not joined and not self._starts_operand():
                break
        if not parts:
            raise _Malformed
        if len(parts) == 1 and not without:
            return parts[0]
        return All(tuple(parts), tuple(without), loose=len(parts) > 1 and not strict)

    def _operand(self, depth: int) -> Node | None:
        """A term or a group; None for a word of punctuation only."""
        phrase, bracket, word = self._next()
        if bracket == "(":
            node = self._any_of(depth + 1)
            if self._next()[1] != ")":
                raise _Malformed
            return node
        if bracket or word in _OPERATORS:
            raise _Malformed
        terms = _phrase(phrase) if phrase else _word(word, spread=False)
        self._terms += len(terms)
        if self._terms > MAX_TERMS:
            raise _Malformed
        if not terms:
            return None
        return terms[0] if len(terms) == 1 else All(tuple(terms))

    def _starts_operand(self) -> bool:
        if self._at >= len(self._lexemes):
            return False
        _, bracket, word = self._lexemes[self._at]
        return bracket != ")" and word != "OR"

    def _take(self, operator: str) -> bool:
        if self._at < len(self._lexemes) and self._lexemes[self._at][2] == operator:
            self._at += 1
            return True
        return False

    def _next(self) -> tuple[str, str, str]:
        if self._at >= len(self._lexemes):
            raise _Malformed
        self._at += 1
        return self._lexemes[self._at - 1]
