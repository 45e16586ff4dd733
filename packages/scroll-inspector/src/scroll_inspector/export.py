"""One session as one page that needs no server: to keep, or to send to a colleague.

The page has everything in it: styles, pictures, texts up to a limit, the chart, and for each
request what changed in what the model saw. It has no script, and its policy forbids it to load
anything.
"""

import base64
from collections.abc import Iterator
from importlib.resources import files

from markupsafe import Markup

from scroll_context.errors import PayloadDamaged, PayloadMissing, UnknownSession
from scroll_context.events import Event
from scroll_inspector import charts, seen
from scroll_inspector.charts import chart
from scroll_inspector.inspector import Inspector
from scroll_inspector.markup import environment
from scroll_inspector.steps import Item, steps_page

LONGEST_TEXT = 20_000
"""Characters of one text."""
LARGEST_PICTURE = 2 << 20
"""Bytes of one picture."""
LARGEST_PAYLOAD = 8 << 20
"""Bytes of a payload that is read for its beginning."""
MOST_REQUESTS = 300
"""The newest requests, whose differences the page shows."""


def export(inspector: Inspector, session_id: str) -> Iterator[str]:
    """The page, piece by piece."""
    sums = inspector.catalogue.get(session_id)
    if sums is None:
        raise UnknownSession(
            f"there is no session {session_id!r} within reach; `scroll sessions` lists the sessions"
        )
    with inspector.look(session_id) as look:
        look.pressure.catch_up(look.past)
        newest_requests = {request.seq for request in look.past.requests[-MOST_REQUESTS:]}
        window_chart = chart(look.past, look.pressure)
        drawing = ""
        if window_chart.columns:
            drawing = charts.pressure_chart(window_chart, session_id, linked=False)
        templates = environment(exported=True)
        templates.globals.update(inspector.templates.globals)
        templates.globals.update(
            exported=True,
            text_of=lambda event: _text(inspector, event),
            picture_of=lambda event: _picture(inspector, event),
            request_page=lambda request: (
                seen.page(look.past, request) if request.seq in newest_requests else None
            ),
        )
        yield from templates.get_template("export.html").generate(
            sums=sums,
            state=inspector.catalogue.state(session_id),
            items=_items(inspector, session_id),
            drawing=drawing,
            style=Markup(files("scroll_inspector").joinpath("static/style.css").read_text()),
        )


def _items(inspector: Inspector, session_id: str) -> Iterator[Item]:
    after, more = 0, True
    while more:
        page = steps_page(inspector.store.log, session_id, after=after, grant=inspector.grant)
        yield from page.items
        after, more = page.last, page.more


def _text(inspector: Inspector, event: Event) -> str:
    text = event.content
    payload = event.payload
    if payload is not None and payload.is_text and payload.size <= LARGEST_PAYLOAD:
        try:
            text = inspector.store.log.text(event)
        except (PayloadMissing, PayloadDamaged) as error:
            text = f"{text}\n[{error}]"
    if len(text) <= LONGEST_TEXT:
        return text
    size = payload.size if payload else len(text)
    return f"{text[:LONGEST_TEXT]}\n[the beginning of {size:,}; the store has the complete text]"


def _picture(inspector: Inspector, event: Event) -> str:
    assert event.payload is not None
    if event.payload.size > LARGEST_PICTURE:
        return "data:,"
    try:
        data = inspector.store.payloads.read(event.payload.digest)
    except (PayloadMissing, PayloadDamaged):
        return "data:,"
    media_type = event.payload.media_type.partition(";")[0]
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
