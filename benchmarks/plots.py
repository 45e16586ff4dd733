"""The three plots of docs/RESULTS.md, from the series of a run: search, tokens, and the index.

Drawn with matplotlib (the extra `bench`) without a display, as SVG that is the same to the byte for
the same series.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "search": "Search latency against the size of the history",
    "tokens": "Tokens sent at each step, with and without eviction",
    "index": "Size of the index against what it stands for",
}
INK, OURS, OTHER, THIRD = "#222222", "#0072B2", "#D55E00", "#009E73"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "text.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "scroll",
}


class Size(msgspec.Struct, frozen=True):
    """Milliseconds of a search in a history of so many messages."""

    messages: int
    ours: float
    fts5: float


class Index(msgspec.Struct, frozen=True):
    """The index just after an eviction."""

    # The number of entries that the index stands for.
    evicted: int
    blocks: int
    tokens: int


class Series(msgspec.Struct, frozen=True):
    """What is drawn."""

    search: list[Size]
    # By window, the tokens of each request; in the largest window nothing leaves.
    sent: dict[int, list[int]]
    index: list[Index]


def draw(series: Series, folder: Path) -> list[Path]:
    """Draw every plot; the files written."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        sys.exit(
            f"the plots need the extra `bench`, which is not installed ({error}): pip install -e "
            "'.[bench]'"
        )
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with rc_context(STYLE):
        for name, paint in (("search", _search), ("tokens", _tokens), ("index", _index)):
            figure = Figure(figsize=(5.2, 3.0), layout="constrained")
            axes = figure.subplots()
            axes.set_title(TITLES[name], loc="left", fontweight="bold", pad=8)
            axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
            axes.set_axisbelow(True)
            paint(axes, series)
            file = folder / f"{name}.svg"
            figure.savefig(file, metadata={"Date": None})
            written.append(file)
    return written


def _search(axes: "Axes", series: Series) -> None:
    sizes = [size.messages for size in series.search]
    for label, colour, times in (
        ("SQLite FTS5", OTHER, [size.fts5 for size in series.search]),
        ("Scroll", OURS, [size.ours for size in series.search]),
    ):
        axes.plot(sizes, times, "o-", color=colour, markersize=4)
        name_curve(axes, label, sizes[-1], times[-1], colour)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [short(size) for size in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("messages in the store")
    axes.set_ylabel("one question, median ms")


def _tokens(axes: "Axes", series: Series) -> None:
    largest = max(series.sent)
    for (window, sent), colour in zip(
        sorted(series.sent.items(), reverse=True), (OTHER, THIRD, OURS), strict=True
    ):
        axes.plot(range(1, len(sent) + 1), sent, color=colour, linewidth=1.4)
        label = "nothing evicted" if window == largest else f"window {short(window)}"
        name_curve(axes, label, len(sent), sent[-1], colour)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    axes.set_xlabel("step")
    axes.set_ylabel("input tokens")


def _index(axes: "Axes", series: Series) -> None:
    evicted = [point.evicted for point in series.index]
    axes.plot(
        evicted,
        [point.tokens for point in series.index],
        "o-",
        color=OURS,
        markersize=3,
        linewidth=1.2,
    )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("entries evicted")
    axes.set_ylabel("tokens", color=OURS)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    right = axes.twinx()
    right.plot(
        evicted,
        [point.blocks for point in series.index],
        "s-",
        color=OTHER,
        markersize=3,
        linewidth=1.2,
    )
    right.set_ylim(bottom=0)
    right.set_ylabel("blocks", color=OTHER)
    right.spines["right"].set_visible(True)


def name_curve(axes: "Axes", label: str, x: float, y: float, colour: str) -> None:
    """Write the name of a curve at its end."""
    axes.annotate(
        label,
        (x, y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        fontsize=8,
    )


def short(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
