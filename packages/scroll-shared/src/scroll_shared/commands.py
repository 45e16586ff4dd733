"""The commands of a store that hosts share, all of them below `scroll shared`.

The group is an entry point of `scroll_context.commands`. `scroll_commands.txt` has the first line
of its help text, so that `scroll --help` does not import this module. The drivers for Postgres and
object stores are slow to import, and a shell imports this module to complete a command line, so
each command imports what it needs.
"""

from pathlib import Path

import click

from scroll_context.cli.options import FILE, json_option
from scroll_context.cli.output import (
    Command,
    confirm,
    counted,
    dry_run_option,
    note,
    print_result,
    progress,
    yes_option,
)
from scroll_shared.address import parse

url_argument = click.argument("url", metavar="URL")
owned_url_argument = click.argument("url", metavar="URL", envvar="SCROLL_ADMIN_URL")


@click.group()
def shared() -> None:
    """Set up a store on Postgres that many hosts share, and copy stores.

    URL is postgresql://USER@HOST/DATABASE?store=NAME. To set up a store, connect as the owner of
    the database; "Many hosts" in the documentation has the details. Put the password in PGPASSWORD
    or ~/.pgpass, not on the command line, where other users of the machine can see it.

    \b
    Examples:
      scroll shared init \\
        'postgresql://owner@db.example/agents?store=main&payloads=s3://bucket/scroll'
      scroll shared grant 'postgresql://owner@db.example/agents?store=main' agent_hosts
      scroll shared push trip 'postgresql://owner@db.example/agents?store=main'
    """


@shared.command("push", cls=Command)
@click.argument("folder", metavar="DIR", type=FILE)
@url_argument
@json_option
def push(folder: Path, url: str, as_json: bool) -> None:
    """Copy the store in a folder to a server.

    All event numbers, hashes and payloads remain the same. The folder is checked first. A
    shared store that does not exist is created; to create it, connect as the owner of the database.
    To push to an existing store as another role, you need `scroll shared grant --erase`. If the
    store on the server has events of its own, the push is refused. An interrupted push resumes
    where it stopped.

    \b
    Example:
      scroll shared push ~/.local/share/scroll \\
        'postgresql://owner@db.example/agents?store=main&payloads=s3://bucket/scroll'
    """
    from scroll_shared.push import push as push_store

    with progress("pushing") as bar:
        report = push_store(folder, parse(url), bar)
    text = (
        f"pushed {counted(report.pushed, 'event')} and {counted(report.payloads, 'payload')}; "
        f"the store has {report.events:,}"
    )
    print_result(report, f"{text}\nhead {report.head}", as_json=as_json)


@shared.command("pull", cls=Command)
@url_argument
@click.argument("folder", metavar="DIR", type=FILE)
@json_option
def pull(url: str, folder: Path, as_json: bool) -> None:
    """Copy a shared store to a new folder.

    The copy is an independent store. It holds the shared store as it was at one point in time, with
    the same event numbers and hashes.

    \b
    Example:
      scroll shared pull 'postgresql://scroll@db.example/agents?store=main' history-2026-03-01
    """
    from scroll_shared.push import pull as pull_store

    with progress("pulling") as bar:
        report = pull_store(parse(url), folder, bar)
    text = (
        f"{counted(report.events, 'event')} and {counted(report.payloads, 'payload')}, "
        f"{report.bytes:,} bytes, in {folder}"
    )
    print_result(report, text, as_json=as_json)
    if report.missing:
        note(
            f"{counted(len(report.missing), 'payload is', 'payloads are')} missing or damaged in "
            "the object store; "
            "everything else was copied"
        )


# commands for the owner of the database -----------------------------------------------------------


@shared.command("init", cls=Command)
@owned_url_argument
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Refuse new events once the store holds this many bytes.",
)
@json_option
def init(url: str, max_bytes: int | None, as_json: bool) -> None:
    """Create a store. An existing store is left unchanged.

    \b
    Example:
      scroll shared init \\
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


@shared.command("grant", cls=Command)
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
    help="Remove all privileges. Copies that the role already has remain.",
)
@json_option
def grant(url: str, role: str, read_only: bool, erase: bool, revoke: bool, as_json: bool) -> None:
    """Let a database role use a store. This replaces the role's previous privileges.

    \b
    Examples:
      scroll shared grant 'postgresql://owner@db.example/agents?store=main' agent_hosts
      scroll shared grant 'postgresql://owner@db.example/agents?store=main' analyst --read-only
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


@shared.command("migrate", cls=Command)
@owned_url_argument
@json_option
def migrate(url: str, as_json: bool) -> None:
    """Upgrade a server's tables and functions to this version.

    \b
    Example:
      scroll shared migrate 'postgresql://owner@db.example/agents?store=main'
    """
    from scroll_shared import admin as administration

    applied = administration.migrate(parse(url))
    text = f"applied {len(applied)} steps; the schema is at {administration.newest()}"
    print_result({"applied": applied, "schema": administration.newest()}, text, as_json=as_json)


@shared.command("snapshot", cls=Command)
@owned_url_argument
@json_option
def snapshot(url: str, as_json: bool) -> None:
    """Copy this host's replica to the object store, for new hosts.

    A new host then starts from the copy. The replica catches up first, and so does its search
    index. The newest two snapshots are kept. The database user in the URL needs the privilege to
    erase (`scroll shared grant --erase`).

    \b
    Example:
      scroll shared snapshot 'postgresql://owner@db.example/agents?store=main'
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


@shared.command("collect", cls=Command)
@owned_url_argument
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=3600.0,
    show_default=True,
    help="Keep objects newer than this, because their events may still arrive.",
)
@dry_run_option
@yes_option
@json_option
def collect(url: str, grace: float, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete objects that no event refers to.

    Killed processes and erasures leave such objects behind. Hosts can continue to write meanwhile:
    no event loses its payload.

    \b
    Example:
      scroll shared collect 'postgresql://owner@db.example/agents?store=main' --dry-run
    """
    from scroll_shared.collect import collect_at

    report = collect_at(url, grace=grace, dry_run=True)
    due = f"{report.deleted:,} of {report.objects:,} objects, {report.bytes:,} bytes"
    if dry_run or not report.deleted:
        print_result(report, f"{due}, would be deleted", as_json=as_json)
        return
    confirm(f"Delete {due}?", yes=yes)
    report = collect_at(url, grace=grace)
    text = f"{report.deleted:,} of {report.objects:,} objects deleted, {report.bytes:,} bytes"
    print_result(report, text, as_json=as_json)
