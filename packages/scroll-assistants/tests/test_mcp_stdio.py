"""The MCP protocol over standard streams: a real server process, line by line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scroll_context.events import Draft
from scroll_context.store import Store

SCROLL = [sys.executable, "-c", "from scroll_context.cli.main import main; main()"]
PORT = "The staging server listens on port 8443, behind the halcyon proxy."


class Line:
    """A client that writes and reads lines."""

    def __init__(self, store: Path) -> None:
        command = [*SCROLL, "mcp", "--store", str(store), "--task", "shop-1"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.number = 0

    def write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def send(self, method: str, **params: Any) -> int:
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        self.write(json.dumps(message))
        return self.number

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = self.send(method, **params)
        answer = self.read()
        assert answer["id"] == number
        return answer

    def call(self, tool: str, **arguments: Any) -> tuple[str, bool]:
        result = self.ask("tools/call", name=tool, arguments=arguments)["result"]
        return result["content"][0]["text"], result["isError"]

    def close(self) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        return status


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    folder = tmp_path_factory.mktemp("mcp") / "store"
    with Store(folder, create=True) as store:
        for number in range(40):
            words = f"Make button number{number} of page{number} wide."
            store.append(Draft(role="user", task_id="shop-1", session_id="a", content=words))
        store.append(Draft(role="user", task_id="shop-1", session_id="a", content=PORT))
    client = Line(folder)
    yield client
    assert client.close() == 0


def test_the_handshake_agrees_on_a_version_that_both_know(line: Line) -> None:
    for wanted, agreed in (("2025-03-26", "2025-03-26"), ("2031-01-01", "2025-11-25")):
        greeting = line.ask("initialize", protocolVersion=wanted)["result"]
        assert greeting["protocolVersion"] == agreed
        assert greeting["serverInfo"]["name"] == "scroll" and greeting["instructions"]
    assert line.ask("ping")["result"] == {}


def test_a_brief_is_a_tool_and_a_prompt(line: Line) -> None:
    text, is_error = line.call("brief", prompt="Which port does the staging server listen on?")
    assert PORT in text and " user in shop-1" in text and not is_error
    assert line.call("brief", prompt="Bake a rhubarb cake.") == (
        "nothing recorded bears on that",
        False,
    )
    (prompt,) = line.ask("prompts/list")["result"]["prompts"]
    words = "Which port does the staging server listen on?"
    answer = line.ask("prompts/get", name=prompt["name"], arguments={"prompt": words})
    (message,) = answer["result"]["messages"]
    assert PORT in message["content"]["text"] and message["content"]["text"].endswith(words)


def test_arguments_are_checked_and_numbers_may_be_texts(line: Line) -> None:
    found, is_error = line.call("search", query="halcyon", k="3", unknown=1)
    assert PORT in found and not is_error
    assert line.call("search") == ("search needs the argument 'query'", True)
    assert line.call("search", query=["a"]) == ("query must be text, not list", True)
    assert line.call("search", query="a", k="many") == (
        "k must be a whole number, not 'many'",
        True,
    )
    assert line.ask("tools/call", name="shell", arguments={})["error"]["code"] == -32602


def test_messages_that_are_no_requests_get_an_error_and_the_server_goes_on(line: Line) -> None:
    for text, code in (("{", -32700), ("[" * 100_000, -32700), ("[]", -32600)):
        line.write(text)
        answer = line.read()
        assert answer["error"]["code"] == code and answer["id"] is None
    line.write("")
    line.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    line.write(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}))
    assert line.ask("server/discover")["error"]["code"] == -32601
    assert line.ask("resources/read", uri="file:///etc/passwd")["error"]["code"] == -32002
    assert line.ask("resources/read", uri="scroll://event/1")["result"]["contents"][0]["text"]


def test_a_cancelled_cell_is_interrupted_and_the_others_are_answered(line: Line) -> None:
    cell = line.send("tools/call", name="exec", arguments={"source": "while True: pass"})
    assert "8443" in line.call("search", query="halcyon")[0]
    notice = {"method": "notifications/cancelled", "params": {"requestId": cell}}
    line.write(json.dumps({"jsonrpc": "2.0", **notice}))
    assert line.call("exec", source="print(6 * 7)") == ("42", False)


def test_progress_is_reported_to_those_who_ask_for_it(line: Line) -> None:
    line.call("exec", source="import time")
    source = "time.sleep(2.6)"
    meta = {"progressToken": "mine"}
    number = line.send("tools/call", name="exec", arguments={"source": source}, _meta=meta)
    messages = [line.read()]
    while messages[-1].get("id") != number:
        messages.append(line.read())
    assert messages[0]["method"] == "notifications/progress"
    assert messages[0]["params"]["progressToken"] == "mine"


def test_it_ends_with_its_client_while_a_cell_runs(tmp_path: Path) -> None:
    Store(tmp_path / "store", create=True).close()
    client = Line(tmp_path / "store")
    client.send("tools/call", name="exec", arguments={"source": "while True: pass"})
    assert client.ask("ping")["result"] == {}
    assert client.close() == 0
