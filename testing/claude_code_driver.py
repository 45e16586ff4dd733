"""Drives a real Claude Code against a Messages API on loopback, and prints what happened as JSON.

    unshare -n python claude_code_driver.py CLAUDE FOLDER

It runs where there is no network but loopback. The API is played here: it answers by the last words
of the user, writes a file, calls Scroll's tools, and summarises when it is asked to compact. The
test reads what this prints.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from anthropic_server import streamed
from assistant_runs import (
    PATIENCE,
    UNRELATED,
    Place,
    events,
    faults,
    recorded,
    scroll,
    wait_for,
)
from provider_server import Exchange, ProviderServer
from scroll_context.store import Store

ASKED = (
    "Always indent with tabs. Please write notes.txt about the heron, we decided to keep it short."
)
COUNTED = "Count the rings, up to twenty thousand."
SEARCHED = "What do we know of the kingfisher?"
LAST = "And what comes next, in one word?"
ASKED_AGAIN = "Does the kingfisher still nest by the weir?"
EDITED = "Write the notes once more."


class Api:
    """Answers as a model would that does what it is told."""

    def __init__(self, store: Path, project: Path) -> None:
        self.store = store
        self.project = project
        # The messages of each request that was no compaction, as JSON.
        self.requests: list[str] = []

    def play(self, exchange: Exchange) -> None:
        messages = exchange.body.get("messages", [])
        asked, results = last_words(messages)
        name = f"msg_{len(self.requests)}_{time.monotonic_ns()}"

        def say(text: str) -> None:
            streamed({"type": "text", "text": text}, name=name)(exchange)

        def call(tool: str, **arguments: Any) -> None:
            block = {
                "type": "tool_use",
                "id": f"toolu_{name}",
                "name": tool,
                "input": json.dumps(arguments),
            }
            streamed(block, stop="tool_use", name=name)(exchange)

        # This is how Claude Code asks for a summary.
        if "Respond with TEXT ONLY" in asked:
            wait_for(lambda: SEARCHED in recorded(self.store) and "halcyon" in recorded(self.store))
            return say("<summary>A file was written.</summary>")
        self.requests.append(json.dumps(messages))
        if ASKED in asked and not results:
            return call("Write", file_path=str(self.project / "notes.txt"), content="The heron.\n")
        if EDITED in asked and not results:
            return call("Write", file_path=str(self.project / "notes.txt"), content="The heron.\n")
        if COUNTED in asked and not results:
            return call("Bash", command="seq 1 20000", description="Count")
        if SEARCHED in asked and not results:
            return call("mcp__scroll__search", query="kingfisher")
        if (
            SEARCHED in asked
            and len(results) == 1
            and (match := re.search(r"\[(\d+)\].*\n  The king", results[0]))
        ):
            return call("mcp__scroll__expand", seqs=match[1])
        return say(f"Done with {asked[-20:]!r}; {results[-1][-60:] if results else 'no tools'}.")


def last_words(messages: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """What the user said last, and the results of tools since then."""
    asked, results = "", []
    for message in messages:
        if message["role"] != "user":
            continue
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "tool_result":
                inner = block.get("content") or ""
                results.append(
                    inner
                    if isinstance(inner, str)
                    else "\n".join(part.get("text", "") for part in inner)
                )
            elif block["type"] == "text" and not block["text"].startswith("<system-reminder>"):
                if block["text"] != asked:
                    results = []
                asked = block["text"]
    return asked, results


def talk(
    claude: str, project: Path, environment: dict[str, str], prompts: list[str]
) -> list[dict[str, Any]]:
    """Run Claude Code over these prompts, one after the other; what it printed."""
    allowed = ["--allowedTools", "Write,Bash(seq:*),mcp__scroll__search,mcp__scroll__expand"]
    command = [
        claude,
        "-p",
        "--input-format",
        "stream-json",
        "--output-format",
        "stream-json",
        "--verbose",
        *allowed,
    ]
    printed: list[dict[str, Any]] = []
    with subprocess.Popen(
        command,
        cwd=project,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for prompt in prompts:
            message = {"type": "user", "message": {"role": "user", "content": prompt}}
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                printed.append(json.loads(line))
                if printed[-1].get("type") == "result":
                    break
        process.stdin.close()
        printed += [json.loads(line) for line in process.stdout]
        process.wait(PATIENCE)
    return printed


def main(claude: str, folder: Path) -> dict[str, Any]:
    place = Place.made(folder, "The kingfisher nests by the weir; its other name is halcyon.")
    home, project, store = place.home, place.project, place.store
    settings, servers = place.file(".claude", "settings.json"), home / ".claude.json"
    original = '{\n    "includeCoAuthoredBy": false,\n    "hooks": {}\n}\n'
    settings.write_text(original)
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "ANTHROPIC_API_KEY": "sk-ant-none",
        "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }

    report: dict[str, Any] = {
        "diff": scroll(environment, "install", "claude-code", "--yes", "--store", str(store))
    }
    report["installed_again"] = scroll(
        environment, "install", "claude-code", "--yes", "--store", str(store)
    )
    api = Api(store, project)
    with ProviderServer(api.play) as server:
        environment["ANTHROPIC_BASE_URL"] = server.url
        report["printed"] = talk(
            claude, project, environment, [ASKED, COUNTED, SEARCHED, "/compact", LAST]
        )
        report["first_requests"], api.requests = api.requests, []
        wait_for(lambda: LAST in recorded(store) and recorded(store).count("Done with") >= 4)
        place.poison(environment)
        report["second"] = talk(
            claude,
            project,
            environment,
            ["Hello again.", ASKED_AGAIN, ASKED_AGAIN, UNRELATED, EDITED],
        )
        report["second_requests"] = api.requests
    wait_for(lambda: EDITED in recorded(store))
    report["wrote"] = (project / "notes.txt").read_text()
    report["events"] = events(store)
    with Store(store) as opened:
        results = [
            event
            for event in opened.log.iterate()
            if (event.kind, event.name) == ("tool_result", "Bash")
        ]
        report["counted"] = [opened.log.text(event) for event in results]
    report["doctor"] = json.loads(scroll(environment, "doctor", "--json"))["assistants"]
    report["log"] = faults(home)

    report["servers_before"] = json.loads(servers.read_text())
    scroll(environment, "install", "claude-code", "--remove", "--yes")
    report["servers_after"] = json.loads(servers.read_text())
    report["settings_untouched"] = settings.read_text() == original
    scroll(environment, "install", "claude-code", "--yes", "--store", str(store))
    settings.write_text(settings.read_text().replace("false", "true"))
    scroll(environment, "install", "claude-code", "--remove", "--yes")
    report["settings_edited"] = settings.read_text() == original.replace("false", "true")
    return report


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
