"""What the pages draw: the tokens of a request, the window over time, and where the variables come
from.

Charts are SVG, made here from numbers: a browser only draws them. Colours are classes of the style
sheet. The pieces of a chart are plain text. What comes from a store enters them through `_text`
alone, which escapes it.
"""

import bisect
import re
from collections.abc import Sequence

import msgspec
from markupsafe import Markup, escape

from scroll_context.errors import PayloadDamaged, PayloadMissing
from scroll_context.events import Event, Kind
from scroll_context.log.rows import number_at
from scroll_context.session.explain import Past
from scroll_context.text.printable import visible
from scroll_inspector.markup import address_of
from scroll_inspector.seen import SeenPage, marks

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
    """The tokens of a request by what they are for, against the window and its marks; below, the
    repeated prefix.
    """
    total = sum(part.tokens for part in page.parts)
    window = max(page.window, total, 1)
    scale = WIDTH / window
    pieces = [_rect("track", 0, 14, WIDTH, 22)]
    x = 0.0
    for part in page.parts:
        width = part.tokens * scale
        pieces.append(
            _rect(f"t-{part.name}", x, 14, max(width, 0.5), 22, f"{part.label}: {part.tokens:,}")
        )
        x += width
    prefix = page.difference.prefix_tokens
    if prefix:
        # Tool schemas are sent before messages.
        prefix += sum(part.tokens for part in page.parts if part.name == "tools")
        title = "the same as at the beginning of the request before"
        pieces.append(_rect("prefix", 0, 40, min(prefix * scale, WIDTH), 5, title))
    for share, name in ((page.high, "high mark"), (page.low, "low mark")):
        at = share * WIDTH * page.window / window
        pieces.append(_line("mark", at, 2, at, 46))
        if at > WIDTH * 0.9:
            pieces.append(_label(at - 4, 10, name, "end"))
        else:
            pieces.append(_label(at + 4, 10, name))
    summary = f"{total:,} tokens by use, in a window of {page.window:,}"
    return Markup(
        f'<svg class="bar" viewBox="0 0 {WIDTH} 48" preserveAspectRatio="none" role="img" '
        f'aria-label="{summary}">{"".join(pieces)}</svg>'
    )


# the window over time -----------------------------------------------------------------------------

COLUMNS = 300


class RequestNumbers(msgspec.Struct):
    """One request in numbers."""

    seq: int
    tokens: int  # as estimated before it was sent
    evicted: bool  # a plan came just before
    reported: int = 0  # as the provider counted; 0 when it did not
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
    """What a chart of some requests shows."""

    columns: tuple[Column, ...]
    high: float
    low: float
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
    high, low = marks(past, requests[-1].seq + 1 if requests else 0)
    return Chart(tuple(columns), high, low, requests)


def _at(steps: list[tuple[int, int]], seq: int) -> int:
    """The value that held before the event at `seq`."""
    at = bisect.bisect_left(steps, seq, key=lambda step: step[0])
    return steps[at - 1][1] if at else 0


TOP, TALL, LOW = 14, 220, 46
LEFT = 56


def pressure_chart(chart: Chart, session_id: str, *, linked: bool = True) -> Markup:
    """Tokens of each request against the window and its marks, with evictions; below, the index and
    the cost.
    """
    columns = chart.columns
    window = max((column.window for column in columns), default=0)
    top = max([window, 1, *(column.tokens for column in columns)]) * 1.04
    wide = (WIDTH - LEFT) / max(len(columns), 1)
    thick = max(wide - 0.6, 0.4)
    base = TOP + TALL
    index_top = max([1, *(column.index for column in columns)])
    cost_top = max([0.0, *(column.dollars for column in columns)])
    index_base = base + 34 + LOW
    cost_base = index_base + 30 + LOW if cost_top else index_base
    chart_url = f"/pressure/{address_of(session_id)}"
    pieces = _grid(top, base)
    for at, column in enumerate(columns):
        x = LEFT + at * wide
        parts = [
            ("used", base, TALL * column.tokens / top),
            ("cached", base, TALL * min(column.cached, column.tokens) / top),
            ("t-index", index_base, LOW * column.index / index_top),
        ]
        if cost_top:
            parts.append(("paid", cost_base, LOW * column.dollars / cost_top))
        drawing = "".join(
            _rect(colour, x, bottom - tall, thick, tall) for colour, bottom, tall in parts
        )
        if column.evictions:
            drawing += f'<path class="evicted" d="M{x + wide / 2:.1f} {base + 4} l5 9 h-10 z"/>'
        drawing += _rect("hit", x, TOP, wide, cost_base - TOP)
        summary = _summary(column)
        url = f"/request/{column.first}"
        if column.count > 1:
            url = f"{chart_url}?from={column.first}&amp;to={column.last}"
        tag = f'a href="{url}" tabindex="-1" aria-label="{summary}"' if linked else "g"
        pieces.append(f"<{tag}><title>{summary}</title>{drawing}</{tag[0]}>")
    for share, name in ((1.0, "window"), (chart.high, "high mark"), (chart.low, "low mark")):
        y = base - TALL * share * window / top
        pieces += [_line("mark", LEFT, y, WIDTH, y), _label(WIDTH - 4, y - 4, name, "end")]
    pieces.append(_label(LEFT, index_base - LOW - 6, f"index, up to {index_top:,} tokens"))
    if cost_top:
        pieces.append(_label(LEFT, cost_base - LOW - 6, f"cost so far, ${cost_top:,.4f}"))
    return Markup(
        f'<svg class="pressure" viewBox="0 0 {WIDTH} {cost_base + 4}" role="group" '
        f'aria-label="Tokens of each request against the window">{"".join(pieces)}</svg>'
    )


def _grid(top: float, base: float) -> list[str]:
    step = 10 ** (len(str(int(top))) - 1)
    step = step // 2 if top / step < 3 else step
    lines = []
    for value in range(0, int(top) + 1, max(step, 1)):
        y = base - TALL * value / top
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


# where variables come from ------------------------------------------------------------------------

EVERY = 200  # snapshots between two copies

_LINE = re.compile(r"^(\w+): (.*)$", re.MULTILINE)
_ORIGIN = re.compile(r"  \[seq [^\]]*\]$")


class SavedName(msgspec.Struct, frozen=True):
    """A variable in a snapshot, without its value."""

    name: str
    type: str = ""
    size: int = 0
    cell: int = 0
    cells: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
    reason: str = ""
    stale: bool = False


class _Change(msgspec.Struct, frozen=True):
    cell: int = 0
    saved: tuple[SavedName, ...] = ()
    gone: tuple[str, ...] = ()
    sources: dict[int, tuple[int, ...]] = {}


class ShownVariable(msgspec.Struct, frozen=True):
    """A variable as the page shows it. Cells are named by their seqs."""

    name: str
    type: str
    size: int
    preview: str
    bound_by: int  # 0 where it is not known
    # The cells that it was computed in, each with the events that the cell read.
    cells: tuple[tuple[int, tuple[int, ...]], ...]
    trouble: str = ""

    @property
    def seqs(self) -> list[int]:
        """The events that it derives from."""
        return sorted({seq for _, seqs in self.cells for seq in seqs})


class Namespaces:
    """The namespace of one session at any of its snapshots. Not for two threads.

    Snapshots hold what changed; adding them up in order gives the namespace. Copies are kept along
    the way. Nothing is ever unpickled: types and sizes come from the snapshots, values from the
    digest that the model was shown, and where a variable comes from is what the host recorded when
    it gave events to a cell.
    """

    def __init__(self) -> None:
        # By the kernel's number of a cell: the seq of its event, and the events that it read.
        self._cells: dict[int, int] = {}
        self._sources: dict[int, tuple[int, ...]] = {}
        # Copies of the namespace, each with the number of snapshots that it adds up.
        self._copies: list[tuple[int, dict[str, SavedName]]] = [(0, {})]

    def at(self, past: Past, request: Event) -> list[ShownVariable]:
        """The variables that the cells before a request had left, the one that was bound last
        first.
        """
        cell_seqs = [snapshot.reply_to or 0 for snapshot in past.snapshots]
        count = bisect.bisect_left(cell_seqs, request.seq)
        at = bisect.bisect_right(self._copies, count, key=lambda copy: copy[0])
        done, copy = self._copies[at - 1]
        names = dict(copy)
        while done < count:
            part = past.snapshots[done : min(count, done + EVERY - done % EVERY)]
            self._add(past, names, [snapshot.seq for snapshot in part])
            done += len(part)
            if done % EVERY == 0 and done > self._copies[-1][0]:
                self._copies.append((done, dict(names)))
        previews: dict[str, str] = {}
        for name, line in _LINE.findall(str(request.metadata.get("digest", ""))):
            previews[name] = _ORIGIN.sub("", line)
        variables = [
            self._variable(saved, previews.get(saved.name, "")) for saved in names.values()
        ]
        for name, preview in previews.items():
            if name not in names:
                variables.append(ShownVariable(name, "", 0, preview, 0, ()))
        return sorted(variables, key=lambda variable: (-variable.bound_by, variable.name))

    def _add(self, past: Past, names: dict[str, SavedName], seqs: list[int]) -> None:
        log = past.store.log
        for event in log.get_many(seqs):
            try:
                change = msgspec.json.decode(log.text(event), type=_Change)
            except (msgspec.MsgspecError, PayloadMissing, PayloadDamaged):
                # It was erased or is damaged, so its variables are unknown.
                continue
            self._cells[change.cell] = event.reply_to or 0
            self._sources.update(change.sources)
            for name in change.gone:
                names.pop(name, None)
            for saved in change.saved:
                names[saved.name] = saved

    def _variable(self, saved: SavedName, preview: str) -> ShownVariable:
        sources = {cell: self._sources.get(cell, ()) for cell in (*saved.cells, saved.cell)}
        if saved.seqs:
            # An older version named events instead of cells.
            sources[saved.cell] = saved.seqs
        cells = []
        for cell, seqs in sources.items():
            if cell in self._cells:
                cells.append((self._cells[cell], tuple(seq for seq in seqs if seq)))
        trouble = saved.reason.partition(":")[0]
        if not trouble and saved.stale:
            trouble = "may have changed since it was saved"
        return ShownVariable(
            name=saved.name,
            type=saved.type,
            size=saved.size,
            preview=preview,
            bound_by=self._cells.get(saved.cell, 0),
            cells=tuple(sorted(cells)),
            trouble=trouble,
        )


ROW = 26
MOST_NODES = 26


def variable_graph(variables: list[ShownVariable], names: dict[int, str]) -> Markup:
    """Events, the cells that were given them, and the variables that these cells bound, from left
    to right.
    """
    variables = [variable for variable in variables if variable.cells][:MOST_NODES]
    variables.sort(key=lambda variable: variable.bound_by)
    if not variables:
        return Markup("")
    sources = [source for variable in variables for source in variable.cells]
    cells = sorted({cell for cell, _ in sources})[-MOST_NODES:]
    reads = {(seq, cell) for cell, seqs in sources for seq in seqs if cell in cells}
    seqs = sorted({seq for seq, _ in reads})[-MOST_NODES:]
    height = max(len(seqs), len(cells), len(variables)) * ROW + 30
    place: dict[str, float] = {}
    for column in (
        [f"e{seq}" for seq in seqs],
        [f"c{cell}" for cell in cells],
        [f"v{variable.name}" for variable in variables],
    ):
        gap = (height - 30) / max(len(column), 1)
        place.update((key, 24 + gap * (i + 0.5)) for i, key in enumerate(column))
    edges = [(300, f"e{seq}", 490, f"c{cell}") for seq, cell in sorted(reads) if seq in seqs]
    edges += [
        (590, f"c{cell}", 720, f"v{variable.name}")
        for variable in variables
        for cell, _ in variable.cells
        if cell in cells
    ]
    pieces = [_edge(x1, place[start], x2, place[end], start, end) for x1, start, x2, end in edges]
    nodes = [
        (10, f"e{seq}", 290, f"/event/{seq}", f"{seq} {names.get(seq, '')}", "t-result")
        for seq in seqs
    ]
    nodes += [(490, f"c{cell}", 100, f"/event/{cell}", f"cell {cell}", "t-reply") for cell in cells]
    for variable in variables:
        text = f"{variable.name}: {variable.type}".rstrip(": ")
        nodes.append((720, f"v{variable.name}", 270, "", text, "t-digest"))
    for x, key, width, url, text, colour in nodes:
        pieces.append(_node(x, place[key], width, url, text, colour, key))
    for x, heading in ((10, "events"), (490, "cells"), (720, "variables")):
        pieces.append(_label(x, 12, heading))
    return Markup(
        f'<svg class="graph" viewBox="0 0 {WIDTH} {height}" role="group" '
        f'aria-label="Which events and cells the variables come from">{"".join(pieces)}</svg>'
    )


def _edge(x1: float, y1: float, x2: float, y2: float, start: str, end: str) -> str:
    middle = (x1 + x2) / 2
    path = f"M{x1} {y1:.1f} C{middle} {y1:.1f} {middle} {y2:.1f} {x2} {y2:.1f}"
    return f'<path class="edge" data-from="{_text(start)}" data-to="{_text(end)}" d="{path}"/>'


def _node(x: float, y: float, width: float, url: str, text: str, colour: str, key: str) -> str:
    room = int(width // 7)
    short = text if len(text) <= room else text[: room - 1] + "…"
    box = _rect(f"node {colour}", x, y - 10, width, 20)
    inside = f'<text x="{x + 8:.1f}" y="{y + 4:.1f}">{_text(short)}</text>'
    drawing = f'<g data-node="{_text(key)}"><title>{_text(text)}</title>{box}{inside}</g>'
    return f'<a href="{url}" aria-label="{_text(text)}">{drawing}</a>' if url else drawing
