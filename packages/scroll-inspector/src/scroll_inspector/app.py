"""The site: its routes and pages. A page is a function of a request that reads the store and fills
a template.

Pages are plain functions, which Starlette runs in threads. What they keep between requests is
bounded: sums for each session (sessions.py), and the pasts of the few sessions that were looked at
last.
"""

import codecs
import contextlib
import itertools
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlencode

import anyio
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from scroll_context import __version__
from scroll_context.contents import well_formed
from scroll_context.errors import IndexUnavailable
from scroll_context.events import EVERYTHING, Event, Grant, Kind
from scroll_context.session.explain import Past, departures
from scroll_context.store import Store
from scroll_context.text.words import words_of
from scroll_inspector import charts, markup, seen
from scroll_inspector.charts import Namespaces, Pressure, chart
from scroll_inspector.sessions import (
    Catalogue,
    SessionSums,
    arguments_of,
    beginning,
    earlier,
    matching,
    steps_page,
)

SESSIONS = 50  # on one page
HITS = 30
FORKS = 3  # sessions that continue another, of which an event tells whether they saw it
LOOKS = 4  # sessions whose views are kept
TEXT = 4_000  # characters of a text that a page shows at once
PIECE = 200_000  # bytes of a long text that are loaded at a time
REQUESTS = 200  # that a table lists
MOST_PLANS = 200  # evictions that a page lists, the newest
MOST_LEFT = 500  # texts and entries of one of them
SPAN = 200  # events of a span on one page
IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
LOOK_SECONDS = 0.5  # between two looks for new events
KINDS = [
    Kind.CONVERSATION,
    Kind.CELL,
    Kind.OBSERVATION,
    Kind.TOOL_CALL,
    Kind.TOOL_RESULT,
    Kind.ARTIFACT,
]


class Look:
    """What is kept of a session between two requests for its pages."""

    def __init__(self, past: Past) -> None:
        self.lock = threading.Lock()
        self.past = past
        self.pressure = Pressure()
        self.namespaces = Namespaces()


class SeqConvertor(IntegerConvertor):
    """A number in a path, of at most 18 digits: Python refuses to read thousands of them."""

    regex = "[0-9]{1,18}"


register_url_convertor("seq", SeqConvertor())


class Inspector:
    """The pages over one store, within a grant."""

    def __init__(self, store: Store, grant: Grant = EVERYTHING) -> None:
        self.store = store
        self.grant = grant
        self.catalogue = Catalogue(store, grant)
        self.templates = markup.environment()
        self.templates.globals.update(version=__version__, text_chars=TEXT, is_image=self.is_image)
        self._looks: OrderedDict[str, Look] = OrderedDict()
        self._looks_lock = threading.Lock()
        self._erasure = 0
        self.closing = False  # the server is about to end

    def routes(self) -> list[Route | Mount]:
        return [
            Route("/", self.sessions),
            Route("/search", self.search),
            Route("/session/{session:path}", self.session),
            Route("/steps/{session:path}", self.steps),
            Route("/live/{session:path}", self.live),
            Route("/event/{seq:seq}", self.event),
            Route("/event/{seq:seq}/text", self.text),
            Route("/event/{seq:seq}/download", self.download),
            Route("/event/{seq:seq}/image", self.image),
            Route("/request/{seq:seq}", self.request),
            Route("/request/{seq:seq}/index", self.index),
            Route("/request/{seq:seq}/variables", self.variables),
            Route("/pressure/{session:path}", self.pressure),
            Route("/request/{seq:seq}/message/{position:seq}", self.message),
            Route("/request/{seq:seq}/left/{plan:seq}", self.left),
            Route("/events/{lo:seq}-{hi:seq}", self.events),
            Mount("/static", StaticFiles(packages=[("scroll_inspector", "static")])),
        ]

    # what pages share -----------------------------------------------------------------------------

    def page(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(self.templates.get_template(template).render(**values), status)

    def event_at(self, seq: int) -> Event:
        found = self.store.log.get_many([seq], self.grant)
        if not found:
            raise HTTPException(404, f"No event has seq {seq} within reach.")
        return well_formed(found[0])

    def _forget_erased(self) -> None:
        """Forget everything read from the log if something was erased: it may hold the words."""
        with self._looks_lock:
            if (erasure := self.store.log.newest_erasure()) != self._erasure:
                self._erasure = erasure
                self._looks.clear()
                markup.forget()
                seen.forget()

    def known(self, session_id: str) -> SessionSums:
        self._forget_erased()
        found = self.catalogue.get(session_id)
        if found is None:
            raise HTTPException(404, "There is no such session within reach.")
        return found

    @contextlib.contextmanager
    def look(self, session_id: str) -> Iterator["Look"]:
        """What is kept of a session, up to date, for this thread alone."""
        self._forget_erased()
        with self._looks_lock:
            if session_id not in self._looks:
                self._looks[session_id] = Look(Past(self.store, session_id))
            self._looks.move_to_end(session_id)
            while len(self._looks) > LOOKS:
                self._looks.popitem(last=False)
            found = self._looks[session_id]
        with found.lock:
            found.past.catch_up()
            yield found

    @contextlib.contextmanager
    def past(self, session_id: str) -> Iterator[Past]:
        with self.look(session_id) as found:
            yield found.past

    def is_image(self, event: Event) -> bool:
        """Whether the payload of an event is a picture that a browser may show: never one that can
        hold a script.
        """
        return (
            event.payload is not None and event.payload.media_type.split(";")[0] in IMAGES.values()
        )

    # pages ----------------------------------------------------------------------------------------

    def sessions(self, request: Request) -> Response:
        """The list of sessions."""
        asked = {
            name: request.query_params.get(name, "")
            for name in ("q", "agent", "task", "from", "to", "state")
        }
        everything = self.catalogue.sessions()
        found = list(
            matching(
                everything, asked["q"], asked["agent"], asked["task"], asked["from"], asked["to"]
            )
        )
        if asked["state"]:
            found = [one for one in found if self.catalogue.state(one.session_id) == asked["state"]]
        number = max(1, _int(request.query_params.get("page"), 1))
        shown = found[(number - 1) * SESSIONS : number * SESSIONS]
        others = urlencode({name: value for name, value in asked.items() if value})
        return self.page(
            "sessions.html",
            rows=[(one, self.catalogue.state(one.session_id)) for one in shown],
            found=len(found),
            total=len(everything),
            agents=sorted({one.agent_id for one in everything if one.agent_id}),
            tasks=sorted({one.task_id for one in everything if one.task_id}),
            asked=asked,
            number=number,
            pages=-(-len(found) // SESSIONS),
            others=others,
        )

    def search(self, request: Request) -> Response:
        """Search in the whole store, with the filters of `ms.search`."""
        names = ("q", "session", "agent", "task", "kind", "role", "from", "to", "lo", "hi")
        asked = {name: request.query_params.get(name, "").strip() for name in names}
        hits: Any = []
        trouble = ""
        if asked["q"]:
            lo, hi = _int(asked["lo"], 0), _int(asked["hi"], 0)
            try:
                hits = self.store.index.search(
                    asked["q"],
                    k=HITS,
                    grant=self.grant,
                    session_id=asked["session"] or None,
                    agent_id=asked["agent"] or None,
                    task_id=asked["task"] or None,
                    kind=asked["kind"] or None,
                    role=asked["role"] or None,
                    created_from=asked["from"] or None,
                    created_to=asked["to"] or None,
                    seq_range=(lo, hi or self.store.log.last_seq()) if lo or hi else None,
                )
                trouble = hits.note
            except IndexUnavailable as error:
                trouble = str(error)
        return self.page(
            "search.html",
            asked=asked,
            hits=hits,
            trouble=trouble,
            words=words_of(asked["q"]),
            kinds=KINDS,
        )

    def session(self, request: Request) -> Response:
        """A session, from its beginning or from the step at a seq."""
        sums = self.known(markup.name_of(request.path_params["session"]))
        at = request.query_params.get("at", "")
        after = 0
        if at:
            log = self.store.log
            newest = earlier(log, sums.session_id, sums.last_seq + 1) if at == "end" else None
            after = beginning(log, sums.session_id, _int(at, 0)) if newest is None else newest
        shown = steps_page(self.store.log, sums.session_id, after=after, grant=self.grant)
        return self.page(
            "session.html",
            sums=sums,
            state=self.catalogue.state(sums.session_id),
            page=shown,
            after=after,
            before=earlier(self.store.log, sums.session_id, shown.first) if shown.first else None,
            at=at,
            loose=arguments_of,
        )

    def steps(self, request: Request) -> Response:
        """One page of a session, for a page that is already open."""
        sums = self.known(markup.name_of(request.path_params["session"]))
        after = _int(request.query_params.get("after"), 0)
        before = _int(request.query_params.get("before"), 0) or None
        if after < 0:
            found = earlier(self.store.log, sums.session_id, before or 0)
            if found is None:
                return Response(status_code=204)
            after = found
        shown = steps_page(
            self.store.log, sums.session_id, after=after, before=before, grant=self.grant
        )
        return self.page(
            "steps.html", sums=sums, page=shown, after=after, before=before, loose=arguments_of
        )

    def event(self, request: Request) -> Response:
        """One event, for ever at this address."""
        event = self.event_at(request.path_params["seq"])
        answers = self.store.log.query(
            "SELECT seq, kind, name FROM event WHERE session_id = ? AND seq > ? AND seq <= ? "
            "AND reply_to = ? LIMIT 20",
            [event.session_id, event.seq, event.seq + 2_000, event.seq],
        )
        seen_in = []
        for session_id in [
            event.session_id,
            *self.catalogue.continued_by(event.session_id, event.seq)[:FORKS],
        ]:
            with self.past(session_id) as past:
                seen_in.append((session_id, seen.stretches(past, event)))
        metadata = self.store.log.get(event.seq, self.grant).metadata  # whatever its shape
        return self.page(
            "event.html", event=event, metadata=metadata, answers=answers, seen_in=seen_in
        )

    def request(self, request: Request) -> Response:
        """What the model saw at a request."""
        event = self.event_at(request.path_params["seq"])
        with self.past(event.session_id) as past:
            asked = past.request_at(event.seq)
            if asked is None:
                raise HTTPException(
                    404, f"No model had been asked in this session up to seq {event.seq}."
                )
            if asked.seq != event.seq:
                return RedirectResponse(f"/request/{asked.seq}", 302)
            found = seen.page(past, asked)
            reply = past.reply(asked)
            about = None
            if number := _int(request.query_params.get("about"), 0):
                about = seen.why(past, asked, self.event_at(number))
            plans = [(one.seq, seen.plan_of(one)) for one in past.evictions if one.seq < asked.seq][
                -MOST_PLANS:
            ]
        return self.page(
            "request.html",
            sums=self.known(event.session_id),
            request=asked,
            page=found,
            reply=reply,
            usage=reply.metadata.get("usage", {}) if reply else {},
            about=about,
            plans=plans[::-1],
            bar=charts.token_bar(found),
        )

    def asked(self, request: Request) -> Event:
        """The request that an address names."""
        event = self.event_at(request.path_params["seq"])
        if event.kind != Kind.REQUEST:
            raise HTTPException(404, f"Seq {event.seq} is not a request.")
        return event

    def index(self, request: Request) -> Response:
        """The index at a request, as a tree."""
        asked = self.asked(request)
        with self.past(asked.session_id) as past:
            _, context = past.context(asked)
        return self.page(
            "index.html",
            request=asked,
            sums=self.known(asked.session_id),
            index=context.view.index if context else None,
        )

    def variables(self, request: Request) -> Response:
        """The variables at a request, and where they come from."""
        asked = self.asked(request)
        with self.look(asked.session_id) as look:
            found = look.namespaces.at(look.past, asked)
        seqs = sorted({seq for one in found for seq in one.seqs})[-200:]
        names = {one.seq: one.name or one.role for one in self.store.log.get_many(seqs, self.grant)}
        graph = charts.variable_graph(found, names)
        return self.page(
            "variables.html",
            request=asked,
            sums=self.known(asked.session_id),
            variables=found,
            graph=graph,
        )

    def pressure(self, request: Request) -> Response:
        """How full the window was at each request."""
        sums = self.known(markup.name_of(request.path_params["session"]))
        lo, hi = (_int(request.query_params.get(name), 0) for name in ("from", "to"))
        with self.look(sums.session_id) as look:
            look.pressure.catch_up(look.past)
            found = chart(look.past, look.pressure, lo, hi)
        return self.page(
            "pressure.html",
            sums=sums,
            state=self.catalogue.state(sums.session_id),
            chart=found,
            drawn=charts.pressure_chart(found, sums.session_id),
            zoomed=bool(lo or hi),
            most=REQUESTS,
        )

    def message(self, request: Request) -> Response:
        """One message of a request, as it was sent, for a page that is already open."""
        event = self.event_at(request.path_params["seq"])
        with self.past(event.session_id) as past:
            rendered = past.seen(event).rendered if event.kind == Kind.REQUEST else None
        position = request.path_params["position"]
        if rendered is None or position >= len(rendered.messages):
            raise HTTPException(404, "There is no such message.")
        text = json.dumps(
            msgspec.to_builtins(rendered.messages[position]), ensure_ascii=False, indent=2
        )
        return self.page("text.html", event=event, text=text, next=None, start=1)

    def left(self, request: Request) -> Response:
        """What a plan removed, and where that stood at a request."""
        event, plan = (self.event_at(request.path_params[name]) for name in ("seq", "plan"))
        with self.past(event.session_id) as past:
            context = past.context(event)[1] if event.kind == Kind.REQUEST else None
            if context is None or plan.seq not in {one.seq for one in past.evictions}:
                raise HTTPException(404, "There is no such plan before this request.")
            gone = departures([plan], context.view)
        return self.page("left.html", gone=gone[:MOST_LEFT], more=max(0, len(gone) - MOST_LEFT))

    def events(self, request: Request) -> Response:
        """The events that a line of an index stands for."""
        lo, hi = request.path_params["lo"], request.path_params["hi"]
        session = request.query_params.get("session") or None
        if session is None and (first := self.store.log.get_many([lo], self.grant)):
            session = first[0].session_id  # spans are written for one session
        found: list[Event] = []
        more = False
        for event in self.store.log.iterate(
            after=lo - 1, until=hi, session_id=session, grant=self.grant
        ):
            if more := len(found) >= SPAN:
                break
            found.append(event)
        template = "span.html" if "part" not in request.query_params else "span_part.html"
        return self.page(template, lo=lo, hi=hi, events=found, more=more)

    def text(self, request: Request) -> Response:
        """A piece of a long text, for a page that is already open."""
        event = self.event_at(request.path_params["seq"])
        start = max(0, _int(request.query_params.get("start"), 0))
        if event.payload is None:
            return self.page("text.html", event=event, text=event.content, next=None, start=0)
        if not event.payload.is_text:
            raise HTTPException(404, "This payload is not text.")
        data = self.store.payloads.piece(event.payload.digest, start, PIECE)
        is_last = not data or start + len(data) >= event.payload.size
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final=is_last)
        following = (
            None if is_last else start + len(data) - len(decoder.getstate()[0])
        )  # at a whole character
        return self.page("text.html", event=event, text=text, next=following, start=start)

    def download(self, request: Request) -> Response:
        """The bytes of an event: its payload, or its text."""
        event = self.event_at(request.path_params["seq"])
        endings = {
            "application/json": "json",
            "image/png": "png",
            "image/jpeg": "jpg",
            "image/gif": "gif",
        }
        media = event.payload.media_type.split(";")[0] if event.payload else "text/plain"
        ending = endings.get(
            media, "txt" if event.payload is None or event.payload.is_text else "bin"
        )
        headers = {
            "content-disposition": f'attachment; filename="seq-{event.seq}.{ending}"',
            "content-security-policy": "sandbox",
        }
        if event.payload is None:
            return Response(
                event.content.encode(), media_type="application/octet-stream", headers=headers
            )
        pieces = self.store.payloads.chunks(event.payload.digest)
        first = next(pieces, b"")  # before the answer begins: it may be missing
        body = itertools.chain([first], pieces)
        return StreamingResponse(body, media_type="application/octet-stream", headers=headers)

    def image(self, request: Request) -> Response:
        """A picture. What it is, its first bytes say, not what was recorded with it."""
        event = self.event_at(request.path_params["seq"])
        if event.payload is None or not self.is_image(event):
            raise HTTPException(404, "This event is not a picture.")
        data = self.store.payloads.read(event.payload.digest)
        media = next((kind for magic, kind in IMAGES.items() if data.startswith(magic)), None)
        if media is None:
            raise HTTPException(404, "This payload is not the picture that it claims to be.")
        return Response(
            data,
            media_type=media,
            headers={"content-security-policy": "default-src 'none'; sandbox"},
        )

    # live -----------------------------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        """Tells an open page of a session, whenever there is something new, how far the session has
        come.
        """
        session_id = markup.name_of(request.path_params["session"])
        sums = await run_in_threadpool(self.known, session_id)

        def look() -> tuple[int, str]:
            newest = self.store.log.tail(1, session_id=session_id)
            return newest[0].seq if newest else 0, self.catalogue.state(session_id)

        async def messages() -> AsyncIterator[str]:
            told = (_int(request.query_params.get("seq"), sums.last_seq), "")
            quiet = 0.0
            while not (self.closing or await request.is_disconnected()):
                now = await run_in_threadpool(look)
                if now != told:
                    told, quiet = now, 0.0
                    yield f"data: {now[0]} {now[1]}\n\n"
                elif quiet > 15:
                    quiet = 0.0
                    yield ": still here\n\n"
                await anyio.sleep(LOOK_SECONDS)
                quiet += LOOK_SECONDS

        return StreamingResponse(messages(), media_type="text/event-stream")


def _int(text: str | None, otherwise: int) -> int:
    try:
        return int(text or "")
    except ValueError:
        return otherwise
