"""How much processor time `scroll mcp` takes until a client has its list of tools: `python
benchmarks/mcp_start.py [--runs N] [--against FOLDER]`.

An assistant starts the server with each of its sessions and waits for the list. `--against` names a
checkout of another revision, which is measured in turns with this one. The times are those of the
server process, as the kernel counts them when the list has arrived.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scroll_context.events import Draft
from scroll_context.store import Store

COMMAND = [sys.executable, "-c", "from scroll_context.cli.main import main; main()"]
CLIENT = {"name": "benchmark", "version": "1"}
HERE = Path(__file__).parents[1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=11)
    options.add_argument("--against", type=Path)
    arguments = options.parse_args()
    checkouts = {"this revision": HERE}
    if arguments.against:
        checkouts["the other one"] = arguments.against
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory(prefix="scroll-mcp-") as folder:
        store = Path(folder) / "store"
        with Store(store, create=True) as opened:
            opened.append(Draft(role="user", task_id="t", content="The heron stands at the weir."))
        for number in range(arguments.runs + 1):
            for name, checkout in checkouts.items():
                sample = started(checkout, store)
                # The first run compiles the modules.
                if number:
                    times[name].append(sample)
    for name, samples in times.items():
        used, waited = (statistics.median(column) for column in zip(*samples, strict=True))
        print(
            f"{name}: {used:.2f} s of processor time until the tools are listed, {waited:.2f} s "
            f"of waiting (medians of {len(samples)}; load average {os.getloadavg()[0]:.1f})"
        )


def started(checkout: Path, store: Path) -> tuple[float, float]:
    """Processor seconds and seconds until the tools are listed."""
    paths = [str(folder) for folder in sorted(checkout.glob("packages/*/src"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    server = subprocess.Popen(
        [*COMMAND, "mcp", "--store", str(store), "--task", "t"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    with server:
        handshake = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": CLIENT}
        ask(server, 1, "initialize", handshake)
        send(server, {"method": "notifications/initialized"})
        tools = ask(server, 2, "tools/list", {})["tools"]
        waited = time.perf_counter() - began
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        assert {tool["name"] for tool in tools} >= {"search", "expand", "exec", "note"}
        assert server.stdin is not None
        server.stdin.close()
        server.wait(timeout=60)
    return used, waited


def send(server: "subprocess.Popen[bytes]", message: dict[str, Any]) -> None:
    assert server.stdin is not None
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    server.stdin.flush()


def ask(
    server: "subprocess.Popen[bytes]", number: int, method: str, params: dict[str, Any]
) -> dict[str, Any]:
    send(server, {"id": number, "method": method, "params": params})
    assert server.stdout is not None
    answer: dict[str, Any] = json.loads(server.stdout.readline())["result"]
    return answer


if __name__ == "__main__":
    main()
