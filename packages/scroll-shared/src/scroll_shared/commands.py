"""The commands of a store that hosts share: push, pull and admin.

Each is an entry point of the group `scroll_context.commands`. `scroll_commands.txt` has the first
line of each help text, so that `scroll --help` does not import this module. The drivers for
Postgres and object stores are slow to import, and a shell imports this module to complete a command
line, so each command imports what it needs.
"""

from pathlib import Path

import click

from scroll_context.cli.options import FILE, json_option
from scroll_context.cli.output import Command, note, print_result, progress
from scroll_shared.address import parse

url_argument = click.argument("url", metavar="URL")


@click.command(cls=Command)
@click.argument("folder", metavar="DIR", type=FILE)
@url_argument
@json_option
def push(folder: Path, url: str, as_json: bool) -> None:
    """Bring the store in a folder to a server.

    All seqs, hashes and payloads remain the same. The shared store is created if there is none; a
    store to which hosts have appended is refused. An interrupted push resumes where it stopped. The
    folder is checked first.

    \b
    Example:
      scroll push ~/.local/share/scroll \\
        'postgresql://scroll@db.example/agents?store=main&payloads=s3://bucket/scroll'
    """
    from scroll_shared.push import push as push_store

    with progress("pushing") as bar:
        report = push_store(folder, parse(url), bar)
    text = (
        f"pushed {report.pushed:,} events and {report.payloads:,} payloads; "
        f"the store has {report.events:,}"
    )
    print_result(report, f"{text}\nhead {report.head}", as_json=as_json)


@click.command(cls=Command)
@url_argument
@click.argument("folder", metavar="DIR", type=FILE)
@json_option
def pull(url: str, folder: Path, as_json: bool) -> None:
    """Copy a shared store to a new folder.

    The copy is an independent store: the shared one at one moment, with the same seqs and hashes.

    \b
    Example:
      scroll pull 'postgresql://scroll@db.example/agents?store=main' history-2026-03-01
    """
    from scroll_shared.push import pull as pull_store

    with progress("pulling") as bar:
        report = pull_store(parse(url), folder, bar)
    text = (
        f"{report.events:,} events and {report.payloads:,} payloads, {report.bytes:,} bytes, "
        f"in {folder}"
    )
    print_result(report, text, as_json=as_json)
    if report.missing:
        note(
            f"{len(report.missing):,} payloads are missing or damaged in the object store; "
            "everything else was copied"
        )


# admin: commands for the owner of the database ----------------------------------------------------

owned_url_argument = click.argument("url", metavar="URL", envvar="SCROLL_ADMIN_URL")


@click.group()
def admin() -> None:
    """Set up a store on Postgres that many hosts share.

    URL is postgresql://USER@HOST/DATABASE?store=NAME, with the owner of the database as USER;
    docs/SHARED.md has the details. Put the password into PGPASSWORD or ~/.pgpass rather than into
    the command line.

    \b
    Examples:
      scroll admin init \\
        'postgresql://owner@db.example/agents?store=main&payloads=s3://bucket/scroll'
      scroll admin grant 'postgresql://owner@db.example/agents?store=main' agent_hosts
    """


@admin.command("init", cls=Command)
@owned_url_argument
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="The most bytes of events in the store.",
)
@json_option
def init(url: str, max_bytes: int | None, as_json: bool) -> None:
    """Create a store. An existing store remains as it is.

    \b
    Example:
      scroll admin init \\
        'postgresql://owner@db.example/agents?store=main&payloads=s3://bucket/scroll'
    """
    from scroll_shared import admin as administration

    address = parse(url)
    is_new = administration.init(address, max_bytes=max_bytes)
    text = f"{'made' if is_new else 'there is already'} a store {address.store!r} at {address}"
    print_result(
        {"store": address.store, "made": is_new, "schema": administration.newest()},
        text,
        as_json=as_json,
    )


@admin.command("grant", cls=Command)
@owned_url_argument
@click.argument("role")
@click.option("--read-only", is_flag=True, help="Allow reading, but not appending.")
@click.option(
    "--erase",
    is_flag=True,
    help="Also allow erasing, garbage collection, snapshots and pushes.",
)
@click.option(
    "--revoke",
    is_flag=True,
    help="Remove all rights. Copies that the role already has remain.",
)
@json_option
def grant(url: str, role: str, read_only: bool, erase: bool, revoke: bool, as_json: bool) -> None:
    """Let a role of the server use a store. This replaces the role's previous rights.

    \b
    Examples:
      scroll admin grant 'postgresql://owner@db.example/agents?store=main' agent_hosts
      scroll admin grant 'postgresql://owner@db.example/agents?store=main' analyst --read-only
    """
    from scroll_shared import admin as administration

    address = parse(url)
    if revoke:
        administration.revoke(address, role)
        rights = []
    else:
        administration.grant(address, role, can_append=not read_only, can_erase=erase)
        rights = ["read", *([] if read_only else ["append"]), *(["erase"] if erase else [])]
    text = f"{role} may {', '.join(rights) or 'nothing'} in {address.store!r}"
    print_result({"store": address.store, "role": role, "rights": rights}, text, as_json=as_json)


@admin.command("migrate", cls=Command)
@owned_url_argument
@json_option
def migrate(url: str, as_json: bool) -> None:
    """Bring the tables and functions on a server up to this version of Scroll.

    \b
    Example:
      scroll admin migrate 'postgresql://owner@db.example/agents?store=main'
    """
    from scroll_shared import admin as administration

    applied = administration.migrate(parse(url))
    text = f"applied {len(applied)} steps; the schema is at {administration.newest()}"
    print_result({"applied": applied, "schema": administration.newest()}, text, as_json=as_json)


@admin.command("snapshot", cls=Command)
@owned_url_argument
@json_option
def snapshot(url: str, as_json: bool) -> None:
    """Put a copy of this host's replica into the object store, for new hosts to start from.

    The replica catches up first, and so does its search index. The newest two snapshots are kept.
    Needs a login that may erase.

    \b
    Example:
      scroll admin snapshot 'postgresql://owner@db.example/agents?store=main'
    """
    from scroll_shared.host_snapshot import take_of

    with progress("copying") as bar:
        copy = take_of(url, bar)
    if copy is None:
        print_result({}, "the store is empty", as_json=as_json)
        return
    text = f"{copy.seq:,} events, {copy.bytes:,} bytes, as {copy.key}"
    fields = {"seq": copy.seq, "bytes": copy.bytes, "key": copy.key}
    print_result(fields, text, as_json=as_json)


@admin.command("collect", cls=Command)
@owned_url_argument
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=3600.0,
    show_default=True,
    help="How long an object may wait for its event.",
)
@click.option("--dry-run", is_flag=True, help="Report what would be deleted, without deleting.")
@json_option
def collect(url: str, grace: float, dry_run: bool, as_json: bool) -> None:
    """Delete objects that no event names: of processes that were killed, and of erased events.

    Hosts can continue to write meanwhile: no event loses its payload.

    \b
    Example:
      scroll admin collect 'postgresql://owner@db.example/agents?store=main'
    """
    from scroll_shared.collect import collect_at

    report = collect_at(url, grace=grace, dry_run=dry_run)
    verb = "would be deleted" if dry_run else "deleted"
    text = f"checked {report.objects:,} objects; {report.deleted:,} {verb}, {report.bytes:,} bytes"
    print_result(report, text, as_json=as_json)
