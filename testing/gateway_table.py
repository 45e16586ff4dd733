"""The runs of real assistants through a gateway as a Markdown table.

    python testing/gateway_table.py REPORT…

A report is a file that `make test-gateway` writes to .venv/gateway.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from provider_rules import Json

NAMES = {"claude": "Claude Code", "codex": "Codex", "opencode": "opencode"}


def table(runs: Sequence[Json]) -> str:
    """One column per run."""
    columns = [_figures(run) for run in runs]
    rows = [["", *(f"{NAMES[run['assistant']]} {run['version']}" for run in runs)]]
    rows += [[title, *(column[title] for column in columns)] for title in columns[0]]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|---|" + "---:|" * len(runs))
    return "\n".join(lines)


def _figures(run: Json) -> dict[str, str]:
    sums, returned = run["sums"], run["returned"]
    recalls = run["recalls"]
    return {
        "window": f"{run['window']:,}",
        "requests": f"{run['requests']:,}",
        "largest request, direct → sent": f"{sums['largest_direct']:,} → {run['largest']:,}",
        "tokens": f"{_millions(sums['tokens_direct'])} → {_millions(sums['tokens_sent'])}",
        "cost units": f"{_millions(sums['cost_direct'])} → {_millions(sums['cost_sent'])}",
        "prefix repeated": f"{run['repeated']:.1%}",
        "evictions, all prefix changes": f"{sums['evictions']}, {run['prefix_changes']}",
        "compactions by the client": str(run["compactions"]),
        "failed thinking": str(run["failed_thinking"]),
        "unpaired calls and other broken rules": str(run["unpaired"]),
        "messages back by seq, to the byte": f"{returned['exact']} of {returned['first_sent']}",
        "recalls, with the right text": f"{len(recalls)}, {sum(recalls)}",
    }


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f}M"


if __name__ == "__main__":
    print(table([json.loads(Path(name).read_text()) for name in sys.argv[1:]]))
