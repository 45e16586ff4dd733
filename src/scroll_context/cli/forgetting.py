"""Commands that forget on purpose: erase."""

import contextlib
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scroll_context.cli.options import agent_option, json_option, open_store, session_option, store_option, task_option
from scroll_context.cli.output import Command, echo, note, one_line, print_document, progress, utf8
from scroll_context.errors import BadInput
from scroll_context.store.erase import REASONS, unreachable

if TYPE_CHECKING:
    from scroll_context.store.erase import ErasureReport, Reason
    from scroll_context.store.store import Store

LISTED = 20  # events that a dry run shows
MOST_HITS = 1_000


@click.command(cls=Command)
@click.argument("addresses", metavar="[SEQ|LO-HI]...", nargs=-1)
@session_option
@agent_option
@task_option
@click.option(
    "--source", metavar="KEY", help="Only what came from here: a source key's beginning, or an import's name."
)
@click.option("--search", "query", metavar="QUERY", help="What a search finds; it is shown before anything is erased.")
@click.option("--word", "words", metavar="TEXT", multiple=True, help="Text that must not remain; may be repeated.")
@click.option("--copies", is_flag=True, help="Erase events that repeat the words too.")
@click.option("--reason", type=click.Choice(REASONS), default="request", show_default=True, help="Kept in the log.")
@click.option("--by", metavar="NAME", default="", help="Who asked for it; kept in the log.", show_default="you")
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@json_option
def erase(
    addresses: tuple[str, ...], session: str | None, agent: str | None, task: str | None, source: str | None,
    query: str | None, words: tuple[str, ...], copies: bool, reason: "Reason", by: str, dry_run: bool, yes: bool,
    store: Path, as_json: bool,
) -> None:  # fmt: skip
    """Erase events: what they said leaves every file of the store.

    Their addresses, kinds and times stay, and the log still verifies. Saved variables of their sessions go too. Events
    that repeat the words are named, and erased with --copies. Backups and exports cannot be reached; docs/FORGETTING.md
    says what to do about them.

    \b
    Examples:
      scroll erase 12 40-44 --dry-run
      scroll erase --session 'chat with Ada' --copies
      scroll erase --search 'sk-live' --word sk-live-51HqLy --copies --reason secret
    """
    with open_store(store) as opened:
        seqs = [seq for text in addresses for seq in _span(text)]
        if query is not None:
            opened.index.catch_up()
            hits = opened.index.search(utf8(query), k=MOST_HITS, session_id=session, agent_id=agent, task_id=task)
            seqs += [hit.seq for hit in hits]
            if not hits:
                raise BadInput(f"nothing matches {query!r}, so there is nothing to erase")
        wanted = {
            "seqs": seqs, "session_id": session, "agent_id": agent, "task_id": task, "source": source,
            "words": [utf8(word) for word in words], "reason": reason, "by": utf8(by), "copies": copies,
        }  # fmt: skip
        with progress("looking for copies") as bar:
            plan = opened.erase(**wanted, dry_run=True, progress=bar)  # type: ignore[arg-type]
        if dry_run or not plan.events:
            _show(plan, opened, as_json)
            return
        if not yes:
            _show(plan, opened, False)
            _ask(plan.events)
        with progress("erasing") as bar:
            report = opened.erase(**wanted, progress=bar)  # type: ignore[arg-type]
        with progress("indexing") as bar:
            opened.index.catch_up(progress=bar)
    if as_json:
        print_document(report)
    else:
        echo(f"{report.events:,} events erased; seq {report.seq} records it")
    if report.remaining:
        note(f"{len(report.remaining):,} events that repeat the words remain: {_listed(report.remaining)}")
    if report.unfinished:
        note(f"not every file is clean yet: {report.unfinished}")
    note(unreachable(store))


def _span(text: str) -> range:
    low, _, high = text.partition("-")
    if not low.isdecimal() or (high and not high.isdecimal()) or int(high or low) < int(low):
        raise click.BadParameter(f"{text!r} is not a seq (12) or a range of seqs (3-9)", param_hint="SEQ")
    return range(int(low), int(high or low) + 1)


def _show(plan: "ErasureReport", store: "Store", as_json: bool) -> None:
    if as_json:
        print_document(plan)
        return
    for label, seqs in (("erase", plan.asked), ("copy", plan.copies)):
        for event in store.log.get_many(seqs[:LISTED]):
            echo(f"{label:<6} seq {event.seq}  {event.session_id}  {event.kind}  {one_line(event.content, 60)}")
        if len(seqs) > LISTED:
            echo(f"{label:<6} {len(seqs) - LISTED:,} more; --json lists them all")
    echo(
        f"{plan.events:,} events in {len(plan.sessions):,} sessions, {plan.payloads:,} payloads "
        f"({plan.payload_bytes:,} bytes)"
    )
    if plan.snapshots:
        echo(
            f"{len(plan.snapshots):,} snapshots of variables go with them: {', '.join(plan.variables) or 'none named'}"
        )
    if plan.remaining:
        echo(f"{len(plan.remaining):,} copies would remain; --copies erases them")


def _ask(events: int) -> None:
    if not sys.stdin.isatty():
        raise BadInput("this cannot be undone, so it asks; repeat the command with --yes, or with --dry-run first")
    with contextlib.suppress(termios.error, ValueError, OSError):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question is no answer to it
    click.confirm(f"Erase {events:,} events for good?", abort=True, err=True)


def _listed(seqs: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, seqs[:LISTED]))
    return shown if len(seqs) <= LISTED else f"{shown} and {len(seqs) - LISTED:,} more"
