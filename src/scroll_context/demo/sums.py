"""What the demonstration cost, beside what it would have cost to keep everything in the prompt. All from the log."""

from scroll_context.demo.cast import SESSION, WINDOW
from scroll_context.demo.scene import Scene
from scroll_context.events import Event, Kind
from scroll_context.messages import canonical
from scroll_context.models.scripted import quarter_of_characters
from scroll_context.session.accounts import accounts
from scroll_context.session.session import lineage
from scroll_context.store.store import Store
from scroll_context.store.verify import verify
from scroll_context.view.render import render
from scroll_context.view.working import WorkingView


def show_sums(scene: Scene, store: Store) -> None:
    """The last act: numbers, and the log's own integrity."""
    stage = scene.stage
    stage.act("7  The sums")
    events = list(lineage(store, SESSION))
    spent = accounts(events)
    kept, largest_kept, bulk, largest_bulk = _without_eviction(events, store)
    stage.row(f"tokens sent in {spent.requests} requests", f"{spent.input_tokens:,}", f"largest {spent.largest:,}")
    stage.row("the same, had nothing been evicted", f"{kept:,}", f"largest {largest_kept:,}")
    stage.row("and with tool results in the prompt", f"{bulk:,}", f"largest {largest_bulk:,}")
    stage.row("of the input, repeated prefix", f"{spent.reuse:.0%}", f"in spite of {spent.evictions} evictions")
    verdict = verify(store.log)
    stage.check(f"no request was over the window of {WINDOW:,} tokens", spent.largest <= WINDOW)
    stage.check(f"the hash chain over all {verdict.events:,} events holds", not verdict.bad)


def _without_eviction(events: list[Event], store: Store) -> tuple[int, int, int, int]:
    """Tokens in all and of the largest request, had nothing left the view; then the same with tool results in it."""
    view, system, tools, results = WorkingView(), "", "", 0
    kept: list[int] = []
    bulk: list[int] = []
    for event in events:
        if event.kind == Kind.SESSION and "tools" in event.metadata:
            system, tools = store.log.text(event), canonical(event.metadata["tools"]).decode()
        elif event.kind == Kind.TOOL_RESULT:
            results += quarter_of_characters(store.log.text(event))
        elif event.kind == Kind.REQUEST:
            messages = render(view, system, event.metadata["digest"]).messages
            kept.append(
                sum(quarter_of_characters(text) for text in (tools, *(canonical(m).decode() for m in messages)))
            )
            bulk.append(kept[-1] + results)
        if event.kind != Kind.EVICTION:
            view.add(event)
    return sum(kept), max(kept), sum(bulk), max(bulk)
