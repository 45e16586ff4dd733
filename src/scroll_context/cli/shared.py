"""Commands for stores that many hosts share: push and pull, and what their operator runs now and then."""

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


@click.command(cls=Command)
@url_argument
@json_option
def snapshot(url: str, as_json: bool) -> None:
    """Put a copy of this host's replica into the object store, for new hosts to start from.

    The replica catches up first, and so does its search index. The newest two snapshots are kept.

    \b
    Example:
      scroll admin snapshot 'postgresql://scroll@db.example/agents?store=main'
    """
    from scroll_context.store.shared.snapshots import take_of

    with progress("copying") as bar:
        made = take_of(url, bar)
    if as_json:
        print_document({"seq": made.seq, "bytes": made.bytes, "key": made.key} if made else {})
    else:
        echo(f"{made.seq:,} events, {made.bytes:,} bytes, as {made.key}" if made else "the store is empty")


@click.command(cls=Command)
@url_argument
@click.option("--grace", type=click.FloatRange(min=0), metavar="SECONDS", default=3600.0, show_default=True,
              help="How long an object may wait for its event.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Delete nothing; say what would be.")
@json_option
def collect(url: str, grace: float, dry_run: bool, as_json: bool) -> None:
    """Delete objects that no event names: of processes that were killed, and of erased events.

    Hosts may go on writing meanwhile: no event loses its payload.

    \b
    Example:
      scroll admin collect 'postgresql://owner@db.example/agents?store=main'
    """
    from scroll_context.store.shared.collect import collect_at

    report = collect_at(url, grace=grace, dry_run=dry_run)
    if as_json:
        print_document(report)
    else:
        would = "would be " if dry_run else ""
        echo(f"{report.objects:,} objects looked at; {report.deleted:,} {would}deleted, {report.bytes:,} bytes")


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
