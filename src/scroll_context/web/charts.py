"""Charts as SVG, made here from numbers: a browser only draws them. Colours are classes of the style sheet."""

from urllib.parse import quote

from markupsafe import Markup

from scroll_context.text.printable import visible
from scroll_context.web.pressure import Chart, Column
from scroll_context.web.seen import Page
from scroll_context.web.variables import Variable

WIDTH = 1000


def token_bar(page: Page) -> Markup:
    """The tokens of a request by what they are for, against the window and its marks; below, the repeated prefix."""
    total = sum(part.tokens for part in page.parts)
    window = max(page.window, total, 1)
    scale = WIDTH / window
    pieces: list[Markup] = []
    x = 0.0
    for part in page.parts:
        width = part.tokens * scale
        pieces.append(
            Markup(
                '<rect class="t-{}" x="{:.1f}" y="14" width="{:.1f}" height="22"><title>{}: {:,}</title></rect>'
            ).format(part.name, x, max(width, 0.5), part.label, part.tokens)
        )
        x += width
    before = sum(part.tokens for part in page.parts if part.name in ("tools",))
    prefix = min((page.difference.prefix_tokens + before) * scale, WIDTH) if page.difference.prefix_tokens else 0
    if prefix:
        pieces.append(
            Markup('<rect class="prefix" x="0" y="40" width="{:.1f}" height="5"><title>{}</title></rect>').format(
                prefix, "the same as at the beginning of the request before"
            )
        )
    for share, name in ((page.high, "high mark"), (page.low, "low mark")):
        at = share * WIDTH * page.window / window
        anchor = "end" if at > WIDTH * 0.9 else "start"
        pieces.append(
            Markup(
                '<line class="mark" x1="{0:.1f}" x2="{0:.1f}" y1="2" y2="46"/>'
                '<text class="label" x="{1:.1f}" y="10" text-anchor="{2}">{3}</text>'
            ).format(at, at + (-4 if anchor == "end" else 4), anchor, name)
        )
    return Markup(
        '<svg class="bar" viewBox="0 0 {} 48" preserveAspectRatio="none" role="img" '
        'aria-label="{:,} tokens by use, in a window of {:,}">'
        '<rect class="track" x="0" y="14" width="{}" height="22"/>{}</svg>'
    ).format(WIDTH, total, page.window, WIDTH, Markup("").join(pieces))


# the window over time -----------------------------------------------------------------------------------

TOP, TALL, LOW = 14, 220, 46
LEFT = 56


def pressure_chart(chart: Chart, session_id: str, *, linked: bool = True) -> Markup:
    """Tokens of each request against the window and its marks, with evictions; below, the index and the cost."""
    columns = chart.columns
    window = max((one.window for one in columns), default=0)
    top = max([window, 1, *(one.tokens for one in columns)]) * 1.04
    wide = (WIDTH - LEFT) / max(len(columns), 1)
    base = TOP + TALL
    pieces = [_grid(top, base)]
    index_top = max([1, *(one.index for one in columns)])
    cost_top = max([0.0, *(one.dollars for one in columns)])
    panels = [("index", base + 34), ("cost", base + 34 + LOW + 30)][: 2 if cost_top else 1]
    for at, one in enumerate(columns):
        x = LEFT + at * wide
        tall, cached = TALL * one.tokens / top, TALL * min(one.cached, one.tokens) / top
        bars = Markup('<rect class="used" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"/>').format(
            x, base - tall, max(wide - 0.6, 0.4), tall
        ) + Markup('<rect class="cached" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"/>').format(
            x, base - cached, max(wide - 0.6, 0.4), cached
        )
        if one.evictions:
            bars += Markup('<path class="evicted" d="M{:.1f} {} l5 9 h-10 z"/>').format(x + wide / 2, base + 4)
        small = LOW * one.index / index_top
        bars += Markup('<rect class="t-index" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"/>').format(
            x, panels[0][1] + LOW - small, max(wide - 0.6, 0.4), small
        )
        if cost_top:
            paid = LOW * one.dollars / cost_top
            bars += Markup('<rect class="paid" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"/>').format(
                x, panels[1][1] + LOW - paid, max(wide - 0.6, 0.4), paid
            )
        hit = Markup('<rect class="hit" x="{:.2f}" y="{}" width="{:.2f}" height="{}"/>').format(
            x, TOP, wide, panels[-1][1] + LOW - TOP
        )
        where = f"/request/{one.first}"
        if one.count > 1:
            where = f"/pressure/{quote(session_id, safe='')}?from={one.first}&to={one.last}"
        drawn = Markup("<title>{}</title>{}{}").format(_told(one), bars, hit)
        link = Markup('<a href="{}" tabindex="-1" aria-label="{}">{}</a>')
        pieces.append(link.format(where, _told(one), drawn) if linked else Markup("<g>{}</g>").format(drawn))
    for share, name in ((1.0, "window"), (chart.high, "high mark"), (chart.low, "low mark")):
        y = base - TALL * share * window / top
        pieces.append(
            Markup('<line class="mark" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, WIDTH, y, y)
            + Markup('<text class="label" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(WIDTH - 4, y - 4, name)
        )
    pieces.append(
        Markup('<text class="label" x="{}" y="{}">index, up to {:,} tokens</text>').format(
            LEFT, panels[0][1] - 6, index_top
        )
    )
    if cost_top:
        pieces.append(
            Markup('<text class="label" x="{}" y="{}">cost so far, ${:,.4f}</text>').format(
                LEFT, panels[1][1] - 6, cost_top
            )
        )
    return Markup('<svg class="pressure" viewBox="0 0 {} {}" role="group" aria-label="{}">{}</svg>').format(
        WIDTH, panels[-1][1] + LOW + 4, "Tokens of each request against the window", Markup("").join(pieces)
    )


def _grid(top: float, base: float) -> Markup:
    step = 10 ** (len(str(int(top))) - 1)
    step = step // 2 if top / step < 3 else step
    lines = []
    for value in range(0, int(top) + 1, max(step, 1)):
        y = base - TALL * value / top
        lines.append(
            Markup('<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>').format(LEFT, WIDTH, y)
            + Markup('<text class="label" x="{}" y="{:.1f}" text-anchor="end">{:,}</text>').format(
                LEFT - 6, y + 4, value
            )
        )
    return Markup("").join(lines)


def _told(one: Column) -> str:
    which = (
        f"request {one.first}" if one.count == 1 else f"{one.count} requests, {one.first} to {one.last}, the largest"
    )
    cached = f", {100 * one.cached // one.tokens} % from the cache" if one.tokens and one.cached else ""
    left = f", after {one.evictions} eviction{'' if one.evictions == 1 else 's'}" if one.evictions else ""
    return f"{which}: {one.tokens:,} of {one.window:,} tokens{cached}{left}"


# where variables come from ------------------------------------------------------------------------------

ROW = 26
MOST_NODES = 26


def variable_graph(variables: list[Variable], names: dict[int, str]) -> Markup:
    """Events, the cells that were given them, and the variables that these cells bound, from left to right."""
    shown = sorted([one for one in variables if one.cells][:MOST_NODES], key=lambda one: one.bound_by)
    if not shown:
        return Markup("")
    cells = sorted({cell for one in shown for cell, _ in one.cells})[-MOST_NODES:]
    given = {(seq, cell) for one in shown for cell, seqs in one.cells for seq in seqs if cell in cells}
    seqs = sorted({seq for seq, _ in given})[-MOST_NODES:]
    height = max(len(seqs), len(cells), len(shown)) * ROW + 30
    place: dict[str, float] = {}
    for column in ([f"e{seq}" for seq in seqs], [f"c{cell}" for cell in cells], [f"v{one.name}" for one in shown]):
        gap = (height - 30) / max(len(column), 1)
        place.update((key, 24 + gap * (i + 0.5)) for i, key in enumerate(column))
    edges = [(300, f"e{seq}", 490, f"c{cell}") for seq, cell in sorted(given) if seq in seqs]
    edges += [(590, f"c{cell}", 720, f"v{one.name}") for one in shown for cell, _ in one.cells if cell in cells]
    pieces = [_edge(x1, place[start], x2, place[end], start, end) for x1, start, x2, end in edges]
    for seq in seqs:
        pieces.append(
            _node(10, place[f"e{seq}"], 290, f"/event/{seq}", f"{seq} {names.get(seq, '')}", "t-result", f"e{seq}")
        )
    for cell in cells:
        pieces.append(_node(490, place[f"c{cell}"], 100, f"/event/{cell}", f"cell {cell}", "t-reply", f"c{cell}"))
    for one in shown:
        said = f"{one.name}: {one.type}" if one.type else one.name
        pieces.append(_node(720, place[f"v{one.name}"], 270, "", said, "t-digest", f"v{one.name}"))
    heads = Markup("").join(
        Markup('<text class="label" x="{}" y="12">{}</text>').format(x, word)
        for x, word in ((10, "events"), (490, "cells"), (720, "variables"))
    )
    return Markup('<svg class="graph" viewBox="0 0 {} {}" role="group" aria-label="{}">{}{}</svg>').format(
        WIDTH, height, "Which events and cells the variables come from", heads, Markup("").join(pieces)
    )


def _edge(x1: float, y1: float, x2: float, y2: float, start: str, end: str) -> Markup:
    middle = (x1 + x2) / 2
    return Markup(
        '<path class="edge" data-from="{}" data-to="{}" d="M{} {:.1f} C{} {:.1f} {} {:.1f} {} {:.1f}"/>'
    ).format(start, end, x1, y1, middle, y1, middle, y2, x2, y2)


def _node(x: float, y: float, width: float, where: str, said: str, colour: str, key: str) -> Markup:
    short = visible(said if len(said) <= width // 7 else said[: int(width // 7) - 1] + "…")
    box = Markup('<rect class="node {}" x="{}" y="{:.1f}" width="{}" height="20" rx="4"/>').format(
        colour, x, y - 10, width
    )
    text = Markup('<text x="{}" y="{:.1f}">{}</text>').format(x + 8, y + 4, short)
    inside = Markup('<g data-node="{}"><title>{}</title>{}{}</g>').format(key, visible(said), box, text)
    return Markup('<a href="{}" aria-label="{}">{}</a>').format(where, visible(said), inside) if where else inside
