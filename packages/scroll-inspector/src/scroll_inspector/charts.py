"""The charts of the pages: the tokens of a request, and the window over time.

Charts are SVG, made here from numbers: a browser only draws them. Colours are classes of the style
sheet. The pieces of a chart are plain text. What comes from a store enters them through `_text`
alone, which escapes it.
"""

import bisect
from collections.abc import Sequence

import msgspec
from markupsafe import Markup, escape

from scroll_context.events import Kind
from scroll_context.log.rows import number_at
from scroll_context.session.past import Past
from scroll_context.text.printable import visible
from scroll_context.view.tokens import Gauge
from scroll_inspector.markup import address_of
from scroll_inspector.seen import Mark, SeenPage, budget_at, marks

WIDTH = 1000


def _text(foreign: str) -> str:
    return str(escape(visible(foreign)))


def _rect(colour: str, x: float, y: float, width: float, height: float, title: str = "") -> str:
    inside = f"<title>{_text(title)}</title>" if title else ""
    place = f'x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}"'
    return f'<rect class="{colour}" {place}>{inside}</rect>'


def _line(colour: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{colour}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="label" {place}>{_text(text)}</text>'


def token_bar(page: SeenPage) -> Markup:
    """The estimated tokens of a request by what they are for, against the window and its marks;
    below, the repeated prefix. The legend beside it says what the marks are.
    """
    window = page.marks[-1].estimated
    widest = max(window, page.tokens, 1)
    scale = WIDTH / widest
    pieces = [_rect("track", 0, 4, window * scale, 22)]
    x = 0.0
    for part in page.parts:
        width = part.tokens * scale
        title = f"{part.label}: about {part.tokens:,} tokens"
        pieces.append(_rect(f"t-{part.name}", x, 4, max(width, 0.5), 22, title))
        x += width
    if page.prefix_tokens:
        title = "the same as at the beginning of the request before"
        pieces.append(_rect("prefix", 0, 30, page.prefix_tokens * scale, 5, title))
    for mark in page.marks:
        at = min(mark.estimated * scale, WIDTH - 1)
        pieces.append(_line("mark", at, 0, at, 38))
    summary = f"about {page.tokens:,} tokens by use, in a window of {page.window:,}"
    return Markup(
        f'<svg class="bar" viewBox="0 0 {WIDTH} 38" preserveAspectRatio="none" role="img" '
        f'aria-label="{summary}">{"".join(pieces)}</svg>'
    )


# the window over time -----------------------------------------------------------------------------

COLUMNS = 300


class RequestNumbers(msgspec.Struct):
    """One request in numbers."""

    seq: int
    # As estimated before it was sent.
    tokens: int
    # Whether a plan came just before.
    evicted: bool
    # As the provider counted; 0 when it did not.
    reported: int = 0
    cached: int = 0
    dollars: float = 0.0
    reply: int = 0


class Column(msgspec.Struct, frozen=True):
    """Some requests in a row; the numbers are those of the largest, the cost is what all had cost
    by then.
    """

    first: int
    last: int
    count: int
    tokens: int
    cached: int
    dollars: float
    evictions: int
    index: int
    window: int


class Pressure:
    """The requests of one session in numbers, which grow with the log. Not for two threads."""

    def __init__(self) -> None:
        self.requests: list[RequestNumbers] = []
        self._upto = 0
        self._evicted = False
        self._waiting: RequestNumbers | None = None

    def catch_up(self, past: Past) -> None:
        """Add the requests that were recorded since."""
        rows = past.store.log.query(
            f"""SELECT seq, kind, role, {number_at("tokens")}, {number_at("usage.input_tokens")},
            {number_at("usage.cache_read_tokens")}, {number_at("cost")} FROM event
            WHERE session_id = ? AND seq > ? AND seq <= ?
            AND kind IN ('{Kind.REQUEST}', '{Kind.CONVERSATION}', '{Kind.EVICTION}')
            ORDER BY seq""",
            [past.session_id, self._upto, past.upto],
        )
        for seq, kind, role, tokens, reported, cached, cost in rows:
            if kind == Kind.EVICTION:
                self._evicted = True
            elif kind == Kind.REQUEST:
                self._waiting = RequestNumbers(seq, int(tokens or 0), self._evicted)
                self.requests.append(self._waiting)
                self._evicted = False
            elif role == "assistant" and self._waiting is not None:
                self._waiting.reported = int(reported or 0)
                self._waiting.cached = int(cached or 0)
                self._waiting.dollars = float(cost or 0)
                self._waiting.reply = seq
                self._waiting = None
        self._upto = past.upto

    def between(self, lo: int, hi: int) -> list[RequestNumbers]:
        first = bisect.bisect_left(self.requests, lo, key=lambda request: request.seq)
        if not hi:
            return self.requests[first:]
        last = bisect.bisect_right(self.requests, hi, key=lambda request: request.seq)
        return self.requests[first:last]


class Chart(msgspec.Struct, frozen=True):
    """The contents of a chart of some requests."""

    columns: tuple[Column, ...]
    # Of the newest request, as the provider counts.
    marks: tuple[Mark, ...]
    requests: Sequence[RequestNumbers]


def chart(past: Past, pressure: Pressure, lo: int = 0, hi: int = 0) -> Chart:
    """The columns for the requests between two seqs; 0 for an open end.

    There are at most COLUMNS. Of a session with more requests, a column stands for a run of them.
    """
    requests = pressure.between(lo, hi)
    newest = past.request_at(requests[-1].seq) if requests else None
    sizes = past.index_sizes(newest) if newest is not None else []
    windows = [
        (event.seq, int(event.metadata.get("window", 0)))
        for event in past.setups
        if "tools" in event.metadata
    ]
    per_column = -(-len(requests) // COLUMNS) or 1
    spent = 0.0
    if requests:
        earlier = pressure.between(0, requests[0].seq - 1)
        spent = sum(request.dollars for request in earlier)
    columns = []
    for at in range(0, len(requests), per_column):
        part = requests[at : at + per_column]
        largest = max(part, key=lambda request: request.reported or request.tokens)
        spent += sum(request.dollars for request in part)
        columns.append(
            Column(
                first=part[0].seq,
                last=part[-1].seq,
                count=len(part),
                tokens=largest.reported or largest.tokens,
                cached=largest.cached,
                dollars=spent,
                evictions=sum(request.evicted for request in part),
                index=_at(sizes, part[-1].seq),
                window=_at(windows, part[-1].seq),
            )
        )
    budget = budget_at(past, requests[-1].seq + 1 if requests else 0)
    window = columns[-1].window if columns else 0
    return Chart(tuple(columns), marks(budget, window, Gauge()), requests)


def _at(steps: list[tuple[int, int]], seq: int) -> int:
    """The value that held before the event at `seq`."""
    at = bisect.bisect_left(steps, seq, key=lambda step: step[0])
    return steps[at - 1][1] if at else 0


TOP, TALL, LOW = 18, 220, 46
LEFT = 56


class _Scale(msgspec.Struct, frozen=True):
    """Where the parts of the chart stand, and how large a token and a dollar are drawn."""

    # Tokens at the upper edge.
    top: float
    # The width of a column.
    wide: float
    index_top: int
    cost_top: float

    @property
    def base(self) -> int:
        return TOP + TALL

    @property
    def index_base(self) -> int:
        return self.base + 34 + LOW

    @property
    def cost_base(self) -> int:
        return self.index_base + 30 + LOW if self.cost_top else self.index_base

    def y(self, tokens: float) -> float:
        return self.base - TALL * tokens / self.top


def _scale(chart: Chart) -> _Scale:
    columns = chart.columns
    window = max((column.window for column in columns), default=0)
    return _Scale(
        top=max([window, 1, *(column.tokens for column in columns)]) * 1.04,
        wide=(WIDTH - LEFT) / max(len(columns), 1),
        index_top=max([1, *(column.index for column in columns)]),
        cost_top=max([0.0, *(column.dollars for column in columns)]),
    )


def pressure_chart(chart: Chart, session_id: str, *, linked: bool = True) -> Markup:
    """Tokens of each request against the window and its marks, with evictions; below, the index and
    the cost.
    """
    scale = _scale(chart)
    pieces = _grid(scale)
    for place, column in enumerate(chart.columns):
        drawing = _column(column, LEFT + place * scale.wide, scale)
        summary = _summary(column)
        tag = "g"
        if linked:
            url = _column_url(column, session_id)
            tag = f'a href="{url}" tabindex="-1" aria-label="{summary}"'
        pieces.append(f"<{tag}><title>{summary}</title>{drawing}</{tag[0]}>")
    for mark in chart.marks:
        y = scale.y(mark.tokens)
        label = f"{mark.name} {mark.tokens:,}"
        # At the left, where a narrow screen shows them at once.
        pieces += [_line("mark", LEFT, y, WIDTH, y), _label(LEFT + 4, y - 4, label)]
    label = f"index, up to about {scale.index_top:,} tokens" if scale.index_top > 1 else "no index"
    pieces.append(_label(LEFT, scale.index_base - LOW - 6, label))
    if scale.cost_top:
        text = f"cost so far, ${scale.cost_top:,.4f}"
        pieces.append(_label(LEFT, scale.cost_base - LOW - 6, text))
    return Markup(
        f'<svg class="pressure" viewBox="0 0 {WIDTH} {scale.cost_base + 4}" role="group" '
        f'aria-label="Tokens of each request against the window">{"".join(pieces)}</svg>'
    )


def _column(column: Column, x: float, scale: _Scale) -> str:
    """The bars of some requests, the sign of an eviction, and the area that a pointer hits."""
    cached = min(column.cached, column.tokens)
    bars = [
        ("used", scale.base, TALL * column.tokens / scale.top),
        ("cached", scale.base, TALL * cached / scale.top),
        ("t-index", scale.index_base, LOW * column.index / scale.index_top),
    ]
    if scale.cost_top:
        bars.append(("paid", scale.cost_base, LOW * column.dollars / scale.cost_top))
    thick = max(scale.wide - 0.6, 0.4)
    pieces = [_rect(colour, x, bottom - tall, thick, tall) for colour, bottom, tall in bars]
    if column.evictions:
        middle = x + scale.wide / 2
        pieces.append(f'<path class="evicted" d="M{middle:.1f} {scale.base + 4} l5 9 h-10 z"/>')
    pieces.append(_rect("hit", x, TOP, scale.wide, scale.cost_base - TOP))
    return "".join(pieces)


def _column_url(column: Column, session_id: str) -> str:
    if column.count == 1:
        return f"/request/{column.first}"
    return f"/pressure/{address_of(session_id)}?from={column.first}&amp;to={column.last}"


def _grid(scale: _Scale) -> list[str]:
    step = 10 ** (len(str(int(scale.top))) - 1)
    step = step // 2 if scale.top / step < 3 else step
    lines = []
    for value in range(0, int(scale.top) + 1, max(step, 1)):
        y = scale.y(value)
        lines += [_line("grid", LEFT, y, WIDTH, y), _label(LEFT - 6, y + 4, f"{value:,}", "end")]
    return lines


def _summary(column: Column) -> str:
    summary = f"request {column.first}"
    if column.count > 1:
        summary = f"{column.count} requests, {column.first} to {column.last}, the largest"
    summary += f": {column.tokens:,} of {column.window:,} tokens"
    if column.tokens and column.cached:
        summary += f", {100 * column.cached // column.tokens} % from the cache"
    if column.evictions:
        plural = "" if column.evictions == 1 else "s"
        summary += f", after {column.evictions} eviction{plural}"
    return summary
