"""Commands for stores that many hosts share: push, pull, and what `scroll doctor URL` shows."""

from pathlib import Path

import click

from scroll_context.cli.options import FILE, json_option
from scroll_context.cli.output import Command, echo, note, print_document, progress

url_argument = click.argument("url", metavar="URL")


@click.command(cls=Command)
@click.argument("folder", metavar="DIR", type=FILE)
@url_argument
@json_option
def push(folder: Path, url: str, as_json: bool) -> None:
    """Bring the store in a folder to a server.

    Every seq, every hash and every payload stays as it is. The shared store is made if there is none; one to which
    hosts have appended is refused. A push that was cut off goes on where it stopped. The folder is checked first, and
    events of format 1 in it are chained anew as format 2.

    \b
    Example:
      scroll push .scroll 'postgresql://scroll@db.example/agents?store=main&payloads=s3://bucket/scroll'
    """
    from scroll_context.store.shared.address import parse
    from scroll_context.store.shared.push import push as send

    with progress("pushing") as bar:
        report = send(folder, parse(url), bar)
    if as_json:
        print_document(report)
        return
    if report.rechained:
        note(f"{report.rechained:,} events of format 1 were chained anew in {folder}; an event there names both heads")
    echo(f"pushed {report.pushed:,} events and {report.payloads:,} payloads; the store has {report.events:,}")
    echo(f"head {report.head}")


@click.command(cls=Command)
@url_argument
@click.argument("folder", metavar="DIR", type=FILE)
@json_option
def pull(url: str, folder: Path, as_json: bool) -> None:
    """Copy a shared store to a new folder.

    It becomes a store of its own: the shared one at one moment, with the same seqs and hashes.

    \b
    Example:
      scroll pull 'postgresql://scroll@db.example/agents?store=main' history-2026-03-01
    """
    from scroll_context.store.shared.address import parse
    from scroll_context.store.shared.push import pull as fetch

    with progress("pulling") as bar:
        report = fetch(parse(url), folder, bar)
    if as_json:
        print_document(report)
    else:
        echo(f"{report.events:,} events and {report.payloads:,} payloads, {report.bytes:,} bytes, in {folder}")
    if report.missing:
        note(f"{len(report.missing):,} payloads are missing or damaged in the object store; everything else is there")


def examine(url: str, as_json: bool) -> None:
    """What `scroll doctor URL` shows."""
    from scroll_context.store.shared.address import parse
    from scroll_context.store.shared.doctor import examine as look

    found = look(parse(url))
    if as_json:
        print_document({"ok": all(one.ok for one in found), "findings": found})
    else:
        for one in found:
            echo(f"{'ok' if one.ok else 'NO':<4}{one.name:<12}{one.text}")
    if not all(one.ok for one in found):
        raise click.exceptions.Exit(1)
