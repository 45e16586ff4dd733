"""Which events an erasure concerns: those asked for, events that repeat their words, and variables made from them.

Copies are found by provenance (what a cell was given, what `ask` was asked about) and by text: short texts anywhere in
another event, long ones line by line. Saved variables go as a whole, session by session: a pickle cannot be cut.
"""

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from scroll_context.errors import PayloadDamaged, PayloadMissing
from scroll_context.events import ABOUT_THE_LOG, Event, Kind, Progress
from scroll_context.store import schema
from scroll_context.store.log import PAGE, EventLog

_SHORTEST = 8  # characters of a text that can be told from a coincidence
_LONGEST = 2_000  # characters of a text that is looked for as a whole; of longer ones, each line is
_LINE = 20  # characters of such a line
_NEEDLES = 200  # texts that are looked for inside other texts; with more, only whole lines are compared


class ErasurePlan:
    """Which events an erasure concerns: those asked for, their copies, and the snapshots of their sessions."""

    def __init__(self, log: EventLog, seqs: Sequence[int]) -> None:
        self._log = log
        self.asked: list[int] = []
        self.copies: list[int] = []
        self.snapshots: list[int] = []
        self.sessions: set[str] = set()
        self._snapshots: list[Event] = []
        for event in _events(log, seqs):
            if event.kind not in ABOUT_THE_LOG and not event.is_erased:
                self.asked.append(event.seq)
                self.sessions.add(event.session_id)

    def look_around(self, words: Collection[str], copies: bool, progress: Progress | None) -> None:
        """Read the whole log for events that repeat the words, and for variables that were made from what goes."""
        log, known = self._log, set(self.asked)
        needles = _Needles(words)
        for event in _events(log, self.asked):
            needles.add(text_or_preview(log, event))
            needles.add(event.headline)
        snapshots: list[Event] = []
        made_from = set(known)
        last = log.last_seq()
        for event in log.iterate():
            if progress and event.seq % 1000 == 0:
                progress(event.seq, last)
            if event.is_erased or event.kind in ABOUT_THE_LOG or event.seq in known:
                continue
            if event.kind == Kind.SNAPSHOT:
                snapshots.append(event)
            elif self._is_copy(event, made_from, needles):
                self.copies.append(event.seq)
                if event.name == "ask":
                    made_from.add(event.seq)  # the answer to a question about erased words
        if copies:
            known.update(self.copies)
            self.sessions |= {event.session_id for event in _events(log, self.copies)}
        self.sessions |= set(forks_of(log, self.sessions))
        self._snapshots = [
            event for event in snapshots if event.session_id in self.sessions or known & _seqs_of_variables(log, event)
        ]
        self.snapshots = [event.seq for event in self._snapshots]

    def _is_copy(self, event: Event, made_from: set[int], needles: "_Needles") -> bool:
        if event.kind in (Kind.EVICTION, Kind.SESSION) and not made_from.isdisjoint(_told_seqs(event, made_from)):
            return True
        seqs = event.metadata.get("seqs")
        if isinstance(seqs, list) and not made_from.isdisjoint(seq for seq in seqs if isinstance(seq, int)):
            return True
        cell = event.metadata.get("inside_cell")
        if isinstance(cell, int) and cell in made_from:
            return True
        if event.reply_to in made_from and (event.name == "ask" or event.kind in (Kind.OBSERVATION, Kind.TOOL_RESULT)):
            return True
        if needles.is_empty:
            return False
        fields = (event.headline, event.name, json.dumps(event.metadata, ensure_ascii=False) if event.metadata else "")
        return any(map(needles.match, fields)) or needles.match(text_or_preview(self._log, event))

    def variables(self) -> list[str]:
        names: dict[str, None] = {}
        for event in self._snapshots:
            with contextlib.suppress(TypeError, AttributeError):
                names.update(dict.fromkeys(str(one.get("name")) for one in _change(self._log, event).get("saved", ())))
        return [name for name in names if name.isidentifier()]


def _told_seqs(event: Event, erased: Collection[int]) -> Iterator[int]:
    """The events whose words an index carries: titles, terms and standing instructions in plans and settings."""
    with contextlib.suppress(TypeError, KeyError, ValueError, AttributeError):  # what has another shape carries none
        plan, earlier = event.metadata.get("plan") or {}, event.metadata.get("earlier") or {}
        yield from (seq for seq, *_ in plan.get("about") or ())
        yield from (one["seq"] for told in (plan, earlier) for one in told.get("standing") or ())
        spans = [span for topic in earlier.get("topics") or () for span in topic["spans"]]
        yield from (seq for seq in erased if any(lo <= seq <= hi for lo, hi in spans)) if spans else ()


class _Needles:
    """Texts that must not remain: short ones as parts of other texts, long ones line by line."""

    def __init__(self, words: Collection[str]) -> None:
        self._parts = {form for word in words for form in _forms(word.strip())}
        self._lines: set[str] = set()

    @property
    def is_empty(self) -> bool:
        return not self._parts and not self._lines

    def add(self, text: str) -> None:
        text = text.strip()
        if len(text) < _SHORTEST:
            return
        if len(text) <= _LONGEST and len(self._parts) < _NEEDLES:
            self._parts.update(_forms(text))
        self._lines.update(line for line in map(str.strip, text.splitlines()) if len(line) >= _LINE)

    def match(self, text: str) -> bool:
        if not text:
            return False
        if any(part in text for part in self._parts):
            return True
        return bool(self._lines) and not self._lines.isdisjoint(map(str.strip, text.splitlines()))


def _forms(text: str) -> set[str]:
    """A text as it is, and as it stands inside JSON."""
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _events(log: EventLog, seqs: Sequence[int]) -> Iterator[Event]:
    for at in range(0, len(seqs), PAGE):
        yield from log.get_many(seqs[at : at + PAGE])


def forks_of(log: EventLog, sessions: Collection[str]) -> list[str]:
    """The sessions that continue one of these, and those that continue them."""
    forks = [(event.session_id, event.metadata.get("session_id")) for event in log.iterate(kind=Kind.FORK)]
    found = list(sessions)
    for parent in found:
        found += [child for child, named in forks if named == parent and child not in found]
    return found[len(sessions) :]


def text_or_preview(log: EventLog, event: Event) -> str:
    """The whole text of an event, or what its row has of it where the payload is lost."""
    try:
        return log.text(event)
    except (PayloadMissing, PayloadDamaged):
        return event.content


def _change(log: EventLog, event: Event) -> dict[str, Any]:
    """What a snapshot event says: its variables (`saved`), and the events that its cells were given (`sources`)."""
    try:
        change = json.loads(text_or_preview(log, event))
    except ValueError:
        return {}
    return change if isinstance(change, dict) else {}


def _seqs_of_variables(log: EventLog, event: Event) -> set[int]:
    change = _change(log, event)
    seqs: set[int] = set()
    with contextlib.suppress(TypeError, AttributeError):  # no snapshot of ours
        seqs.update(*(one.get("seqs", ()) for one in change.get("saved", ())), *change.get("sources", {}).values())
    return seqs


def unshared_payloads(log: EventLog, chosen: set[int]) -> list[str]:
    """The payload files that these events need and no other event does."""
    by_event = list(_payloads_by_event(log))
    kept = {digest for seq, named in by_event if seq not in chosen for digest in named}
    gone = dict.fromkeys(digest for seq, named in by_event if seq in chosen for digest in named)
    return [digest for digest in gone if digest not in kept]


def named_payloads(log: EventLog, after: int = 0) -> set[str]:
    """Every payload that an event behind a seq names, in its row or in the text of a snapshot."""
    return {digest for _, named in _payloads_by_event(log, "seq > ?", [after]) for digest in named}


def remove_unnamed(log: EventLog, digests: Sequence[str]) -> None:
    """Delete those of these bodies that no event names. Nothing is appended meanwhile; later appends look again."""
    if not digests:
        return
    last = log.last_seq()
    named = named_payloads(log)
    with schema.Translated(log.path), contextlib.closing(schema.connect(log.path, writable=True)) as database:
        schema.begin(database, log.path, log.lock_timeout)
        named |= named_payloads(log, last)
        for digest in digests:
            if digest not in named:
                log.payloads.remove(digest)
        database.execute("ROLLBACK")


def _payloads_by_event(log: EventLog, where: str = "1", values: Sequence[Any] = ()) -> Iterator[tuple[int, list[str]]]:
    rows = log.query(
        f"SELECT seq, kind, content, payload FROM event WHERE (payload IS NOT NULL OR kind = 'snapshot') AND {where}",
        values,
    )
    for seq, kind, content, digest in rows:
        yield seq, log.payloads.named_by(kind, content, digest)
