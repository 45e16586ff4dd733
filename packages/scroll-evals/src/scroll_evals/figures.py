"""The paper's figures, from the folders of runs: bars per ability, and box plots of what a trial
costs.

matplotlib draws them without a display, as SVG and PNG. Colour-blind readers can tell the colours
apart, and the bars of Scroll's variants are hatched as well.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scroll_evals.report import TITLES, ReportedRun, abilities, labels, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "scroll": "#0072B2",
    "scroll-no-index": "#009E73",
    "scroll-no-repl": "#E69F00",
    "scroll-lossy": "#56B4E9",
    "codeact": "#D55E00",
    "retrieval": "#CC79A7",
    "summarize": "#F0E442",
    "react": "#999999",
}
HATCHES = {"scroll-lossy": "xx", "scroll-no-repl": "//", "scroll-no-index": ".."}
INK = "#222222"
MEAN = "#C0392B"


def draw(runs: Sequence[ReportedRun], folder: Path) -> list[Path]:
    """Draw every figure that these runs have something for; the files written."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    style: dict[Any, Any] = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "scroll",
        "hatch.linewidth": 0.6,
        "axes.edgecolor": INK,
        "text.color": INK,
    }
    with rc_context(style):
        for name in dict.fromkeys(run.config.benchmark for run in runs):
            of = [
                run
                for run in runs
                if run.config.benchmark == name and run.summary.scores.by_ability
            ]
            if of:
                figure = Figure(layout="constrained")
                _bars(figure, name, of)
                written += _saved(figure, folder / f"abilities-{name}")
        if any(run.metrics for run in runs):
            figure = Figure(layout="constrained")
            _boxes(figure, [run for run in runs if run.metrics])
            written += _saved(figure, folder / "cost")
    return written


def _bars(figure: "Figure", benchmark: str, runs: Sequence[ReportedRun]) -> None:
    """Grouped bars: a group for each ability and one for all of them, a bar for each run."""
    names = abilities(benchmark, runs)
    groups = [titled(name).replace("-", "-\n").replace(" ", "\n") for name in names] + ["Overall"]
    width = 0.82 / len(runs)
    figure.set_size_inches(max(5.0, 1.1 + len(groups) * max(0.85, 0.42 + 0.2 * len(runs))), 3.4)
    axes = figure.subplots()
    for at, (run, label) in enumerate(zip(runs, labels(runs), strict=True)):
        scores = run.summary.scores
        heights = [100 * scores.by_ability.get(name, 0.0) for name in names] + [
            100 * scores.overall
        ]
        places = [group + (at - (len(runs) - 1) / 2) * width for group in range(len(groups))]
        bars = axes.bar(
            places,
            heights,
            width * 0.92,
            label=label,
            edgecolor="white",
            linewidth=0.4,
            **_look(runs, at),
        )
        if len(runs) <= 2:
            axes.bar_label(bars, fmt="%.0f", fontsize=7, padding=1)
    axes.axvline(len(names) - 0.5, color="#BBBBBB", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.55, len(groups) - 0.45)
    axes.set_ylim(0, 100)
    axes.set_ylabel("Score (%)")
    splits = " ".join(dict.fromkeys(run.config.split for run in runs))
    axes.set_title(
        f"{TITLES.get(benchmark, benchmark)} {splits}", loc="left", fontweight="bold", pad=8
    )
    _grid(axes)
    if len(runs) > 1:
        figure.legend(loc="outside lower center", ncols=min(len(runs), 4), frameon=False)


def _boxes(figure: "Figure", runs: Sequence[ReportedRun]) -> None:
    """Three panels on log axes: boxes from quartile to quartile with the median, diamonds for
    means.
    """
    panels = (
        ("tokens_in", "Input tokens"),
        ("tokens_out", "Output tokens"),
        ("step_count", "Turns"),
    )
    figure.set_size_inches(9.0, max(2.4, 1.3 + 0.42 * len(runs)))
    names = labels(runs)
    for axes, (measure, title) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
        values = [[max(1, getattr(metrics, measure)) for metrics in run.metrics] for run in runs]
        drawn = axes.boxplot(
            values,
            orientation="horizontal",
            widths=0.6,
            patch_artist=True,
            showmeans=True,
            medianprops={"color": INK, "linewidth": 1.6},
            meanprops={
                "marker": "D",
                "markerfacecolor": MEAN,
                "markeredgecolor": "white",
                "markersize": 5,
            },
            flierprops={
                "marker": "o",
                "markersize": 2.5,
                "markerfacecolor": "#888888",
                "markeredgecolor": "none",
            },
            whiskerprops={"color": INK, "linewidth": 0.8},
            capprops={"color": INK, "linewidth": 0.8},
        )
        for at, box in enumerate(drawn["boxes"]):
            look = _look(runs, at)
            box.set(
                facecolor=look["color"],
                alpha=0.75,
                edgecolor=INK,
                linewidth=0.8,
                hatch=look.get("hatch"),
            )
        axes.set_xscale("log")
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set_yticks(range(1, len(runs) + 1), names)
        axes.tick_params(axis="y", length=0)
        _ticks(axes, values)
        _grid(axes, "x")
    figure.axes[0].invert_yaxis()  # shared: the first run is on top in all three


def _ticks(axes: "Axes", values: Sequence[Sequence[int]]) -> None:
    """Plain numbers such as 20k on a log axis, few enough to be read, and never less than two."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = min(map(min, values)) / 1.25, max(map(max, values)) * 1.25
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        places = [
            step * 10**power
            for power in range(10)
            for step in steps
            if low <= step * 10**power <= high
        ]
        if len(places) >= 3:
            break
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _look(runs: Sequence[ReportedRun], at: int) -> dict[str, Any]:
    """The colour of a run, and the hatching of Scroll's variants: by context, or in turn where
    models are compared.
    """
    context = runs[at].config.context
    compared = len({run.config.model for run in runs}) > 1
    colours = list(COLOURS.values())
    look: dict[str, Any] = {
        "color": colours[at % len(colours)] if compared else COLOURS.get(context, INK)
    }
    if context in HATCHES:
        look["hatch"] = HATCHES[context]
    return look


def _grid(axes: "Axes", axis: Literal["x", "y"] = "y") -> None:
    axes.grid(axis=axis, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)


def _saved(figure: "Figure", stem: Path) -> list[Path]:
    files = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
    figure.savefig(files[0], metadata={"Date": None})
    figure.savefig(files[1], dpi=160)
    return files
