"""Lets a real assistant work against a scripted provider on loopback, imports the history that it
wrote, and prints the events as JSON.

unshare -n python history_driver.py PROGRAM FOLDER NAME
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from assistant_runs import loopback_up, scroll
from scripted_upstream import ScriptedUpstream, Turn
from scroll_context.store import Store
from upstream_wire import Answer, Call

ASKED = "What do the notes say?"
THEN = "Show nothing.txt."
NOTE = "The kingfisher nests by the weir."
MISSING = "cat nothing.txt"


class Assistant:
    """How an assistant is pointed at a provider, and the names of its tools."""

    def __init__(self, read: str, argument: str, shell: str, **more: Any) -> None:
        self.read = read
        self.argument = argument
        self.shell = shell
        self.more = more

    def words(self, prompt: str, is_first: bool) -> list[str]:
        raise NotImplementedError

    def prepare(self, home: Path, url: str) -> dict[str, str]:
        """Write its settings; the variables of its environment."""
        raise NotImplementedError


class Pi(Assistant):
    def words(self, prompt: str, is_first: bool) -> list[str]:
        resumed = [] if is_first else ["--continue"]
        return ["--model", "local/any", *resumed, "-p", prompt]

    def prepare(self, home: Path, url: str) -> dict[str, str]:
        provider = {
            "baseUrl": url,
            "api": "anthropic-messages",
            "apiKey": "none",
            "models": [{"id": "any", "reasoning": True}],
        }
        settings = home / ".pi" / "agent" / "models.json"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps({"providers": {"local": provider}}))
        return {"PI_OFFLINE": "1"}


class Qwen(Assistant):
    def words(self, prompt: str, is_first: bool) -> list[str]:
        resumed = [] if is_first else ["--continue"]
        return ["--auth-type", "openai", "--yolo", *resumed, "-p", prompt]

    def prepare(self, home: Path, url: str) -> dict[str, str]:
        del home
        return {
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_MODEL": "any",
        }


class Copilot(Assistant):
    def words(self, prompt: str, is_first: bool) -> list[str]:
        resumed = [] if is_first else ["--continue"]
        return ["--allow-all-tools", *resumed, "-p", prompt]

    def prepare(self, home: Path, url: str) -> dict[str, str]:
        del home
        return {
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
            "COPILOT_PROVIDER_API_KEY": "none",
            "COPILOT_MODEL": "any",
            "COPILOT_OFFLINE": "true",
        }


ASSISTANTS = {
    "pi": Pi("read", "path", "bash"),
    "qwen": Qwen(
        "read_file", "file_path", "run_shell_command", is_background=False, description="look"
    ),
    "copilot": Copilot("view", "path", "bash", description="look"),
}


def main(program: str, folder: Path, name: str) -> dict[str, Any]:
    assistant = ASSISTANTS[name]
    home = folder / "home"
    project = folder / "shop"
    for made in (home, project):
        made.mkdir()
    notes = project / "notes.txt"
    notes.write_text(f"{NOTE}\n")

    def script(turn: Turn) -> Answer:
        if turn.number == 1:
            call = Call(assistant.read, {assistant.argument: str(notes)})
            return Answer("I read them.", (call,), thinking=True)
        if turn.number == 3:
            call = Call(assistant.shell, {"command": MISSING, **assistant.more})
            return Answer("I look.", (call,))
        return Answer(f"Answer {turn.number}.")

    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "TERM": "dumb"}
    store = folder / "store"
    imports = []
    with ScriptedUpstream(script, binds_thinking=False) as upstream:
        environment |= assistant.prepare(home, upstream.url)
        for prompt in (ASKED, THEN):
            subprocess.run(
                [program, *assistant.words(prompt, prompt == ASKED)],
                cwd=project,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                timeout=120,
                check=True,
            )
            words = ["import", "--all", "--store", str(store)]
            imports.append(scroll(environment, *words))
    with Store(store) as opened:
        events = [
            {
                "kind": event.kind,
                "role": event.role,
                "name": event.name,
                "content": event.content,
                "session": event.session_id,
                "agent": event.agent_id,
                "task": event.task_id,
                "call": event.tool_call_id,
                "state": event.tool_state,
                "imported": event.metadata.get("imported", ""),
            }
            for event in opened.log.iterate()
        ]
    return {"events": events, "imports": imports, "refused": upstream.broken_rules}


if __name__ == "__main__":
    loopback_up()
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])))
