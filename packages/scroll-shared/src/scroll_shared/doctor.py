"""Checks of a shared store: the server, the connection, this login, the object store, the replicas.

No store is opened and no replica is created. The object store is tested with one small object,
which is removed again. An unwise choice, such as a login that is a superuser, is reported but does
not fail the examination.
"""

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from scroll_context.errors import NotAStore, ScrollError
from scroll_context.log.schemes import Finding
from scroll_context.text.printable import printable
from scroll_shared import admin
from scroll_shared.address import Address
from scroll_shared.objects import SCHEMES, Bucket
from scroll_shared.server import Server
from scroll_shared.snapshots import snapshots

# Postgres 15 is the oldest version that the tests run on.
OLDEST_SERVER = 150_000
# Without these settings an acknowledged event can be lost.
_SAFE = {"fsync": "on", "full_page_writes": "on"}


def examine(address: Address) -> list[Finding]:
    """All findings about a store. The first fault of the connection is the last finding."""
    server = Server(address, "scroll doctor")
    findings: list[Finding] = []
    try:
        for finding in _findings(server, address):
            findings.append(finding)
    except ScrollError as error:
        findings.append(Finding("store" if findings else "server", False, str(error)))
    finally:
        server.close()
    return findings


def _findings(server: Server, address: Address) -> Iterator[Finding]:
    begun = time.perf_counter()
    ((version, number, user, is_superuser, away),) = server.call(
        """SELECT current_setting('server_version'), current_setting('server_version_num')::int,
        session_user::text,
        (SELECT rolsuper FROM pg_roles WHERE rolname = session_user), pg_is_in_recovery()"""
    )
    connected = time.perf_counter() - begun
    begun = time.perf_counter()
    server.call("SELECT 1")
    answered = time.perf_counter() - begun
    text = (
        f"Postgres {version}; connected in {1000 * connected:.0f} ms, "
        f"answers in {1000 * answered:.1f} ms"
    )
    if away:
        text += "; a standby that takes no appends"
    elif number < OLDEST_SERVER:
        text += "; Postgres 15 is the oldest that Scroll is tested with"
    yield Finding("server", number >= OLDEST_SERVER and not away, text)
    yield _transport(server, address)
    yield _durability(server)
    schema = admin.require_current(server)
    yield Finding("schema", True, f"version {schema}, as this Scroll needs it")
    rows = server.call(
        """SELECT s.store_id, s.uid::text, s.payloads, h.last_seq, h.bytes, s.max_bytes
        FROM scroll.store s JOIN scroll.head h USING (store_id) WHERE s.name = %s""",
        [address.store],
    )
    if not rows:
        raise NotAStore(
            f"there is no store {address.store!r:.80} there, or {user} is not a member of it"
        )
    ((store_id, uid, payloads, last, size, limit),) = rows
    quota = f" of {limit:,}" if limit is not None else ""
    is_full = limit is not None and size >= limit
    yield Finding(
        "store", not is_full, f"{last:,} events, {size:,}{quota} bytes{', full' if is_full else ''}"
    )
    ((can_append, can_erase),) = server.call(
        "SELECT can_append, can_erase FROM scroll.rights(%s)", [store_id]
    )
    may = ["read", *(["append"] if can_append else []), *(["erase"] if can_erase else [])]
    role = f"{user} may {', '.join(may)}"
    if is_superuser:
        role += "; a superuser: give hosts a role of their own with `scroll shared grant`"
    yield Finding("role", True, role)
    yield _payloads(address.payloads or payloads, uid)
    yield from _copies(server, store_id, last)


def _transport(server: Server, address: Address) -> Finding:
    rows = server.call("SELECT ssl, version, cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    ssl, version, cipher = rows[0] if rows else (False, None, None)
    if not ssl:
        return Finding("connection", True, "plaintext, as the address asks for (sslmode=disable)")
    checked = (
        "checked against its certificate"
        if "sslmode=verify-full" in address.conninfo
        else "not checked"
    )
    return Finding("connection", True, f"{version}, {cipher}; the server's name is {checked}")


def _durability(server: Server) -> Finding:
    names = [*_SAFE, "synchronous_commit", "synchronous_standby_names"]
    settings: dict[str, str] = dict(
        server.call("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [names])
    )
    unsafe = [
        f"{name} is {settings.get(name)}"
        for name, safe_value in _SAFE.items()
        if settings.get(name) != safe_value
    ]
    if unsafe:
        return Finding(
            "durability", False, f"{', '.join(unsafe)}: a crash can lose acknowledged events"
        )
    standby = settings.get("synchronous_standby_names")
    text = (
        f"synchronous standby: {standby}"
        if standby
        else "no synchronous standby: acknowledged events are on one disk only"
    )
    return Finding("durability", True, text)


def _payloads(place: str, uid: str) -> Finding:
    if place.partition("://")[0] not in SCHEMES:
        folder = Path(place).expanduser()
        is_fine = folder.is_dir() and os.access(folder, os.W_OK)
        return Finding(
            "payloads", is_fine, f"folder {folder}{'' if is_fine else ' cannot be written'}"
        )
    key = f"doctor/{uuid.uuid4().hex}"
    try:
        bucket = Bucket(place, uid)
        begun = time.perf_counter()
        bucket.create(key, b"probe")
        seconds = time.perf_counter() - begun
        is_safe = not bucket.create(key, b"other")
        read = b"".join(bucket.read(key))
        bucket.delete([key])
    except ScrollError as error:
        return Finding("payloads", False, str(error))
    if not is_safe or read != b"probe":
        return Finding(
            "payloads",
            False,
            f"{place} overwrites objects in create-only mode; use another service",
        )
    return Finding("payloads", True, f"{place}; put in {1000 * seconds:.0f} ms, never overwritten")


def _copies(server: Server, store_id: int, last: int) -> Iterator[Finding]:
    rows = server.call(
        """SELECT host, applied, extract(epoch FROM now() - seen)::float FROM scroll.replica
        WHERE store_id = %s AND seen > now() - interval '7 days' ORDER BY seen DESC""",
        [store_id],
    )
    for host, applied, age in rows:
        behind = max(0, last - applied)
        text = f"{printable(host)[:100]}: {behind:,} events behind when last seen, {age:.0f} s ago"
        yield Finding("replica", True, text)
    if not rows:
        yield Finding("replica", True, "none was seen in the last 7 days")
    listed = snapshots(server, store_id)
    if listed:
        newest = listed[0]
        text = (
            f"the newest has {newest.seq:,} events, {newest.bytes:,} bytes; "
            f"a new host reads {last - newest.seq:,} more"
        )
    else:
        text = "none; `scroll shared snapshot URL` creates one, from which new hosts start"
    yield Finding("snapshot", True, text)
