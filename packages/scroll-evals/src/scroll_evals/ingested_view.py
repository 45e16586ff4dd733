"""Ingesting a history, and the view that every question about it starts from.

The turns of a history are appended in order, exactly as they are, without any model. Each carries a
source key, so ingesting again (after a crash, or by a second process) adds only what is missing.

A question starts a session over that history. A context with an index starts from an outline of the
sessions before it, as any session of Scroll does. For the others, everything said in a session of
the history leaves the view at its end, and the context decides what then stands for it: a summary
where originals are given up, nothing for the baselines without memory. Outline and plans are
recorded in a session of their own, so the view that questions start from is rebuilt from the log
like any other, and is paid for once for all questions.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from scroll_context.contents import EvictionPlan
from scroll_context.errors import ModelUnavailable
from scroll_context.events import Event, Kind, Scope
from scroll_context.log.journal import Journal
from scroll_context.models import Model
from scroll_context.session.context import ReadExcerpt, WindowedContext
from scroll_context.session.earlier_work import earlier_work
from scroll_context.session.options import SessionOptions
from scroll_context.session.past import lineage
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.eviction import Budget
from scroll_evals.contexts import CONTEXTS
from scroll_evals.tasks import History

INGESTION = "scroll-ingestion"
"""The session that holds the outline or the plans."""
PROBE = "scroll-probe"
"""The session that answers the question."""

Spans = tuple[tuple[int, int], ...]


class ProbeSession(Session):
    """A session that begins where the ingestion of its store's history ended."""

    @classmethod
    def begin(
        cls, store: Store, options: SessionOptions, context: WindowedContext
    ) -> "ProbeSession":
        """The session of this store: a new one with this context, or, if there is one, that one
        where it stopped.
        """
        if store.log.tail(1, session_id=PROBE):
            session = cls.resume(store, PROBE, options=options)
        else:
            session = cls.open(store, session_id=PROBE, task_id=task_of(store), options=options)
            session.context = context
        assert isinstance(session, cls)
        return session

    def events(self) -> Iterator[Event]:
        yield from inherited_events(self.store, self.context)
        yield from self.own_events()

    def own_events(self) -> Iterator[Event]:
        """Without those that it inherited."""
        return lineage(self.store, PROBE)


def ingest(history: History, store: Store) -> int:
    """Append a history, whole or not at all, and make it searchable; the number of its turns."""
    turns = store.log.append_many(history.drafts())
    store.index.catch_up()
    return len(turns)


def clear_sessions(store: Store, name: str, model: Model) -> None:
    """Record what stands for the ingested sessions; what was recorded before a crash stays so."""
    context = starting_context(store, name)
    plans = sum(event.kind == Kind.EVICTION for event in store.log.iterate(session_id=INGESTION))
    budget = context.room(Budget(window=model.window))
    journal = Journal(store.log, Scope(INGESTION, task_id=task_of(store)))
    try:
        if _has_index(context):
            if not context.view.begun:
                earlier = earlier_work(store.log, journal.scope.grant("task"), INGESTION, budget)
                facts = earlier.metadata()
                journal.append(
                    journal.draft(Kind.SESSION, content=earlier.summary(), metadata=facts)
                )
            return
        for number, spans in enumerate(_sessions(store)):
            if number >= plans:
                _clear(journal, context, model, budget, spans)
    finally:
        journal.close()


def starting_context(store: Store, name: str) -> WindowedContext:
    """The context that every question about a store's history starts from.

    Takes a second for a long history.
    """
    context = CONTEXTS[name](store.log.excerpt)
    for event in inherited_events(store, context):
        context.add(event)
    return context


def copied_context(context: WindowedContext, read: ReadExcerpt) -> WindowedContext:
    """The same context for another store, free to change: what it holds are values, and after an
    ingestion few.
    """
    twin = CONTEXTS[context.name](read)
    vars(twin).update(vars(context), view=context.view.copy(), _read=read)
    return twin


def _clear(
    journal: Journal, context: WindowedContext, model: Model, budget: Budget, spans: Spans
) -> None:
    before = context.view.tokens
    leaving = sum(entry.tokens for lo, _ in spans if (entry := context.view.get(lo)))
    plan = EvictionPlan(
        reason="the session ended",
        before=before,
        after=before - leaving,
        limit=budget.window,
        evicted=spans,
        index_tokens=int(budget.window * budget.index_share),
        ratio=context.view.gauge.ratio,
    )
    said, facts = context.replacement(plan, budget, model)
    if facts.get("unsummarized"):
        # An agent at work must go on without its summary. Here nothing is lost by waiting, and
        # every question would be.
        raise ModelUnavailable(
            f"a session of the history could not be summarised{said}. Resume the run to try again."
        )
    draft = journal.draft(
        Kind.EVICTION, content=plan.summary() + said, metadata=plan.metadata() | facts
    )
    context.add(journal.append(draft))


def inherited_events(store: Store, context: WindowedContext) -> Iterator[Event]:
    """The basis of a question's view: the outline, or the turns of the history and the plans that
    cleared it.
    """
    outlined = _has_index(context)
    for event in store.log.iterate(session_id=INGESTION) if outlined else store.log.iterate():
        if event.session_id == PROBE:
            return
        yield event if event.session_id == INGESTION else replace(event, kind=Kind.CONVERSATION)


def inherited_by(store: Store, seq: int) -> Callable[[str], Iterable[Event]] | None:
    """The history that the session of a seq started with, for `explain`; None if it started empty."""
    if store.log.get(seq).session_id != PROBE:
        return None
    return lambda name: (
        inherited_events(store, CONTEXTS[name](store.log.excerpt)) if name in CONTEXTS else ()
    )


def summary_costs(store: Store) -> list[dict[str, Any]]:
    """Usage and cost of each summary that the ingestion made: none for contexts that make none."""
    plans = store.log.iterate(session_id=INGESTION)
    return [event.metadata for event in plans if "usage" in event.metadata]


def task_of(store: Store) -> str:
    """The task that the history of a store belongs to."""
    first = next(store.log.iterate(until=1), None)
    return first.task_id if first else ""


def _sessions(store: Store) -> Iterator[Spans]:
    """The addresses of each ingested session's turns, session by session in the order of the log."""
    turns = (event for event in store.log.iterate() if event.session_id not in (INGESTION, PROBE))
    for _, group in groupby(turns, key=lambda event: event.session_id):
        yield tuple((event.seq, event.seq) for event in group)


def _has_index(context: WindowedContext) -> bool:
    return isinstance(context, WindowedContext) and context.preface() is None
