"""Commands that read a store: search, show, get, sessions, stats, sql.

None of them creates or changes one.
"""

import contextlib
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scroll_context.cli.options import (
    FILE,
    Place,
    json_option,
    open_log,
    open_store,
    parse_span,
    parse_time,
    scope_options,
    session_option,
    store_option,
)
from scroll_context.cli.output import (
    Command,
    echo,
    new_file,
    note,
    one_line,
    print_bytes,
    print_document,
    print_line,
    print_table,
    progress,
    utf8,
    with_options,
    wrapped,
)
from scroll_context.errors import (
    BadInput,
    IndexUnavailable,
    PayloadDamaged,
    PayloadMissing,
    UnknownSeq,
)
from scroll_context.text.words import words_of

if TYPE_CHECKING:
    from scroll_context.events import Event
    from scroll_context.log.log import EventLog

# Characters of an event that `show` prints without --full.
SHOWN = 2_000
# Characters of a hit.
SNIPPET = 400
# Characters of a session's title.
TITLE = 70
# Characters of a value in a table of `sql`.
CELL = 200


@click.command(cls=Command)
@click.argument("query")
@click.option(
    "-k",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=10,
    show_default=True,
    help="How many hits.",
)
@scope_options
@click.option("--kind", multiple=True, metavar="KIND", help="Only this kind; may be repeated.")
@click.option("--role", multiple=True, metavar="ROLE", help="Only this role; may be repeated.")
@click.option(
    "--from", "since", metavar="TIME", callback=parse_time, help="From this date or time on."
)
@click.option(
    "--to", "until", metavar="TIME", callback=parse_time, help="Up to it; a date includes its day."
)
@click.option("--seq", metavar="LO-HI", callback=parse_span, help="Only these addresses.")
@store_option
@json_option
def search(
    query: str,
    k: int,
    session: str | None,
    agent: str | None,
    task: str | None,
    kind: tuple[str, ...],
    role: tuple[str, ...],
    since: str | None,
    until: str | None,
    seq: tuple[int, int] | None,
    store: Place,
    as_json: bool,
) -> None:
    """Find events by their words, best first.

    Bare words are ranked; "phrases", prefix*, AND, OR, NOT work.

    \b
    Examples:
      scroll search 'toll-free route'
      scroll search 'budget NOT flights' -k 3 --role user --from 2026-02-01
    """
    with open_store(store) as opened:
        # If the index is unavailable, the search itself says why.
        with (
            contextlib.suppress(IndexUnavailable),
            progress("indexing") as bar,
        ):
            opened.index.catch_up(progress=bar)
        hits = opened.index.search(
            utf8(query),
            k=k,
            session_id=session,
            agent_id=agent,
            task_id=task,
            kind=list(kind) or None,
            role=list(role) or None,
            seq_range=seq,
            created_from=since,
            created_to=until,
        )
    if hits.note:
        note(hits.note)
    if as_json:
        print_document(
            [{**_facts(hit.event), "score": hit.score, "snippet": hit.snippet} for hit in hits]
        )
        return
    if not hits:
        note(f"nothing found for {query!r}")
        if "user" in role:
            note(
                "--role user finds your own words only; messages of imported files count as "
                "yours with `scroll import --mine`"
            )
    for hit in hits:
        event = hit.event
        _heading(
            hit.seq,
            event.role,
            event.kind,
            event.session_id,
            event.created_at[:19],
            f"score {hit.score:.2f}",
        )
        echo(wrapped(one_line(hit.snippet, SNIPPET), 4), marked=words_of(query))


@click.command(cls=Command)
@click.argument("span", metavar="[SEQ|LO-HI]", required=False, callback=parse_span)
@session_option
@click.option("--full", is_flag=True, help="Print long texts and text payloads in full.")
@store_option
@json_option
def show(
    span: tuple[int, int] | None, session: str | None, full: bool, store: Place, as_json: bool
) -> None:
    """Show an event, or a range of events.

    With --session, only events of that session; without a range, all of them. With --json, each
    event is one line.

    \b
    Examples:
      scroll show 12
      scroll show 40-60 --full
      scroll show --session s-1f2e3d4c
    """
    if span is None and session is None:
        raise click.UsageError(
            "Name an address (12), a range of them (3-9), or a session (--session ID)."
        )
    lo, hi = span or (1, None)
    printed = _print_json if as_json else _print_text
    with contextlib.closing(open_log(store)) as log:
        shown_events = faults = 0
        for event in log.iterate(after=lo - 1, until=hi, session_id=session):
            shown_events += 1
            try:
                printed(log, event, full)
            except (PayloadMissing, PayloadDamaged) as error:
                note(f"seq {event.seq}: {error}")
                printed(log, event, False)
                faults += 1
        if not shown_events:
            whose = f" of session {session!r}" if session else ""
            where = f" has a seq in {lo}-{hi}" if hi else " is there"
            raise UnknownSeq(f"no event{whose}{where}; the log ends at {log.last_seq()}")
    if faults:
        raise click.exceptions.Exit(1)


def _print_json(log: "EventLog", event: "Event", full: bool) -> None:
    print_line({**_facts(event), "content": log.text(event) if full else event.content})


def _facts(event: "Event") -> dict[str, Any]:
    """An event for programs."""
    import msgspec

    return {"seq": event.seq, **msgspec.structs.asdict(event), "chain": event.chain.hex()}


def _print_text(log: "EventLog", event: "Event", full: bool) -> None:
    text = log.text(event) if full else event.content
    size = f"{event.payload.media_type}, {event.payload.size:,} bytes" if event.payload else ""
    call = f"call {event.tool_call_id}" if event.tool_call_id else ""
    reply = f"reply to {event.reply_to}" if event.reply_to else ""
    _heading(
        event.seq,
        event.role,
        event.kind,
        event.name,
        event.session_id,
        event.agent_id,
        event.task_id,
        event.created_at[:19],
        event.tool_state,
        call,
        reply,
        size,
    )
    if event.headline:
        echo(f"    ⟦ {one_line(event.headline)} ⟧")
    cut = 0 if full else max(len(text) - SHOWN, 0)
    echo(text[: len(text) - cut])
    if cut:
        echo(f"    … {cut:,} more characters; --full prints them")
    if event.payload and not event.payload.is_text:
        echo(
            with_options(
                f"    … the bytes are a payload; `scroll get {event.seq} -o FILE` writes them to "
                "a file"
            )
        )
    elif event.payload and not full and not cut:
        echo("    … this is a preview; --full prints the full payload")
    echo()


@click.command(cls=Command)
@click.argument("seq", type=click.IntRange(min=1), metavar="SEQ")
@click.option(
    "-o", "--out", type=FILE, metavar="FILE", help="A new file to write to; without it, stdout."
)
@store_option
def get(seq: int, out: Path | None, store: Place) -> None:
    """Write the payload or the text of an event to a file or stdout.

    An image, a sound or a large result is written byte for byte. Binary content is not written to a
    terminal.

    \b
    Examples:
      scroll get 31 > photo.png
      scroll get 31 -o photo.png
    """
    with contextlib.closing(open_log(store)) as log:
        event = log.get(seq)
        body = log.payloads.read(event.payload.digest) if event.payload else event.content.encode()
    if out is not None:
        with new_file(out) as file:
            file.write(body)
        note(f"{len(body):,} bytes in {out}")
    elif not sys.stdout.isatty():
        print_bytes(body)
    elif event.payload is None or event.payload.is_text:
        echo(body.decode("utf-8", "replace"))
    else:
        raise BadInput(
            f"seq {seq} is {event.payload.media_type}, {len(body):,} bytes, which a terminal "
            f"cannot show; write it to a file: `scroll get {seq} -o FILE`"
        )


@click.command(cls=Command)
@store_option
@json_option
def sessions(store: Place, as_json: bool) -> None:
    """List the sessions, oldest first.

    The title of a session is the user's first meaningful sentence.

    \b
    Example:
      scroll sessions --json
    """
    import msgspec

    with contextlib.closing(open_log(store)) as log:
        infos = log.sessions()
        titles = session_titles(log)
    if as_json:
        print_document(
            [
                {**msgspec.structs.asdict(info), "title": titles.get(info.session_id, "")}
                for info in infos
            ]
        )
        return
    rows = [
        (
            info.session_id,
            info.agent_id,
            info.task_id,
            f"{info.events:,}",
            f"{info.first_seq}-{info.last_seq}",
            info.first_at[:10],
            info.last_at[:16].replace("T", " "),
            titles.get(info.session_id, ""),
        )
        for info in infos
    ]
    columns = ("session", "agent", "task", "events", "seqs", "first", "last", "title")
    # Empty columns are left out.
    filled = [True, *(any(values) for values in list(zip(*rows, strict=True))[1:])]
    print_table(
        list(itertools.compress(columns, filled)),
        [list(itertools.compress(row, filled)) for row in rows],
        numeric=("events",),
        fit=True,
    )


def session_titles(log: "EventLog") -> dict[str, str]:
    """The first sentence of a user that says something, for each session."""
    from scroll_context.origin import TURN_SQL
    from scroll_context.text.terms import opening

    rows = log.query(
        f"""SELECT session_id, substr(content, 1, 2000) FROM (
            SELECT session_id, content, seq,
                row_number() OVER (PARTITION BY session_id ORDER BY seq) number
            FROM event WHERE {TURN_SQL}
        ) WHERE number <= 4 ORDER BY seq"""
    )
    turns: dict[str, list[str]] = {}
    for session, content in rows:
        turns.setdefault(str(session), []).append(str(content))
    return {session: one_line(opening(text, TITLE), TITLE) for session, text in turns.items()}


@click.command(cls=Command)
@store_option
@json_option
def stats(store: Place, as_json: bool) -> None:
    """Show the size and the contents of the store.

    The head identifies the complete history: store this hash elsewhere to detect a rewritten log
    later.

    \b
    Example:
      scroll stats
    """
    with open_store(store) as opened:
        numbers = opened.stats()
    if as_json:
        print_document(numbers)
        return
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in numbers.kinds.items())
    rows = [
        ("events", f"{numbers.events:,}" + (f" ({kinds})" if kinds else "")),
        ("sessions", f"{numbers.sessions:,}"),
        ("head", numbers.head or "–"),
        ("log", f"{numbers.log_bytes:,} bytes"),
        ("payloads", f"{numbers.payloads:,} in {numbers.payload_bytes:,} bytes"),
        ("index", f"{numbers.index_bytes:,} bytes, up to seq {numbers.indexed_seq:,}"),
        (
            "bytes of",
            ", ".join(f"{kind} {size:,}" for kind, size in numbers.kind_bytes.items()) or "–",
        ),
    ]
    if numbers.leftover_bytes:
        rows.append(
            (
                "may go",
                f"{numbers.leftover_bytes:,} bytes: damaged logs, and payloads that no event names",
            )
        )
    for name, value in rows:
        echo(f"{name:<10}{one_line(value)}")


@click.command(cls=Command)
@click.argument("query")
@scope_options
@store_option
@json_option
def sql(
    query: str,
    session: str | None,
    agent: str | None,
    task: str | None,
    store: Place,
    as_json: bool,
) -> None:
    """Run a read-only SQL query on the history.

    The query is one SELECT on hist.conversation_history or hist.events, as models write it. Rows,
    time and size are limited; a note on stderr says if a limit was reached.

    \b
    Example:
      scroll sql "SELECT role, count(*) AS n FROM hist.conversation_history GROUP BY role"
    """
    from scroll_context.events import Grant
    from scroll_context.sql.guard import GuardedSql

    with contextlib.closing(open_log(store)) as log:
        path = log.path
    with contextlib.closing(
        GuardedSql(path, Grant(session_id=session, task_id=task, agent_id=agent))
    ) as window:
        result = window.query(utf8(query))
    if as_json:
        print_document({"columns": result.columns, "rows": result.rows, "note": result.note})
        return
    rows = []
    for row in result.rows:
        values = [
            value.hex() if isinstance(value, bytes) else value
            for value in map(row.get, result.columns)
        ]
        rows.append([one_line("" if value is None else str(value), CELL) for value in values])
    print_table(result.columns, rows, fit=True)
    if result.note:
        note(result.note)


def _heading(seq: int, *facts: str) -> None:
    """One line of facts about an event, the address first."""
    echo(f"{seq}", bold=True, end="")
    echo("  " + "  ".join(one_line(fact) for fact in facts if fact))
