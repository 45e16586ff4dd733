"""Drives a real Gemini CLI against its API on loopback, and prints what happened as JSON.

unshare -n python gemini_driver.py GEMINI FOLDER
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from assistant_runs import PATIENCE, events, faults, loopback_up, recorded, scroll, wait_for
from provider_server import Exchange, ProviderServer

from scroll_context.events import Draft
from scroll_context.project import project_task
from scroll_context.store.store import Store

ASKED = "Always measure twice. What do we know of the kingfisher?"
SECOND = "And the otter?"
SETTINGS = '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'


class Api:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def play(self, exchange: Exchange) -> None:
        self.requests.append(exchange.body)
        searched = "functionResponse" in json.dumps(exchange.body["contents"])
        call = {"name": "mcp_scroll_search", "args": {"query": "kingfisher"}}
        part = {"text": f"Answer {len(self.requests)}."} if searched else {"functionCall": call}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        exchange.start_stream(chunked=False)
        exchange.send({"candidates": [candidate], "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 18}})


def main(gemini: str, folder: Path) -> dict[str, Any]:
    loopback_up()
    home, project, store = folder / "home", folder / "project", folder / "store"
    settings = home / ".gemini" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(SETTINGS)
    project.mkdir()
    with Store(store, create=True) as opened:
        told = "The kingfisher nests by the weir."
        opened.append(Draft(role="user", session_id="old", task_id=project_task(project), content=told))
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "GEMINI_API_KEY": "none"}
    report: dict[str, Any] = {"diff": scroll(environment, "install", "gemini", "--yes", "--store", str(store))}
    api = Api()
    with ProviderServer(api.play) as server:
        environment["GOOGLE_GEMINI_BASE_URL"] = server.url
        for prompt in (ASKED, SECOND):
            subprocess.run(
                [gemini, "--model", "gemini-2.5-flash", "--skip-trust", "--approval-mode", "yolo", "-p", prompt],
                cwd=project, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True,
                timeout=2 * PATIENCE,
            )  # fmt: skip
            answer = f"Answer {len(api.requests)}."
            wait_for(lambda answer=answer: answer in recorded(store))  # type: ignore[misc]
    report["requests"] = [request["contents"] for request in api.requests]
    report["events"] = events(store)
    report["log"] = faults(home)
    scroll(environment, "uninstall", "gemini", "--yes")
    report["settings"] = settings.read_text()
    return report


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
