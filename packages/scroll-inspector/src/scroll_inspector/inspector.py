"""The inspector over one store: what its pages share.

What is kept between requests is bounded: sums for each session (sessions.py), and the pasts of the
few sessions that were looked at last.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse

from scroll_context import __version__
from scroll_context.contents import media_of, well_formed
from scroll_context.events import EVERYTHING, Event, Grant, Kind
from scroll_context.session.past import Past
from scroll_context.store import Store
from scroll_inspector import markup
from scroll_inspector.charts import Pressure
from scroll_inspector.pieces import request_tokens
from scroll_inspector.plans import plan_summary
from scroll_inspector.sessions import Catalogue, SessionSums
from scroll_inspector.steps import calls_without_events
from scroll_inspector.variables import Namespaces

LOOKS = 4
"""Sessions whose views are kept."""
TEXT = 4_000
"""Characters of a text that a page shows at once."""
IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
"""The pictures that a browser may show, by their first bytes."""


class Look:
    """The state of a session that is kept between two requests for its pages."""

    def __init__(self, past: Past) -> None:
        self.lock = threading.Lock()
        self.past = past
        self.pressure = Pressure()
        self.namespaces = Namespaces()


class Inspector:
    """The site over one store, within a grant."""

    def __init__(self, store: Store, grant: Grant = EVERYTHING) -> None:
        self.store = store
        self.grant = grant
        self.catalogue = Catalogue(store, grant)
        self.templates = markup.environment()
        self.templates.globals.update(
            version=__version__,
            text_chars=TEXT,
            is_image=is_image,
            media_of=media_of,
            request_tokens=request_tokens,
            plan_summary=plan_summary,
            calls_without_events=calls_without_events,
        )
        self._looks: OrderedDict[str, Look] = OrderedDict()
        self._looks_lock = threading.Lock()
        self._erasure = 0
        # The server is about to end.
        self.closing = False

    def page(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(self.templates.get_template(template).render(**values), status)

    def event_at(self, seq: int) -> Event:
        events = self.store.log.get_many([seq], self.grant)
        if not events:
            raise HTTPException(404, f"No event has seq {seq} within reach.")
        return well_formed(events[0])

    def request_at(self, seq: int) -> Event:
        """The event of a request to the model."""
        event = self.event_at(seq)
        if event.kind != Kind.REQUEST:
            raise HTTPException(404, f"Seq {seq} is not a request.")
        return event

    def session(self, session_id: str) -> SessionSums:
        """The sums of a session within the grant."""
        self._forget_erased()
        sums = self.catalogue.get(session_id)
        if sums is None:
            raise HTTPException(404, "There is no such session within reach.")
        return sums

    @contextlib.contextmanager
    def look(self, session_id: str) -> Iterator[Look]:
        """The kept state of a session, up to date, for this thread alone."""
        self._forget_erased()
        with self._looks_lock:
            if session_id not in self._looks:
                self._looks[session_id] = Look(Past(self.store, session_id))
            self._looks.move_to_end(session_id)
            while len(self._looks) > LOOKS:
                self._looks.popitem(last=False)
            look = self._looks[session_id]
        with look.lock:
            look.past.catch_up()
            yield look

    @contextlib.contextmanager
    def past(self, session_id: str) -> Iterator[Past]:
        with self.look(session_id) as look:
            yield look.past

    def _forget_erased(self) -> None:
        """Forget everything read from the log if something was erased: it may hold the words."""
        with self._looks_lock:
            erasure = self.store.log.newest_erasure()
            if erasure != self._erasure:
                self._erasure = erasure
                self._looks.clear()
                markup.forget()


def is_image(event: Event) -> bool:
    """Whether the payload of an event is a picture that a browser may show: never one that can hold
    a script.
    """
    if event.payload is None:
        return False
    return event.payload.media_type.partition(";")[0] in IMAGES.values()
