"""`scroll import`: the command line of it. What it does is in ingest.py."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from scroll_context.cli.options import DEFAULT_STORE, AsJson, LockTimeout, StoreFolder
from scroll_context.cli.output import note, print_document


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", readable=False, help="Files of messages; - is stdin.")],
    session: Annotated[
        str, typer.Option(metavar="ID", help="The session of messages that name none.", show_default="the file's name")
    ] = "",
    agent: Annotated[str, typer.Option(metavar="ID", help="The agent of messages that name none.")] = "",
    task: Annotated[str, typer.Option(metavar="ID", help="The task of messages that name none.")] = "",
    kind: Annotated[str, typer.Option(metavar="KIND", help="The kind of what was said.")] = "conversation",
    layout: Annotated[
        Literal["jsonl", "json", "export"] | None,
        typer.Option("--format", help="One JSON value a line, one in all, or Scroll's own.", show_default="detected"),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Import the good messages of a file with bad ones.")
    ] = False,
    store: StoreFolder = DEFAULT_STORE,
    lock_timeout: LockTimeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Add messages to a store; creates the store if there is none.

    Reads JSON Lines with one message or one conversation a line, message lists of OpenAI and Anthropic, and what
    `scroll export` wrote. Each tool call and each tool result becomes an event of its own. A file that was imported
    before adds nothing, one that has grown adds what is new. A file with a bad line is not imported at all, unless
    --skip-bad is given.

    \b
    Examples:
      scroll import chat.jsonl
      scroll import *.json --agent helper
      my-exporter | scroll import - --session monday
    """
    from scroll_context.cli.ingest import Ingest
    from scroll_context.importers.values import Format, Labels

    labels = Labels(session_id=session, agent_id=agent, task_id=task, kind=kind)
    with Ingest(store, labels, Format(layout) if layout else None, skip_bad, lock_timeout) as ingest:
        reports = [ingest.file(file) for file in files]
        ingest.index()
    if as_json:
        print_document(reports)
    else:
        for report in reports:
            if not report.error:
                bad = f", {report.bad:,} bad ones skipped" if report.bad else ""
                typer.echo(
                    f"{report.file}: {report.messages:,} messages{bad}; "
                    f"{report.added:,} events added, {report.known:,} were there already"
                )
    for report in reports:
        if report.error:
            note(f"{report.file}: {report.error}")
    if any(report.error for report in reports):
        raise typer.Exit(1)
