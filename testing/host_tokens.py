"""The tokens that an agent on a framework sends in 200 steps, with and without Scroll, as JSON.

Started with the name of a host module: `python testing/host_tokens.py host_langchain`.
"""

import importlib
import json
import sys
import tempfile
from pathlib import Path

from host_scenario import WINDOW, ScenarioHost, text_tokens, tokens_sent


def main(module: str) -> None:
    kind: type[ScenarioHost] = importlib.import_module(module).Host
    plain = kind(None)
    without = tokens_sent(plain)
    with tempfile.TemporaryDirectory() as folder:
        host = kind.open(Path(folder) / "store")
        assert host.adapter is not None
        with host.adapter:
            total = tokens_sent(host)
    figures = {
        "window": WINDOW,
        "without": without,
        "largest_without": max(text_tokens(request) for request in plain.requests),
        "with": total,
        "largest_with": max(text_tokens(request) for request in host.requests),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1])
