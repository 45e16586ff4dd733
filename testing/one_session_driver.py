"""Lets a real Claude Code or Codex talk with hooks alone, then through a gateway, then imports its
history, and prints what the store holds as JSON.

    unshare -n python one_session_driver.py PROGRAM FOLDER

It runs where there is no network but loopback.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from assistant_clients import Client, client_of
from assistant_runs import loopback_up, recorded, scroll, wait_for
from codex_driver import CONFIG, LIMIT
from gateway_driver import conversation, environment
from scripted_upstream import ScriptedUpstream, Turn
from scroll_assistants.importers.capture import capture_all, installed
from scroll_context.importing.records import ImportReport
from scroll_context.projects import project_task
from scroll_context.store import Store
from scroll_gateway.assistants import Recall, run_of
from scroll_gateway.running import opened
from upstream_wire import Answer

FIRST, SECOND = "Read the first part.", "Read the second part."


def main(program: str, folder: Path) -> dict[str, Any]:
    loopback_up()
    client = client_of(program)
    home, project, store = folder / "home", folder / "project", folder / "store"
    for place in (home, project):
        place.mkdir(parents=True)
    for number in (1, 2):
        (project / f"part-{number}.txt").write_text(f"This is part {number}.\n")

    def script(turn: Turn) -> Answer:
        if not turn.tools:
            return Answer("A title")
        number = (turn.number + 1) // 2
        if turn.number % 2:
            read = client.reading(project / f"part-{number}.txt")
            return Answer(f"I read part {number}.", (read,), thinking=True)
        return Answer(f"Part {number} is read.", thinking=True)

    reports: list[ImportReport] = []
    with ScriptedUpstream(
        script,
        conversation=conversation,
        # Claude Code adds the tools of an MCP server when it is ready, which may be in the middle.
        binds_thinking=False,
    ) as upstream:
        variables = environment(home, upstream.url)
        with Store(store, create=True):
            pass
        name = {"claude": "claude-code"}.get(client.name, client.name)
        address = upstream.url
        if client.name == "codex":
            address = f"{upstream.url}/v1"
            (home / ".codex").mkdir()
            config = CONFIG.replace("URL", address).replace(LIMIT, "")
            (home / ".codex" / "config.toml").write_text(config)
        scroll(variables, "install", name, "--yes", "--store", str(store))
        _run([program, *_words(client, FIRST)], project, variables)
        session = client.conversation(upstream.requests[-1].headers)
        wait_for(lambda: "Part 1 is read." in recorded(store))
        task_id = project_task(project)
        with opened(store, address, window=60_000, task_id=task_id) as running:
            recall = Recall(store=str(store))
            words = _words(client, SECOND, session)
            child = run_of(client.name, program, words, running.url, recall, variables)
            with running.serving():
                _run(child.command, project, child.environment)
            faults = running.sums().faults
        with Store(store) as opened_store:
            files = [file for history in installed(home, {}) for file in history.files]
            for _ in range(2):
                capture_all(opened_store, files, on_report=reports.append)
            events = list(opened_store.log.iterate())
    return {
        "session": session,
        "faults": faults,
        "broken_rules": upstream.broken_rules,
        "sessions": sorted({event.session_id for event in events}),
        "imported": [[report.added, report.left, report.error] for report in reports],
        "events": [
            {
                "kind": event.kind,
                "role": event.role,
                "call": event.tool_call_id,
                "calls": [call["id"] for call in event.metadata.get("tool_calls", ())],
                "origin": event.origin,
                "text": event.content[:200],
            }
            for event in events
            if not event.is_echo
        ],
    }


def _words(client: Client, prompt: str, session: str = "") -> list[str]:
    words = client.words(prompt, session=session)
    if client.name == "codex":
        # Nobody is there to trust the hooks.
        words.insert(words.index("--skip-git-repo-check"), "--dangerously-bypass-hook-trust")
    return words


def _run(command: list[str], project: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=project,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
