"""`ms` as the host sees it: the border that every call of a cell passes.

A call names a method and brings arguments, of which everything may be forged. Here the size of the
arguments is checked, few calls run at once, and the note of each answer is collected for the reader
of the cell's output. The methods themselves (lookup, mentions, overview, standing) stay inside the
grant that the session was opened with; a scope that a caller names can only narrow it.
"""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from scroll_context.errors import BadInput
from scroll_context.events import Scope
from scroll_context.kernel.protocol import Prelude
from scroll_context.kernel.results import CapabilityCall, CapabilityResult
from scroll_context.recall.arguments import check_size, text_of
from scroll_context.recall.lookup import Lookup
from scroll_context.recall.mentions import MentionMethods
from scroll_context.recall.overview import OverviewMethods
from scroll_context.recall.reader import Answer, Reader
from scroll_context.recall.standing import StandingMethods
from scroll_context.store import Store
from scroll_context.tools.handles import prelude_source
from scroll_context.work import Places

# Notes of one cell that are printed; a line counts the rest.
MAX_NOTES = 5
# Calls that are answered at once for one kernel; others wait.
MAX_CALLS = 4
# Events that the answer of one call names. An answer that was made from more names none.
MOST_NAMED = 20_000


class SessionFacts(Protocol):
    """The facts that recall needs from its session."""

    def visible_seqs(self) -> Collection[int]:
        """The events that the working view shows now."""

    def index_lines(self) -> list[dict[str, Any]]:
        """The eviction index as rows."""

    def provenance(self, name: str) -> dict[str, Any]:
        """The events that a variable was computed from."""


class NoSession:
    """The facts of a session that is not there: no view, no index, no cells on record."""

    def visible_seqs(self) -> Collection[int]:
        return ()

    def index_lines(self) -> list[dict[str, Any]]:
        return []

    def provenance(self, name: str) -> dict[str, Any]:
        raise BadInput(
            f"there is no session here, so nothing is known about {name!r}; "
            ":names lists your variables"
        )


class Memory:
    """The methods of `ms`, by name. Calls may come from several threads at once."""

    def __init__(self, store: Store, scope: Scope, reach: str, facts: SessionFacts) -> None:
        self.grant = scope.widest(reach)
        self.facts = facts
        # Calls of the running cell.
        self.calls = 0
        # Notes of the running cell.
        self._notes: list[str] = []
        self.reader = Reader(store, scope, self.grant, lambda: self.facts.visible_seqs())
        self.lookup = Lookup(self.reader)
        self.places = Places(MAX_CALLS)
        mentions = MentionMethods(self.reader)
        overview = OverviewMethods(self.reader)
        self._methods: dict[str, Callable[..., Answer | CapabilityResult]] = {
            "ms.search": self.lookup.search,
            "ms.expand": self.lookup.expand,
            "ms.sql_query": self.lookup.sql_query,
            "ms.grep": mentions.grep,
            "ms.timeline": mentions.timeline,
            "ms.outline": overview.outline,
            "ms.turns": overview.turns,
            "ms.gist": overview.gist,
            "ms.standing": StandingMethods(self.reader).standing,
            "ms.index": self.index,
            "ms.provenance": self.provenance,
            "payload.read": self.lookup.read_payload,
        }

    @property
    def names(self) -> frozenset[str]:
        """The names under which cells can call the host."""
        return frozenset(self._methods)

    def begin_cell(self) -> None:
        """A new cell: its calls and notes are counted from here."""
        self.calls = 0
        self._notes = []

    @property
    def notes(self) -> list[str]:
        """The notes that the reader of the running cell's output must see, each of them once."""
        hidden = len(self._notes) - MAX_NOTES
        if hidden <= 0:
            return list(self._notes)
        rest = "1 more note" if hidden == 1 else f"{hidden} more notes"
        return [*self._notes[:MAX_NOTES], f"{rest}: each answer has its own in .note"]

    def answer(self, call: CapabilityCall) -> CapabilityResult:
        """Answer a call of a cell, of which everything may be forged.

        A few calls run at once, each until its answer has been sent, so that no number of threads
        in a cell takes the memory of the host; and all of them end with the cell.
        """
        with call.work.in_this_thread():
            call.work.until_sent.enter_context(self.places.place())
            call.work.check()
            return self.call(call.capability, *call.args, **call.kwargs)

    def call(self, capability: str, /, *args: Any, **kwargs: Any) -> CapabilityResult:
        """Call a method by the name under which a model knows it."""
        method = self._methods.get(capability)
        if method is None:
            raise NameError(f"the host offers no capability {capability!r:.80}")
        self.calls += 1
        check_size(capability, args, kwargs)
        answer = method(*args, **kwargs)
        if isinstance(answer, CapabilityResult):
            return answer
        if answer.note:
            self._note(f"{_label(capability, args)}: {answer.note}")
        return answer.result()

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)

    def index(self) -> Answer:
        """The eviction index as data: headlines and the seq spans that they stand for."""
        rows = self.facts.index_lines()
        spans: list[tuple[int, int]] = []
        for row in rows:
            spans += row["seqs"]
        count = sum(hi - lo + 1 for lo, hi in spans)
        seqs: list[int] = []
        if count <= MOST_NAMED:
            for lo, hi in spans:
                seqs += range(lo, hi + 1)
        return Answer(rows, "", tuple(seqs), is_unknown=count > MOST_NAMED)

    def provenance(self, name: Any) -> CapabilityResult:
        """Where a variable comes from."""
        facts = self.facts.provenance(text_of(name, "the name of a variable"))
        return CapabilityResult(facts, tuple(facts["seqs"]), unknown=facts["unknown"])

    def close(self) -> None:
        self.lookup.close()


def _label(capability: str, args: tuple[Any, ...]) -> str:
    """A call as a note names it: with its first argument, unless that is SQL."""
    if args and isinstance(args[0], str) and capability != "ms.sql_query":
        return f"{capability}({args[0]!r:.60})"
    return capability


def reading_memory(store: Store) -> Memory:
    """`ms` on a complete store, without a session: for a person who looks around in it."""
    return Memory(store, Scope(""), "all", NoSession())


def memory_prelude() -> Prelude:
    """`ms` inside the kernel; it needs the handles before it."""
    return Prelude("ms", prelude_source("ms_prelude", "scroll_context.recall"), ("ms",))
