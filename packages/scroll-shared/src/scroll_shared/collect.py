"""Garbage collection: objects that no event names leave the object store, while hosts go on
writing.

An object without an event is what a killed process put, or what an erasure left. To list the
objects, compare and delete loses payloads: between the comparison and the deletion a host may
record an event that names one. So the digest first gets a tombstone, under the lock that every
append takes and after a last look at the newest events. From then on an append that names it is
refused unless the body was put again under a new name (see objects.py). Only then is the object
deleted. A collector that dies in between leaves an object which its tombstone marks for the next
one.
"""

from collections import defaultdict
from collections.abc import Collection

import msgspec

from scroll_context.errors import NotAStore
from scroll_shared.address import parse
from scroll_shared.objects import Bucket, ObjectPlace, Stored
from scroll_shared.server import Server, Texts

GRACE = 3600.0  # seconds that an object may wait for its event
_BATCH = 500  # digests for which one look at the newest events is taken


class CollectionReport(msgspec.Struct, frozen=True):
    """What garbage collection found and did."""

    objects: int  # looked at
    deleted: int
    bytes: int  # of the deleted ones


def collect(
    server: Server,
    store_id: int,
    place: ObjectPlace,
    *,
    grace: float = GRACE,
    only: Collection[str] | None = None,
    dry_run: bool = False,
) -> CollectionReport:
    """Delete the objects that no event names and that are older than `grace` seconds; of `only`, if
    it is given.
    """
    named = _named(server, store_id)
    buried: dict[str, int] = dict(
        server.call("SELECT digest, gen FROM scroll.tombstone WHERE store_id = %s", [store_id])
    )
    objects = 0
    buried_objects: list[tuple[str, Stored]] = []  # by earlier collectors
    live: set[str] = set()  # digests with an object that was put after their burial
    unnamed: defaultdict[str, list[Stored]] = defaultdict(list)
    for name, generation, stored in place.objects():
        objects += 1
        digest = name[:64]
        if only is not None and digest not in only:
            continue
        if generation < buried.get(digest, 0):
            buried_objects.append((digest, stored))
            continue
        live.add(digest)
        if digest not in named:
            unnamed[digest].append(stored)
    # Whatever a tombstone says, the last object of a payload that an event names is kept.
    doomed = [stored for digest, stored in buried_objects if digest in live or digest not in named]
    old = {
        digest: found
        for digest, found in unnamed.items()
        if min(stored.age for stored in found) >= grace
    }
    if dry_run:
        doomed += (stored for found in old.values() for stored in found)
        return CollectionReport(objects, len(doomed), sum(stored.size for stored in doomed))
    digests = list(old)
    for at in range(0, len(digests), _BATCH):
        part = digests[at : at + _BATCH]
        for (digest,) in server.call("SELECT scroll.bury(%s, %s)", [store_id, Texts(part)]):
            doomed += old[digest]
    for at in range(0, len(doomed), _BATCH):
        place.bucket.delete([stored.key for stored in doomed[at : at + _BATCH]])
    return CollectionReport(objects, len(doomed), sum(stored.size for stored in doomed))


def collect_at(url: str, *, grace: float = GRACE, dry_run: bool = False) -> CollectionReport:
    """Collect the garbage of the store at an address."""
    address = parse(url)
    with Server(address, "scroll collect") as server:
        rows = server.call(
            "SELECT store_id, uid::text, payloads FROM scroll.store WHERE name = %s",
            [address.store],
        )
        if not rows:
            raise NotAStore(
                f"there is no store {address.store!r:.80} at {address}, or this login is no member of it"
            )
        ((store_id, uid, payloads),) = rows
        place = ObjectPlace(Bucket(address.payloads or payloads, uid), address.folder / "payloads")
        return collect(server, store_id, place, grace=grace, dry_run=dry_run)


def still_named(server: Server, store_id: int, digests: Collection[str]) -> list[tuple[str, int]]:
    """Those of the digests that events still name, each with the first of these events."""
    return [
        (digest, seq)
        for digest, seq in server.call(
            """SELECT d.digest, min(e.seq) FROM unnest(%s) AS d(digest) JOIN scroll.event e
            ON e.store_id = %s AND e.payloads @> ARRAY[d.digest] GROUP BY d.digest ORDER BY 2""",
            [Texts(digests), store_id],
        )
    ]


def _named(server: Server, store_id: int) -> set[str]:
    """Every digest that events name."""
    rows = server.call(
        """SELECT DISTINCT d FROM scroll.event e, unnest(e.payloads) d
        WHERE e.store_id = %s AND e.payloads IS NOT NULL""",
        [store_id],
    )
    return {digest for (digest,) in rows}
