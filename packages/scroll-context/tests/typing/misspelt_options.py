"""Typing mistakes of a user, each of them a type error. `make types` checks this file; nothing runs
it.

Under `mypy --strict` an ignored error that does not occur is an error itself, so each comment here
is a test.
"""

import scroll_context.hosts
from scroll_context import Session, SessionOptions, Store


def right(store: Store) -> Session:
    return Session.open(store, session_id="a", options=SessionOptions(reach="session"))


def wrong(store: Store) -> None:
    Session.open(store, sesion_id="a")  # type: ignore[call-arg]
    SessionOptions(reech="session")  # type: ignore[call-arg]
    SessionOptions(reach="sesion")  # type: ignore[arg-type]
    scroll_context.Agnt(store)  # type: ignore[attr-defined]
    scroll_context.hosts.Mesage(role="user")  # type: ignore[attr-defined]
