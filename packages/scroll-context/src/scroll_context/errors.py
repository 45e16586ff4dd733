"""Every error Scroll raises on purpose, in one tree.

    ScrollError
    ├── BadInput
    │   └── UnreadableMessages
    ├── StoreError
    │   ├── NotAStore, StoreUnsafe
    │   ├── StoreTooNew, StoreTooOld
    │   ├── StoreReadOnly, StoreLocked
    │   ├── StoreFull, StoreDamaged
    │   ├── StoreClosed, StoreUnreachable
    │   ├── SessionBusy, SessionFenced
    │   ├── UnknownSeq, UnknownSession
    │   ├── IndexUnavailable
    │   └── PayloadMissing, PayloadDamaged
    ├── QueryRefused
    │   └── QueryLimit
    ├── KernelError
    │   └── KernelUnavailable, KernelDied
    ├── ModelError
    │   ├── ModelUnavailable, ModelCancelled
    │   └── ContextOverflow, ModelRefused
    ├── ToolFailed
    ├── LimitReached
    │   └── QuotaReached
    └── WorkStopped

Each is raised once, where the fault is known, with a text that says what happened, what was not
lost and what to do next.
"""


class ScrollError(Exception):
    """The base of the tree; `except ScrollError` catches all of Scroll's own errors and no others.

    >>> from scroll_context import ScrollError, Store
    >>> try:
    ...     Store("nowhere.scroll")
    ... except ScrollError as error:
    ...     print(type(error).__name__)
    NotAStore
    """


class BadInput(ScrollError):
    """The caller passed data or arguments that cannot be used; nothing was changed."""


class UnreadableMessages(BadInput):
    """A file has messages that cannot be read: `bad` of them beside `good` ones, the first as
    (line, reason).
    """

    def __init__(self, file: str, good: int, bad: int, faults: tuple[tuple[int, str], ...]) -> None:
        plural = "message cannot" if bad == 1 else "messages cannot"
        self.summary = f"{bad:,} {plural} be read, so this file was not imported"
        self.good = good
        self.bad = bad
        self.faults = faults
        others = "; skip_bad=True imports the others" if good else ""
        listed = "".join(f"\n{file}:{line}: {reason}" for line, reason in faults)
        more = f"\n{bad - len(faults):,} more" if bad > len(faults) else ""
        super().__init__(self.summary + others + listed + more)


class StoreError(ScrollError):
    """A store cannot be used, or not in this way.

    >>> from scroll_context import Store, StoreError
    >>> with Store("notes.scroll", create=True) as store:
    ...     try:
    ...         store.log.get(99)
    ...     except StoreError as error:
    ...         print(type(error).__name__)
    UnknownSeq
    """


class NotAStore(StoreError):
    """The path holds something that is not a Scroll store."""


class StoreUnsafe(StoreError):
    """A part of the store is a link, belongs to another user, or can be written by others; it was
    not used.
    """


class StoreTooNew(StoreError):
    """The store was written by a newer Scroll; upgrade to read it."""


class StoreTooOld(StoreError):
    """The store was written by an older Scroll; export it with that version."""


class StoreReadOnly(StoreError):
    """The folder or the file system refuses writes."""


class StoreLocked(StoreError):
    """Another process held the write lock past the deadline."""


class StoreFull(StoreError):
    """The device has no room; acknowledged events are kept."""


class StoreDamaged(StoreError):
    """The log file is damaged; `scroll repair` recovers every readable event."""


class StoreClosed(StoreError):
    """The store was closed by this process."""


class StoreUnreachable(StoreError):
    """The server of a shared store does not answer; the local copy can still be read."""


class SessionBusy(StoreError):
    """The session is open elsewhere; `holder` names the process, the host and the time.

    >>> from scroll_context import Session, SessionBusy, Store
    >>> with Store("trip.scroll", create=True) as store:
    ...     with Session.open(store, session_id="trip"):
    ...         try:
    ...             Session.resume(store, "trip")
    ...         except SessionBusy:
    ...             print("open elsewhere")
    open elsewhere
    """

    def __init__(self, message: str, *, holder: object = None) -> None:
        super().__init__(message)
        self.holder = holder


class SessionFenced(StoreError):
    """This process may no longer record in a session that it had open."""


class UnknownSeq(StoreError):
    """No event has this seq, or the reader may not see it."""


class UnknownSession(StoreError):
    """The store has no session of this name, or the reader may not see it."""


class PayloadMissing(StoreError):
    """The payload file of an event is missing; its preview remains."""


class PayloadDamaged(StoreError):
    """A payload file no longer matches its digest."""


class IndexUnavailable(StoreError):
    """The search index cannot be built or read; the log is not affected."""


class QueryRefused(ScrollError):
    """The guard does not allow this model-written SQL."""


class QueryLimit(QueryRefused):
    """A query exceeded its time or size limit."""


class KernelError(ScrollError):
    """The kernel cannot run code."""


class KernelUnavailable(KernelError):
    """The jail cannot be built; no model code has run."""


class KernelDied(KernelError):
    """The kernel process ended; a restore starts another."""


class ModelError(ScrollError):
    """The language model or its provider failed.

    >>> from scroll_context import Agent, ModelError, ScriptedModel, Session, Store
    >>> from scroll_context.errors import ModelUnavailable
    >>> model = ScriptedModel([ModelUnavailable("the provider is busy"), "Lisbon."])
    >>> with Store("trip.scroll", create=True) as store, Session.open(store) as session:
    ...     agent = Agent(session, model)
    ...     try:
    ...         agent.run("Where do we go?")
    ...     except ModelError as error:
    ...         print(error)
    ...     agent.run().answer
    the provider is busy
    'Lisbon.'
    """


class ModelUnavailable(ModelError):
    """The provider failed temporarily; `retry_after` is the wait that it asks for, in seconds."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelCancelled(ModelError):
    """The caller stopped waiting for a reply; `partial` is the text that had arrived."""

    def __init__(self, message: str, *, partial: str = "") -> None:
        super().__init__(message)
        self.partial = partial


class ContextOverflow(ModelError):
    """The provider says that the request is too long; `tokens` and `limit` are its own counts, if
    given.

    >>> from scroll_context.hosts import ContextOverflow
    >>> ContextOverflow("the prompt is too long", tokens=130_000, limit=128_000).limit
    128000
    """

    def __init__(
        self, message: str, *, tokens: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.tokens = tokens
        self.limit = limit


class ModelRefused(ModelError):
    """The provider rejected the request; a retry would not help."""


class ToolFailed(ScrollError):
    """A tool gave no result; the text is the tool's own where it has one.

    `kind` is the name of the exception to raise in the cell, `state` the state of the recorded
    result: "error", "timeout" or "refused". `call_seq` and `result_seq` are the addresses of the
    two events, once they are recorded.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "RuntimeError",
        state: str = "error",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.state = state
        self.call_seq: int | None = None
        self.result_seq: int | None = None


class LimitReached(ScrollError):
    """A run stopped at one of its limits; resume continues it."""


class QuotaReached(LimitReached):
    """A session has recorded as much as its quota allows."""


class WorkStopped(ScrollError):
    """The host stopped work for a cell that has ended or timed out; nothing was changed."""
