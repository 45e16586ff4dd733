"""The picture of docs/GATEWAY.md: tokens of each request, direct and through a gateway.

    python benchmarks/gateway_picture.py [REPORT]

REPORT is what `testing/gateway_driver.py` printed for a run of 150 turns. Its figures are kept in
benchmarks/gateway_tokens.json, from which the picture is drawn.
"""

import json
import sys
from pathlib import Path
from typing import Any

import plots

FIGURES = Path(__file__).with_name("gateway_tokens.json")
PICTURE = Path(__file__).parents[1] / "docs" / "img" / "gateway.svg"


def keep(report: Path) -> None:
    """Keep the figures of a run that the picture needs."""
    run = json.loads(report.read_text().splitlines()[-1])
    direct, sent = zip(*run["tokens"], strict=True)
    assistant = report.name.partition("-")[0]
    figures = {"assistant": assistant, "window": run["window"], "direct": direct, "sent": sent}
    FIGURES.write_text(json.dumps(figures) + "\n")


def draw(figures: dict[str, Any], file: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = {"claude": "Claude Code", "codex": "Codex", "opencode": "opencode"}
    with rc_context(plots.STYLE):
        figure = Figure(figsize=(5.6, 3.0), layout="constrained")
        axes = figure.subplots()
        title = f"{names[figures['assistant']]}: tokens per request (scripted upstream)"
        axes.set_title(title, loc="left", fontweight="bold", pad=8)
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
        window = plots.short(figures["window"])
        curves = (("direct", "direct", plots.OTHER), ("sent", f"window {window}", plots.OURS))
        for key, label, colour in curves:
            tokens = figures[key]
            axes.plot(range(1, len(tokens) + 1), tokens, color=colour, linewidth=1.4)
            plots.name_curve(axes, label, len(tokens), tokens[-1], colour)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: plots.short(value))
        axes.set_xlabel("request")
        axes.set_ylabel("input tokens (estimated)")
        figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        keep(Path(sys.argv[1]))
    draw(json.loads(FIGURES.read_text()), PICTURE)
    print(PICTURE)
