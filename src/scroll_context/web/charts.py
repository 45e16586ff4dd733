"""Charts as SVG, made here from numbers: a browser only draws them. Colours are classes of the style sheet.

The pieces of a chart are plain text. What comes from a store enters them through `_text` alone, which escapes it.
"""

from urllib.parse import quote

from markupsafe import Markup, escape

from scroll_context.text.printable import visible
from scroll_context.web.pressure import Chart, Column
from scroll_context.web.seen import SeenPage
from scroll_context.web.variables import ShownVariable

WIDTH = 1000


def _text(foreign: str) -> str:
    return str(escape(visible(foreign)))


def _rect(colour: str, x: float, y: float, width: float, height: float, title: str = "") -> str:
    inside = f"<title>{_text(title)}</title>" if title else ""
    return f'<rect class="{colour}" x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}">{inside}</rect>'


def _line(colour: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{colour}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _label(x: float, y: float, said: str, anchor: str = "start") -> str:
    return f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(said)}</text>'


def token_bar(page: SeenPage) -> Markup:
    """The tokens of a request by what they are for, against the window and its marks; below, the repeated prefix."""
    total = sum(part.tokens for part in page.parts)
    window = max(page.window, total, 1)
    scale = WIDTH / window
    pieces = [_rect("track", 0, 14, WIDTH, 22)]
    x = 0.0
    for part in page.parts:
        width = part.tokens * scale
        pieces.append(_rect(f"t-{part.name}", x, 14, max(width, 0.5), 22, f"{part.label}: {part.tokens:,}"))
        x += width
    if prefix := page.difference.prefix_tokens:
        prefix += sum(part.tokens for part in page.parts if part.name == "tools")  # schemas are sent before messages
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

TOP, TALL, LOW = 14, 220, 46
LEFT = 56


def pressure_chart(chart: Chart, session_id: str, *, linked: bool = True) -> Markup:
    """Tokens of each request against the window and its marks, with evictions; below, the index and the cost."""
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
    here = f"/pressure/{quote(session_id, safe='')}"
    pieces = _grid(top, base)
    for at, one in enumerate(columns):
        x = LEFT + at * wide
        parts = [("used", base, TALL * one.tokens / top), ("cached", base, TALL * min(one.cached, one.tokens) / top)]
        parts.append(("t-index", index_base, LOW * one.index / index_top))
        if cost_top:
            parts.append(("paid", cost_base, LOW * one.dollars / cost_top))
        drawn = "".join(_rect(colour, x, bottom - tall, thick, tall) for colour, bottom, tall in parts)
        if one.evictions:
            drawn += f'<path class="evicted" d="M{x + wide / 2:.1f} {base + 4} l5 9 h-10 z"/>'
        drawn += _rect("hit", x, TOP, wide, cost_base - TOP)
        told = _told(one)
        where = f"/request/{one.first}" if one.count == 1 else f"{here}?from={one.first}&amp;to={one.last}"
        tag = f'a href="{where}" tabindex="-1" aria-label="{told}"' if linked else "g"
        pieces.append(f"<{tag}><title>{told}</title>{drawn}</{tag[0]}>")
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


def _told(one: Column) -> str:
    several = f"{one.count} requests, {one.first} to {one.last}, the largest"
    which = f"request {one.first}" if one.count == 1 else several
    cached = f", {100 * one.cached // one.tokens} % from the cache" if one.tokens and one.cached else ""
    left = f", after {one.evictions} eviction{'' if one.evictions == 1 else 's'}" if one.evictions else ""
    return f"{which}: {one.tokens:,} of {one.window:,} tokens{cached}{left}"


# where variables come from ------------------------------------------------------------------------------

ROW = 26
MOST_NODES = 26


def variable_graph(variables: list[ShownVariable], names: dict[int, str]) -> Markup:
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
    nodes = [(10, f"e{seq}", 290, f"/event/{seq}", f"{seq} {names.get(seq, '')}", "t-result") for seq in seqs]
    nodes += [(490, f"c{cell}", 100, f"/event/{cell}", f"cell {cell}", "t-reply") for cell in cells]
    nodes += [(720, f"v{one.name}", 270, "", f"{one.name}: {one.type}".rstrip(": "), "t-digest") for one in shown]
    pieces += [_node(x, place[key], width, where, said, colour, key) for x, key, width, where, said, colour in nodes]
    pieces += [_label(x, 12, word) for x, word in ((10, "events"), (490, "cells"), (720, "variables"))]
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
