"""Parts of pages that are already open, loaded when the reader asks for them; and downloads."""

import codecs
import itertools
from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from scroll_context.events import Event, Kind
from scroll_context.messages import Message
from scroll_context.session.explain import departures
from scroll_context.session.media import wire_bytes
from scroll_inspector import markup, trees
from scroll_inspector.inspector import IMAGES, Inspector, is_image
from scroll_inspector.pages import int_of
from scroll_inspector.pieces import pieces_of
from scroll_inspector.steps import earlier, steps_page
from scroll_inspector.trees import Place

PIECE = 200_000
"""Bytes of a long text that are loaded at a time."""
MOST_LEFT = 500
"""Texts and entries of one eviction that are listed."""
ENDINGS = {
    "application/json": "json",
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
}
LOOK_SECONDS = 0.5
"""Between two looks for new events."""
QUIET_SECONDS = 15
"""After so long without news, an open page is sent a sign of life."""


class Fragments:
    """The fragments and downloads of one inspector."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._store = inspector.store
        self._page = inspector.page

    def _event(self, request: Request) -> Event:
        return self._inspector.event_at(request.path_params["seq"])

    def steps(self, request: Request) -> Response:
        """One page of a session."""
        sums = self._inspector.session(markup.name_of(request.path_params["session"]))
        log = self._store.log
        after = int_of(request, "after", 0)
        before = int_of(request, "before", 0) or None
        if after < 0:
            start = earlier(log, sums.session_id, before or 0)
            if start is None:
                return Response(status_code=204)
            after = start
        page = steps_page(
            log, sums.session_id, after=after, before=before, grant=self._inspector.grant
        )
        return self._page("steps.html", sums=sums, page=page, after=after)

    # texts and trees ------------------------------------------------------------------------------

    def text(self, request: Request) -> Response:
        """A piece of a long text; JSON comes as a tree, unless `plain` is asked for."""
        event = self._event(request)
        if "plain" not in request.query_params and not int_of(request, "start", 0):
            value = self._json_of(event)
            if value is not None:
                address = f"/event/{event.seq}/tree"
                return self._page("tree.html", event=event, tree=trees.tree(value, address))
        if event.payload is None:
            return self._page("text.html", event=event, text=event.content, next=None)
        if not event.payload.is_text:
            raise HTTPException(404, "This payload is not text.")
        start = max(0, int_of(request, "start", 0))
        data = self._store.payloads.piece(event.payload.digest, start, PIECE)
        is_last = not data or start + len(data) >= event.payload.size
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final=is_last)
        following = None
        if not is_last:
            # At a complete character.
            following = start + len(data) - len(decoder.getstate()[0])
        return self._page("text.html", event=event, text=text, next=following)

    def _json_of(self, event: Event) -> Any:
        """The list or object that the text of an event is; None if it is something else."""
        if event.payload is None:
            return trees.json_value(event.content)
        if not event.payload.is_text or event.payload.size > trees.LONGEST:
            return None
        beginning = self._store.payloads.piece(event.payload.digest, 0, 64).lstrip()
        if not beginning.startswith((b"{", b"[")):
            return None
        return trees.json_value(self._store.log.text(event))

    def tree(self, request: Request) -> Response:
        """A part of the tree of an event's text."""
        event = self._event(request)
        return _part(request, self._json_of(event), f"/event/{event.seq}/tree")

    def metadata(self, request: Request) -> Response:
        """A part of the tree of an event's metadata."""
        event = self._event(request)
        metadata = self._store.log.get(event.seq, self._inspector.grant).metadata
        return _part(request, metadata, f"/event/{event.seq}/metadata")

    def tools(self, request: Request) -> Response:
        """The tools that were sent with a request, or a part of their tree."""
        event = self._inspector.request_at(request.path_params["seq"])
        with self._inspector.past(event.session_id) as past:
            setup, _ = past.context(event)
        tools = setup.metadata.get("tools")
        return _part(request, tools, f"/request/{event.seq}/tools")

    def message(self, request: Request) -> Response:
        """One message of a request as it was sent: that of a host in the host's own form."""
        event = self._event(request)
        position = request.path_params["position"]
        with self._inspector.past(event.session_id) as past:
            seen = past.seen(event) if event.kind == Kind.REQUEST else None
        messages = seen.rendered.messages if seen and seen.rendered else ()
        if seen is None or position >= len(messages):
            raise HTTPException(404, "There is no such message.")
        raw = b""
        if event.metadata.get("layout"):
            piece = pieces_of(seen)[position].pieces[0]
            if piece.seq and not piece.form and piece.kind != "system":
                raw = wire_bytes(self._store.log, self._store.log.get(piece.seq)) or b""
        value = _value_of(messages[position], raw)
        address = f"/request/{event.seq}/message/{position}"
        if "path" in request.query_params:
            return _part(request, value, address)
        text = raw.decode("utf-8", "replace")
        tree = trees.tree(value, address) if value is not None else None
        return self._page("message.html", is_wire=bool(raw), text=text, tree=tree)

    # the rest -------------------------------------------------------------------------------------

    def left(self, request: Request) -> Response:
        """The texts that a plan removed, and their places at a request."""
        event = self._event(request)
        plan = self._inspector.event_at(request.path_params["plan"])
        with self._inspector.past(event.session_id) as past:
            context = past.context(event)[1] if event.kind == Kind.REQUEST else None
            plan_seqs = {eviction.seq for eviction in past.evictions}
            if context is None or plan.seq not in plan_seqs:
                raise HTTPException(404, "There is no such plan before this request.")
            gone = departures([plan], context.view)
        more = max(0, len(gone) - MOST_LEFT)
        return self._page("left.html", gone=gone[:MOST_LEFT], more=more)

    def download(self, request: Request) -> Response:
        """The bytes of an event: its payload, or its text."""
        event = self._event(request)
        headers = {
            "content-disposition": f'attachment; filename="seq-{event.seq}.{_ending(event)}"',
            "content-security-policy": "sandbox",
        }
        media_type = "application/octet-stream"
        if event.payload is None:
            return Response(event.content.encode(), media_type=media_type, headers=headers)
        pieces = self._store.payloads.chunks(event.payload.digest)
        # Before the answer begins: the payload may be missing.
        first = next(pieces, b"")
        body = itertools.chain([first], pieces)
        return StreamingResponse(body, media_type=media_type, headers=headers)

    def image(self, request: Request) -> Response:
        """A picture. What it is, its first bytes say, not what was recorded with it."""
        event = self._event(request)
        if event.payload is None or not is_image(event):
            raise HTTPException(404, "This event is not a picture.")
        data = self._store.payloads.read(event.payload.digest)
        matches = [kind for magic, kind in IMAGES.items() if data.startswith(magic)]
        if not matches:
            raise HTTPException(404, "This payload is not the picture that it claims to be.")
        headers = {"content-security-policy": "default-src 'none'; sandbox"}
        return Response(data, media_type=matches[0], headers=headers)

    async def live(self, request: Request) -> Response:
        """Reports to an open page of a session how far the session has come, whenever there is
        something new.
        """
        session_id = markup.name_of(request.path_params["session"])
        sums = await run_in_threadpool(self._inspector.session, session_id)

        def look() -> tuple[int, str]:
            newest = self._store.log.tail(1, session_id=session_id)
            state = self._inspector.catalogue.state(session_id)
            return newest[0].seq if newest else 0, state

        async def messages() -> AsyncIterator[str]:
            reported = (int_of(request, "seq", sums.last_seq), "")
            quiet = 0.0
            while not (self._inspector.closing or await request.is_disconnected()):
                now = await run_in_threadpool(look)
                if now != reported:
                    reported, quiet = now, 0.0
                    yield f"data: {now[0]} {now[1]}\n\n"
                elif quiet > QUIET_SECONDS:
                    quiet = 0.0
                    yield ": still here\n\n"
                await anyio.sleep(LOOK_SECONDS)
                quiet += LOOK_SECONDS

        return StreamingResponse(messages(), media_type="text/event-stream")


def _part(request: Request, value: Any, address: str) -> Response:
    """The part of a tree that a request names."""
    try:
        place = Place.of(
            request.query_params.get("path", ""),
            int_of(request, "from", 0),
            int_of(request, "to", 0),
        )
        return HTMLResponse(trees.part_of(value, place, address))
    except LookupError:
        raise HTTPException(404, "There is no such part.") from None


def _value_of(message: Message, raw: bytes) -> Any:
    """A message as JSON; None for bytes of a host that are only a part of its message."""
    if raw:
        return trees.json_value(raw.decode("utf-8", "replace"))
    return msgspec.to_builtins(message)


def _ending(event: Event) -> str:
    """The end of the file name for a download."""
    if event.payload is None:
        return "txt"
    media_type = event.payload.media_type.partition(";")[0]
    return ENDINGS.get(media_type, "txt" if event.payload.is_text else "bin")
