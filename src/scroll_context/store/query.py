"""The query language, as a pure function from text to a tree.

Bare words ask for events with all of them, or with as many as possible when that finds too little; of a whole question,
words that say nothing of its subject are left out. Uppercase AND, OR and NOT with parentheses make an expression that
holds strictly (AND binds tighter than OR, and words side by side are joined by AND). "Quotes" make a phrase, which is
always required; word* finds the words that begin so. Whatever is malformed (a dangling operator, an unclosed bracket,
nothing but NOT) is read as bare words. No text is an error, and none asks for more than the events that hold one of
its words: a query of stop words alone finds nothing.
"""

import re
from enum import StrEnum
from functools import lru_cache

import msgspec

from scroll_context.store import analysis

MAX_TERMS = 64
KEYWORDS = 5  # a query of more words is a question
MAX_DEPTH = 32
MAX_LENGTH = 10_000  # characters; a longer query is cut

_LEXEMES = re.compile(r'"([^"]*)"|([()])|((?:[^\s()"]|\([^\s()"]*\))+)')
_OPERATORS = frozenset({"AND", "OR", "NOT"})
_QUOTES = str.maketrans("“”„‟«»", '""""""')
_ENDINGS = frozenset({"d", "ll", "m", "re", "s", "t", "ve"})  # what follows the apostrophe of a contraction
_POSSESSIVE = re.compile(r"['’]s\Z", re.IGNORECASE)
_SIGNED = re.compile(r"[^\W_]+(?:\+\+|#)")


class Field(StrEnum):
    """The fields of the index that hold words."""

    TEXT = "text"
    SIGNS = "signs"
    PAIRS = "pairs"


class Term(msgspec.Struct, frozen=True):
    """One thing to look for: a word in any of its forms, or words in a row."""

    tokens: tuple[str, ...]
    field: Field = Field.TEXT
    prefix: bool = False  # the last token may go on
    quoted: bool = False  # exactly so, and required

    @property
    def is_word(self) -> bool:
        """Whether other grammatical forms of the word will do as well."""
        return self.field is Field.TEXT and len(self.tokens) == 1 and not self.prefix and not self.quoted


class All(msgspec.Struct, frozen=True):
    """Every part, and none of `without`."""

    parts: tuple["Node", ...]
    without: tuple["Node", ...] = ()


class AnyOf(msgspec.Struct, frozen=True):
    """At least one part."""

    parts: tuple["Node", ...]


Node = Term | All | AnyOf


class Words(msgspec.Struct, frozen=True):
    """A query without operators."""

    required: tuple[Term, ...]  # quoted phrases
    terms: tuple[Term, ...]
    question: bool = False  # so many words that no event need hold them all


class _Malformed(Exception):
    """The text is no expression; never leaves this module."""


def parse(text: str) -> Words | Node:
    """Read a query. An empty `Words` finds nothing."""
    text = analysis.normal(text[:MAX_LENGTH].encode(errors="replace").decode()).translate(_QUOTES)
    lexemes = _LEXEMES.findall(text)
    if any(word in _OPERATORS for _, _, word in lexemes):
        try:
            return _Expression(lexemes).read()
        except _Malformed:
            pass
    return _bare(lexemes)


def terms_of(query: Words | Node) -> list[Term]:
    """What an event may have matched: every term that is not negated."""
    match query:
        case Words(required, terms):
            return [*required, *terms]
        case Term():
            return [query]
        case All(parts) | AnyOf(parts):
            return [term for part in parts for term in terms_of(part)]


def _bare(lexemes: list[tuple[str, str, str]]) -> Words:
    found: dict[Term, None] = {}
    for phrase, _, word in lexemes:
        if word in _OPERATORS:
            continue
        for term in _phrase(phrase) if phrase else _word(word, spread=True):
            if not _is_one_of(analysis.STOP_WORDS, term):
                found[term] = None
    terms = list(found)[:MAX_TERMS]
    question = len(terms) > KEYWORDS
    if question:
        terms = [term for term in terms if not _is_one_of(analysis.WEAK_WORDS, term)] or terms
    return Words(tuple(t for t in terms if t.quoted), tuple(t for t in terms if not t.quoted), question)


def _is_one_of(words: frozenset[str], term: Term) -> bool:
    """Whether a term is just one of these words; of a contraction (I'm, what's) the first part decides."""
    if term.field is not Field.TEXT or term.quoted or term.prefix:
        return False
    first, *rest = term.tokens
    return first in words and all(token in _ENDINGS for token in rest)


def _phrase(text: str) -> list[Term]:
    terms = []
    if tokens := analysis.words(text):
        terms.append(Term(tuple(tokens), quoted=True))
    for run in analysis.runs(text):
        terms.append(_run(run, quoted=True))
    return terms


@lru_cache(maxsize=1 << 14)
def _word(word: str, *, spread: bool) -> tuple[Term, ...]:
    """The terms of one word as written; `spread` takes a spaceless run apart, for ranking by how much of it matches."""
    terms: list[Term] = []
    for run in analysis.runs(word):
        if spread and len(run) > 2:
            terms += [Term((pair,), Field.PAIRS) for pair in analysis.pairs(run)[:-1]]
        else:
            terms.append(_run(run))
    bare = word.strip(".,;:!?()[]{}<>\"'`")
    if _SIGNED.fullmatch(bare):
        return (*terms, Term((bare.lower(),), Field.SIGNS))
    prefix = bare.endswith("*") and bare.rstrip("*")[-1:].isalnum()
    tokens = analysis.words(_POSSESSIVE.sub("", bare))
    if tokens:
        terms.append(Term(tuple(tokens), prefix=prefix))
    return tuple(terms)


def _run(run: str, *, quoted: bool = False) -> Term:
    if len(run) == 1:  # begins some pair, or stands alone
        return Term((run,), Field.PAIRS, prefix=True, quoted=quoted)
    return Term(tuple(analysis.pairs(run)[:-1]), Field.PAIRS, quoted=quoted)


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
        while True:
            negated = self._take("NOT")
            operand = self._operand(depth)
            if operand is not None:
                (without if negated else parts).append(operand)
            joined = self._take("AND")
            if not joined and not self._starts_operand():
                break
        if not parts:
            raise _Malformed
        return parts[0] if len(parts) == 1 and not without else All(tuple(parts), tuple(without))

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
