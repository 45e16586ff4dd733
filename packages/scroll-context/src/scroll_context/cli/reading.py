"""Commands that read a store: search, show, sessions, stats, sql.

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
    Narrowing,
    Place,
    json_option,
    narrowing_options,
    open_log,
    open_store,
    parse_span,
    session_named,
    session_option,
    store_option,
    time_options,
)
from scroll_context.cli.output import (
    Command,
    echo,
    edit_as_diff,
    new_file,
    note,
    one_line,
    paged,
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
    from scroll_context.log.log import EventLog, SessionInfo


# Characters of an event that `show` prints without --full.
SHOWN = 2_000
# Characters of a hit.
SNIPPET = 400
# Characters of a value in a table of `sql`.
CELL = 200


@click.command(cls=Command)
@click.argument("words", metavar="QUERY...", nargs=-1, required=True)
@click.option(
    "-k",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=10,
    show_default=True,
    help="Show at most N hits.",
)
@narrowing_options()
@click.option("--kind", multiple=True, metavar="KIND", help="Only this kind; may be repeated.")
@click.option("--role", multiple=True, metavar="ROLE", help="Only this role; may be repeated.")
@time_options
@click.option("--seq", metavar="LO-HI", callback=parse_span, help="Only events with these numbers.")
@store_option
@json_option
def search(
    words: tuple[str, ...],
    k: int,
    narrowing: Narrowing,
    kind: tuple[str, ...],
    role: tuple[str, ...],
    since: str | None,
    until: str | None,
    seq: tuple[int, int] | None,
    store: Place,
    as_json: bool,
) -> None:
    """Find events by their words, best first.

    Events that match more of the words, or rarer words, come first. "phrases", prefix*, AND, OR and
    NOT are operators. Any query is valid. Quote it if it has characters that your shell treats
    specially.

    \b
    Examples:
      scroll search 'toll-free route'
      scroll search 'allergy NOT walnut' -k 3 --role user
      scroll search budget --from 2026-02-01 --to 2026-02-28
      scroll search allergy --session trip-2
    """
    query = utf8(" ".join(words))
    with open_store(store) as opened:
        place = narrowing.resolve(opened.log)
        # If the index is unavailable, the search itself says why.
        with (
            contextlib.suppress(IndexUnavailable),
            progress("indexing") as bar,
        ):
            opened.index.catch_up(progress=bar)
        hits = opened.index.search(
            query,
            k=k,
            session_id=place.session,
            agent_id=place.agent,
            task_id=place.task,
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
                "--role user finds only your own words; messages of imported files count as "
                "yours after `scroll import --mine`"
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
@click.option("--raw", is_flag=True, help="Write the bytes of one event, exactly as recorded.")
@click.option(
    "-o", "--out", type=FILE, metavar="FILE", help="With --raw: write to a new file, not to stdout."
)
@store_option
@json_option
def show(
    span: tuple[int, int] | None,
    session: str | None,
    full: bool,
    raw: bool,
    out: Path | None,
    store: Place,
    as_json: bool,
) -> None:
    """Show an event or a range of events.

    With --session, shows only events of that session, or all of them if you give no range. Texts of
    more than 2,000 characters are truncated unless you pass --full. File edits are shown as diffs.
    With --json, each event is one line.

    --raw writes an image, a sound or a large result byte for byte. Binary content is never written
    to a terminal.

    \b
    Examples:
      scroll show 12
      scroll show 40-44 --full
      scroll show --session trip-2
      scroll show 12 --raw > message.txt
    """
    if span is None and session is None:
        raise click.UsageError(
            "Name an event (12), a range of events (3-9), or a session (--session ID)."
        )
    if out is not None and not raw:
        raise click.UsageError("-o writes the bytes of an event; it needs --raw.")
    lo, hi = span or (1, None)
    with contextlib.closing(open_log(store)) as log:
        if raw:
            if span is None or lo != hi or session is not None or as_json:
                raise click.UsageError("--raw writes one event: `scroll show SEQ --raw`.")
            _write_raw(log, lo, out)
            return
        name = None if session is None else session_named(log, session)
        _show_events(log, lo, hi, name, full=full, as_json=as_json)


def _show_events(
    log: "EventLog", lo: int, hi: int | None, session: str | None, *, full: bool, as_json: bool
) -> None:
    """Print a range of events. Exits 1 if a payload is lost; its preview is shown instead."""
    print_event = _print_json if as_json else _print_text
    count = faults = 0
    for event in log.iterate(after=lo - 1, until=hi, session_id=session):
        count += 1
        try:
            print_event(log, event, full)
        except (PayloadMissing, PayloadDamaged) as error:
            note(f"seq {event.seq}: {error}")
            print_event(log, event, False)
            faults += 1
    if not count:
        where = f" in session {session!r}" if session else ""
        which = f"event {lo}" if lo == hi else f"event from {lo} to {hi}"
        raise UnknownSeq(f"there is no {which}{where}; the log ends at {log.last_seq()}")
    if faults:
        raise click.exceptions.Exit(1)


def _write_raw(log: "EventLog", seq: int, out: Path | None) -> None:
    """Write the payload of an event, or its text, to a new file or to stdout."""
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
            f"cannot show; write it to a file: `scroll show {seq} --raw -o FILE`"
        )


def _print_json(log: "EventLog", event: "Event", full: bool) -> None:
    print_line({**_facts(event), "content": log.text(event) if full else event.content})


def _facts(event: "Event") -> dict[str, Any]:
    """An event for programs."""
    import msgspec

    return {"seq": event.seq, **msgspec.structs.asdict(event), "chain": event.chain.hex()}


def _print_text(log: "EventLog", event: "Event", full: bool) -> None:
    text = log.text(event) if full else event.content
    if event.kind == "tool_call":
        text = edit_as_diff(text) or text
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
                f"    … the bytes are a payload; `scroll show {event.seq} --raw -o FILE` writes "
                "them to a file"
            )
        )
    elif event.payload and not full and not cut:
        echo("    … this is a preview; --full prints the full payload")
    echo()


@click.command(cls=Command)
@store_option
@json_option
def stats(store: Place, as_json: bool) -> None:
    """Show the size and contents of the store.

    The head is the hash of the complete history. Save it elsewhere, so that you can detect a
    rewritten log later.

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
                "unused",
                f"{numbers.leftover_bytes:,} bytes: damaged logs, and payloads that no event names",
            )
        )
    for name, value in rows:
        echo(f"{name:<10}{one_line(value)}")


@click.command(cls=Command)
@click.argument("query")
@narrowing_options()
@store_option
@json_option
def sql(
    query: str,
    narrowing: Narrowing,
    store: Place,
    as_json: bool,
) -> None:
    """Run a read-only SQL query on the history.

    The query is one SELECT on hist.conversation_history or hist.events; `SELECT * FROM hist.events
    LIMIT 1` shows the columns of a table. The same limits apply as to a model's queries: 1,000 rows
    and 5 seconds. A note on stderr says when a limit was reached. --session, --agent, --task and
    --project limit what the query can see.

    \b
    Examples:
      scroll sql "SELECT * FROM hist.events LIMIT 1"
      scroll sql "SELECT role, count(*) AS n FROM hist.conversation_history GROUP BY role"
      scroll sql "SELECT seq FROM hist.events WHERE kind = 'request'" --session trip-4
    """
    from scroll_context.events import Grant
    from scroll_context.sql.guard import GuardedSql

    with contextlib.closing(open_log(store)) as log:
        path = log.path
        place = narrowing.resolve(log)
    grant = Grant(session_id=place.session, task_id=place.task, agent_id=place.agent)
    with contextlib.closing(GuardedSql(path, grant)) as window:
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


# sessions -----------------------------------------------------------------------------------------


@click.command(cls=Command)
@narrowing_options(session=False)
@time_options
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Only the newest N sessions."
)
@store_option
@json_option
def sessions(
    narrowing: Narrowing,
    since: str | None,
    until: str | None,
    limit: int | None,
    store: Place,
    as_json: bool,
) -> None:
    """List the sessions, oldest first.

    A session has the title that its source gave it, or else the user's first meaningful sentence.
    On a terminal, a long list is shown in your pager.

    \b
    Examples:
      scroll sessions
      scroll sessions --limit 2
      scroll sessions --from 2w --json
    """
    import msgspec

    from scroll_context.events import Grant
    from scroll_context.log.titles import session_titles

    with contextlib.closing(open_log(store)) as log:
        place = narrowing.resolve(log)
        infos = log.sessions(Grant(agent_id=place.agent, task_id=place.task))
        titles = session_titles(log)
    infos = [info for info in infos if _is_within(info, since, until)]
    infos = infos[-limit:] if limit else infos
    if as_json:
        print_document(
            [
                {**msgspec.structs.asdict(info), "title": titles.get(info.session_id, "")}
                for info in infos
            ]
        )
    elif infos:
        with paged():
            _print_sessions(infos, titles)
    else:
        note("no session matches")


def _is_within(info: "SessionInfo", since: str | None, until: str | None) -> bool:
    """Whether a session has an event between two times; its first and last event decide."""
    from scroll_context.log import times

    if since is not None and info.last_at < times.bound(since, upper=False):
        return False
    if until is None:
        return True
    last = times.bound(until, upper=True)
    return info.first_at[: len(last)] <= last


def _print_sessions(infos: "list[SessionInfo]", titles: dict[str, str]) -> None:
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
