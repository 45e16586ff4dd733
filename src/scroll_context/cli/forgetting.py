"""Commands that forget on purpose (erase, retention, scan), and those of encrypted stores (encrypt, key)."""

import contextlib
import datetime as dt
import os
import sys
import termios
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from scroll_context.cli.options import (
    FILE,
    Place,
    by_option,
    json_option,
    open_log,
    open_store,
    parse_age,
    parse_spans,
    scope_options,
    store_option,
    yes_option,
)
from scroll_context.cli.output import Command, echo, note, one_line, print_document, print_result, progress, utf8
from scroll_context.errors import BadInput
from scroll_context.store.erase import REASONS, unreachable
from scroll_context.store.shared.address import shown

if TYPE_CHECKING:
    from scroll_context.store.erase import ErasureReport, Reason
    from scroll_context.store.keys import MasterKey
    from scroll_context.store.store import Store


LISTED = 20  # events that a dry run shows
MOST_HITS = 1_000


@click.command(cls=Command)
@click.argument("spans", metavar="[SEQ|LO-HI]...", nargs=-1, callback=parse_spans)
@scope_options
@click.option(
    "--source", metavar="KEY", help="Only what came from here: a source key's beginning, or an import's name."
)
@click.option("--search", "query", metavar="QUERY", help="What a search finds; it is shown before anything is erased.")
@click.option("--word", "words", metavar="TEXT", multiple=True, help="Text that must not remain; may be repeated.")
@click.option("--copies", is_flag=True, help="Erase events that repeat the words too.")
@click.option("--reason", type=click.Choice(REASONS), default="request", show_default=True, help="Kept in the log.")
@by_option
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@yes_option
@store_option
@json_option
def erase(
    spans: list[tuple[int, int]], session: str | None, agent: str | None, task: str | None, source: str | None,
    query: str | None, words: tuple[str, ...], copies: bool, reason: "Reason", by: str, dry_run: bool, yes: bool,
    store: Place, as_json: bool,
) -> None:  # fmt: skip
    """Erase events: what they said leaves every file of the store.

    Their addresses, kinds and times stay, and the log still verifies. Saved variables of their sessions go too. Events
    that repeat the words are named, and erased with --copies. Backups and exports cannot be reached; docs/FORGETTING.md
    says what to do about them.

    \b
    Examples:
      scroll erase 12 40-44 --dry-run
      scroll erase --session 'chat with Ada' --copies
      scroll erase --search 'sk-live' --word sk-live-51HqLy --copies --reason secret
    """
    with open_store(store) as opened:
        seqs = [seq for lo, hi in spans for seq in range(lo, min(hi, opened.log.last_seq()) + 1)]
        if query is not None:
            opened.index.catch_up()
            hits = opened.index.search(utf8(query), k=MOST_HITS, session_id=session, agent_id=agent, task_id=task)
            seqs += [hit.seq for hit in hits]
            if not hits:
                raise BadInput(f"nothing matches {query!r}, so there is nothing to erase")
        wanted = {
            "seqs": seqs, "session_id": session, "agent_id": agent, "task_id": task, "source": source,
            "words": [utf8(word) for word in words], "reason": reason, "by": utf8(by), "copies": copies,
        }  # fmt: skip
        with progress("looking for copies") as bar:
            plan = opened.erase(**wanted, dry_run=True, progress=bar)  # type: ignore[arg-type]
        if dry_run or not plan.events:
            _show(plan, opened, as_json)
            return
        if not yes:
            _show(plan, opened, False)
            ask(f"Erase {plan.events:,} events for good?")
        with progress("erasing") as bar:
            report = opened.erase(**wanted, progress=bar)  # type: ignore[arg-type]
        with progress("indexing") as bar:
            opened.index.catch_up(progress=bar)
    print_result(report, f"{report.events:,} events erased; seq {report.seq} records it", as_json=as_json)
    if report.remaining:
        note(f"{len(report.remaining):,} events that repeat the words remain: {_listed(report.remaining)}")
    if report.unfinished:
        note(f"not every file is clean yet: {report.unfinished}")
    note(unreachable(shown(store)))
    if session and opened.log.is_encrypted:
        note(f"`scroll key destroy {quote(session)}` makes its payloads unreadable in backups too.")


def _show(plan: "ErasureReport", store: "Store", as_json: bool) -> None:
    if as_json:
        print_document(plan)
        return
    for label, seqs in (("erase", plan.asked), ("copy", plan.copies)):
        for event in store.log.get_many(seqs[:LISTED]):
            echo(f"{label:<6} seq {event.seq}  {event.session_id}  {event.kind}  {one_line(event.content, 60)}")
        if len(seqs) > LISTED:
            echo(f"{label:<6} {len(seqs) - LISTED:,} more; --json lists them all")
    echo(_extent(plan))
    if plan.snapshots:
        echo(
            f"{len(plan.snapshots):,} snapshots of variables go with them: {', '.join(plan.variables) or 'none named'}"
        )
    if plan.remaining:
        echo(f"{len(plan.remaining):,} copies would remain; --copies erases them")


def _extent(plan: "ErasureReport", are: str = "") -> str:
    events = f"{plan.events:,} events in {len(plan.sessions):,} sessions{are and f' {are}'}"
    return f"{events}, {plan.payloads:,} payloads ({plan.payload_bytes:,} bytes)"


def ask(question: str) -> None:
    """Go on only after a yes, from a person."""
    if not sys.stdin.isatty():
        raise BadInput("this cannot be undone, so it asks; repeat the command with --yes, if you are sure")
    with contextlib.suppress(termios.error, ValueError, OSError):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question is no answer to it
    click.confirm(question, abort=True, err=True)


def _listed(seqs: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, seqs[:LISTED]))
    return shown if len(seqs) <= LISTED else f"{shown} and {len(seqs) - LISTED:,} more"


@click.command(cls=Command)
@click.option(
    "--older-than", "age", metavar="AGE", required=True, callback=parse_age,
    help="As 90d, 12h or 4w, since it was recorded.",
)  # fmt: skip
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only this kind; may be repeated.")
@scope_options
@click.option("--apply", is_flag=True, help="Erase it; without this, it is only shown.")
@by_option
@store_option
@json_option
def retention(
    age: dt.timedelta, kinds: tuple[str, ...], session: str | None, agent: str | None, task: str | None, apply: bool,
    by: str, store: Place, as_json: bool,
) -> None:  # fmt: skip
    """Erase what was recorded long ago.

    Age is the time of recording, so imported history is as old as its import. Each run with --apply is an event in the
    log. Variables that were saved later stay.

    \b
    Examples:
      scroll retention --older-than 365d
      scroll retention --older-than 30d --kind tool_result --kind artifact --apply
    """
    with open_store(store) as opened, progress("erasing") as bar:
        report = opened.expire(
            age, kinds=kinds, session_id=session, agent_id=agent, task_id=task, by=utf8(by), dry_run=not apply,
            progress=bar,
        )  # fmt: skip
    told = f"{report.events:,} events erased; seq {report.seq} records it"
    if not apply:
        told = f"{_extent(report, 'are due')}; --apply erases them"
    print_result(report, told, as_json=as_json)
    if report.unfinished:
        note(f"not every file is clean yet: {report.unfinished}")


@click.command(cls=Command)
@click.option("--erase", "erasing", is_flag=True, help="Erase the events that hold them, and copies.")
@yes_option
@store_option
@json_option
def scan(erasing: bool, yes: bool, store: Place, as_json: bool) -> None:
    """Find keys, tokens and private keys in what was recorded.

    Shows where they are and a fingerprint of each, never the secret. Passwords in sentences are not found. Revoke what
    is found before you erase it. Status 1 when something was found and not erased.

    \b
    Examples:
      scroll scan
      scroll scan --erase
    """
    from scroll_context.store.redact import scan as find

    with open_store(store) as opened:
        with progress("scanning") as bar:
            found = list(find(opened.log, bar))
        rows = [{"seq": one.seq, "kind": one.kind, "fingerprint": one.fingerprint} for one in found]
        if as_json:
            print_document(rows)
        else:
            for row in rows:
                echo(f"seq {row['seq']}  {row['kind']}  {row['fingerprint']}")
            echo(f"{len({one.fingerprint for one in found}):,} secrets in {len({one.seq for one in found}):,} events")
        if not found:
            return
        if not erasing:
            note("Revoke them first; then `scroll scan --erase` removes the events that hold them.")
            raise SystemExit(1)
        seqs, words = sorted({one.seq for one in found}), {one.value for one in found}
        if not yes:
            ask(f"Erase {len(seqs):,} events for good?")
        with progress("erasing") as bar:
            report = opened.erase(seqs=seqs, words=words, copies=True, reason="secret", progress=bar)
    note(f"{report.events:,} events erased; seq {report.seq} records it")
    note(unreachable(shown(store)))


# encryption ------------------------------------------------------------------------------------------------

_APART = "Keep copies of the master key and of the key ring, apart from every backup: without both nothing is readable."


@click.command(cls=Command)
@store_option
@json_option
def encrypt(store: Place, as_json: bool) -> None:
    """Encrypt the payloads and saved variables of a store.

    The master key is that of SCROLL_MASTER_KEY, SCROLL_MASTER_KEY_FILE or SCROLL_MASTER_KEY_COMMAND, else of
    scroll/master.key in the folder of configurations, which is made if it is not there. The rows of the log and the
    search index are not encrypted; docs/FORGETTING.md says what that means.

    \b
    Example:
      scroll encrypt
    """
    from scroll_context.store.encryption import encrypt_store

    store = _folder(store)
    open_log(store).close()  # refuse what is no store before a key is made
    master = _master_key()
    with progress("encrypting") as bar:
        report = encrypt_store(store, None, bar)
    print_result(report, f"{report.payloads:,} payloads encrypted; seq {report.seq} records it", as_json=as_json)
    note(f"master key: {master.origin}; key ring: {report.key_ring}. {_APART}")
    if report.unfinished:
        note(f"not every file is clean yet: {report.unfinished}")


@click.command(cls=Command)
@click.argument("action", type=click.Choice(["show", "rotate", "destroy", "lost"]))
@click.argument("sessions", metavar="[SESSION]...", nargs=-1)
@click.option("--to", "target", type=FILE, metavar="FILE", help="rotate: the file of the new key, made if not there.")
@click.option(
    "--by", metavar="NAME", default="", help="destroy: who asked for it; kept in the log.", show_default="you"
)
@yes_option
@store_option
@json_option
def key(
    action: str, sessions: tuple[str, ...], target: Path | None, by: str, yes: bool, store: Place, as_json: bool
) -> None:
    """Show, rotate, destroy or replace the keys of an encrypted store.

    show tells where the master key and the key ring are. rotate wraps every key with a new master key. destroy makes
    the payloads of sessions unreadable for good, in every backup too. lost goes on under another master key when the
    old one, or the key ring, is gone: what was encrypted stays unreadable.

    \b
    Examples:
      scroll key show
      scroll key rotate
      scroll key destroy 'chat with Ada'
      scroll key lost
    """
    if (action == "destroy") != bool(sessions):
        raise BadInput(
            "name the sessions whose keys are to be destroyed" if not sessions else f"{action} takes no name"
        )
    if action == "rotate":
        _rotate(target, as_json)
        return
    store = _folder(store)
    if action == "show":
        _show_keys(store, as_json)
    elif action == "destroy":
        _destroy(store, sessions, utf8(by), yes, as_json)
    else:
        _replace_lost(store, yes, as_json)


def _folder(store: Place) -> Path:
    if isinstance(store, Path):
        return store
    raise BadInput("a shared store has no keys of Scroll; use the encryption of its server and bucket")


def _master_key() -> "MasterKey":
    """The master key, made in its default place if nothing names one."""
    from scroll_context.store import keys

    file = keys.default_file()
    if not any(os.environ.get(name) for name in (keys.KEY, keys.KEY_FILE, keys.KEY_COMMAND)) and not file.exists():
        keys.write_key_file(file, [keys.new_key()])
        note(f"a master key was made: {file}")
    return keys.master_key()


def _show_keys(store: Path, as_json: bool) -> None:
    from scroll_context.store.encryption import EncryptedPayloads

    with open_store(store) as opened:
        if not isinstance(opened.payloads, EncryptedPayloads):
            raise BadInput(f"{store} is not encrypted; `scroll encrypt` encrypts it")
        ring = opened.payloads.ring
        live, destroyed = ring.counts()
        facts = {"master_key": _master_key().origin, "key_ring": str(ring.path), "keys": live, "destroyed": destroyed}
    told = f"master key  {facts['master_key']}\nkey ring    {ring.path}"
    print_result(facts, f"{told}\nsessions    {live:,} keys, {destroyed:,} destroyed", as_json=as_json)


def _rotate(target: Path | None, as_json: bool) -> None:
    """With the new key first in its file, before the old one, until every ring is wrapped with it."""
    from scroll_context.store import keys
    from scroll_context.store.encryption import rotate

    master = keys.master_key()
    file = target or master.file
    if file is None:
        raise BadInput(f"the master key comes from {master.origin}; name a file for the new one with --to FILE")
    if target is not None and not target.exists():
        keys.write_key_file(target, [keys.new_key()])
    elif target is None:
        keys.write_key_file(file, [keys.new_key(), *master.keys], replace=True)
    new = keys.master_key(file)
    done, others = rotate(master, new.keys[0])
    if target is None:
        keys.write_key_file(file, new.keys[:1], replace=True)
    rings = {"rotated": list(map(str, done)), "others": list(map(str, others)), "master_key": str(file)}
    print_result(rings, f"{len(done):,} key rings are wrapped with the new master key of {file}", as_json=as_json)
    if target is not None:
        note(f"From now on stores need {file}: set SCROLL_MASTER_KEY_FILE to it. Then remove the old key.")
    if others:
        note(f"{len(others):,} key rings belong to other master keys and were left alone")


def _destroy(store: Path, sessions: tuple[str, ...], by: str, yes: bool, as_json: bool) -> None:
    with open_store(store) as opened:
        if not yes:
            ask(f"Make the payloads of {len(sessions):,} sessions unreadable for good, in every backup?")
        reports = {session: opened.destroy_key(session, by) for session in map(utf8, sessions)}
    if as_json:
        print_document(reports)
        return
    for session, report in reports.items():
        echo(f"{session}: {report.payloads:,} payloads are unreadable now; seq {report.seq} records it")
        if report.forks:
            note(
                f"{', '.join(report.forks)} can still read what they inherited; destroy their keys too if that must go"
            )
    note("Rows, with the first 2,000 characters of long texts, stay: `scroll erase --session SESSION` erases them.")


def _replace_lost(store: Path, yes: bool, as_json: bool) -> None:
    from scroll_context.store.encryption import replace_lost_key

    open_log(store).close()
    if not yes:
        ask("Give up every payload that was encrypted so far?")
    master = _master_key()
    aside = replace_lost_key(store)
    facts = {"set_aside": str(aside or ""), "master_key": master.origin}
    print_result(facts, f"the store goes on under the master key of {master.origin}", as_json=as_json)
    if aside is not None:
        note(f"What cannot be read lies in {aside}: delete it, or keep it in case that the key is found.")
    note(_APART)
