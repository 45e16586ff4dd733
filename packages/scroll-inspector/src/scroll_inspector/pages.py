"""The pages: each is a function of a request that reads the store and fills a template."""

from typing import Any, get_args
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from scroll_context.contents import usage_of
from scroll_context.errors import IndexUnavailable
from scroll_context.events import Event, Kind
from scroll_context.text.words import words_of
from scroll_context.view.state import written
from scroll_inspector import charts, markup, seen, visibility
from scroll_inspector.charts import chart
from scroll_inspector.inspector import Inspector
from scroll_inspector.plans import plan_summary
from scroll_inspector.sessions import SessionFilter, SessionSums, State
from scroll_inspector.steps import beginning, earlier, steps_page

SESSIONS = 50
"""Sessions of one page."""
HITS = 30
FORKS = 3
"""Sessions that continue another, of which the page of an event says whether they saw it."""
REQUESTS = 200
"""Requests that a table lists."""
MOST_PLANS = 200
"""Evictions that the page of a request lists, the newest."""
SPAN = 200
"""Events of a span on one page."""
KINDS = [
    Kind.CONVERSATION,
    Kind.CELL,
    Kind.OBSERVATION,
    Kind.TOOL_CALL,
    Kind.TOOL_RESULT,
    Kind.ARTIFACT,
]
# The states that a reader can filter by. An empty session has nothing to look at.
STATES = [state for state in get_args(State) if state != "empty"]
SESSION_FILTERS = ("q", "agent", "task", "from", "to", "state")
SEARCH_FILTERS = ("q", "session", "agent", "task", "kind", "role", "from", "to", "lo", "hi")


class Pages:
    """The pages of one inspector."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._store = inspector.store
        self._grant = inspector.grant
        self._catalogue = inspector.catalogue
        self._page = inspector.page

    def sessions(self, request: Request) -> Response:
        """The list of sessions."""
        filters = _filters(request, SESSION_FILTERS)
        sessions = self._catalogue.sessions()
        matches = SessionFilter(
            words=filters["q"],
            agent=filters["agent"],
            task=filters["task"],
            since=filters["from"],
            until=filters["to"],
        ).matches(sessions)
        if filters["state"]:
            matches = [
                match
                for match in matches
                if self._catalogue.state(match.session_id) == filters["state"]
            ]
        number = max(1, int_of(request, "page", 1))
        on_page = matches[(number - 1) * SESSIONS : number * SESSIONS]
        return self._page(
            "sessions.html",
            rows=[(match, self._catalogue.state(match.session_id)) for match in on_page],
            matches=len(matches),
            total=len(sessions),
            agents=sorted({session.agent_id for session in sessions if session.agent_id}),
            tasks=sorted({session.task_id for session in sessions if session.task_id}),
            states=STATES,
            filters=filters,
            number=number,
            pages=-(-len(matches) // SESSIONS),
            others=urlencode({name: value for name, value in filters.items() if value}),
        )

    def search(self, request: Request) -> Response:
        """Search in the complete store, with the filters of `ms.search`."""
        filters = _filters(request, SEARCH_FILTERS)
        hits: Any = []
        trouble = ""
        if filters["q"]:
            try:
                hits = self._hits(filters, int_of(request, "lo", 0), int_of(request, "hi", 0))
                trouble = hits.note
            except IndexUnavailable as error:
                trouble = str(error)
        return self._page(
            "search.html",
            filters=filters,
            is_narrowed=any(value for name, value in filters.items() if name != "q"),
            hits=hits,
            trouble=trouble,
            words=words_of(filters["q"]),
            kinds=KINDS,
        )

    def _hits(self, filters: dict[str, str], first: int, last: int) -> Any:
        seq_range = None
        if first or last:
            seq_range = (first, last or self._store.log.last_seq())
        return self._store.index.search(
            filters["q"],
            k=HITS,
            grant=self._grant,
            session_id=filters["session"] or None,
            agent_id=filters["agent"] or None,
            task_id=filters["task"] or None,
            kind=filters["kind"] or None,
            role=filters["role"] or None,
            created_from=filters["from"] or None,
            created_to=filters["to"] or None,
            seq_range=seq_range,
        )

    def session(self, request: Request) -> Response:
        """A session, from its beginning or from the step at a seq."""
        sums = self._inspector.session(markup.name_of(request.path_params["session"]))
        log = self._store.log
        at = request.query_params.get("at", "")
        after = 0
        if at == "end":
            after = earlier(log, sums.session_id, sums.last_seq + 1) or 0
        elif at:
            after = beginning(log, sums.session_id, int_of(request, "at", 0))
        page = steps_page(log, sums.session_id, after=after, grant=self._grant)
        return self._page(
            "session.html",
            sums=sums,
            state=self._catalogue.state(sums.session_id),
            page=page,
            after=after,
            before=earlier(log, sums.session_id, page.first) if page.first else None,
            at=at,
        )

    def pressure(self, request: Request) -> Response:
        """How full the window was at each request."""
        sums = self._inspector.session(markup.name_of(request.path_params["session"]))
        first, last = int_of(request, "from", 0), int_of(request, "to", 0)
        with self._inspector.look(sums.session_id) as look:
            look.pressure.catch_up(look.past)
            window_chart = chart(look.past, look.pressure, first, last)
        return self._page(
            "pressure.html",
            sums=sums,
            state=self._catalogue.state(sums.session_id),
            chart=window_chart,
            drawing=charts.pressure_chart(window_chart, sums.session_id),
            is_zoomed=bool(first or last),
            most=REQUESTS,
        )

    def event(self, request: Request) -> Response:
        """One event, for ever at this address."""
        event = self._inspector.event_at(request.path_params["seq"])
        log = self._store.log
        answers = log.query(
            "SELECT seq, kind FROM event WHERE session_id = ? AND seq > ? AND seq <= ? "
            "AND reply_to = ? LIMIT 20",
            [event.session_id, event.seq, event.seq + 2_000, event.seq],
        )
        forks = self._catalogue.continued_by(event.session_id, event.seq)[:FORKS]
        seen_in = []
        for session_id in (event.session_id, *forks):
            with self._inspector.past(session_id) as past:
                seen_in.append((session_id, visibility.stretches(past, event)))
        return self._page(
            "event.html",
            event=event,
            # The store's own events belong to no session of the list.
            sums=self._catalogue.get(event.session_id) or SessionSums(event.session_id),
            # Whatever its shape.
            metadata=log.get(event.seq, self._grant).metadata,
            answers=answers,
            seen_in=seen_in,
        )

    def events(self, request: Request) -> Response:
        """The events that a line of an index stands for."""
        first, last = request.path_params["lo"], request.path_params["hi"]
        log = self._store.log
        session = request.query_params.get("session")
        if not session:
            # Spans are written for one session.
            beginnings = log.get_many([first], self._grant)
            session = beginnings[0].session_id if beginnings else None
        events: list[Event] = []
        is_cut = False
        for event in log.iterate(
            after=first - 1, until=last, session_id=session, grant=self._grant
        ):
            if len(events) >= SPAN:
                is_cut = True
                break
            events.append(event)
        template = "span_part.html" if "part" in request.query_params else "span.html"
        return self._page(template, first=first, last=last, events=events, is_cut=is_cut)

    def request(self, request: Request) -> Response:
        """The page of a request, as the model saw it."""
        event = self._inspector.event_at(request.path_params["seq"])
        about = int_of(request, "about", 0)
        with self._inspector.past(event.session_id) as past:
            newest = past.request_at(event.seq)
            if newest is None:
                raise HTTPException(
                    404, f"No model had been asked in this session up to seq {event.seq}."
                )
            if newest.seq != event.seq:
                return RedirectResponse(f"/request/{newest.seq}", 302)
            page = seen.page(past, newest)
            reply = past.reply(newest)
            answer = (
                visibility.why(past, newest, self._inspector.event_at(about)) if about else None
            )
            evictions = [plan for plan in past.evictions if plan.seq < newest.seq]
            plans = [(plan.seq, plan_summary(plan)) for plan in evictions[-MOST_PLANS:]]
        return self._page(
            "request.html",
            sums=self._inspector.session(event.session_id),
            request=newest,
            page=page,
            reply=reply,
            usage=usage_of(reply) if reply else None,
            answer=answer,
            plans=plans[::-1],
            bar=charts.token_bar(page),
        )

    def index(self, request: Request) -> Response:
        """The index at a request, as a tree."""
        event = self._inspector.request_at(request.path_params["seq"])
        with self._inspector.past(event.session_id) as past:
            _, context = past.context(event)
        return self._page(
            "index.html",
            request=event,
            sums=self._inspector.session(event.session_id),
            index=context.view.index if context else None,
            state=written(context.view.index.state) if context else "",
        )

    def variables(self, request: Request) -> Response:
        """The variables at a request, and where they come from."""
        event = self._inspector.request_at(request.path_params["seq"])
        with self._inspector.look(event.session_id) as look:
            variables = look.namespaces.at(look.past, event)
        return self._page(
            "variables.html",
            request=event,
            sums=self._inspector.session(event.session_id),
            variables=variables,
        )


def _filters(request: Request, names: tuple[str, ...]) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in names}


def int_of(request: Request, name: str, otherwise: int) -> int:
    """A number in the query of an address."""
    try:
        return int(request.query_params.get(name, ""))
    except ValueError:
        return otherwise
