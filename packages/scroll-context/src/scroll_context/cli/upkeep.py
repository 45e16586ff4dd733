"""Commands that look after a store: verify, salvage, reindex, backup, export; and push, pull,
admin.
"""

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


LISTED = 20  # faults that verify prints for people


@click.command(cls=Command)
@store_option
@json_option
def verify(store: Place, as_json: bool) -> None:
    """Check events, payloads and the search index against their hashes.

    Status 1 when something is missing or altered that no salvage has declared.

    \b
    Example:
      scroll verify
    """
    from scroll_context.log.schema import command
    from scroll_context.search.indexer import damaged_files
    from scroll_context.upkeep.integrity import verify as check

    with contextlib.closing(open_log(store)) as log, progress("verifying") as bar:
        verdict = check(log, bar)
    index = damaged_files(log.path.parent / "index")
    if as_json:
        found = {name: getattr(verdict, name) for name in verdict.__struct_fields__}
        print_document({"ok": verdict.ok and not index, **found, "damaged_index_files": index})
    else:
        for label, faults in (("bad", verdict.bad), ("known", verdict.known)):
            for seq, what in faults[:LISTED]:
                echo(f"{label}: seq {seq}: {what}")
            if len(faults) > LISTED:
                echo(f"{label}: {len(faults) - LISTED:,} more; --json lists them all")
        echo(f"{verdict.events:,} events, {verdict.payloads:,} payloads, head {verdict.head}")
        if verdict.ok and not index:
            echo("whole")
    if index:
        note(
            f"The search index is damaged ({', '.join(index)}); the log is not. "
            f"{command('reindex', log.path)} builds it anew."
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
    """Make a new log from whatever is legible in a damaged one.

    The damaged file is kept beside the new one. No other process may use the store meanwhile.

    \b
    Example:
      scroll salvage --store ./history
    """
    from scroll_context.upkeep.integrity import salvage as rescue

    if not isinstance(store, Path):
        raise BadInput(
            "a salvage works on the file of a local store; the server of a shared one is restored instead"
        )
    with progress("salvaging") as bar:
        report = rescue(store, bar)
    if as_json:
        found = {name: getattr(report, name) for name in ("recovered", "lost", "altered")}
        print_document({**found, "kept_as": str(report.kept_as)})
        return
    whole = not (report.lost or report.altered)
    echo(
        f"recovered {report.recovered:,} events{', all that there were' if whole else ''}; "
        f"the {'' if whole else 'damaged '}log as it was is kept as {report.kept_as}"
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
    """Build the search index anew from the log.

    Rarely needed: an index that is missing or cannot be read is built again by itself.

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

    It becomes a store of its own: this one at one moment; others may go on writing to it meanwhile.

    \b
    Example:
      scroll backup /media/disk/history-2026-03-01
    """
    from scroll_context.upkeep.transfer import backup as copy

    with contextlib.closing(open_log(store)) as log, progress("copying") as bar:
        report = copy(log, target, bar)
    told = f"{report.events:,} events and {report.payloads:,} payloads, {report.bytes:,} bytes, in {target}"
    print_result(report, told, as_json=as_json)
    _tell_missing(report.missing, log)


@click.command(cls=Command)
@click.argument("target", metavar="[FILE]", type=FILE, default=Path("-"))
@store_option
def export(target: Path, store: Place) -> None:
    """Write everything as JSON Lines: events, hashes and payloads.

    The target is a new file; - is stdout. `scroll import --trust` of the file into a new store gives the same addresses
    and the same hashes.

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

        one = len(digests) == 1
        note(
            f"{len(digests):,} {'payload is' if one else 'payloads are'} missing or damaged in the store, so not in "
            f"the copy; everything else is. {command('verify', log.path)} names the events."
        )


# stores that many hosts share -------------------------------------------------------------------------------

url_argument = click.argument("url", metavar="URL")


@click.command(cls=Command)
@click.argument("folder", metavar="DIR", type=FILE)
@url_argument
@json_option
def push(folder: Path, url: str, as_json: bool) -> None:
    """Bring the store in a folder to a server.

    Every seq, every hash and every payload stays as it is. The shared store is made if there is none; one to which
    hosts have appended is refused. A push that was cut off goes on where it stopped. The folder is checked first.

    \b
    Example:
      scroll push ~/.local/share/scroll 'postgresql://scroll@db.example/agents?store=main&payloads=s3://bucket/scroll'
    """
    from scroll_shared.address import parse
    from scroll_shared.push import push as send

    with progress("pushing") as bar:
        report = send(folder, parse(url), bar)
    told = f"pushed {report.pushed:,} events and {report.payloads:,} payloads; the store has {report.events:,}"
    print_result(report, f"{told}\nhead {report.head}", as_json=as_json)


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
    from scroll_shared.address import parse
    from scroll_shared.push import pull as fetch

    with progress("pulling") as bar:
        report = fetch(parse(url), folder, bar)
    told = f"{report.events:,} events and {report.payloads:,} payloads, {report.bytes:,} bytes, in {folder}"
    print_result(report, told, as_json=as_json)
    if report.missing:
        note(
            f"{len(report.missing):,} payloads are missing or damaged in the object store; everything else is there"
        )


def examine(url: str, as_json: bool) -> None:
    """What `scroll doctor URL` shows."""
    from scroll_shared.address import parse
    from scroll_shared.doctor import examine as look

    found = look(parse(url))
    ok = all(one.ok for one in found)
    told = "\n".join(f"{'ok' if one.ok else 'NO':<4}{one.name:<12}{one.text}" for one in found)
    print_result({"ok": ok, "findings": found}, told, as_json=as_json)
    if not ok:
        raise click.exceptions.Exit(1)


# admin: what the owner of the database does -----------------------------------------------------------------

owned_url_argument = click.argument("url", metavar="URL", envvar="SCROLL_ADMIN_URL")


@click.group()
def admin() -> None:
    """Set up a store on Postgres that many hosts share.

    URL is postgresql://USER@HOST/DATABASE?store=NAME, as the owner of the database; docs/SHARED.md has the rest. The
    password comes from PGPASSWORD or ~/.pgpass rather than from the command line.

    \b
    Examples:
      scroll admin init 'postgresql://owner@db.example/agents?store=main&payloads=s3://bucket/scroll'
      scroll admin grant 'postgresql://owner@db.example/agents?store=main' agent_hosts
    """


@admin.command("init", cls=Command)
@owned_url_argument
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many bytes of events it may hold.",
)
@json_option
def init(url: str, max_bytes: int | None, as_json: bool) -> None:
    """Make a store; what exists already is left as it is.

    \b
    Example:
      scroll admin init 'postgresql://owner@db.example/agents?store=main&payloads=s3://bucket/scroll'
    """
    from scroll_shared import address, admin

    where = address.parse(url)
    made = admin.init(where, max_bytes=max_bytes)
    told = f"{'made' if made else 'there is already'} a store {where.store!r} at {where}"
    print_result(
        {"store": where.store, "made": made, "schema": admin.newest()}, told, as_json=as_json
    )


@admin.command("grant", cls=Command)
@owned_url_argument
@click.argument("role")
@click.option("--read-only", is_flag=True, help="It may read, and not append.")
@click.option(
    "--erase",
    is_flag=True,
    help="It may also erase events, collect garbage, make snapshots and push.",
)
@click.option(
    "--revoke",
    is_flag=True,
    help="It may nothing any more; copies that it has stay where they are.",
)
@json_option
def grant(url: str, role: str, read_only: bool, erase: bool, revoke: bool, as_json: bool) -> None:
    """Let a role of the server use a store; what it could do there before is replaced.

    \b
    Examples:
      scroll admin grant 'postgresql://owner@db.example/agents?store=main' agent_hosts
      scroll admin grant 'postgresql://owner@db.example/agents?store=main' analyst --read-only
    """
    from scroll_shared import address, admin

    where = address.parse(url)
    if revoke:
        admin.revoke(where, role)
        rights = []
    else:
        admin.grant(where, role, can_append=not read_only, can_erase=erase)
        rights = ["read", *([] if read_only else ["append"]), *(["erase"] if erase else [])]
    told = f"{role} may {', '.join(rights) or 'nothing'} in {where.store!r}"
    print_result({"store": where.store, "role": role, "rights": rights}, told, as_json=as_json)


@admin.command("migrate", cls=Command)
@owned_url_argument
@json_option
def migrate(url: str, as_json: bool) -> None:
    """Bring the tables and functions on a server up to this version of Scroll.

    \b
    Example:
      scroll admin migrate 'postgresql://owner@db.example/agents?store=main'
    """
    from scroll_shared import address, admin

    applied = admin.migrate(address.parse(url))
    told = f"applied {len(applied)} steps; the schema is at {admin.newest()}"
    print_result({"applied": applied, "schema": admin.newest()}, told, as_json=as_json)


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
    from scroll_shared.snapshots import take_of

    with progress("copying") as bar:
        made = take_of(url, bar)
    told = (
        f"{made.seq:,} events, {made.bytes:,} bytes, as {made.key}"
        if made
        else "the store is empty"
    )
    print_result(
        {"seq": made.seq, "bytes": made.bytes, "key": made.key} if made else {},
        told,
        as_json=as_json,
    )


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
@click.option("--dry-run", is_flag=True, help="Delete nothing; say what would be.")
@json_option
def collect(url: str, grace: float, dry_run: bool, as_json: bool) -> None:
    """Delete objects that no event names: of processes that were killed, and of erased events.

    Hosts may go on writing meanwhile: no event loses its payload.

    \b
    Example:
      scroll admin collect 'postgresql://owner@db.example/agents?store=main'
    """
    from scroll_shared.collect import collect_at

    report = collect_at(url, grace=grace, dry_run=dry_run)
    gone = "would be deleted" if dry_run else "deleted"
    told = (
        f"{report.objects:,} objects looked at; {report.deleted:,} {gone}, {report.bytes:,} bytes"
    )
    print_result(report, told, as_json=as_json)
