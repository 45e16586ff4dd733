"""Drives a real Gemini CLI against its API on loopback, and prints what happened as JSON.

unshare -n python gemini_driver.py GEMINI FOLDER
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from assistant_runs import UNRELATED, Place, events, faults, scroll
from provider_server import Exchange, ProviderServer
from scroll_assistants.project import project_task
from scroll_context.events import Draft
from scroll_context.store import Store

ASKED = "Always measure twice. What do we know of the kingfisher?"
SECOND = "Does the kingfisher still nest by the weir?"
SETTINGS = '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'


class Api:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def play(self, exchange: Exchange) -> None:
        self.requests.append(exchange.body)
        searched = "functionResponse" in json.dumps(exchange.body["contents"])
        call = {"name": "mcp_scroll_search", "args": {"query": "kingfisher"}}
        part = {"text": f"Answer {len(self.requests)}."} if searched else {"functionCall": call}
        candidate = {
            "content": {"role": "model", "parts": [part]},
            "finishReason": "STOP",
            "index": 0,
        }
        exchange.start_stream(chunked=False)
        exchange.send(
            {
                "candidates": [candidate],
                "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 18},
            }
        )


def main(gemini: str, folder: Path) -> dict[str, Any]:
    place = Place.made(folder)
    # In a history of a few messages no word is rare, and so nothing is relevant.
    with Store(place.store) as opened:
        for colour in ("red", "green", "blue", "white", "black", "grey", "pink", "brown"):
            opened.append(
                Draft(
                    role="assistant",
                    session_id="old",
                    task_id=project_task(place.project),
                    content=f"The {colour} button is wide.",
                )
            )
    settings = place.file(".gemini", "settings.json")
    settings.write_text(SETTINGS)
    environment = {"HOME": str(place.home), "PATH": os.environ["PATH"], "GEMINI_API_KEY": "none"}
    report: dict[str, Any] = {
        "diff": scroll(environment, "install", "gemini", "--yes", "--store", str(place.store))
    }
    api = Api()
    with ProviderServer(api.play) as server:
        environment["GOOGLE_GEMINI_BASE_URL"] = server.url
        for prompt in (ASKED, SECOND, UNRELATED):
            if prompt == SECOND:
                place.poison(environment)
            report["unrelated_from"] = len(api.requests)
            command = [
                gemini,
                "--model",
                "gemini-2.5-flash",
                "--skip-trust",
                "--approval-mode",
                "yolo",
                "-p",
                prompt,
            ]
            place.ask(command, environment, lambda: f"Answer {len(api.requests)}.")
    report["requests"] = [request["contents"] for request in api.requests]
    report["events"] = events(place.store)
    report["log"] = faults(place.home)
    scroll(environment, "install", "gemini", "--remove", "--yes")
    report["settings"] = settings.read_text()
    return report


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
