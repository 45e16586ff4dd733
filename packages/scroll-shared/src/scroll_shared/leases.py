"""Leases of sessions in a shared store: at most one journal of all hosts writes a session.

A lease is a row on the server with an epoch that every claim increments, judged by the server's
clock alone. The holder sends its epoch with each append, and the server refuses rows of an older
one: a holder that was cut off, suspended or believed dead cannot write any more once another has
the session. One thread renews all leases of this process three times in each lease's length. A
holder that dies without a word loses its session when the lease has run out.

The server binds a lease to the login and to a secret of the holder, which it never shows: members
learn who has a session, but cannot renew, release or claim it in the holder's name.
"""

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from scroll_context.errors import ScrollError
from scroll_context.log.lease import Holder, busy
from scroll_context.text.printable import printable
from scroll_shared.server import Bytes, Numbers, Server
from scroll_shared.writer import fenced

# The pause between two attempts while waiting for a session.
AGAIN_SECONDS = 0.1


class SharedLease:
    """A lease of this process. Return it with `release`."""

    def __init__(self, leases: "Leases", holder: Holder, secret: bytes, epoch: int) -> None:
        self._leases = leases
        self.holder = holder
        self.secret = secret
        self.epoch: int | None = epoch
        # Set when the server reports that the lease is lost.
        self.lost = False

    def check(self) -> None:
        """Raise SessionFenced if another process has the session, as far as is known here."""
        if self.lost or self.holder.process != os.getpid():
            raise fenced(self.holder.session_id, self.epoch, (self.epoch or 0) + 1)

    def release(self) -> None:
        """Let others have it. When the server does not answer, it runs out by itself."""
        if self.holder.process == os.getpid():
            self._leases.release(self)


class Leases:
    """All leases of this process in one store."""

    def __init__(self, server: Server, store_id: int, reach: Callable[[int], None]) -> None:
        self._server = server
        self._store_id = store_id
        # Waits until the copy of this host has everything up to a seq.
        self._reach = reach
        self._held: dict[str, SharedLease] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, session_id: str, since: str, wait: float) -> SharedLease:
        """Claim a session, waiting up to `wait` seconds.

        Raises SessionBusy, which names the holder.
        """
        holder = Holder(session_id, os.getpid(), socket.gethostname(), since)
        owner = msgspec.json.encode(holder).decode()
        # By this secret the server recognises a repeated claim whose answer was lost.
        secret = secrets.token_bytes(32)
        deadline = time.monotonic() + wait
        while True:
            epoch, other, head = self._server.call(
                "SELECT o_epoch, o_owner, o_head "
                "FROM scroll.claim(%s, %b, %s, %b, %s * interval '1 second')",
                [self._store_id, session_id.encode(), owner, secret, self._server.address.lease],
            )[0]
            if epoch is not None:
                break
            if time.monotonic() >= deadline:
                raise busy(session_id, _holder(session_id, other), wait)
            time.sleep(AGAIN_SECONDS)
        lease = SharedLease(self, holder, secret, epoch)
        with self._lock:
            self._held[session_id] = lease
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._renew, name="scroll-leases", daemon=True
                )
                self._thread.start()
        # This holder must know what the last one has recorded before it continues.
        try:
            self._reach(head)
        except BaseException:
            self.release(lease)
            raise
        return lease

    def holder(self, session_id: str) -> Holder | None:
        """The holder of an open session; None if it is free or the server does not answer."""
        with contextlib.suppress(ScrollError):
            ((owner,),) = self._server.call(
                "SELECT scroll.holder(%s, %b)", [self._store_id, session_id.encode()]
            )
            if owner is not None:
                return _holder(session_id, owner)
        return None

    def release(self, lease: SharedLease) -> None:
        with self._lock:
            if self._held.get(lease.holder.session_id) is lease:
                del self._held[lease.holder.session_id]
        with contextlib.suppress(ScrollError):
            self._server.call(
                "SELECT scroll.release(%s, %b, %s, %b)",
                [self._store_id, lease.holder.session_id.encode(), lease.epoch, lease.secret],
                timeout=min(2.0, self._server.address.timeout),
            )

    def _renew(self) -> None:
        length = self._server.address.lease
        while not self._stopped.wait(length / 3):
            with self._lock:
                held = dict(self._held)
            if not held:
                continue
            sessions = Bytes(name.encode() for name in held)
            epochs = Numbers(lease.epoch for lease in held.values())
            proofs = Bytes(lease.secret for lease in held.values())
            try:
                lost = self._server.call(
                    "SELECT scroll.renew(%s, %s, %s, %s, %s * interval '1 second')",
                    [self._store_id, sessions, epochs, proofs, length],
                    timeout=length / 3,
                )
            except ScrollError:
                # The next renewal may still be in time. An append that is too late is refused.
                continue
            for (session_id,) in lost:
                held[bytes(session_id).decode()].lost = True

    def close(self) -> None:
        self._stopped.set()
        for lease in list(self._held.values()):
            self.release(lease)
        self._server.interrupt()
        self._server.close()


def _holder(session_id: str, owner: str) -> Holder:
    """The holder of a session, from a text that any member of the store may have written."""
    try:
        holder = msgspec.json.decode(owner, type=Holder)
    except msgspec.MsgspecError:
        return Holder(session_id, 0, "an unknown host", "an unknown time")
    return Holder(
        session_id, holder.process, printable(holder.host)[:100], printable(holder.since)[:40]
    )
