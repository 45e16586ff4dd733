"""How each real assistant is told what to do: its arguments, and its tools as a model calls them."""

import json
import re
import subprocess
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from upstream_wire import Answer, Call, Json

if TYPE_CHECKING:
    from gateway_scenes import Stage

PROGRAMS = {
    "claude": ("claude_agent_sdk", "_bundled/claude"),
    "codex": ("codex_cli_bin", "bin/codex"),
    # From npm: the variable SCROLL_OPENCODE names the program.
    "opencode": ("opencode", ""),
}
"""The package that holds each assistant, and the program inside."""

CLAUDE_MODEL = "claude-opus-4-1"
CODEX_MODEL = "any"
OPENCODE_MODEL = "anthropic/claude-sonnet-4-5"
CLAUDE_TOOLS = "Read,Agent,Task,mcp__scroll__expand,mcp__scroll__search"


class Client:
    """One assistant."""

    name = ""

    def __init__(self, program: str) -> None:
        self.program = program

    def words(self, prompt: str, *, session: str = "", fork: bool = False) -> list[str]:
        """The arguments of one run."""
        raise NotImplementedError

    def conversation(self, headers: Mapping[str, str]) -> str:
        """The client's name for the conversation of a request."""
        raise NotImplementedError

    def reading(self, file: Path) -> Call:
        """The call that reads a file."""
        raise NotImplementedError

    def looking(self, file: Path) -> Call:
        """The call that looks at a picture."""
        return self.reading(file)

    def recall(self, seq: str) -> Call:
        """The call that recalls a result."""
        raise NotImplementedError

    def offers_recall(self, tools: Collection[str]) -> bool:
        """Whether a request offers that call: an MCP server may not have started yet."""
        return self.recall("1").name in tools

    def delegation(self, task: str) -> Answer:
        raise NotImplementedError

    def after_delegation(self, number: int) -> Mapping[int, Callable[[Any], Any]]:
        del number
        return {}

    def unknown_blocks(self) -> tuple[Json, ...]:
        return ()

    def compact(self, stage: "Stage", url: str) -> None:
        raise NotImplementedError

    def rewind(self, stage: "Stage", url: str) -> None:
        raise NotImplementedError


class Claude(Client):
    name = "claude"

    def words(self, prompt: str, *, session: str = "", fork: bool = False) -> list[str]:
        words = ["-p", prompt, f"--allowedTools={CLAUDE_TOOLS}", "--model", CLAUDE_MODEL]
        words += ["--resume", session] if session else ["--session-id", str(uuid.uuid4())]
        return [*words, "--fork-session"] if fork else words

    def conversation(self, headers: Mapping[str, str]) -> str:
        agent = headers.get("x-claude-code-agent-id", "")
        session = headers.get("x-claude-code-session-id", "")
        return f"{session}/{agent}" if agent else session

    def reading(self, file: Path) -> Call:
        return Call("Read", {"file_path": str(file)})

    def recall(self, seq: str) -> Call:
        return Call("mcp__scroll__expand", {"seqs": seq})

    def delegation(self, task: str) -> Answer:
        arguments = {"description": "A task", "prompt": task, "subagent_type": "general-purpose"}
        return Answer("I delegate.", (Call("Agent", arguments),), thinking=True)

    def unknown_blocks(self) -> tuple[Json, ...]:
        return ({"type": "redacted_thinking", "data": "kingfisher-block"},)

    def compact(self, stage: "Stage", url: str) -> None:
        stage.run(url, self.words("Read the parts."))
        session = stage.session
        stage.run(url, self.words("/compact", session=session))
        stage.run(url, self.words("Read on.", session=session))

    def rewind(self, stage: "Stage", url: str) -> None:
        words = [*self.words("Read the parts."), "--output-format", "stream-json", "--verbose"]
        printed = stage.run(url, words)
        session = stage.session
        stage.run(url, self.words("Read on.", session=session))
        lines = [json.loads(line) for line in printed.splitlines()]
        replies = [line["uuid"] for line in lines if line.get("type") == "assistant"]
        place = ["--resume-session-at", replies[-1]]
        stage.run(url, [*self.words("Read something else.", session=session), *place])


class Codex(Client):
    name = "codex"

    def words(self, prompt: str, *, session: str = "", fork: bool = False) -> list[str]:
        words = ["exec"]
        if session:
            words += ["fork" if fork else "resume"]
        words += ["--skip-git-repo-check", "-c", f'model="{CODEX_MODEL}"']
        words += ["--dangerously-bypass-approvals-and-sandbox"]
        return [*words, *([session] if session else []), prompt]

    def conversation(self, headers: Mapping[str, str]) -> str:
        return headers.get("thread-id", "")

    def reading(self, file: Path) -> Call:
        command = {"cmd": f"cat {file.name}", "max_output_tokens": 10_000}
        if CODEX_MODEL == "any":
            return Call("exec_command", command)
        script = f"const r = await tools.exec_command({json.dumps(command)}); text(r.output);"
        return Call("exec", script)

    def looking(self, file: Path) -> Call:
        return Call("view_image", {"path": str(file)})

    def recall(self, seq: str) -> Call:
        return Call("expand", {"seqs": seq}, "mcp__scroll")

    def delegation(self, task: str) -> Answer:
        call = Call("spawn_agent", {"message": task}, "multi_agent_v1")
        return Answer("I delegate.", (call,), thinking=True)

    def unknown_blocks(self) -> tuple[Json, ...]:
        action = {"type": "search", "query": "kingfisher-block"}
        return ({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action},)

    def compact(self, stage: "Stage", url: str) -> None:
        limit = ["-c", "model_auto_compact_token_limit=16000"]
        words = self.words("Read the parts.")
        stage.run(url, [words[0], *limit, *words[1:]])
        words = self.words("Read on.", session=stage.session)
        stage.run(url, words)

    def rewind(self, stage: "Stage", url: str) -> None:
        """Codex takes turns back by a fork that ends before them, also on its screen."""
        stage.run(url, self.words("Read the parts."))
        thread = stage.session
        stage.run(url, self.words("Read on.", session=thread))
        settings = {"model": CODEX_MODEL, "approval_policy": "never"}
        settings["sandbox_mode"] = "danger-full-access"
        words = ["app-server"]
        for key, value in settings.items():
            words += ["-c", f'{key}="{value}"']
        with stage.server(url, words) as process:
            client = {"clientInfo": {"name": "scene", "version": "1"}}
            _request(process, "initialize", client)
            resumed = _request(process, "thread/resume", {"threadId": thread})
            first = resumed["thread"]["turns"][0]["id"]
            forked = _request(process, "thread/fork", {"threadId": thread, "lastTurnId": first})
            text = {"type": "text", "text": "Read something else."}
            turn = {"threadId": forked["thread"]["id"], "input": [text]}
            _request(process, "turn/start", turn, until="turn/completed")


class Opencode(Client):
    name = "opencode"

    def words(self, prompt: str, *, session: str = "", fork: bool = False) -> list[str]:
        words = ["run", "--model", OPENCODE_MODEL]
        if session:
            words += ["--session", session]
        return [*words, *(["--fork"] if fork else []), prompt]

    def conversation(self, headers: Mapping[str, str]) -> str:
        return headers.get("x-session-id", "") or headers.get("x-session-affinity", "")

    def reading(self, file: Path) -> Call:
        return Call("read", {"filePath": str(file)})

    def recall(self, seq: str) -> Call:
        return Call("scroll_expand", {"seqs": seq})

    def delegation(self, task: str) -> Answer:
        arguments = {"description": "A task", "prompt": task, "subagent_type": "general"}
        return Answer("I delegate.", (Call("task", arguments),), thinking=True)

    def unknown_blocks(self) -> tuple[Json, ...]:
        return ({"type": "redacted_thinking", "data": "kingfisher-block"},)

    def compact(self, stage: "Stage", url: str) -> None:
        stage.run(url, self.words("Read the parts."))
        provider, _, model = OPENCODE_MODEL.partition("/")
        with self._api(stage, url) as session:
            session.post("/summarize", json={"providerID": provider, "modelID": model})
        stage.run(url, self.words("Read on.", session=stage.session))

    def rewind(self, stage: "Stage", url: str) -> None:
        stage.run(url, self.words("Read the parts."))
        stage.run(url, self.words("Read on.", session=stage.session))
        with self._api(stage, url) as session:
            infos = [message["info"] for message in session.get("/message").json()]
            prompts = [info["id"] for info in infos if info["role"] == "user"]
            session.post("/revert", json={"messageID": prompts[-1]})
        stage.run(url, self.words("Read something else.", session=stage.session))

    @contextmanager
    def _api(self, stage: "Stage", url: str) -> Iterator[httpx2.Client]:
        """The conversation in a server of opencode."""
        with stage.server(url, ["serve", "--hostname", "127.0.0.1", "--port", "0"]) as process:
            assert process.stdout is not None
            address = next(
                match[0] for line in process.stdout if (match := re.search(r"http://\S+", line))
            )
            with httpx2.Client(
                base_url=f"{address}/session/{stage.session}",
                timeout=120,
                event_hooks={"response": [httpx2.Response.raise_for_status]},
            ) as client:
                yield client


def _request(
    process: "subprocess.Popen[str]", method: str, params: Json, *, until: str = ""
) -> Json:
    """The result of a request to an app server of Codex, or a notification that follows it."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"id": method, "method": method, "params": params}) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        message = json.loads(line)
        assert "error" not in message, message
        if until and message.get("method") == until:
            answer: Json = message["params"]
            return answer
        if not until and message.get("id") == method:
            result: Json = message["result"]
            return result
    raise AssertionError(f"the app server ended at {method}")


def client_of(program: str) -> Client:
    kinds = (Claude, Codex, Opencode)
    kind = next(kind for kind in kinds if kind.name in Path(program).name)
    return kind(program)
