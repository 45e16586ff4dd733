"""Commands that forget on purpose: erase, retention, scan."""

import datetime as dt
import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from scroll_context.cli.options import (
    Narrowing,
    Place,
    by_option,
    json_option,
    narrowing_options,
    open_store,
    parse_age,
    parse_spans,
    store_option,
)
from scroll_context.cli.output import (
    Command,
    confirm,
    counted,
    dry_run_option,
    echo,
    note,
    one_line,
    print_document,
    print_result,
    progress,
    utf8,
    yes_option,
)
from scroll_context.errors import BadInput
from scroll_context.log.address import printable_place
from scroll_context.log.filters import SearchFilters
from scroll_context.upkeep.erase import REASONS, unreachable
from scroll_context.upkeep.erasure_plan import Why

if TYPE_CHECKING:
    from scroll_context.store import Store
    from scroll_context.upkeep.erase import Reason
    from scroll_context.upkeep.erasure_plan import ErasureReport


# Events that a dry run shows.
LISTED = 20
# Events that it shows for each reason why events are copies.
EXAMPLES = 5
# The number of sessions whose projects are looked up.
MOST_SESSIONS = 500


@click.command(cls=Command)
@click.argument("spans", metavar="[SEQ|LO-HI]...", nargs=-1, callback=parse_spans)
@narrowing_options()
@click.option(
    "--source",
    metavar="KEY",
    help="Only events imported from this source: a file name, or a source key or its prefix "
    "(`scroll show --json` prints it).",
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
    help="Also treat every event with this text as a copy (by the rules of search); may be "
    "repeated.",
)
@click.option(
    "--copies",
    is_flag=True,
    help="Also erase events that repeat the erased ones or were made from them.",
)
@click.option(
    "--possible",
    is_flag=True,
    help="Also treat results, such as totals, as copies if they may come from erased content.",
)
@click.option(
    "--reason",
    type=click.Choice(REASONS),
    default="request",
    show_default=True,
    help="The reason, recorded in the log.",
)
@by_option
@dry_run_option
@yes_option
@store_option
@json_option
def erase(
    spans: list[tuple[int, int]],
    narrowing: Narrowing,
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

    Event numbers, kinds and times remain, and the log still verifies. The saved variables of the
    affected sessions, and of sessions that computed variables from these events, are always
    removed. The command also lists copies, and says why each counts as one: events that repeat the
    text, and the output and tool calls of cells that read it. --copies erases them too. Backups and
    exports are not changed.

    \b
    Examples:
      scroll erase 12 14-16 --dry-run
      scroll erase --session trip-1-ideas --copies
      scroll erase --search 'walnut allergy' --word walnut --copies --dry-run
      scroll erase 13 --word QX7LMP --copies --reason secret --yes
    """
    with open_store(store) as opened:
        place = narrowing.resolve(opened.log, full_names=True)
        last = opened.log.last_seq()
        # A span behind the last event keeps its first seq. With none, a filter alone would decide.
        seqs = [seq for lo, hi in spans for seq in range(lo, max(lo, min(hi, last)) + 1)]
        if query is not None:
            filters = SearchFilters.of(
                session_id=place.session, agent_id=place.agent, task_id=place.task
            )
            seqs += _matching(opened, utf8(query), any_word, filters)
        elif any_word:
            raise BadInput("--any changes how --search matches; give --search too")
        elif not (spans or source or place.session or place.agent or place.task):
            raise BadInput(
                "name the events to erase: SEQ, LO-HI, --session, --agent, --task, --project, "
                "--source or --search"
            )
        erase_them = functools.partial(
            opened.erase,
            seqs=seqs,
            session_id=place.session,
            agent_id=place.agent,
            task_id=place.task,
            source=source,
            words=[utf8(word) for word in words],
            reason=reason,
            by=utf8(by),
            copies=copies,
            possible=possible,
        )
        with progress("looking for copies") as bar:
            plan = erase_them(dry_run=True, progress=bar)
        if as_json and (dry_run or not plan.events):
            print_document(plan)
        elif plan.events and (dry_run or not yes):
            _show(plan, opened)
        if not plan.events:
            note(
                "nothing to erase: no event matches, or the ones that match were erased before. "
                "`scroll sessions` lists the full names of sessions, agents and tasks"
            )
        if dry_run or not plan.events:
            return
        _confirm(opened, store, plan.events, plan.sessions, yes=yes)
        with progress("erasing") as bar:
            report = erase_them(progress=bar)
        with progress("indexing") as bar:
            opened.index.catch_up(progress=bar)
    erased = counted(report.events, "event was", "events were")
    print_result(report, f"{erased} erased; seq {report.seq} records it", as_json=as_json)
    if report.remaining:
        count = counted(len(report.remaining), "copy", "copies")
        note(f"{count} remain: {_listed(report.remaining)}")
    if report.labels:
        note(
            "session, agent and task names remain, and these contain one of the words: "
            f"{', '.join(map(repr, report.labels[:LISTED]))}"
        )
    if report.unfinished:
        note(f"not every file is clean yet: {report.unfinished}")
    note(unreachable(printable_place(store)))


def _show(plan: "ErasureReport", store: "Store") -> None:
    _show_events("erase", store, plan.asked, LISTED)
    for why, seqs in plan.why.items():
        echo(f"{counted(len(seqs), 'copy', 'copies')}: {why}")
        _show_events("copy", store, seqs, EXAMPLES)
    echo(_extent(plan))
    if plan.snapshots:
        echo(
            f"{counted(len(plan.snapshots), 'variable snapshot')} will be "
            f"erased too: {', '.join(plan.variables) or 'no names'}"
        )
    if plan.remaining:
        remaining = counted(len(plan.remaining), "copy", "copies")
        echo(f"{remaining} would remain unless you pass --copies")
    if plan.possible and str(Why.POSSIBLE) not in plan.why:
        echo(
            f"{counted(len(plan.possible), 'possible copy', 'possible copies')}: query results "
            "that name no events, such as totals; --possible erases them too"
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


def _matching(store: "Store", query: str, any_word: bool, filters: SearchFilters) -> list[int]:
    """Every event that matches a query.

    Matches are never dropped silently, or broadened without --any.
    """
    with progress("indexing") as bar:
        store.index.catch_up(progress=bar)
    seqs = store.index.every(query, any_word=any_word, filters=filters)
    if seqs:
        return seqs
    some = [] if any_word else store.index.every(query, any_word=True, filters=filters)
    if some:
        others = counted(len(some), "event has", "events have")
        raise BadInput(
            f"no event has all words of {query!r}, so nothing was erased; {others} some of them, "
            "and --any erases those"
        )
    raise BadInput(f"nothing matches {query!r}, so there is nothing to erase")


def _extent(plan: "ErasureReport", are: str = "") -> str:
    events = counted(plan.events, "event")
    sessions = counted(len(plan.sessions), "session")
    payloads = counted(plan.payloads, "payload")
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
    note(f"projects: {_listed(projects) or 'none'}")
    note(f"sessions: {_listed(names)}")


def _confirm(
    opened: "Store", place: Place, events: int, sessions: Iterable[str], *, yes: bool
) -> None:
    if not yes:
        _name_affected(opened, place, sessions)
    confirm(f"Erase {counted(events, 'event')} of {printable_place(place)}?", yes=yes)


def _listed(names: Sequence[object]) -> str:
    """The first names or seqs of a list, and how many more there are."""
    listed = ", ".join(one_line(str(name), 60) for name in names[:LISTED])
    return listed if len(names) <= LISTED else f"{listed} and {len(names) - LISTED:,} more"


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
@narrowing_options()
@by_option
@dry_run_option
@yes_option
@store_option
@json_option
def retention(
    age: dt.timedelta,
    kinds: tuple[str, ...],
    narrowing: Narrowing,
    by: str,
    dry_run: bool,
    yes: bool,
    store: Place,
    as_json: bool,
) -> None:
    """Erase events that are older than a given age.

    Age is measured from when an event was recorded; for imported history, that is the time of the
    import. Before it asks, the command shows the number of events and the store, projects and
    sessions they are in. Each run is recorded as an event. Copies and variables recorded after the
    cutoff are kept.

    \b
    Examples:
      scroll retention --older-than 365d --dry-run
      scroll retention --older-than 30d --kind tool_result --kind artifact --yes
    """
    with open_store(store) as opened:
        place = narrowing.resolve(opened.log, full_names=True)
        expire = functools.partial(
            opened.expire,
            age,
            kinds=kinds,
            session_id=place.session,
            agent_id=place.agent,
            task_id=place.task,
            by=utf8(by),
        )
        with progress("counting") as bar:
            report = expire(dry_run=True, progress=bar)
        summary = _extent(report, "are due")
        if not dry_run:
            if report.events:
                if not (yes or as_json):
                    echo(summary)
                _confirm(opened, store, report.events, report.sessions, yes=yes)
            with progress("erasing") as bar:
                report = expire(progress=bar)
            summary = f"{counted(report.events, 'event')} erased; seq {report.seq} records it"
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
@dry_run_option
@yes_option
@store_option
@json_option
def scan(erasing: bool, dry_run: bool, yes: bool, store: Place, as_json: bool) -> None:
    """Find keys, tokens and private keys in recorded events.

    It detects keys and tokens in known formats, not passwords in sentences. It shows where each
    secret is and a fingerprint of it, never the secret. Revoke secrets before you erase them.
    --erase asks for confirmation first. Exits 1 if secrets were found and not erased.

    \b
    Examples:
      scroll scan
      scroll scan --erase --dry-run
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
            distinct = len({secret.fingerprint for secret in secrets})
            events = len({secret.seq for secret in secrets})
            echo(f"{counted(distinct, 'secret')} in {counted(events, 'event')}")
        if not secrets:
            return
        if dry_run or not erasing:
            note(
                "Revoke the secrets first. `scroll scan --erase` then erases these events and "
                "their copies."
            )
            raise SystemExit(1)
        seqs = sorted({secret.seq for secret in secrets})
        words = {secret.value for secret in secrets}
        sessions = [event.session_id for event in opened.log.get_many(seqs)]
        _confirm(opened, store, len(seqs), sessions, yes=yes)
        with progress("erasing") as bar:
            report = opened.erase(
                seqs=seqs, words=words, copies=True, reason="secret", progress=bar
            )
    note(f"{counted(report.events, 'event')} erased; seq {report.seq} records it")
    note(unreachable(printable_place(store)))
