"""Commands that read a store: search, show, sessions, stats, sql. None of them creates or changes one."""

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scroll_context.cli.options import (
    DEFAULT_STORE,
    Agent,
    AsJson,
    Session,
    StoreFolder,
    Task,
    open_log,
    open_store,
    parse_span,
    parse_time,
)
from scroll_context.cli.output import note, one_line, print_document, print_line, print_table, progress, utf8, visible
from scroll_context.errors import IndexUnavailable, PayloadDamaged, PayloadMissing, UnknownSeq

if TYPE_CHECKING:
    from scroll_context.events import Event
    from scroll_context.store.log import EventLog

SHOWN = 2_000  # characters of an event that `show` prints without --full
CELL = 200  # characters of a value in a table of `sql`

Kinds = Annotated[list[str] | None, typer.Option(metavar="KIND", help="Only this kind; may be repeated.")]
Roles = Annotated[list[str] | None, typer.Option(metavar="ROLE", help="Only this role; may be repeated.")]


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help='Words, "phrases", prefix*, AND, OR, NOT.')],
    k: Annotated[int, typer.Option("-k", min=1, max=1000, metavar="N", help="How many hits.")] = 10,
    session: Session = None,
    agent: Agent = None,
    task: Task = None,
    kind: Kinds = None,
    role: Roles = None,
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help="From this date or time on.")] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Up to it; a date includes its day.")
    ] = None,
    seq: Annotated[str | None, typer.Option(metavar="LO-HI", help="Only these addresses.")] = None,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Find events by their words, best first.

    \b
    Examples:
      scroll search 'toll-free route'
      scroll search 'budget NOT flights' -k 3 --role user --from 2026-02-01
    """
    seq_range = parse_span(seq, "--seq") if seq else None
    created_from, created_to = parse_time(since, "--from"), parse_time(until, "--to")
    with open_store(store) as opened:
        with contextlib.suppress(IndexUnavailable), progress("indexing") as bar:  # the search itself says why not
            opened.index.catch_up(progress=bar)
        hits = opened.index.search(
            utf8(query), k=k, session_id=session, agent_id=agent, task_id=task, kind=kind or None, role=role or None,
            seq_range=seq_range, created_from=created_from, created_to=created_to,
        )  # fmt: skip
    if hits.note:
        note(hits.note)
    if as_json:
        import msgspec

        print_document(
            [
                {"seq": hit.seq, "score": hit.score, "snippet": hit.snippet}
                | msgspec.structs.asdict(hit.event)
                | {"chain": hit.event.chain.hex()}
                for hit in hits
            ]
        )
        return
    if not hits:
        note(f"nothing found for {query!r}")
    for hit in hits:
        event = hit.event
        facts = [
            f"{event.seq}",
            event.role,
            event.kind,
            event.session_id,
            event.created_at[:19],
            f"score {hit.score:.2f}",
        ]
        _heading(facts)
        typer.echo(f"    {one_line(hit.snippet, 400)}")


def show(
    span: Annotated[str, typer.Argument(metavar="SEQ|LO-HI", help="An address, or a range with both ends.")],
    full: Annotated[bool, typer.Option("--full", help="Print long texts and text payloads whole.")] = False,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show the event at an address, or a range of them.

    With --json, one event a line.

    \b
    Examples:
      scroll show 12
      scroll show 40-60 --full
    """
    lo, hi = parse_span(span, "SEQ|LO-HI")
    printed = _show_json if as_json else _show_text
    log = open_log(store)
    try:
        found = faults = 0
        for event in log.iterate(after=lo - 1, until=hi):
            found += 1
            try:
                printed(log, event, full)
            except (PayloadMissing, PayloadDamaged) as error:
                note(f"seq {event.seq}: {error}")
                printed(log, event, False)
                faults += 1
        if not found:
            raise UnknownSeq(f"no event has a seq in {span}; the log ends at {log.last_seq()}")
        if faults:
            raise typer.Exit(1)
    finally:
        log.close()


def _show_json(log: "EventLog", event: "Event", full: bool) -> None:
    import msgspec

    document: dict[str, Any] = {"seq": event.seq, **msgspec.structs.asdict(event), "chain": event.chain.hex()}
    if full:
        document["content"] = log.text(event)
    print_line(document)


def _show_text(log: "EventLog", event: "Event", full: bool) -> None:
    text = log.text(event) if full else event.content
    size = f"{event.payload.media_type}, {event.payload.size:,} bytes" if event.payload else ""
    call = f"call {event.tool_call_id}" if event.tool_call_id else ""
    reply = f"reply to {event.reply_to}" if event.reply_to else ""
    facts = [f"{event.seq}", event.role, event.kind, event.name, event.session_id, event.agent_id, event.task_id]
    _heading([*facts, event.created_at[:19], event.tool_state, call, reply, size])
    if event.headline:
        typer.echo(visible(f"    ⟦ {event.headline} ⟧"))
    cut = len(text) - SHOWN
    if full or cut <= 0:
        typer.echo(visible(text))
    else:
        typer.echo(visible(text[:SHOWN]) + f"\n    … {cut:,} more characters; --full prints them")
    if event.payload and event.payload.is_text and not full and cut <= 0:
        typer.echo("    … this is a preview; --full prints the whole payload")
    typer.echo()


def sessions(store: StoreFolder = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List the sessions, oldest first.

    \b
    Example:
      scroll sessions --json
    """
    log = open_log(store)
    try:
        found = log.sessions()
    finally:
        log.close()
    if as_json:
        print_document(found)
        return
    rows = [
        (
            info.session_id, info.agent_id or "–", info.task_id or "–", f"{info.events:,}",
            f"{info.first_seq}-{info.last_seq}", info.first_at[:19], info.last_at[:19],
        )
        for info in found
    ]  # fmt: skip
    print_table(("session", "agent", "task", "events", "seqs", "first", "last"), rows, numeric=("events",))


def stats(store: StoreFolder = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Show the store in numbers.

    The head identifies the whole history: keep it elsewhere, and a rewritten log can be told from this one.

    \b
    Example:
      scroll stats
    """
    with open_store(store) as opened:
        found = opened.stats()
    if as_json:
        print_document(found)
        return
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in found.kinds.items())
    rows = [
        ("events", f"{found.events:,}" + (f" ({kinds})" if kinds else "")),
        ("sessions", f"{found.sessions:,}"),
        ("head", found.head or "–"),
        ("log", f"{found.log_bytes:,} bytes"),
        ("payloads", f"{found.payloads:,} in {found.payload_bytes:,} bytes"),
        ("index", f"{found.index_bytes:,} bytes, up to seq {found.indexed_seq:,}"),
    ]
    for name, value in rows:
        typer.echo(f"{name:<10}{visible(value)}")


def sql(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="One SELECT on hist.conversation_history or hist.events.")
    ],
    session: Session = None,
    agent: Agent = None,
    task: Task = None,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Run a read-only SQL query on the history, as a model may.

    Rows, time and size are limited; a note on stderr says when there was more.

    \b
    Example:
      scroll sql "SELECT role, count(*) AS n FROM hist.conversation_history GROUP BY role"
    """
    from scroll_context.events import Grant
    from scroll_context.store.sql import GuardedSql

    log = open_log(store)
    path = log.path
    log.close()
    window = GuardedSql(path, Grant(session_id=session, task_id=task, agent_id=agent))
    try:
        found = window.query(query)
    finally:
        window.close()
    if as_json:
        print_document(found)
        return
    rows = [[one_line(_cell(row[column]), CELL) for column in found.columns] for row in found.rows]
    print_table(found.columns, rows, fit=True)
    if found.note:
        note(found.note)


def _cell(value: Any) -> str:
    return "" if value is None else value.hex() if isinstance(value, bytes) else str(value)


def _heading(facts: list[str]) -> None:
    """One line of facts about an event, the address first."""
    address, *others = facts
    typer.secho(address, bold=True, nl=False)
    typer.echo("  " + visible("  ".join(fact for fact in others if fact)))
