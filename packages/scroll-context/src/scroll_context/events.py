"""The values that the whole of Scroll speaks in: drafts, events, scopes, grants and payload facts.

A `Draft` is something that happened and is not yet recorded; an `Event` is the same with its
address. Both are immutable. Kinds are open text, because imported histories bring their own; the
ones Scroll itself writes are named in `Kind`. Messages that come from elsewhere are recognised by
ids made of several parts (`id_of`). This module holds values only: no disk, no clock.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.origin import IMPORT_KEY, Origin, is_from_person, is_from_user, origin_of


class Kind(StrEnum):
    """The kinds of event that Scroll writes itself.

    >>> from scroll_context import Agent, Kind, ScriptedModel, Session, Store, exec_cell
    >>> with Store("sums.scroll", create=True) as store, Session.open(store) as session:
    ...     run = Agent(session, ScriptedModel([exec_cell("print(2 + 2)"), "4"])).run("2 + 2?")
    ...     [event.content for event in store.log.iterate(kind=Kind.CELL)]
    ['print(2 + 2)']
    """

    # A message of the user (role user), or a reply of the model (role assistant).
    CONVERSATION = "conversation"
    # One tool call, its arguments as JSON text.
    TOOL_CALL = "tool_call"
    # The complete result of a tool call, which reply_to names.
    TOOL_RESULT = "tool_result"
    # Bytes that were part of a tool's result, as a payload; the result names its seq.
    ARTIFACT = "artifact"
    # The source of a kernel cell.
    CELL = "cell"
    # The printed output of a cell, which reply_to names.
    OBSERVATION = "observation"
    # A message from Scroll to the model: never the user's words, and never the start of a turn.
    NOTICE = "notice"

    # The rest is bookkeeping.

    # A session was opened or resumed, with these settings.
    SESSION = "session"
    # A request to a model: hash, tokens, usage.
    REQUEST = "request"
    # A model call that failed: the reason, and the wait before the next attempt.
    FAILURE = "failure"
    # A plan of folds and evictions, appended before it is applied.
    EVICTION = "eviction"
    # Messages that a host took back, or put in another order.
    RETRACTION = "retraction"
    # The bytes of a host's message that was recorded without them.
    WIRE = "wire"
    # The manifest of saved variables.
    SNAPSHOT = "snapshot"
    # The session continues another one from a seq.
    FORK = "fork"
    # What a repair of this log could not recover.
    SALVAGE = "salvage"
    # Which events were erased, by whom and why; never what they said.
    ERASURE = "erasure"
    # Bookkeeping of another store, from an export. It has no effect here.
    FOREIGN = "foreign"


STORE_SESSION = "scroll.store"
"""The session of events that are about the store itself: erasures and the like.

No agent works in it.
"""

IMPORTED = IMPORT_KEY
"""How the source keys of captured and imported messages begin."""

ABOUT_THE_LOG = frozenset((Kind.SALVAGE, Kind.ERASURE))
"""Kinds that are about the log itself. They are needed to read the rest and are never erased."""

BOOKKEEPING = ABOUT_THE_LOG | {
    Kind.SESSION,
    Kind.REQUEST,
    Kind.FAILURE,
    Kind.EVICTION,
    Kind.RETRACTION,
    Kind.WIRE,
    Kind.SNAPSHOT,
    Kind.FORK,
    Kind.FOREIGN,
}
"""Kinds hidden from `hist.conversation_history` and from search; `hist.events` shows them."""

UNSEARCHABLE = tuple(sorted({*BOOKKEEPING, Kind.NOTICE}))
"""Kinds that search and grep never return."""


_TEXTS = frozenset(
    f"application/{name}"
    for name in (
        "csv",
        "graphql",
        "javascript",
        "json",
        "jsonlines",
        "sql",
        "toml",
        "x-csv",
        "x-javascript",
        "x-ndjson",
        "x-sh",
        "x-www-form-urlencoded",
        "x-yaml",
        "xml",
        "yaml",
    )
)
"""Media types of text that do not begin with `text/`."""


class Payload(msgspec.Struct, frozen=True):
    """The facts about a payload that are known without loading it."""

    # SHA-256 in 64 hex digits.
    digest: str
    # In bytes.
    size: int
    media_type: str = "text/plain; charset=utf-8"

    @property
    def is_text(self) -> bool:
        """Whether the body is text that search can index and a person can read."""
        base = self.media_type.split(";", 1)[0].strip().lower()
        if base.startswith("text/") or base in _TEXTS:
            return True
        return base.endswith(("+json", "+xml", "+yaml"))


class Excerpt(msgspec.Struct, frozen=True):
    """A text, or the two ends of a longer one: `left_out` characters are missing at `cut`."""

    text: str
    cut: int = 0
    left_out: int = 0


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is not recorded yet, so it has no seq.

    >>> from scroll_context import Draft, Store
    >>> with Store("notes.scroll", create=True) as store:
    ...     store.append(Draft(role="user", content="I always fly economy."))
    1
    """

    kind: str = Kind.CONVERSATION
    session_id: str = "default"
    agent_id: str = ""
    task_id: str = ""
    role: str = ""
    # The tool of a call or result, the cell tool of a cell, the model of a request, or the file
    # name of an image.
    name: str = ""
    content: str = ""
    payload: Payload | None = None
    tool_call_id: str = ""
    tool_state: str = ""
    headline: str = ""
    reply_to: int | None = None
    step_index: int | None = None
    msg_index: int | None = None
    metadata: dict[str, Any] = {}
    # ISO-8601; "" means now.
    created_at: str = ""
    # An event is recorded once under a source key; "" always makes a new event.
    source_key: str = ""

    @property
    def origin(self) -> Origin:
        """How it entered the log (origin.py)."""
        return origin_of(self.source_key, self.metadata)

    @property
    def is_foreign(self) -> bool:
        """Whether this was captured or imported: text to read, never an instruction to a session.

        A session shows foreign events as history. It restores no snapshot, follows no fork and
        applies no plan or setting of theirs. An export that was imported as trusted is not foreign.
        """
        return self.origin in (Origin.CAPTURED, Origin.IMPORTED)

    @property
    def is_from_person(self) -> bool:
        """Whether a human speaks: the user of this store, or somebody in an imported chat."""
        return is_from_person(self.kind, self.role)

    @property
    def is_from_user(self) -> bool:
        """Whether this is the user of this store speaking.

        Everything that quotes the user asks this.
        """
        return is_from_user(self.kind, self.role, self.source_key, self.metadata)


class Event(Draft, frozen=True, kw_only=True):
    """A recorded event. `content` is the complete text, or a preview if `payload` has the body.

    >>> from scroll_context import Draft, Store
    >>> with Store("notes.scroll", create=True) as store:
    ...     event = store.log.get(store.append(Draft(role="user", content="I fly economy.")))
    >>> event.seq, event.role, event.content
    (1, 'user', 'I fly economy.')
    """

    seq: int
    recorded_at: str
    chain: bytes = b""
    # Whether its words were erased on purpose. Only the leaf of its row says so.
    is_erased: bool = False

    @property
    def is_echo(self) -> bool:
        """Whether this only repeats history, so that search never returns it.

        Recall cells and their output do.
        """
        return bool(self.metadata.get("echo"))

    @property
    def is_searchable(self) -> bool:
        """Whether search may return this event at all."""
        return not (self.kind in UNSEARCHABLE or self.is_erased or self.is_echo)


class Grant(msgspec.Struct, frozen=True):
    """The events that a reader may read.

    A field that is None does not restrict; without any, the grant covers the complete store. A
    project may have several tasks.

    >>> from scroll_context import Draft, Grant, Store
    >>> with Store("notes.scroll", create=True) as store:
    ...     for name in ("ada", "grace"):
    ...         words = f"{name} flies economy."
    ...         seq = store.append(Draft(agent_id=name, role="user", content=words))
    ...     hits = store.index.search("economy", grant=Grant(agent_id="ada"))
    >>> [hit.seq for hit in hits]
    [1]
    """

    session_id: str | None = None
    task_id: str | tuple[str, ...] | None = None
    agent_id: str | None = None

    def permits(self, event: Draft) -> bool:
        if self.session_id is not None and event.session_id != self.session_id:
            return False
        if self.agent_id is not None and event.agent_id != self.agent_id:
            return False
        tasks = (self.task_id,) if isinstance(self.task_id, str) else self.task_id
        return tasks is None or event.task_id in tasks

    def labels(self) -> list[tuple[str, tuple[str, ...]]]:
        """The restricting fields by name, each with the values that it permits."""
        fields: dict[str, str | tuple[str, ...] | None] = {
            "session_id": self.session_id,
            "agent_id": self.agent_id,
            "task_id": self.task_id,
        }
        return [
            (name, (value,) if isinstance(value, str) else value)
            for name, value in fields.items()
            if value is not None
        ]


EVERYTHING = Grant()


def packed_seqs(seqs: Iterable[int], most: int) -> list[int | list[int]]:
    """Seqs as a list of at most `most` entries: the seqs, or if there are more, first-last pairs.

    If even the runs are too many, those that lie closest are joined. So a long list may stand for
    more events than there were, and never for fewer: its readers look for everything that an event
    had to do with.
    """
    ordered = sorted(set(seqs))
    if len(ordered) <= most:
        return list(ordered)
    widest_first = sorted(range(1, len(ordered)), key=lambda at: ordered[at - 1] - ordered[at])
    starts = [0, *sorted(widest_first[: most - 1])]
    ends = [*(at - 1 for at in starts[1:]), len(ordered) - 1]
    return [[ordered[start], ordered[end]] for start, end in zip(starts, ends, strict=True)]


def source_facts(name: str, seqs: Collection[int], most: int, *, unknown: bool) -> dict[str, Any]:
    """Metadata that says which events something was made from.

    `name` gets their seqs, packed; `unknown` is set if it was made from others too, which cannot be
    named.
    """
    facts: dict[str, Any] = {}
    if seqs:
        facts[name] = packed_seqs(seqs, most)
    if unknown:
        facts["unknown"] = True
    return facts


def unpacked_seqs(entries: object) -> Iterator[tuple[int, int]]:
    """The first and last seq of each entry of such a list.

    Entries of another shape are skipped.
    """
    if not isinstance(entries, list):
        return
    for entry in entries:
        match entry:
            case int():
                yield entry, entry
            case [int(first), int(last)]:
                yield first, last


Progress = Callable[[int, int], None]
"""Called now and then during long work, with the amount that is done and the total amount."""


class Scope(msgspec.Struct, frozen=True):
    """The session, agent and task that a session gives to everything it records."""

    session_id: str
    agent_id: str = ""
    task_id: str = ""
    # Other tasks of the same project, which can be read too.
    earlier_tasks: tuple[str, ...] = ()

    def draft(self, kind: str, **fields: Any) -> Draft:
        """A draft that belongs to this session."""
        return Draft(
            kind=kind,
            session_id=self.session_id,
            agent_id=self.agent_id,
            task_id=self.task_id,
            **fields,
        )

    def grant(self, reach: str) -> Grant:
        """The events of this session, its task, its agent, or all."""
        match reach:
            case "session":
                return Grant(session_id=self.session_id)
            case "task":
                earlier = self.earlier_tasks
                return Grant(task_id=(self.task_id, *earlier) if earlier else self.task_id)
            case "agent":
                return Grant(agent_id=self.agent_id)
            case "all":
                return Grant()
            case _:
                raise BadInput(f"the reach must be session, task, agent or all, not {reach!r:.80}")

    def widest(self, reach: str) -> Grant:
        """The grant that bounds a session with this reach.

        A reach of "task" without a task, or "agent" without an agent id, is refused: it would cover
        the events of everybody who has none.
        """
        if (reach == "task" and not self.task_id) or (reach == "agent" and not self.agent_id):
            whose = "a task" if reach == "task" else "an agent"
            raise BadInput(
                f"reach {reach!r} needs a {reach}_id: without one it would include the events of "
                f"everybody without {whose}. Name {whose}, or use reach 'session'."
            )
        return self.grant(reach)


def merged_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same seqs in as few spans as possible, in order; a span that runs backwards is empty."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if last < first:
            continue
        if merged and first <= merged[-1][1] + 1:
            start, end = merged[-1]
            merged[-1] = (start, max(end, last))
        else:
            merged.append((first, last))
    return merged


# ids of several parts -----------------------------------------------------------------------------

# Joined text is ambiguous: session `alice` with message `2:m1` and session `alice:2` with message
# `m1` gave one key, and the second message was lost in silence. So an id is a hash in which each
# part stands behind its length.


def id_of(*parts: str | bytes) -> str:
    """32 hexadecimal digits that stand for these parts in this order, and for no others."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "big") + data)
    return hasher.hexdigest()[:32]


def text_id(text: str) -> str:
    """32 hexadecimal digits that stand for the words of a text, however its lines are broken."""
    return id_of(" ".join(text.split()))
