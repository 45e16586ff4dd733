"""Commands of encrypted stores: encrypt, and key with what can be done about keys."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scroll_context.cli.forgetting import ask
from scroll_context.cli.options import FILE, Place, json_option, open_log, open_store, store_option
from scroll_context.cli.output import Command, echo, note, print_document, progress, utf8
from scroll_context.errors import BadInput

if TYPE_CHECKING:
    from scroll_context.store.keys import MasterKey

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
    if as_json:
        print_document(report)
    else:
        echo(f"{report.payloads:,} payloads encrypted; seq {report.seq} records it")
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
@click.option("--yes", is_flag=True, help="Do not ask.")
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
        _show(store, as_json)
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


def _show(store: Path, as_json: bool) -> None:
    from scroll_context.store.encryption import EncryptedPayloads

    with open_store(store) as opened:
        if not isinstance(opened.payloads, EncryptedPayloads):
            raise BadInput(f"{store} is not encrypted; `scroll encrypt` encrypts it")
        ring = opened.payloads.ring
        live, destroyed = ring.counts()
        facts = {"master_key": _master_key().origin, "key_ring": str(ring.path), "keys": live, "destroyed": destroyed}
    if as_json:
        print_document(facts)
    else:
        echo(f"master key  {facts['master_key']}\nkey ring    {ring.path}")
        echo(f"sessions    {live:,} keys, {destroyed:,} destroyed")


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
    if as_json:
        print_document({"rotated": list(map(str, done)), "others": list(map(str, others)), "master_key": str(file)})
    else:
        echo(f"{len(done):,} key rings are wrapped with the new master key of {file}")
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
    if as_json:
        print_document({"set_aside": str(aside or ""), "master_key": master.origin})
    else:
        echo(f"the store goes on under the master key of {master.origin}")
    if aside is not None:
        note(f"What cannot be read lies in {aside}: delete it, or keep it in case that the key is found.")
    note(_APART)
