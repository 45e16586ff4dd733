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
    return f'<rect class="{colour}" x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}">{inside}</rect>'


def _line(colour: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{colour}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _label(x: float, y: float, said: str, anchor: str = "start") -> str:
    return (
        f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(said)}</text>'
    )


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
    if prefix := page.difference.prefix_tokens:
        prefix += sum(
            part.tokens for part in page.parts if part.name == "tools"
        )  # schemas are sent before messages
        said = "the same as at the beginning of the request before"
        pieces.append(_rect("prefix", 0, 40, min(prefix * scale, WIDTH), 5, said))
    for share, name in ((page.high, "high mark"), (page.low, "low mark")):
        at = share * WIDTH * page.window / window
        late = at > WIDTH * 0.9
        pieces += [
            _line("mark", at, 2, at, 46),
            _label(at - 4 if late else at + 4, 10, name, "end" if late else "start"),
        ]
    said = f"{total:,} tokens by use, in a window of {page.window:,}"
    return Markup(
        f'<svg class="bar" viewBox="0 0 {WIDTH} 48" preserveAspectRatio="none" role="img" aria-label="{said}">'
        f"{''.join(pieces)}</svg>"
    )


# the window over time -----------------------------------------------------------------------------------

COLUMNS = 300


class Asked(msgspec.Struct):
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
        self.requests: list[Asked] = []
        self._upto = 0
        self._evicted = False
        self._waiting: Asked | None = None

    def catch_up(self, past: Past) -> None:
        """Take in what was recorded since."""
        rows = past.store.log.query(
            f"""SELECT seq, kind, role, {number_at("tokens")}, {number_at("usage.input_tokens")},
            {number_at("usage.cache_read_tokens")}, {number_at("cost")} FROM event
            WHERE session_id = ? AND seq > ? AND seq <= ?
            AND kind IN ('{Kind.REQUEST}', '{Kind.CONVERSATION}', '{Kind.EVICTION}') ORDER BY seq""",
            [past.session_id, self._upto, past.upto],
        )
        for seq, kind, role, tokens, reported, cached, cost in rows:
            if kind == Kind.EVICTION:
                self._evicted = True
            elif kind == Kind.REQUEST:
                self._waiting = Asked(seq, int(tokens or 0), self._evicted)
                self.requests.append(self._waiting)
                self._evicted = False
            elif role == "assistant" and self._waiting is not None:
                self._waiting.reported, self._waiting.cached = int(reported or 0), int(cached or 0)
                self._waiting.dollars, self._waiting.reply = float(cost or 0), seq
                self._waiting = None
        self._upto = past.upto

    def between(self, lo: int, hi: int) -> list[Asked]:
        first = bisect.bisect_left(self.requests, lo, key=lambda one: one.seq)
        last = (
            bisect.bisect_right(self.requests, hi, key=lambda one: one.seq)
            if hi
            else len(self.requests)
        )
        return self.requests[first:last]


class Chart(msgspec.Struct, frozen=True):
    """What a chart of some requests shows."""

    columns: tuple[Column, ...]
    high: float
    low: float
    requests: Sequence[Asked]


def chart(past: Past, pressure: Pressure, lo: int = 0, hi: int = 0) -> Chart:
    """The columns for the requests between two seqs; 0 for an open end.

    There are at most COLUMNS. Of a session with more requests, a column stands for a run of them.
    """
    asked = pressure.between(lo, hi)
    newest = past.request_at(asked[-1].seq) if asked else None
    sizes = past.index_sizes(newest) if newest is not None else []
    windows = [
        (one.seq, int(one.metadata.get("window", 0)))
        for one in past.setups
        if "tools" in one.metadata
    ]
    each = -(-len(asked) // COLUMNS) or 1
    spent = sum(one.dollars for one in pressure.between(0, asked[0].seq - 1)) if asked else 0.0
    columns = []
    for at in range(0, len(asked), each):
        part = asked[at : at + each]
        largest = max(part, key=lambda one: one.reported or one.tokens)
        spent += sum(one.dollars for one in part)
        columns.append(
            Column(
                first=part[0].seq,
                last=part[-1].seq,
                count=len(part),
                tokens=largest.reported or largest.tokens,
                cached=largest.cached,
                dollars=spent,
                evictions=sum(one.evicted for one in part),
                index=_at(sizes, part[-1].seq),
                window=_at(windows, part[-1].seq),
            )
        )
    high, low = marks(past, asked[-1].seq + 1 if asked else 0)
    return Chart(tuple(columns), high, low, asked)


def _at(steps: list[tuple[int, int]], seq: int) -> int:
    """The value that held before the event at `seq`."""
    at = bisect.bisect_left(steps, seq, key=lambda one: one[0])
    return steps[at - 1][1] if at else 0


TOP, TALL, LOW = 14, 220, 46
LEFT = 56


def pressure_chart(chart: Chart, session_id: str, *, linked: bool = True) -> Markup:
    """Tokens of each request against the window and its marks, with evictions; below, the index and
    the cost.
    """
    columns = chart.columns
    window = max((one.window for one in columns), default=0)
    top = max([window, 1, *(one.tokens for one in columns)]) * 1.04
    wide = (WIDTH - LEFT) / max(len(columns), 1)
    thick = max(wide - 0.6, 0.4)
    base = TOP + TALL
    index_top = max([1, *(one.index for one in columns)])
    cost_top = max([0.0, *(one.dollars for one in columns)])
    index_base = base + 34 + LOW
    cost_base = index_base + 30 + LOW if cost_top else index_base
    here = f"/pressure/{address_of(session_id)}"
    pieces = _grid(top, base)
    for at, one in enumerate(columns):
        x = LEFT + at * wide
        parts = [
            ("used", base, TALL * one.tokens / top),
            ("cached", base, TALL * min(one.cached, one.tokens) / top),
        ]
        parts.append(("t-index", index_base, LOW * one.index / index_top))
        if cost_top:
            parts.append(("paid", cost_base, LOW * one.dollars / cost_top))
        drawn = "".join(
            _rect(colour, x, bottom - tall, thick, tall) for colour, bottom, tall in parts
        )
        if one.evictions:
            drawn += f'<path class="evicted" d="M{x + wide / 2:.1f} {base + 4} l5 9 h-10 z"/>'
        drawn += _rect("hit", x, TOP, wide, cost_base - TOP)
        summary = _summary(one)
        where = (
            f"/request/{one.first}"
            if one.count == 1
            else f"{here}?from={one.first}&amp;to={one.last}"
        )
        tag = f'a href="{where}" tabindex="-1" aria-label="{summary}"' if linked else "g"
        pieces.append(f"<{tag}><title>{summary}</title>{drawn}</{tag[0]}>")
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


def _summary(one: Column) -> str:
    several = f"{one.count} requests, {one.first} to {one.last}, the largest"
    which = f"request {one.first}" if one.count == 1 else several
    cached = (
        f", {100 * one.cached // one.tokens} % from the cache" if one.tokens and one.cached else ""
    )
    left = (
        f", after {one.evictions} eviction{'' if one.evictions == 1 else 's'}"
        if one.evictions
        else ""
    )
    return f"{which}: {one.tokens:,} of {one.window:,} tokens{cached}{left}"


# where variables come from ------------------------------------------------------------------------------

EVERY = 200  # snapshots between two copies

_LINE = re.compile(r"^(\w+): (.*)$", re.MULTILINE)
_ORIGIN = re.compile(r"  \[seq [^\]]*\]$")


class SavedName(msgspec.Struct, frozen=True):
    """What a snapshot tells of a variable, without its value."""

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
    cells: tuple[
        tuple[int, tuple[int, ...]], ...
    ]  # those that had a part in it, each with the events it was given
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
        self._cells: dict[int, int] = {}  # the kernel's number of a cell -> the seq of its event
        self._sources: dict[
            int, tuple[int, ...]
        ] = {}  # number of a cell -> the events that it was given
        self._kept: list[tuple[int, dict[str, SavedName]]] = [(0, {})]  # after so many snapshots

    def at(self, past: Past, request: Event) -> list[ShownVariable]:
        """The variables that the cells before a request had left, the one that was bound last
        first.
        """
        count = bisect.bisect_left([one.reply_to or 0 for one in past.snapshots], request.seq)
        at = bisect.bisect_right(self._kept, count, key=lambda one: one[0])
        done, kept = self._kept[at - 1]
        names = dict(kept)
        while done < count:
            part = past.snapshots[done : min(count, done + EVERY - done % EVERY)]
            self._add(past, names, [one.seq for one in part])
            done += len(part)
            if done % EVERY == 0 and done > self._kept[-1][0]:
                self._kept.append((done, dict(names)))
        shown = {
            name: _ORIGIN.sub("", line)
            for name, line in _LINE.findall(str(request.metadata.get("digest", "")))
        }
        found = [self._variable(one, shown.get(one.name, "")) for one in names.values()]
        found += [
            ShownVariable(name, "", 0, line, 0, ())
            for name, line in shown.items()
            if name not in names
        ]
        return sorted(found, key=lambda one: (-one.bound_by, one.name))

    def _add(self, past: Past, names: dict[str, SavedName], seqs: list[int]) -> None:
        log = past.store.log
        for event in log.get_many(seqs):
            try:
                change = msgspec.json.decode(log.text(event), type=_Change)
            except (msgspec.MsgspecError, PayloadMissing, PayloadDamaged):
                continue  # erased, or damaged: what it said is not known
            self._cells[change.cell] = event.reply_to or 0
            self._sources.update(change.sources)
            for name in change.gone:
                names.pop(name, None)
            names.update((one.name, one) for one in change.saved)

    def _variable(self, one: SavedName, preview: str) -> ShownVariable:
        given = {cell: self._sources.get(cell, ()) for cell in (*one.cells, one.cell)}
        if one.seqs:  # of an older version, which named events instead of cells
            given[one.cell] = one.seqs
        cells = sorted(
            (self._cells[cell], tuple(seq for seq in seqs if seq))
            for cell, seqs in given.items()
            if cell in self._cells
        )
        trouble = one.reason.partition(":")[0] or (
            "may have changed since it was saved" if one.stale else ""
        )
        bound = self._cells.get(one.cell, 0)
        return ShownVariable(one.name, one.type, one.size, preview, bound, tuple(cells), trouble)


ROW = 26
MOST_NODES = 26


def variable_graph(variables: list[ShownVariable], names: dict[int, str]) -> Markup:
    """Events, the cells that were given them, and the variables that these cells bound, from left
    to right.
    """
    shown = sorted(
        [one for one in variables if one.cells][:MOST_NODES], key=lambda one: one.bound_by
    )
    if not shown:
        return Markup("")
    cells = sorted({cell for one in shown for cell, _ in one.cells})[-MOST_NODES:]
    given = {
        (seq, cell) for one in shown for cell, seqs in one.cells for seq in seqs if cell in cells
    }
    seqs = sorted({seq for seq, _ in given})[-MOST_NODES:]
    height = max(len(seqs), len(cells), len(shown)) * ROW + 30
    place: dict[str, float] = {}
    for column in (
        [f"e{seq}" for seq in seqs],
        [f"c{cell}" for cell in cells],
        [f"v{one.name}" for one in shown],
    ):
        gap = (height - 30) / max(len(column), 1)
        place.update((key, 24 + gap * (i + 0.5)) for i, key in enumerate(column))
    edges = [(300, f"e{seq}", 490, f"c{cell}") for seq, cell in sorted(given) if seq in seqs]
    edges += [
        (590, f"c{cell}", 720, f"v{one.name}")
        for one in shown
        for cell, _ in one.cells
        if cell in cells
    ]
    pieces = [_edge(x1, place[start], x2, place[end], start, end) for x1, start, x2, end in edges]
    nodes = [
        (10, f"e{seq}", 290, f"/event/{seq}", f"{seq} {names.get(seq, '')}", "t-result")
        for seq in seqs
    ]
    nodes += [(490, f"c{cell}", 100, f"/event/{cell}", f"cell {cell}", "t-reply") for cell in cells]
    nodes += [
        (720, f"v{one.name}", 270, "", f"{one.name}: {one.type}".rstrip(": "), "t-digest")
        for one in shown
    ]
    pieces += [
        _node(x, place[key], width, where, said, colour, key)
        for x, key, width, where, said, colour in nodes
    ]
    pieces += [
        _label(x, 12, word) for x, word in ((10, "events"), (490, "cells"), (720, "variables"))
    ]
    return Markup(
        f'<svg class="graph" viewBox="0 0 {WIDTH} {height}" role="group" '
        f'aria-label="Which events and cells the variables come from">{"".join(pieces)}</svg>'
    )


def _edge(x1: float, y1: float, x2: float, y2: float, start: str, end: str) -> str:
    middle = (x1 + x2) / 2
    path = f"M{x1} {y1:.1f} C{middle} {y1:.1f} {middle} {y2:.1f} {x2} {y2:.1f}"
    return f'<path class="edge" data-from="{_text(start)}" data-to="{_text(end)}" d="{path}"/>'


def _node(x: float, y: float, width: float, where: str, said: str, colour: str, key: str) -> str:
    short = said if len(said) <= width // 7 else said[: int(width // 7) - 1] + "…"
    box = _rect(f"node {colour}", x, y - 10, width, 20)
    inside = f'<text x="{x + 8:.1f}" y="{y + 4:.1f}">{_text(short)}</text>'
    drawn = f'<g data-node="{_text(key)}"><title>{_text(said)}</title>{box}{inside}</g>'
    return f'<a href="{where}" aria-label="{_text(said)}">{drawn}</a>' if where else drawn
