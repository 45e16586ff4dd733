"""Garbage collection: removes objects that no event names from the object store, while hosts
continue to write.

A killed process or an erasure leaves objects without an event. Listing the objects, comparing and
deleting would lose payloads: between the comparison and the deletion a host may record an event
that names one. So the digest first gets a tombstone, under the lock that every append takes and
after a last check of the newest events. From then on an append that names the digest is refused
unless the body was put again under a new name (see objects.py). Only then is the object deleted. If
a collector dies in between, the tombstone marks the object for the next one.
"""

from collections import defaultdict
from collections.abc import Collection

import msgspec

from scroll_context.errors import NotAStore
from scroll_shared.address import parse
from scroll_shared.objects import Bucket, ObjectPlace, Stored
from scroll_shared.server import Server, Texts

# The seconds that an object may wait for its event.
GRACE = 3600.0
# The number of digests that one check of the newest events covers.
_BATCH = 500


class CollectionReport(msgspec.Struct, frozen=True):
    """The number of objects in the store, and the number and size of the deleted ones."""

    objects: int
    deleted: int
    bytes: int


def collect(
    server: Server,
    store_id: int,
    place: ObjectPlace,
    *,
    grace: float = GRACE,
    only: Collection[str] | None = None,
    dry_run: bool = False,
) -> CollectionReport:
    """Delete the objects that no event names and that are older than `grace` seconds.

    With `only`, other digests are left alone.
    """
    in_events = _digests_in_events(server, store_id)
    buried: dict[str, int] = dict(
        server.call("SELECT digest, gen FROM scroll.tombstone WHERE store_id = %s", [store_id])
    )
    objects = 0
    # Objects that earlier collectors have marked.
    buried_objects: list[tuple[str, Stored]] = []
    # Digests with an object that was put after the tombstone.
    live: set[str] = set()
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
        if digest not in in_events:
            unnamed[digest].append(stored)
    # Whatever a tombstone says, the last object of a payload that an event names is kept.
    doomed = [
        stored for digest, stored in buried_objects if digest in live or digest not in in_events
    ]
    old: dict[str, list[Stored]] = {}
    for digest, copies in unnamed.items():
        if all(stored.age >= grace for stored in copies):
            old[digest] = copies
    if dry_run:
        for copies in old.values():
            doomed += copies
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
                f"there is no store {address.store!r:.80} at {address}, "
                "or this login is not a member of it"
            )
        ((store_id, uid, payloads),) = rows
        place = ObjectPlace(Bucket(address.payloads or payloads, uid), address.folder / "payloads")
        return collect(server, store_id, place, grace=grace, dry_run=dry_run)


def still_named(server: Server, store_id: int, digests: Collection[str]) -> list[tuple[str, int]]:
    """The digests that events still name, each with the first of these events."""
    return [
        (digest, seq)
        for digest, seq in server.call(
            """SELECT d.digest, min(e.seq) FROM unnest(%s) AS d(digest) JOIN scroll.event e
            ON e.store_id = %s AND e.payloads @> ARRAY[d.digest] GROUP BY d.digest ORDER BY 2""",
            [Texts(digests), store_id],
        )
    ]


def _digests_in_events(server: Server, store_id: int) -> set[str]:
    """Every digest that events name."""
    rows = server.call(
        """SELECT DISTINCT d FROM scroll.event e, unnest(e.payloads) d
        WHERE e.store_id = %s AND e.payloads IS NOT NULL""",
        [store_id],
    )
    return {digest for (digest,) in rows}
