"""Headlines: the four short fields that stand for a step once it has left the view.

The model writes one with each reply, as a last line `⟦ task | state | next | status ⟧` or as a
field of its exec call; it is bound to the reply's seq as text. Reading is lenient and never raises:
what cannot be read is no headline, and `fallback` makes one from the step itself, keeping exact
names. Brackets around less than three fields are meant for the user, and stay. Every field is one
bounded line, so that an index built from headlines is bounded too.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from scroll_context.view.wording import without_marks

FIELD_CHARS = 120
TASK_CHARS = FIELD_CHARS
"""Characters of a request, above the lines of its steps."""
STATUS_CHARS = 24
_BETWEEN = " · "
_FENCE = re.compile(r"⟦((?:[^⟦⟧|]*\|){2}[^⟦⟧]*)⟧?[\s`*_.]*$")


class Headline(msgspec.Struct, frozen=True):
    """Task, verified state, next action and a status, each one bounded line.

    Build with `headline`.
    """

    task: str = ""
    state: str = ""
    next: str = ""
    status: str = ""

    def full(self) -> str:
        """All four fields; `parse_field` reads this back to the same headline."""
        return " | ".join((self.task, self.state, self.next, self.status))

    def ended(self, state: str, status: str) -> "Headline":
        """The headline with another state and status."""
        if state != self.state:
            state = _field(state, FIELD_CHARS)
        return Headline(self.task, state, self.next, _field(status, STATUS_CHARS))

    def line(self, limit: int) -> str:
        """Task, state and status in at most `limit` characters."""
        status = f" [{self.status}]" if self.status else ""
        body = self.task or self.state
        if self.task and self.state:
            body = f"{cut(self.task, limit // 3)}: {self.state}"
        return cut(body, max(8, limit - len(status))) + status


def cut(text: str, limit: int) -> str:
    """One line of at most `limit` characters, ended by … where something was left out."""
    reach = 2 * limit + 64  # enough to see whether the line is too long, however long the text
    line = without_marks(" ".join(text[:reach].split()))
    if not line.isprintable():  # controls, direction marks, lone surrogates
        line = " ".join("".join(one if one.isprintable() else " " for one in line).split())
    if len(line) <= limit and len(text) <= reach:
        return line
    kept = line[: limit - 1]
    space = kept.rfind(" ")
    return (kept[:space] if space > limit * 2 // 3 else kept).rstrip() + "…"


def headline(task: str = "", state: str = "", next: str = "", status: str = "") -> Headline:
    """A headline with its fields cleaned and bounded."""
    return Headline(
        _field(task, FIELD_CHARS),
        _field(state, FIELD_CHARS),
        _field(next, FIELD_CHARS),
        _field(status, STATUS_CHARS),
    )


def parse_reply(text: str) -> Headline | None:
    """The headline on the last line of a reply, if it has one."""
    found = _FENCE.search(text.rstrip()[-2000:].rpartition("\n")[2])
    return parse_field(found.group(1)) if found else None


def without_headline(text: str) -> str:
    """A reply as it is meant for the user: the headline on its last line is for the index."""
    return text.rstrip().rpartition("⟦")[0].rstrip() if parse_reply(text) else text


def parse_field(value: object) -> Headline | None:
    """A headline given as `task | state | next | status`, as a mapping or as a list; None if it
    says nothing.
    """
    if not value:
        return None
    if isinstance(value, str):
        fields = value[:2000].strip().strip("⟦⟧").split("|")
    elif isinstance(value, Mapping):
        fields = [_text(value.get(name)) for name in ("task", "state", "next", "status")]
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        fields = [_text(field) for field in value]
    else:
        return None
    if len(fields) > 4:  # a stray separator: the first field and the last two keep their places
        fields = [fields[0], " / ".join(fields[1:-2]), *fields[-2:]]
    found = headline(*fields)
    return found if found != Headline() else None


def fallback(
    task: str, actions: Sequence[str], bound: Sequence[str], said: str, status: str
) -> Headline:
    """A headline for a step whose model gave none: calls, bound variables, how it ended."""
    state = "; ".join(actions) if actions else said
    if bound:
        names = cut(", ".join(bound), FIELD_CHARS // 2)
        state = f"{cut(state, FIELD_CHARS - len(names) - 8)} → {names}"
    return headline(task, state, "", status)


def merged(headlines: Sequence[Headline]) -> Headline:
    """One headline for several in order: the first, a middle and the last of what they say, and the
    last status.
    """
    last = headlines[-1]
    tasks, states = (one.task for one in headlines), (one.state for one in headlines)
    return Headline(_landmarks(tasks), _landmarks(states), last.next, last.status)


def merged_terms(lists: Sequence[Sequence[str]], width: int) -> tuple[str, ...]:
    """The terms for several lines: those that many share first, then the first ones of each line in
    turn.
    """
    shared = Counter(term for terms in lists for term in {term.casefold() for term in terms})
    ranked = sorted(
        (-shared[term.casefold()], rank, number)
        for number, terms in enumerate(lists)
        for rank, term in enumerate(terms)
    )
    chosen: list[str] = []
    taken: set[str] = set()
    for _, rank, number in ranked:
        if len(chosen) >= width:
            break
        term = cut(lists[number][rank], FIELD_CHARS // 2)
        begun = {word[:6] for word in term.casefold().split() if len(word) > 3} or {term.casefold()}
        if term and taken.isdisjoint(begun):
            taken |= begun
            chosen.append(term)
    return tuple(chosen)


def listed(terms: Sequence[str], limit: int) -> str:
    """As many of the terms as fit, at least the beginning of the first."""
    said = cut(terms[0], max(8, limit))
    for term in terms[1:]:
        if len(said) + len(term) + 2 > limit:
            break
        said += f", {term}"
    return said


def _landmarks(texts: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(part for text in texts if text for part in text.split(_BETWEEN)))
    if len(distinct) > 3:
        distinct = [distinct[0], distinct[len(distinct) // 2], distinct[-1]]
    share = FIELD_CHARS // max(1, len(distinct)) - len(_BETWEEN)
    if len(distinct) <= 1:
        return "".join(distinct)
    return _BETWEEN.join(cut(part, share) for part in distinct)


def _field(text: str, limit: int) -> str:
    if not text:
        return ""
    for reserved, written in (("|", "/"), ("⟦", "["), ("⟧", "]")):
        text = text.replace(reserved, written)
    return cut(text, limit)


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value)
