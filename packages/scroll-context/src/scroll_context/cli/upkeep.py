"""Commands that look after a store: verify, salvage, reindex, backup and export."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scroll_context.cli.options import FILE, Place, json_option, open_log, open_store, store_option
from scroll_context.cli.output import (
    Command,
    echo,
    new_file,
    note,
    print_document,
    print_result,
    progress,
)
from scroll_context.errors import BadInput

if TYPE_CHECKING:
    from scroll_context.log.log import EventLog


# Faults that `verify` prints without --json.
LISTED = 20


@click.command(cls=Command)
@store_option
@json_option
def verify(store: Place, as_json: bool) -> None:
    """Check events, payloads and the search index against their hashes.

    Exits 1 if data is missing or altered and no salvage has reported it.

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
        echo(f"{verdict.events:,} events, {verdict.payloads:,} payloads, head {verdict.head}")
        if verdict.ok and not index:
            echo("intact")
    if index:
        note(
            f"The search index is damaged ({', '.join(index)}); the log is not. "
            f"{command('reindex', log.path)} rebuilds it."
        )
    if not verdict.ok:
        note(
            f"{len(verdict.bad):,} faults, the first at seq {verdict.bad[0][0]}. A backup or "
            f"{command('salvage', log.path)} may help."
        )
    if index or not verdict.ok:
        raise click.exceptions.Exit(1)


@click.command(cls=Command)
@store_option
@json_option
def salvage(store: Place, as_json: bool) -> None:
    """Build a new log from the readable parts of a damaged one.

    The damaged file is kept beside the new one. No other process may use the store meanwhile.

    \b
    Example:
      scroll salvage --store ./history
    """
    from scroll_context.upkeep.integrity import salvage as rescue

    if not isinstance(store, Path):
        raise BadInput(
            "a salvage works on the file of a local store; restore the server of a shared store "
            "from its backup instead"
        )
    with progress("salvaging") as bar:
        report = rescue(store, bar)
    if as_json:
        facts = {name: getattr(report, name) for name in ("recovered", "lost", "altered")}
        print_document({**facts, "kept_as": str(report.kept_as)})
        return
    whole = not (report.lost or report.altered)
    echo(
        f"recovered {report.recovered:,} events{', all that there were' if whole else ''}; the "
        f"{'' if whole else 'damaged '}log as it was is kept as {report.kept_as}"
    )
    if report.lost:
        echo(
            "lost seqs: "
            + ", ".join(f"{lo}-{hi}" if hi > lo else f"{lo}" for lo, hi in report.lost)
        )
    if report.altered:
        echo("altered seqs: " + ", ".join(map(str, report.altered)))


@click.command(cls=Command)
@store_option
@json_option
def reindex(store: Place, as_json: bool) -> None:
    """Rebuild the search index from the log.

    Rarely needed: a missing or unreadable index is rebuilt automatically.

    \b
    Example:
      scroll reindex
    """
    with open_store(store) as opened, progress("indexing") as bar:
        opened.index.rebuild(progress=bar)
        indexed = opened.index.indexed_seq
    print_result({"indexed_seq": indexed}, f"indexed up to seq {indexed:,}", as_json=as_json)


@click.command(cls=Command)
@click.argument("target", metavar="DIR", type=FILE)
@store_option
@json_option
def backup(target: Path, store: Place, as_json: bool) -> None:
    """Copy the store to a new folder.

    The copy is a complete store as of one moment. Other processes may write to the original
    meanwhile.

    \b
    Example:
      scroll backup /media/disk/history-2026-03-01
    """
    from scroll_context.upkeep.transfer import backup as copy

    with contextlib.closing(open_log(store)) as log, progress("copying") as bar:
        report = copy(log, target, bar)
    summary = (
        f"{report.events:,} events and {report.payloads:,} payloads, {report.bytes:,} bytes, in "
        f"{target}"
    )
    print_result(report, summary, as_json=as_json)
    _tell_missing(report.missing, log)


@click.command(cls=Command)
@click.argument("target", metavar="[FILE]", type=FILE, default=Path("-"))
@store_option
def export(target: Path, store: Place) -> None:
    """Write everything as JSON Lines: events, hashes and payloads.

    The target is a new file, or "-" for stdout. `scroll import --trust` restores it in a new store
    with the same event numbers and hashes.

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
            note(f"{report.events:,} events in {target}")
    _tell_missing(report.missing, log)


def _tell_missing(digests: Sequence[str], log: "EventLog") -> None:
    if digests:
        from scroll_context.log.schema import command

        is_single = len(digests) == 1
        note(
            f"{len(digests):,} {'payload is' if is_single else 'payloads are'} missing or damaged "
            f"in the store, so not in the copy; everything else is. {command('verify', log.path)} "
            "names the events."
        )
