"""A snapshot of this host's replica, taken when it is up to date."""

from scroll_context.errors import BadInput
from scroll_context.events import Progress
from scroll_context.store import Store
from scroll_shared.address import parse
from scroll_shared.backend import shared_backend
from scroll_shared.objects import SharedPayloads
from scroll_shared.snapshots import Snapshot, take


def take_of(url: str, progress: Progress | None = None) -> Snapshot | None:
    """Bring the replica of this host and its index up to date, and put a snapshot of them into the
    object store.
    """
    timeout = parse(url).timeout
    with Store(url) as store:
        backend = shared_backend(store.log)
        if not isinstance(store.payloads, SharedPayloads):
            raise BadInput(
                "snapshots need an object store, and the payloads of this store are in a folder"
            )
        while not backend.follower.catch_up(timeout):
            pass
        store.index.catch_up(progress=progress)
        bucket = store.payloads.place.bucket
        return take(
            backend.server, backend.facts.store_id, bucket, store.log, store.folder / "index"
        )
