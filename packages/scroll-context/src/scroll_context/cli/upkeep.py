"""Commands that look after a store: verify, repair, backup and export."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scroll_context.cli.options import FILE, Place, json_option, open_log, open_store, store_option
from scroll_context.cli.output import (
    Command,
    confirm,
    counted,
    dry_run_option,
    echo,
    new_file,
    note,
    print_document,
    print_result,
    progress,
    yes_option,
)
from scroll_context.errors import BadInput, StoreDamaged

if TYPE_CHECKING:
    from scroll_context.log.log import EventLog
    from scroll_context.upkeep.salvage import SalvageReport


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


# repair -------------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.option("--log", "only_log", is_flag=True, help="Rebuild the log even if it is intact.")
@click.option("--index", "only_index", is_flag=True, help="Rebuild the search index only.")
@dry_run_option
@yes_option
@store_option
@json_option
def repair(
    only_log: bool, only_index: bool, dry_run: bool, yes: bool, store: Place, as_json: bool
) -> None:
    """Rebuild a damaged log or a damaged search index.

    A damaged log is replaced with a new one that has every readable event. Event numbers stay the
    same, lost events are recorded as lost, and the damaged file is kept beside the new one. No
    other process may use the store during the repair. A search index is derived from the log, so
    rebuilding it loses nothing; a missing or unreadable one is rebuilt without this command.

    \b
    Examples:
      scroll repair --dry-run
      scroll repair --yes
      scroll repair --index
    """
    log_fault = "" if only_index else _log_fault(store)
    is_log_due = only_log or bool(log_fault)
    is_index_due = is_log_due or only_index or bool(_index_faults(store))
    if not (as_json or only_log or only_index):
        echo(log_fault or _diagnosis(is_index_due=is_index_due))
    report: SalvageReport | None = None
    indexed: int | None = None
    if is_log_due and not dry_run:
        folder = _local(store)
        confirm(f"Replace the log in {folder} with a rebuilt one, and keep the old file?", yes=yes)
        report = _rebuild_log(folder)
    if is_index_due and not dry_run:
        # Nothing can be lost, so no confirmation is needed.
        indexed = _rebuild_index(store)
    if as_json:
        print_document({**_fields(report), "indexed_seq": indexed})
    else:
        _print_outcome(report, indexed)


def _diagnosis(*, is_index_due: bool) -> str:
    if is_index_due:
        return "The search index needs to be rebuilt; the log does not."
    return "The log and the search index are intact."


def _log_fault(store: Place) -> str:
    """The damage of the log; empty if it is intact."""
    from scroll_context.upkeep.integrity import verify

    try:
        with contextlib.closing(open_log(store)) as log, progress("verifying") as bar:
            faults = verify(log, bar).bad
    except StoreDamaged as error:
        return f"The log cannot be read: {error}"
    if not faults:
        return ""
    seq, fault = faults[0]
    return f"The log has {counted(len(faults), 'fault')}; the first is at seq {seq}: {fault}."


def _index_faults(store: Place) -> list[str]:
    from scroll_context.search.index_files import damaged_files

    with contextlib.closing(open_log(store)) as log:
        return damaged_files(log.path.parent / "index")


def _local(store: Place) -> Path:
    if not isinstance(store, Path):
        raise BadInput(
            "the log of a shared store is on its server; restore the server from its backup. "
            "`scroll repair --index` rebuilds the search index of this host"
        )
    return store


def _rebuild_log(folder: Path) -> "SalvageReport":
    from scroll_context.upkeep.salvage import salvage

    with progress("rebuilding the log") as bar:
        return salvage(folder, bar)


def _rebuild_index(store: Place) -> int:
    with open_store(store) as opened, progress("indexing") as bar:
        opened.index.rebuild(progress=bar)
        return opened.index.indexed_seq


def _fields(report: "SalvageReport | None") -> dict[str, Any]:
    """The log's part of the JSON document. Every field is null if the log was not rebuilt."""
    if report is None:
        return dict.fromkeys(("recovered", "lost", "altered", "kept_as"))
    fields = {name: getattr(report, name) for name in ("recovered", "lost", "altered")}
    return {**fields, "kept_as": str(report.kept_as)}


def _print_outcome(report: "SalvageReport | None", indexed: int | None) -> None:
    if report is not None:
        is_complete = not (report.lost or report.altered)
        which = "every event" if is_complete else "the readable events"
        echo(f"recovered {which}: {report.recovered:,}; the old log is kept as {report.kept_as}")
        if report.lost:
            spans = [f"{lo}-{hi}" if hi > lo else f"{lo}" for lo, hi in report.lost]
            echo(f"lost seqs: {', '.join(spans)}")
        if report.altered:
            echo(f"altered seqs: {', '.join(map(str, report.altered))}")
    if indexed is not None:
        echo(f"indexed up to seq {indexed:,}")
