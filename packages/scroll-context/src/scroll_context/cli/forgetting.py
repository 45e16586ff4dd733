"""Commands that forget on purpose: erase, retention, scan."""

import contextlib
import datetime as dt
import functools
import sys
import termios
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from scroll_context.cli.options import (
    Place,
    by_option,
    json_option,
    open_store,
    parse_age,
    parse_spans,
    scope_options,
    store_option,
    yes_option,
)
from scroll_context.cli.output import (
    Command,
    echo,
    note,
    one_line,
    print_document,
    print_result,
    progress,
    utf8,
)
from scroll_context.errors import BadInput
from scroll_context.log.address import printable_place
from scroll_context.log.filters import SearchFilters
from scroll_context.upkeep.copies import Why
from scroll_context.upkeep.erase import REASONS, unreachable

if TYPE_CHECKING:
    from scroll_context.store import Store
    from scroll_context.upkeep.erase import ErasureReport, Reason


# Events that a dry run shows.
LISTED = 20
# Events that it shows for each reason why events are copies.
EXAMPLES = 5
# The number of sessions whose projects are looked up.
MOST_SESSIONS = 500


@click.command(cls=Command)
@click.argument("spans", metavar="[SEQ|LO-HI]...", nargs=-1, callback=parse_spans)
@scope_options
@click.option(
    "--source",
    metavar="KEY",
    help="Only events of this source: the start of a source key, or an import's name.",
)
@click.option("--search", "query", metavar="QUERY", help="Every event that has all of these words.")
@click.option(
    "--any", "any_word", is_flag=True, help="With --search: every event that has any of the words."
)
@click.option(
    "--word",
    "words",
    metavar="TEXT",
    multiple=True,
    help="Text that must not remain, compared as search compares words; may be repeated.",
)
@click.option(
    "--copies",
    is_flag=True,
    help="Also erase events that repeat the erased ones or were made from them.",
)
@click.option(
    "--possible",
    is_flag=True,
    help="Count results of queries that name no events as copies, if they may be some.",
)
@click.option(
    "--reason",
    type=click.Choice(REASONS),
    default="request",
    show_default=True,
    help="The reason, recorded in the log.",
)
@by_option
@click.option("--dry-run", is_flag=True, help="Show what would be erased, and change nothing.")
@yes_option
@store_option
@json_option
def erase(
    spans: list[tuple[int, int]],
    session: str | None,
    agent: str | None,
    task: str | None,
    source: str | None,
    query: str | None,
    any_word: bool,
    words: tuple[str, ...],
    copies: bool,
    possible: bool,
    reason: "Reason",
    by: str,
    dry_run: bool,
    yes: bool,
    store: Place,
    as_json: bool,
) -> None:
    """Erase the content of events from every file of the store.

    Event numbers, kinds and times remain, and the log still verifies. Saved variables of the
    affected sessions are removed too. Copies are listed with the reason why they count as copies,
    and --copies erases them: events that repeat the text, and the output, tool calls and values of
    cells that had read it. Backups and exports are not changed; see docs/FORGETTING.md.

    \b
    Examples:
      scroll erase 12 40-44 --dry-run
      scroll erase --session 'chat with Ada' --copies
      scroll erase --search 'Ada Brandt' --word 'Ada Brandt' --copies --dry-run
      scroll erase --search 'sk-live' --word sk-live-51HqLy --copies --reason secret
    """
    with open_store(store) as opened:
        seqs = [seq for lo, hi in spans for seq in range(lo, min(hi, opened.log.last_seq()) + 1)]
        if query is not None:
            filters = SearchFilters.of(session_id=session, agent_id=agent, task_id=task)
            seqs += _matching(opened, utf8(query), any_word, filters)
        elif any_word:
            raise BadInput("--any says how --search matches; give --search too")
        request = {
            "seqs": seqs,
            "session_id": session,
            "agent_id": agent,
            "task_id": task,
            "source": source,
            "words": [utf8(word) for word in words],
            "reason": reason,
            "by": utf8(by),
            "copies": copies,
            "possible": possible,
        }
        with progress("looking for copies") as bar:
            plan = opened.erase(**request, dry_run=True, progress=bar)  # type: ignore[arg-type]
        if dry_run or not plan.events:
            _show(plan, opened, as_json)
            return
        if not yes:
            _show(plan, opened, False)
            _name_affected(opened, store, plan.sessions)
            ask(
                f"Erase {_count(plan.events, 'event', 'events')} of {printable_place(store)} for "
                "good?"
            )
        with progress("erasing") as bar:
            report = opened.erase(**request, progress=bar)  # type: ignore[arg-type]
        with progress("indexing") as bar:
            opened.index.catch_up(progress=bar)
    erased = _count(report.events, "event was", "events were")
    print_result(report, f"{erased} erased; seq {report.seq} records it", as_json=as_json)
    if report.remaining:
        note(
            f"{_count(len(report.remaining), 'copy', 'copies')} remain: {_listed(report.remaining)}"
        )
    if report.labels:
        note(
            "names remain, and these contain one of the words: "
            f"{', '.join(map(repr, report.labels[:LISTED]))}"
        )
    if report.unfinished:
        note(f"not every file is clean yet: {report.unfinished}")
    note(unreachable(printable_place(store)))


def _show(plan: "ErasureReport", store: "Store", as_json: bool) -> None:
    if as_json:
        print_document(plan)
        return
    _show_events("erase", store, plan.asked, LISTED)
    for why, seqs in plan.why.items():
        echo(f"{_count(len(seqs), 'copy', 'copies')}: {why}")
        _show_events("copy", store, seqs, EXAMPLES)
    echo(_extent(plan))
    if plan.snapshots:
        echo(
            f"{len(plan.snapshots):,} snapshots of variables go with them: "
            f"{', '.join(plan.variables) or 'none named'}"
        )
    if plan.remaining:
        echo(f"{_count(len(plan.remaining), 'copy', 'copies')} would remain; --copies erases them")
    if plan.possible and str(Why.POSSIBLE) not in plan.why:
        echo(
            f"{_count(len(plan.possible), 'possible copy', 'possible copies')}: the result of a "
            "query that names no events, such as a total; --possible erases them as copies"
        )
        _show_events("maybe", store, plan.possible, EXAMPLES)


def _show_events(label: str, store: "Store", seqs: Sequence[int], most: int) -> None:
    for event in store.log.get_many(seqs[:most]):
        text = one_line(
            event.content or event.headline or str(event.metadata.get("digest", "")), 60
        )
        echo(f"{label:<6} seq {event.seq}  {event.session_id}  {event.kind}  {text}")
    if len(seqs) > most:
        echo(f"{label:<6} {len(seqs) - most:,} more; --json lists them all")


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number:,} {singular if number == 1 else plural}"


def _matching(store: "Store", query: str, any_word: bool, filters: SearchFilters) -> list[int]:
    """Every event that a query means.

    Nothing is left out in silence, and nothing is widened unasked.
    """
    with progress("indexing") as bar:
        store.index.catch_up(progress=bar)
    seqs = store.index.every(query, any_word=any_word, filters=filters)
    if seqs:
        return seqs
    some = [] if any_word else store.index.every(query, any_word=True, filters=filters)
    if some:
        others = _count(len(some), "event has", "events have")
        raise BadInput(
            f"no event has all words of {query!r}, so nothing was erased; {others} some of them: "
            "--any erases these"
        )
    raise BadInput(f"nothing matches {query!r}, so there is nothing to erase")


def _extent(plan: "ErasureReport", are: str = "") -> str:
    events = _count(plan.events, "event", "events")
    sessions = _count(len(plan.sessions), "session", "sessions")
    payloads = _count(plan.payloads, "payload", "payloads")
    return f"{events} in {sessions}{are and f' {are}'}, {payloads} ({plan.payload_bytes:,} bytes)"


def _name_affected(opened: "Store", place: Place, sessions: Iterable[str]) -> None:
    """Name the store, the projects and the sessions that are about to lose something, before a
    person is asked.
    """
    names = sorted(set(sessions))
    marks = ", ".join("?" * len(names[:MOST_SESSIONS]))
    rows = opened.log.query(
        f"SELECT DISTINCT task_id FROM event WHERE session_id IN ({marks}) ORDER BY 1",
        names[:MOST_SESSIONS],
    )
    projects = [task for (task,) in rows if task]
    note(f"store: {printable_place(place)}")
    note(f"projects: {_named(projects) or 'none named'}")
    note(f"sessions: {_named(names)}")


def _named(names: Sequence[str]) -> str:
    listed = ", ".join(one_line(name, 60) for name in names[:LISTED])
    return listed if len(names) <= LISTED else f"{listed} and {len(names) - LISTED:,} more"


def ask(question: str) -> None:
    """Go on only after a yes, from a person."""
    if not sys.stdin.isatty():
        raise BadInput(
            "this cannot be undone, and there is no terminal for confirmation; pass --yes if you "
            "are sure"
        )
    with contextlib.suppress(termios.error, ValueError, OSError):
        # Keys typed before the question do not answer it.
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    click.confirm(question, abort=True, err=True)


def _listed(seqs: tuple[int, ...]) -> str:
    listed = ", ".join(map(str, seqs[:LISTED]))
    return listed if len(seqs) <= LISTED else f"{listed} and {len(seqs) - LISTED:,} more"


@click.command(cls=Command)
@click.option(
    "--older-than",
    "age",
    metavar="AGE",
    required=True,
    callback=parse_age,
    help="Time since recording, such as 90d, 12h or 4w.",
)
@click.option(
    "--kind", "kinds", multiple=True, metavar="KIND", help="Only this kind; may be repeated."
)
@scope_options
@click.option(
    "--apply", is_flag=True, help="Erase the events; without this, they are only counted."
)
@by_option
@yes_option
@store_option
@json_option
def retention(
    age: dt.timedelta,
    kinds: tuple[str, ...],
    session: str | None,
    agent: str | None,
    task: str | None,
    apply: bool,
    by: str,
    yes: bool,
    store: Place,
    as_json: bool,
) -> None:
    """Erase events that are older than a given age.

    Age counts from the time of recording, so imported history is as old as its import. Without
    --apply, the events are only counted. With --apply, the store, projects and sessions are named
    before you are asked; --yes skips the question for scheduled runs. Each run is recorded as an
    event. Variables that were saved later remain.

    \b
    Examples:
      scroll retention --older-than 365d
      scroll retention --older-than 30d --kind tool_result --kind artifact --apply --yes
    """
    with open_store(store) as opened:
        expire = functools.partial(
            opened.expire,
            age,
            kinds=kinds,
            session_id=session,
            agent_id=agent,
            task_id=task,
            by=utf8(by),
        )
        with progress("counting") as bar:
            report = expire(dry_run=True, progress=bar)
        if apply:
            if report.events and not yes:
                _name_affected(opened, store, report.sessions)
                ask(
                    f"Erase {_count(report.events, 'event', 'events')} of "
                    f"{printable_place(store)} for good?"
                )
            with progress("erasing") as bar:
                report = expire(progress=bar)
    summary = f"{report.events:,} events erased; seq {report.seq} records it"
    if not apply:
        summary = f"{_extent(report, 'are due')}; --apply erases them"
    print_result(report, summary, as_json=as_json)
    if report.unfinished:
        note(f"not every file is clean yet: {report.unfinished}")


@click.command(cls=Command)
@click.option(
    "--erase",
    "erasing",
    is_flag=True,
    help="Erase the events that contain secrets, and their copies.",
)
@yes_option
@store_option
@json_option
def scan(erasing: bool, yes: bool, store: Place, as_json: bool) -> None:
    """Find keys, tokens and private keys in recorded events.

    It detects keys and tokens in known formats, not passwords in sentences. It shows where each
    secret is and a fingerprint of it, never the secret. Revoke secrets before you erase them. Exits
    1 if secrets were found and not erased.

    \b
    Examples:
      scroll scan
      scroll scan --erase
    """
    from scroll_context.log.redact import scan as find

    with open_store(store) as opened:
        with progress("scanning") as bar:
            secrets = list(find(opened.log, bar))
        rows = [
            {"seq": secret.seq, "kind": secret.kind, "fingerprint": secret.fingerprint}
            for secret in secrets
        ]
        if as_json:
            print_document(rows)
        else:
            for row in rows:
                echo(f"seq {row['seq']}  {row['kind']}  {row['fingerprint']}")
            echo(
                f"{len({secret.fingerprint for secret in secrets}):,} secrets in "
                f"{len({secret.seq for secret in secrets}):,} events"
            )
        if not secrets:
            return
        if not erasing:
            note("Revoke them first; then `scroll scan --erase` removes the events that hold them.")
            raise SystemExit(1)
        seqs, words = (
            sorted({secret.seq for secret in secrets}),
            {secret.value for secret in secrets},
        )
        if not yes:
            _name_affected(opened, store, [event.session_id for event in opened.log.get_many(seqs)])
            ask(
                f"Erase {_count(len(seqs), 'event', 'events')} of {printable_place(store)} for "
                "good?"
            )
        with progress("erasing") as bar:
            report = opened.erase(
                seqs=seqs, words=words, copies=True, reason="secret", progress=bar
            )
    note(f"{report.events:,} events erased; seq {report.seq} records it")
    note(unreachable(printable_place(store)))
