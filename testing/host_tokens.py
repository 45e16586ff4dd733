"""The tokens that an agent on a framework sends in 200 steps, with and without Scroll.

Started with the name of a host module: `python testing/host_tokens.py host_langchain`.
"""

import importlib
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
    largest = max(text_tokens(request) for request in host.requests)
    longest = max(text_tokens(request) for request in plain.requests)
    print(
        f"200 steps: {without:,} tokens without Scroll (largest request {longest:,}), "
        f"{total:,} with a window of {WINDOW:,} (largest request {largest:,}), "
        f"{without / total:.1f} times fewer"
    )


if __name__ == "__main__":
    main(sys.argv[1])
