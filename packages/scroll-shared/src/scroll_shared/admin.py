"""The work of a database owner: create the schema and its stores, update the schema, admit members.

The schema `scroll` is created by numbered steps, each applied once and in its own transaction. The
first step creates everything. A released step is never edited; later steps change its result.
Numbers never go back: a schema older than the first step is refused.

A member is a role of the server, a login or a group, that may read one store and perhaps append to
it or erase in it. Rights on tables and functions are the same for all stores; row security and the
functions themselves decide which store a role may touch.
"""

import re
from importlib import resources
from typing import Any

import msgspec
from psycopg import sql

from scroll_context.errors import BadInput, StoreError, StoreUnreachable
from scroll_shared.address import Address
from scroll_shared.server import Server, require_version

# Two owners may migrate at once. Any login may take an advisory lock; only the owner of the table
# can take this one, beside which members can read.
_LOCK = "LOCK TABLE scroll.migration IN SHARE ROW EXCLUSIVE MODE"
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '10s'"
# All columns of `store` but the secret.
_SAFE_COLUMNS = "store_id, uid, name, format, payloads, max_bytes, created"
_TABLES = tuple(
    f"scroll.{name}" for name in ("head", "event", "tombstone", "replica", "migration", "snapshot")
)
# The functions that a member with each right may call. Each function also checks that the role
# belongs to the store.
_FUNCTIONS = {
    "READ": ("readable", "report", "barrier", "may_notify", "holder", "rights"),
    "APPEND": ("append", "record", "settle", "claim", "renew", "release"),
    "ERASE": ("erase", "bury", "adopt", "add_snapshot", "drop_snapshots"),
}


class Migration(msgspec.Struct, frozen=True):
    """One step of the schema."""

    number: int
    name: str
    script: str


def migrations() -> list[Migration]:
    """Every step that this Scroll knows, in order."""
    steps = []
    files = (resources.files(__package__) / "migrations").iterdir()
    for file in sorted(files, key=lambda file: file.name):
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            steps.append(Migration(int(match[1]), match[2], file.read_text()))
    return steps


def newest() -> int:
    """The version of the schema that this Scroll needs."""
    return migrations()[-1].number


def require_current(server: Server) -> int:
    """The version of a server's schema, which must be the one that this Scroll needs."""
    steps = migrations()
    version = int(server.call("SELECT coalesce(max(number), 0) FROM scroll.migration")[0][0])
    require_version(version, steps[0].number, steps[-1].number, server.address)
    return version


def migrate(address: Address, steps: list[Migration] | None = None) -> list[int]:
    """Apply the missing steps. Returns their numbers. A schema that is too old is refused."""
    steps = steps or migrations()
    applied: list[int] = []
    with Server(address, "scroll shared") as server:
        _make_ledger(server)
        for step in steps:
            with server.transaction() as run:
                run(_LOCK_TIMEOUT)
                run(_LOCK)
                ((version,),) = run("SELECT coalesce(max(number), 0) FROM scroll.migration")
                if version >= step.number:
                    continue
                if version:
                    require_version(version, steps[0].number, version, address)
                run("SET LOCAL search_path = scroll, pg_temp")
                run(step.script)
                run(
                    "INSERT INTO scroll.migration (number, name) VALUES (%s, %s)",
                    [step.number, step.name],
                )
                run("REVOKE ALL ON SCHEMA scroll FROM PUBLIC")
                run("REVOKE ALL ON ALL TABLES IN SCHEMA scroll FROM PUBLIC")
                run("REVOKE ALL ON ALL ROUTINES IN SCHEMA scroll FROM PUBLIC")
            applied.append(step.number)
        if applied:
            roles = server.call(
                "SELECT role, bool_or(can_append), bool_or(can_erase) "
                "FROM scroll.member GROUP BY role"
            )
            for role, can_append, can_erase in roles:
                _give_rights(server, role, can_append, can_erase)
    return applied


def _make_ledger(server: Server) -> None:
    """Create the table of applied steps.

    If two processes do it at once, Postgres fails one of them; its next attempt succeeds.
    """
    for attempt in range(5):
        try:
            with server.transaction() as run:
                run("CREATE SCHEMA IF NOT EXISTS scroll")
                run(
                    """CREATE TABLE IF NOT EXISTS scroll.migration (
                    number integer PRIMARY KEY, name text NOT NULL,
                    applied timestamptz NOT NULL DEFAULT now())"""
                )
            return
        except StoreUnreachable:
            raise
        except StoreError:
            if attempt == 4:
                raise


def init(address: Address, *, max_bytes: int | None = None) -> bool:
    """Create the schema if needed, and the store. The login that does it is its first member.

    Returns False if the store exists.
    """
    if not address.payloads:
        raise BadInput(
            "say where the payloads of this store go: add &payloads=s3://bucket/prefix, "
            "or a folder that every host mounts under the same name"
        )
    migrate(address)
    with Server(address, "scroll shared") as server:
        new_rows = server.call(
            """WITH made AS (
                INSERT INTO scroll.store (name, payloads, max_bytes) VALUES (%s, %s, %s)
                ON CONFLICT (name) DO NOTHING RETURNING store_id)
            INSERT INTO scroll.head (store_id) SELECT store_id FROM made RETURNING store_id""",
            [address.store, address.payloads, max_bytes],
        )
        user = server.call("SELECT session_user::text")[0][0]
    grant(address, user, can_append=True, can_erase=True)
    return bool(new_rows)


def grant(address: Address, role: str, *, can_append: bool = True, can_erase: bool = False) -> None:
    """Let a role read the store, and perhaps append to it or erase in it; what it could before is
    replaced.
    """
    with Server(address, "scroll shared") as server:
        if not server.call("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]):
            raise BadInput(
                f"the server has no role {role!r:.80}; CREATE ROLE makes one. Nothing was changed."
            )
        rows = server.call(
            """INSERT INTO scroll.member (store_id, role, can_append, can_erase)
            SELECT store_id, %s, %s, %s FROM scroll.store WHERE name = %s
            ON CONFLICT (store_id, role) DO UPDATE
            SET (can_append, can_erase) = (excluded.can_append, excluded.can_erase) RETURNING 1""",
            [role, can_append, can_erase, address.store],
        )
        if not rows:
            raise BadInput(
                f"there is no store {address.store!r:.80} there; `scroll shared init URL` makes one"
            )
        _give_rights(server, role, can_append, can_erase)


def revoke(address: Address, role: str) -> bool:
    """Remove a role from the store. Returns False if it was not a member.

    Its copies on hosts remain.
    """
    with Server(address, "scroll shared") as server:
        return bool(
            server.call(
                """DELETE FROM scroll.member m USING scroll.store s
                WHERE s.store_id = m.store_id AND s.name = %s AND m.role = %s RETURNING 1""",
                [address.store, role],
            )
        )


def _give_rights(server: Server, role: str, can_append: bool, can_erase: bool) -> None:
    to: Any = sql.Identifier(role).as_string()
    server.call(f"GRANT USAGE ON SCHEMA scroll TO {to}")
    server.call(f"GRANT SELECT ({_SAFE_COLUMNS}) ON scroll.store TO {to}")
    server.call(f"GRANT SELECT ON {', '.join(_TABLES)} TO {to}")
    functions = [
        *_FUNCTIONS["READ"],
        *(_FUNCTIONS["APPEND"] if can_append else ()),
        *(_FUNCTIONS["ERASE"] if can_erase else ()),
    ]
    names = server.call(
        """SELECT p.oid::regprocedure::text
        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = 'scroll' AND p.proname = ANY(%s)""",
        [functions],
    )
    for (name,) in names:
        server.call(f"GRANT EXECUTE ON ROUTINE {name} TO {to}")
