"""Drives a real Codex against a Responses API on loopback, and prints what happened as JSON.

    unshare -n python codex_driver.py CODEX FOLDER

Codex may start MCP servers while it already works, so the model that is played here runs an idle
command until our tools are offered. Its first answer says that the window is full, so Codex
compacts the session and goes on.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from assistant_runs import UNRELATED, Place, events, faults, recorded, scroll, wait_for
from provider_server import Exchange, ProviderServer

ASKED = "Always measure twice. What do we know of the kingfisher?"
SECOND = "Does the kingfisher still nest by the weir?"
LIMIT = "model_auto_compact_token_limit = 5000\n"
CONFIG = f"""model = "any"
model_provider = "here"
{LIMIT}
[model_providers.here]
name = "here"
base_url = "URL"
wire_api = "responses"
"""


class Api:
    def __init__(self, store: Path) -> None:
        self.store = store
        self.requests: list[dict[str, Any]] = []

    def play(self, exchange: Exchange) -> None:
        self.requests.append(exchange.body)
        number = len(self.requests)
        done = [item for item in exchange.body["input"] if item["type"] == "function_call"]
        offered = any(tool.get("name") == "mcp__scroll" for tool in exchange.body["tools"])
        searched = any(item["name"] == "search" for item in done)
        compacts = "for another LLM" in json.dumps(exchange.body["input"][-1])
        if compacts:
            # A real model takes longer than a capture.
            wait_for(lambda: ASKED in recorded(self.store))
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"}
        if compacts or searched or len(done) > 100:
            item = {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "content": [{"type": "output_text", "text": f"Answer {number}."}],
            }
        elif offered and number > 1:
            # The first answer fills the window: a search in it would be compacted away.
            item = {
                **call,
                "namespace": "mcp__scroll",
                "name": "search",
                "arguments": '{"query": "kingfisher"}',
            }
        else:
            item = {**call, "name": "exec_command", "arguments": '{"cmd": "sleep 0.3"}'}
        tokens = 200_000 if number == 1 else 9
        usage = {"input_tokens": tokens, "output_tokens": 9, "total_tokens": tokens + 9}
        exchange.start_stream(chunked=False)
        for kind, fields in (
            ("response.created", {"response": {"id": f"r{number}"}}),
            ("response.output_item.done", {"output_index": 0, "item": item}),
            ("response.completed", {"response": {"id": f"r{number}", "usage": usage}}),
        ):
            exchange.send({"type": kind, **fields}, event=kind)


def main(codex: str, folder: Path) -> dict[str, Any]:
    place = Place.made(folder)
    config = place.file(".codex", "config.toml")
    environment = {"HOME": str(place.home), "PATH": os.environ["PATH"]}
    bypass = ["--dangerously-bypass-hook-trust", "--dangerously-bypass-approvals-and-sandbox"]
    api = Api(place.store)
    report: dict[str, Any] = {}
    with ProviderServer(api.play) as server:
        original = CONFIG.replace("URL", f"{server.url}/v1")
        config.write_text(original)
        report["diff"] = scroll(
            environment, "install", "codex", "--yes", "--store", str(place.store)
        )
        for prompt in (ASKED, SECOND, UNRELATED):
            if prompt == SECOND:
                place.poison(environment)
            report["unrelated_from"] = len(api.requests)
            command = [codex, "exec", "--skip-git-repo-check", *bypass, prompt]
            place.ask(command, environment, lambda: f"Answer {len(api.requests)}.")
    report["requests"] = [request["input"] for request in api.requests]
    report["events"] = events(place.store)
    report["log"] = faults(place.home)
    (report["doctor"],) = [
        row
        for row in json.loads(scroll(environment, "doctor", "--json"))["assistants"]
        if row["assistant"] == "codex"
    ]
    scroll(environment, "install", "codex", "--remove", "--yes")
    report["config_untouched"] = config.read_text() == original
    report["hooks_gone"] = not config.with_name("hooks.json").exists()
    return report


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
