"""`scroll repair`: a new log from the readable parts of a damaged one, and a new search index."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scroll_context.cli.confirmation import confirm, dry_run_option, yes_option
from scroll_context.cli.options import Place, json_option, open_log, open_store, store_option
from scroll_context.cli.output import Command, counted, echo, print_document, progress
from scroll_context.errors import BadInput, StoreDamaged

if TYPE_CHECKING:
    from scroll_context.upkeep.salvage import SalvageReport


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
