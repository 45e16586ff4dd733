"""`scroll gateway` and `scroll wrap` as programs."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateways import gateway, talk
from scripted_upstream import ScriptedUpstream, reading
from scroll_gateway.assistants import INSTALL, Recall, run_of, upstream_of

SCROLL = [sys.executable, "-c", "from scroll_context.cli.main import main; main()"]


def scroll(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*SCROLL, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def started(*arguments: str) -> Iterator[Any]:
    with subprocess.Popen(
        [*SCROLL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def program(folder: Path, name: str, source: str) -> dict[str, str]:
    """A stand-in for an assistant on the PATH."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!{sys.executable}\n{source}")
    file.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_a_gateway_prints_its_address_and_ends_with_a_signal(tmp_path: Path) -> None:
    with ScriptedUpstream(reading(2)) as upstream:
        arguments = ("--upstream", upstream.url, "--store", str(tmp_path / "store"))
        with started("gateway", *arguments) as process:
            url = process.stdout.readline().removeprefix("base URL: ").strip()
            text = "".join(process.stdout.readline() for _ in range(5))
            assert f"ANTHROPIC_BASE_URL={url}" in text
            assert f"OPENAI_BASE_URL={url}/v1" in text
            talk("messages", url)
            status = scroll("gateway", "status", "--json")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
    assert re.search(r"scroll: 3 requests: about [\d,]+ tokens sent", errors)
    (row,) = json.loads(status.stdout)["gateways"]
    assert row["pid"] == process.pid
    assert row["requests"] == 3
    assert row["window"] == 120_000
    assert row["tokens_sent"] > 0 and row["cost_direct"] > 0
    assert json.loads(scroll("gateway", "status", "--json").stdout) == {"gateways": []}


def test_a_port_that_is_in_use_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        refused = scroll(
            "gateway", "--upstream", "openai", "--port", port, "--store", str(tmp_path / "store")
        )
    assert refused.returncode == 1
    assert refused.stderr == (
        f"scroll: another program uses port {port} on 127.0.0.1; choose another port with --port\n"
    )


@pytest.mark.parametrize("upstream", ["anthropics", "ftp://127.0.0.1", "http://", "https:///v1"])
def test_an_upstream_that_is_no_address_is_refused(upstream: str) -> None:
    refused = scroll("gateway", "--upstream", upstream)
    assert refused.returncode == 2
    assert f"'{upstream}' is not anthropic, openai or a URL" in refused.stderr


def test_status_lists_running_gateways(tmp_path: Path) -> None:
    with ScriptedUpstream(reading(1)) as upstream, gateway(tmp_path / "store", upstream) as running:
        talk("chat", running.url)
        shown = scroll("gateway", "status")
        examined = scroll("doctor", "--json")
    assert upstream.url in shown.stdout
    assert "30,000" in shown.stdout
    assert re.search(rf"^{os.getpid()} ", shown.stdout, re.MULTILINE)
    assert "running, 2 requests" in json.dumps(json.loads(examined.stdout)["gateways"])


@pytest.mark.parametrize(
    ("upstream", "warned"),
    [
        ("http://models.example:8080", True),
        ("http://127.evil.example", True),
        ("https://models.example", False),
        ("http://127.0.0.1:11434", False),
        ("http://[::1]:11434", False),
    ],
)
def test_unencrypted_requests_to_another_host_are_warned_of(
    tmp_path: Path, upstream: str, warned: bool
) -> None:
    # The gateway ends before it listens, because its store is a file.
    file = tmp_path / "file"
    file.touch()
    done = scroll("gateway", "--upstream", upstream, "--store", str(file))
    assert done.returncode != 0
    assert ("travel to" in done.stderr) == warned


def test_an_upstream_must_be_named() -> None:
    assert "Name the --upstream" in scroll("gateway").stderr
    assert "not anthropic, openai or a URL" in scroll("gateway", "--upstream", "elsewhere").stderr


def test_a_wrapped_program_speaks_through_the_gateway_and_its_status_is_passed_on(
    tmp_path: Path,
) -> None:
    source = """\
import json, os, sys, urllib.request
body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
body["tools"] = [{"name": "read", "input_schema": {"type": "object"}}]
request = urllib.request.Request(
    os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(),
    {"content-type": "application/json", "x-claude-code-session-id": "the-session"},
)
assert json.load(urllib.request.urlopen(request))["role"] == "assistant"
print(json.dumps({"arguments": sys.argv[1:], "search": os.environ["ENABLE_TOOL_SEARCH"]}))
sys.exit(7)
"""
    environment = program(tmp_path / "bin", "claude", source)
    store = tmp_path / "store"
    with ScriptedUpstream(reading(1)) as upstream:
        environment["ANTHROPIC_BASE_URL"] = upstream.url
        done = scroll(
            "wrap", "--store", str(store), "claude", "-p", "a prompt", "--store", "x", **environment
        )
    assert done.returncode == 7, done.stderr
    printed = json.loads(done.stdout)
    assert printed["search"] == "true"
    assert printed["arguments"][-4:] == ["-p", "a prompt", "--store", "x"]
    (servers,) = [word for word in printed["arguments"] if word.startswith("--mcp-config=")]
    server = json.loads(servers.partition("=")[2])["mcpServers"]["scroll"]
    assert server["alwaysLoad"]
    assert server["args"][:3] == ["mcp", "--store", str(store)]
    assert len(upstream.requests) == 1
    assert "1 request: about" in done.stderr
    assert "0 evictions" in done.stderr
    assert "the-session" in scroll("sessions", "--store", str(store)).stdout


def test_signals_reach_the_wrapped_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """\
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("ready", flush=True)
time.sleep(60)
"""
    for name, value in program(tmp_path / "bin", "claude", source).items():
        monkeypatch.setenv(name, value)
    with started("wrap", "--store", str(tmp_path / "store"), "claude") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 9


def test_a_program_that_a_signal_ended_has_the_status_of_a_shell(tmp_path: Path) -> None:
    environment = program(tmp_path / "bin", "claude", "import os; os.kill(os.getpid(), 9)")
    done = scroll("wrap", "--store", str(tmp_path / "store"), "claude", **environment)
    assert done.returncode == 128 + 9


@pytest.mark.parametrize("name", sorted(INSTALL))
def test_a_missing_program_is_named_with_the_command_that_installs_it(
    name: str, tmp_path: Path
) -> None:
    done = scroll("wrap", "--store", str(tmp_path / "store"), name, PATH=str(tmp_path))
    assert done.returncode == 1
    assert INSTALL[name] in done.stderr
    assert not (tmp_path / "store").exists()


def test_requests_that_a_client_signs_are_refused_at_once(tmp_path: Path) -> None:
    environment = program(tmp_path / "bin", "claude", "")
    environment["CLAUDE_CODE_USE_BEDROCK"] = "1"
    done = scroll("wrap", "--store", str(tmp_path / "store"), "claude", **environment)
    assert done.returncode == 1
    assert "signed by the client" in done.stderr


def test_codex_goes_where_its_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'model_provider = "here"\n[model_providers.here]\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    environment = {"CODEX_HOME": str(tmp_path)}
    assert upstream_of("codex", environment) == "http://127.0.0.1:9/v1"
    run = run_of(
        "codex", "codex", ["exec"], "http://gateway/k/t", Recall(("scroll", "mcp")), environment
    )
    assert 'model_providers.here.base_url="http://gateway/k/-"' in run.command
    assert 'mcp_servers.scroll.args=["mcp"]' in run.command
    assert "mcp_servers.scroll.required=true" in run.command
    assert run.command[-1] == "exec"


@pytest.mark.parametrize(
    ("arguments", "before"),
    [
        (["exec", "do it"], 0),
        (["exec", "-c", "model=x", "do it"], 1),
        (["-c", "a=b", "exec", "--config=model=x", "do it"], 3),
        (["exec", "--", "-c"], 0),
    ],
)
def test_settings_for_codex_stand_beside_those_of_the_user(
    arguments: list[str], before: int
) -> None:
    """Codex ignores settings before a subcommand if there are some behind it."""
    run = run_of("codex", "codex", arguments, "http://gateway/k/t", Recall(), {})
    added = len(run.command) - 1 - len(arguments)
    assert run.command[1 : 1 + before] == arguments[:before]
    assert run.command[1 + before + added :] == arguments[before:]
    assert 'model_provider="scroll"' in run.command[1 + before :][:added]


@pytest.mark.parametrize(
    ("login", "upstream", "path"),
    [
        ({"OPENAI_API_KEY": "k"}, "https://api.openai.com", "/v1"),
        ({"tokens": {"id_token": "t"}}, "https://chatgpt.com/backend-api/codex", ""),
    ],
)
def test_codex_without_a_provider_of_its_own(
    login: dict[str, Any], upstream: str, path: str, tmp_path: Path
) -> None:
    (tmp_path / "auth.json").write_text(json.dumps(login))
    environment = {"CODEX_HOME": str(tmp_path)}
    assert upstream_of("codex", environment) == upstream
    run = run_of("codex", "codex", [], "http://gateway/k/t", Recall(), environment)
    assert f'model_providers.scroll.base_url="http://gateway/k/-{path}"' in run.command
    # Other users of the machine see the arguments of a process, and not its environment.
    assert not [word for word in run.command if "/k/t" in word]
    assert run.environment["SCROLL_GATEWAY_TOKEN"] == "t"
    header = 'model_providers.scroll.env_http_headers.x-scroll-token="SCROLL_GATEWAY_TOKEN"'
    assert header in run.command


def test_opencode_keeps_the_configuration_of_its_user() -> None:
    own = {"theme": "dark", "provider": {"anthropic": {"options": {"timeout": 9}}}}
    environment = {"OPENCODE_CONFIG_CONTENT": json.dumps(own)}
    recall = Recall(("scroll", "mcp"))
    run = run_of("opencode", "opencode", ["run"], "http://gateway/k/t", recall, environment)
    configuration = json.loads(run.environment["OPENCODE_CONFIG_CONTENT"])
    assert configuration["theme"] == "dark"
    assert configuration["provider"]["anthropic"]["options"] == {
        "timeout": 9,
        "baseURL": "http://gateway/k/t/v1",
    }
    assert configuration["mcp"]["scroll"]["command"] == ["scroll", "mcp"]
