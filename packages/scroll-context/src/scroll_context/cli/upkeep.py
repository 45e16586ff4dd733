"""Commands that look after a store: verify, backup and export. The module repair.py has repair."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scroll_context.cli.options import FILE, Place, json_option, open_log, store_option
from scroll_context.cli.output import (
    Command,
    counted,
    echo,
    new_file,
    note,
    print_document,
    print_result,
    progress,
)

if TYPE_CHECKING:
    from scroll_context.log.log import EventLog


# Faults that `verify` prints without --json.
LISTED = 20


@click.command(cls=Command)
@store_option
@json_option
def verify(store: Place, as_json: bool) -> None:
    """Check events, payloads and the search index against their hashes.

    Exits 1 if data is missing or altered, unless `scroll repair` has recorded the loss.

    \b
    Example:
      scroll verify
    """
    from scroll_context.log.schema import command
    from scroll_context.search.index_files import damaged_files
    from scroll_context.upkeep.integrity import verify as check

    with contextlib.closing(open_log(store)) as log, progress("verifying") as bar:
        verdict = check(log, bar)
    index = damaged_files(log.path.parent / "index")
    if as_json:
        facts = {name: getattr(verdict, name) for name in verdict.__struct_fields__}
        print_document({"ok": verdict.ok and not index, **facts, "damaged_index_files": index})
    else:
        for label, faults in (("bad", verdict.bad), ("known", verdict.known)):
            for seq, what in faults[:LISTED]:
                echo(f"{label}: seq {seq}: {what}")
            if len(faults) > LISTED:
                echo(f"{label}: {len(faults) - LISTED:,} more; --json lists them all")
        events = counted(verdict.events, "event")
        payloads = counted(verdict.payloads, "payload")
        echo(f"{events}, {payloads}, head {verdict.head}")
        if verdict.ok and not index:
            echo("intact")
    if index:
        note(
            f"The search index is damaged ({', '.join(index)}); "
            f"{command('repair', log.path)} rebuilds it."
        )
    if not verdict.ok:
        note(
            f"{counted(len(verdict.bad), 'fault')}, the first at seq {verdict.bad[0][0]}. Restore "
            f"a backup, or recover the readable events with {command('repair', log.path)}."
        )
    if index or not verdict.ok:
        raise click.exceptions.Exit(1)


@click.command(cls=Command)
@click.argument("target", metavar="DIR", type=FILE)
@store_option
@json_option
def backup(target: Path, store: Place, as_json: bool) -> None:
    """Copy the store to a new folder.

    The copy is a complete store as of one moment. Other processes can continue to write to the
    original.

    \b
    Example:
      scroll backup history-2026-03-01
    """
    from scroll_context.upkeep.transfer import backup as copy

    with contextlib.closing(open_log(store)) as log, progress("copying") as bar:
        report = copy(log, target, bar)
    summary = (
        f"{counted(report.events, 'event')} and {counted(report.payloads, 'payload')}, "
        f"{report.bytes:,} bytes, in {target}"
    )
    print_result(report, summary, as_json=as_json)
    _report_missing(report.missing, log)


@click.command(cls=Command)
@click.argument("target", metavar="[FILE]", type=FILE, default=Path("-"))
@store_option
def export(target: Path, store: Place) -> None:
    """Write events, hashes and payloads as JSON Lines.

    FILE is a new file, or "-" for stdout. `scroll import --trust` restores the export in a new
    store with the same event numbers and hashes.

    \b
    Examples:
      scroll export history.jsonl
      scroll export | gzip > history.jsonl.gz
    """
    from scroll_context.upkeep.transfer import export as write

    with contextlib.closing(open_log(store)) as log:
        if target == Path("-"):
            with progress("exporting") as bar:
                report = write(log, sys.stdout.buffer, bar)
            sys.stdout.buffer.flush()
        else:
            with new_file(target) as file, progress("exporting") as bar:
                report = write(log, file, bar)
            note(f"{counted(report.events, 'event')} in {target}")
    _report_missing(report.missing, log)


def _report_missing(digests: Sequence[str], log: "EventLog") -> None:
    if digests:
        from scroll_context.log.schema import command

        note(
            f"{counted(len(digests), 'payload is', 'payloads are')} missing or damaged in the "
            "store and could not be copied; everything else was. "
            f"{command('verify', log.path)} lists the events."
        )
