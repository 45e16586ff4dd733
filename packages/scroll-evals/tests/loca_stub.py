"""A small server that speaks the protocol of LOCA-bench's sandbox server, for tests: a shop with
three orders.

It is copied into a made-up checkout as gem/server/http_server.py and started like the real one. The
task is to write the sum of the orders to total.txt. `env_params.fault` of a task makes one request
go wrong; `stub.json` in the checkout makes the whole server misbehave from the start. Every request
is noted in requests.txt below --workspace-base.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ORDERS = [{"id": 1, "total": 20}, {"id": 2, "total": 15}, {"id": 3, "total": 7}]
INSTRUCTIONS = "Write the sum of all orders of the shop to `total.txt` in the workspace."


def function(
    name: str, description: str = "", **properties: dict[str, object]
) -> dict[str, object]:
    required = [one for one, schema in properties.items() if "default" not in schema]
    schema = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


TOOLS = [
    function("claim_done_claim_done", "claim the task is done"),
    function("files_write", "Write a file.", path={"type": "string"}, text={"type": "string"}),
    function("shop_list_orders", "List orders.", page={"type": "integer", "default": 1}),
    function(
        "shop_get_order",
        "One order.",
        id={"type": "number"},
        rate={"type": ["number", "null"], "default": 0.5},
    ),
    function("shop_note", "A text about errors that is no error."),
    function("shop_break", "Fails.", **{"class": {"type": "string", "default": "x"}}),
    function("shop_slow", "Takes its time.", seconds={"type": "number"}),
    function("shop_die", "Ends the server."),
    function("shop_spawn", "Starts a process in a session of its own."),
    function("shop_environment", "The variables of the server."),
]

sessions: dict[str, dict[str, object]] = {}


def init(body: dict) -> dict:
    fault = body["config"]["env_params"].get("fault", "")
    task, workspace = Path(body["task_workspace"]), Path(body["agent_workspace"])
    if fault == "die-on-init":
        os._exit(3)
    if fault == "refuse-init":
        raise RuntimeError("No tools available from MCP server(s)")
    shutil.rmtree(task, ignore_errors=True)
    workspace.mkdir(parents=True)
    if fault == "slow-init":
        (task / "logs").mkdir()
        (task / "logs" / "env.log").write_text(
            "2026-01-01 10:00:00 - INFO - generated 10 of 300 orders\n"
        )
        time.sleep(60)
    if fault != "no-log":
        log = ["2026-01-01 10:00:00 - INFO - Starting shop preprocessing..."]
        if fault == "generation":
            log += [
                "2026-01-01 10:00:01 - ERROR - Error during preprocessing: no such column: price",
                "Traceback: …",
            ]
        elif fault == "import":
            log.append(
                "2026-01-01 10:00:01 - WARNING - Could not import preprocessing module: no pandas"
            )
        else:
            log += [
                "2026-01-01 10:00:01 - INFO - ",
                "Shop preprocessing completed!",
                "all ERROR counters are 0",
            ]
        (task / "logs").mkdir()
        (task / "logs" / "env.log").write_text("\n".join(log) + "\n")
    sessions["s-1"] = {"fault": fault, "workspace": workspace}
    tools = [
        one
        for one in TOOLS
        if fault != "tools-missing" or not one["function"]["name"].startswith("shop")
    ]
    return {"session_id": "s-1", "observation": INSTRUCTIONS, "info": {}, "tools": tools}


def execute(body: dict) -> dict:
    session, name, given = sessions[body["session_id"]], body["tool_name"], body["arguments"]
    content = ""
    if name == "files_write":
        (session["workspace"] / given["path"]).write_text(given["text"])
        content = "written"
    elif name == "shop_list_orders":
        content = json.dumps(ORDERS if given.get("page", 1) == 1 else [], indent=2)
    elif name == "shop_get_order":
        content = f"asked for {json.dumps(given)}"
    elif name == "shop_note":
        content = "No error was found in the orders."
    elif name == "shop_break":
        content = f"[Tool execution error: the shop is closed to {sorted(given)}]"
    elif name == "shop_slow":
        time.sleep(given["seconds"])
    elif name == "shop_die":
        print("the shop burns down", flush=True)
        os._exit(3)
    elif name == "shop_spawn":
        content = str(
            subprocess.Popen(
                [sys.executable, "-c", "input()"], start_new_session=True, stdin=-1
            ).pid
        )
    elif name == "shop_environment":
        content = json.dumps(dict(os.environ))
    success = "error" not in content.lower()
    return {
        "role": "tool",
        "tool_call_id": body["tool_call_id"],
        "content": content,
        "success": success,
        "error": None,
    }


def evaluate(body: dict) -> dict:
    session = sessions[body["session_id"]]
    if session["fault"] == "refuse-evaluate":
        raise RuntimeError("check_local is broken")
    if session["fault"] == "die-on-evaluate":
        os._exit(3)
    total = session["workspace"] / "total.txt"
    reward = (
        7.0
        if session["fault"] == "absurd-reward"
        else float(total.exists() and total.read_text() == "42")
    )
    said = {"success": reward == 1.0, "error": None if reward else "total.txt is wrong"}
    return {
        "observation": "checked",
        "reward": reward,
        "terminated": True,
        "truncated": False,
        "info": said,
    }


def cleanup(body: dict) -> dict:
    return {"success": sessions.pop(body["session_id"], None) is not None}


class Stub(BaseHTTPRequestHandler):
    requests: Path
    start = ""

    def do_GET(self) -> None:
        self.answer(
            503 if self.start == "unhealthy" else 200,
            {"status": "ok", "active_sessions": len(sessions)},
        )

    def do_POST(self) -> None:
        endpoint = self.path.rpartition("/")[2]
        with self.requests.open("a") as requests:
            requests.write(endpoint + "\n")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if endpoint == f"{sessions.get('s-1', {}).get('fault')}" or endpoint == self.start:
            self.send(200, b'{"half of an answer')
            return
        work = {"init": init, "execute_tool": execute, "evaluate": evaluate, "cleanup": cleanup}[
            endpoint
        ]
        try:
            self.answer(200, work(body))
        except RuntimeError as error:
            self.answer(500, {"detail": f"Failed to {endpoint}: {error}"})

    def answer(self, status: int, body: dict) -> None:
        self.send(status, json.dumps(body).encode())

    def send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--workspace-base", type=Path)
    given = parser.parse_args()
    settings = Path(__file__).parents[2] / "stub.json"
    Stub.start = json.loads(settings.read_text())["start"] if settings.exists() else ""
    Stub.requests = given.workspace_base / "requests.txt"
    if Stub.start == "exit":
        sys.exit("ModuleNotFoundError: No module named 'fastapi'")
    host = "0.0.0.0" if Stub.start == "everywhere" else given.host
    with ThreadingHTTPServer((host, given.port), Stub) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
