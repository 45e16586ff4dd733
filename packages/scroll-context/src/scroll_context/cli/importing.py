"""`scroll import`: its command line."""

import contextlib
import functools
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scroll_context.cli.options import FILE, Place, json_option, lock_timeout_option, store_option
from scroll_context.cli.output import (
    Command,
    counted,
    echo,
    note,
    print_document,
    print_table,
    progress,
    visible,
)
from scroll_context.errors import BadInput, IndexUnavailable, UnreadableMessages
from scroll_context.plugins import entry_points, how_to_install

if TYPE_CHECKING:
    from scroll_context.importing.layouts import Importer, InstalledHistory
    from scroll_context.importing.records import ImportReport
    from scroll_context.importing.run import ImportOptions
    from scroll_context.store import Store


# Faults of an assistant's files that are shown.
LISTED = 20

UNKNOWN_FORMAT = "this is not a format that Scroll reads; `scroll import --help` lists the formats"

OWN_FORMATS = ("jsonl", "json", "export")
"""The layouts of the core, which a start of the command line must not import."""

FORMATS = (*OWN_FORMATS, *(point.name for point in entry_points("scroll_context.importers")))
"""Those, and the ones that installed packages add."""


def _known_format(
    _context: click.Context, _parameter: click.Parameter, name: str | None
) -> str | None:
    """The name of a format, as `click.Choice` would check it, with the package that may add it."""
    if name is None or name in FORMATS:
        return name
    message = f"{name!r} is not one of {', '.join(FORMATS)}."
    if FORMATS == OWN_FORMATS:
        from scroll_context.importing.layouts import OTHER_FORMATS

        message += f" {OTHER_FORMATS}"
    raise click.BadParameter(message)


@click.command("import", cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, type=FILE)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Import the histories of the assistants on this machine.",
)
@click.option("--dry-run", is_flag=True, help="With --all: only list the histories.")
@click.option(
    "--session",
    metavar="ID",
    default="",
    show_default="the file's name",
    help="The session for messages that do not name one.",
)
@click.option(
    "--agent", metavar="ID", default="", help="The agent for messages that do not name one."
)
@click.option("--task", metavar="ID", default="", help="The task to file the messages under.")
@click.option(
    "--kind",
    metavar="KIND",
    default="conversation",
    show_default=True,
    help="The event kind for messages that are not tool calls or results.",
)
@click.option(
    "--format",
    "layout",
    callback=_known_format,
    metavar="FORMAT",
    show_default="detected",
    help=f"One of {', '.join(FORMATS)}.",
)
@click.option(
    "--skip-bad", is_flag=True, help="If a file has bad messages, skip them and import the rest."
)
@click.option(
    "--into",
    metavar="ID",
    default="",
    help="Like --session, but may add to a session that another source began.",
)
@click.option("--keep-secrets", is_flag=True, help="Do not replace keys and tokens with markers.")
@click.option(
    "--mine", is_flag=True, help="The files are your own history: the user in them is you."
)
@click.option(
    "--me",
    multiple=True,
    metavar="NAME",
    help="Your name among the speakers of a chat; may be repeated.",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Restore an export of your own: its snapshots and forks take effect.",
)
@store_option
@lock_timeout_option
@json_option
def import_(
    files: tuple[Path, ...],
    everything: bool,
    dry_run: bool,
    session: str,
    agent: str,
    task: str,
    kind: str,
    layout: str | None,
    skip_bad: bool,
    into: str,
    keep_secrets: bool,
    mine: bool,
    me: tuple[str, ...],
    trust: bool,
    store: Place,
    lock_timeout: float,
    as_json: bool,
) -> None:
    """Add messages from files to a store.

    The store is created if there is none. A folder means all files in it, and "-" means stdin.

    Reads histories of Claude Code, Codex, the Gemini CLI, Qwen Code, Pi, the Copilot CLI, opencode,
    Cursor and QwenPaw; exports of ChatGPT, Slack and WhatsApp; messages of OpenAI, Anthropic and
    LangChain as JSON or JSON Lines; Markdown, plain text, and CSV with a role column; files from
    `scroll export`; and archives (.gz, .zip) of these. Each tool call and each tool result becomes
    an event.

    Imports are idempotent: a file that was imported before adds nothing, and a file that has grown
    adds its new messages. Keys and tokens are replaced with markers unless you pass --keep-secrets
    or restore an export with --trust. A file with a bad line is not imported at all unless you pass
    --skip-bad. If another source began a session with the same name, the file's session gets
    another name unless you pass --into.

    --all finds the histories of these assistants on this machine, shows their number, size and age,
    and imports them. The next run reads only new messages.

    A file that you name may contain anyone's words, so by default none of them count as yours: they
    are not treated as your instructions, are not shown to new assistant sessions, and are not
    matched by --role user. They belong to the task that --task names, or to no task. Pass --mine if
    the files are your own history. In a group chat (WhatsApp, Slack, CSV), --me says which speaker
    you are.

    An export from another store is only text to read. Its saved variables, forks and settings
    take effect only with --trust, which also restores the same event numbers and hashes in a new
    store.

    \b
    Examples:
      scroll import chat.jsonl
      scroll import notes/ --agent helper
      scroll import --all --dry-run
      scroll import --all
      scroll import "WhatsApp Chat with Bo.txt" --me Ada
      my-exporter | scroll import - --session monday
      scroll import history.jsonl.gz --store ./copy --trust
    """
    if everything:
        if files or session or agent or task or into or layout or mine or me or trust:
            raise click.UsageError("--all takes no files, and no options for files.")
        _import_all(store, lock_timeout, redact=not keep_secrets, dry_run=dry_run, as_json=as_json)
        return
    if not files:
        raise click.UsageError("Name files, or pass --all to import the histories of assistants.")
    if dry_run:
        raise click.UsageError("--dry-run needs --all.")
    if session and into:
        raise click.BadParameter("give only one of --session and --into", param_hint="--into")
    from scroll_context.importing.records import Labels
    from scroll_context.importing.run import ImportOptions

    options = ImportOptions(
        labels=Labels(into or session, agent, task, kind, me=me),
        layout=layout,
        skip_bad=skip_bad,
        join=bool(into),
        mine=mine,
        trust=trust,
        redact=not keep_secrets,
    )
    with _target(store, lock_timeout) as target:
        reports = [_import_file(file, options, target) for file in _named_files(files)]
    if as_json:
        print_document(reports)
    for report in reports:
        _print_report(report, as_json=as_json)
    if any(report.error for report in reports):
        raise click.exceptions.Exit(1)


def _named_files(paths: tuple[Path, ...]) -> list[Path]:
    """The files to import: those that were named, and those in folders that were named."""
    from scroll_context.importing.sources import files_of

    return [file for path in paths for file in files_of(path)]


@contextlib.contextmanager
def _target(place: Place, lock_timeout: float) -> Iterator["Callable[[], Store]"]:
    """A function that opens the store, or creates it, when the first valid file is found.

    At the end, imported events are indexed, so that the first search need not wait for that.
    """
    from scroll_context.session.earlier_work import note_sessions
    from scroll_context.store import Store

    with contextlib.ExitStack() as stack:

        @functools.cache
        def opened() -> Store:
            return stack.enter_context(
                Store(place, create=isinstance(place, Path), lock_timeout=lock_timeout)
            )

        yield opened
        if opened.cache_info().currsize:
            try:
                with progress("indexing") as bar:
                    opened().index.catch_up(progress=bar)
                # The first request of the next session would take seconds to read a long history.
                note_sessions(opened().log, opened().index)
            except IndexUnavailable as error:
                note(f"{error} Everything was imported; the next search tries again.")


def _import_file(
    path: Path, options: "ImportOptions", target: "Callable[[], Store]"
) -> "ImportReport":
    """Import one file.

    Problems with the file are reported; problems with the store are raised.
    """
    from scroll_context.importing.records import ImportReport
    from scroll_context.importing.run import ImportFile
    from scroll_context.importing.sources import STDIN

    label = "stdin" if path == STDIN else str(path)
    try:
        with ImportFile(path, options) as file:
            label = file.label
            with progress(f"checking {label}") as bar:
                file.check(bar)
            with progress(f"importing {label}") as bar:
                return file.write(target(), bar)
    except UnreadableMessages as error:
        if not (error.good or options.layout or _may_be_json(path)):
            return ImportReport(file=label, bad=error.bad, error=UNKNOWN_FORMAT)
        _list_faults(label, error.faults, error.bad)
        others = "; --skip-bad imports the others" if error.good else ""
        return ImportReport(
            file=label, messages=error.good, bad=error.bad, error=error.summary + others
        )
    except BadInput as error:
        return ImportReport(file=label, error=str(error))


def _may_be_json(path: Path) -> bool:
    """Whether a file seems to be meant as JSON, so that its faults are worth listing."""
    if not path.is_file() or path.suffix.lower() in (".json", ".jsonl", ".ndjson"):
        return True
    with path.open("rb") as file:
        return file.read(64).lstrip()[:1] in (b"{", b"[")


def _import_all(
    store: Place, lock_timeout: float, *, redact: bool, dry_run: bool, as_json: bool
) -> None:
    """Show what the assistants on this machine have kept, and import it."""
    import msgspec

    from scroll_context.importing.layouts import PACKAGE, importers

    if not importers():
        raise BadInput(
            f"--all reads the histories of coding assistants, which needs {PACKAGE}. "
            f"{how_to_install(PACKAGE)}"
        )
    histories = [
        (importer, history) for importer in importers() for history in importer.installed()
    ]
    if not as_json:
        _print_histories([history for _, history in histories])
    totals: dict[str, ImportReport] = {}
    errors: dict[str, list[str]] = {}
    if histories and not dry_run:
        with _target(store, lock_timeout) as target:
            for importer, history in histories:
                reports = _capture(importer, history, target(), redact=redact)
                totals[history.assistant] = _sum(reports)
                troubles = [(report.file, report.error or report.left) for report in reports]
                errors[history.assistant] = [f"{file}: {why}" for file, why in troubles if why]
    if as_json:
        documents = []
        for _, history in histories:
            document = msgspec.structs.asdict(history) | {"files": len(history.files)}
            if history.assistant in totals:
                total = totals[history.assistant]
                document |= {name: getattr(total, name) for name in _SUMMED}
                document["errors"] = errors[history.assistant]
            documents.append(document)
        print_document(documents)
    else:
        for name, total in totals.items():
            _print_total(name, total, errors[name], store)
    if any(errors.values()):
        raise click.exceptions.Exit(1)


def _print_histories(histories: "list[InstalledHistory]") -> None:
    if not histories:
        note(
            "no coding assistant has a history on this machine in a place that Scroll knows; "
            "`scroll import FILE` imports files"
        )
        return
    rows = [
        (
            history.assistant,
            f"{len(history.files):,}",
            _size(history.bytes),
            history.first,
            history.last,
        )
        for history in histories
    ]
    print_table(("assistant", "files", "size", "first", "last"), rows, numeric=("files", "size"))


def _capture(
    importer: "Importer", history: "InstalledHistory", store: "Store", *, redact: bool
) -> "list[ImportReport]":
    """Import the history of one assistant, and list the faults in its files."""
    reports: list[ImportReport] = []
    with progress(f"importing {history.assistant}") as bar:
        importer.capture_all(
            store, history.files, redact=redact, wait=5.0, progress=bar, on_report=reports.append
        )
    for report in reports:
        _list_faults_of(report)
    return reports


_SUMMED = ("messages", "added", "known", "bad", "redacted")
"""The fields of a report that add up over the files of an assistant."""


def _sum(reports: "list[ImportReport]") -> "ImportReport":
    from scroll_context.importing.records import ImportReport

    return functools.reduce(ImportReport.plus, reports, ImportReport(file=""))


def _print_total(name: str, total: "ImportReport", errors: list[str], store: Place) -> None:
    for error in errors[:LISTED]:
        note(visible(error))
    bad = f", {total.bad:,} unreadable" if total.bad else ""
    echo(
        f"{name}: {counted(total.messages, 'message')} read{bad}; "
        f"{counted(total.added, 'event')} added to {store}, {total.known:,} "
        f"already in the store{_replaced(total.redacted)}"
    )


def _replaced(redacted: dict[str, int]) -> str:
    listed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(redacted.items()))
    return f"; secrets replaced: {listed}" if listed else ""


def _size(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB" if count >= 1 << 20 else f"{count / (1 << 10):,.1f} KiB"


def _print_report(report: "ImportReport", *, as_json: bool) -> None:
    if report.error:
        note(f"{report.file}: {visible(report.error)}")
        return
    _list_faults_of(report)
    if not as_json:
        bad = f", {report.bad:,} bad ones skipped" if report.bad else ""
        echo(
            f"{report.file}: {report.format}, {counted(report.messages, 'message')}{bad}; "
            f"{counted(report.added, 'event')} added, {report.known:,} already in the store"
            f"{_replaced(report.redacted)}"
        )
    if report.speakers and report.added:
        names = visible(", ".join(report.speakers[:5]))
        note(
            f"{report.file}: none of the speakers counts as you; to change that, name yourself "
            f"with --me NAME at the first import ({names})"
        )
    for there, here in report.renamed.items():
        note(
            f"{report.file}: another source began a session {visible(there)!r}, so this one is "
            f"called {visible(here)!r}; --into {shlex.quote(visible(there))} adds to the other "
            "session instead"
        )
    if report.skipped:
        names = visible(", ".join(report.skipped[:5]))
        note(f"{report.file}: {counted(len(report.skipped), 'file')} without messages: {names}")
    if report.tasks:
        tasks = visible(", ".join(report.tasks[:5]))
        note(
            f"{report.file}: the tasks that it names ({tasks}) were not assigned; --task ID or "
            "--mine assigns a task"
        )
    if report.missing:
        note(
            f"{report.file}: {counted(len(report.missing), 'payload')} had been lost before the "
            "export"
        )


def _list_faults_of(report: "ImportReport") -> None:
    faults = tuple((fault.line, fault.reason) for fault in report.faults)
    _list_faults(report.file, faults, report.bad)


def _list_faults(file: str, faults: tuple[tuple[int, str], ...], bad: int) -> None:
    for line, reason in faults:
        note(f"{file}:{line}: {visible(reason)}")
    if bad > len(faults):
        note(f"{file}: {bad - len(faults):,} more unreadable messages")
