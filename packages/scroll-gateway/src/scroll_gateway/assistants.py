"""How each coding assistant is started under a gateway: its program, arguments and environment.

All of it is for one run: no file of the assistant is changed. Where the user has pointed an
assistant at another provider, that one becomes the upstream.
"""

import json
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.errors import BadInput, ScrollError
from scroll_context.plugins import entry_points
from scroll_gateway.running import UPSTREAMS
from scroll_gateway.server import TOKEN_HEADER

GATEWAY_STORE = "SCROLL_GATEWAY_STORE"
"""The variable that tells our hooks in which store a gateway records the session already."""

GATEWAY_TOKEN = "SCROLL_GATEWAY_TOKEN"
"""The variable by which Codex gets the gateway's token."""

INSTALL = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "codex": "npm install -g @openai/codex",
    "opencode": "npm install -g opencode-ai",
}
MCP_START_SECONDS = 60
_SIGNED = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")


class MissingProgram(ScrollError):
    """An assistant that is not installed."""


class Run(msgspec.Struct, frozen=True):
    """One run of an assistant: what is started, with which environment."""

    command: list[str]
    environment: dict[str, str]


class Recall(msgspec.Struct, frozen=True):
    """The store of a run, and Scroll's MCP server on it, as an assistant starts it; an empty
    command where there is none."""

    command: tuple[str, ...] = ()
    store: str = ""

    @classmethod
    def of(cls, store: str, task_id: str, assistant: str) -> "Recall":
        """The server of this store and task, if `scroll-assistants` is installed."""
        if not any(point.name == "mcp" for point in entry_points("scroll_context.commands")):
            return cls(store=store)
        words = ["mcp", "--store", store, "--task", task_id]
        if assistant:
            words += ["--assistant", assistant]
        return cls((*scroll_command(), *words), store)


def scroll_command() -> list[str]:
    """How this Scroll is started, with absolute paths: an assistant may have another PATH."""
    beside = Path(sys.executable).with_name("scroll")
    if beside.is_file():
        return [str(beside)]
    return [sys.executable, "-P", "-c", "from scroll_context.cli.main import main; main()"]


def program(assistant: str) -> str:
    """The path of an assistant's program."""
    path = shutil.which(assistant)
    if path is None:
        raise MissingProgram(
            f"{assistant} is not installed, or not on the PATH; install it with: "
            f"{INSTALL[assistant]}"
        )
    return path


def upstream_of(assistant: str, environment: Mapping[str, str]) -> str:
    """Where an assistant would send its requests without a gateway."""
    if assistant == "claude":
        signed = [name for name in _SIGNED if environment.get(name)]
        if signed:
            raise BadInput(
                f"{signed[0]} is set: requests to that service are signed by the client, so a "
                "gateway cannot change them. Unset it, or run claude without `scroll wrap`."
            )
        return environment.get("ANTHROPIC_BASE_URL") or UPSTREAMS["anthropic"]
    if assistant == "codex":
        return _codex_provider(environment)[1] or _codex_default(environment)
    return UPSTREAMS["anthropic"]


def run_of(
    assistant: str,
    path: str,
    arguments: Sequence[str],
    url: str,
    recall: Recall,
    environment: Mapping[str, str],
) -> Run:
    """The run of an assistant under the gateway at a URL."""
    starts = {"claude": _claude, "codex": _codex, "opencode": _opencode}
    own, variables = starts[assistant](url, recall, environment)
    child = {**environment, **variables, GATEWAY_STORE: recall.store}
    place = _config_place(arguments) if assistant == "codex" else 0
    return Run([path, *arguments[:place], *own, *arguments[place:]], child)


Additions = tuple[list[str], dict[str, str]]
"""Arguments before the user's own, and variables of the environment."""


def _claude(url: str, recall: Recall, environment: Mapping[str, str]) -> Additions:
    arguments = []
    if recall.command:
        # Claude Code waits for such a server before its first request. Tools that come later change
        # the beginning of the request, which costs the cache and makes thinking invalid.
        server = {
            "command": recall.command[0],
            "args": list(recall.command[1:]),
            "alwaysLoad": True,
        }
        # With "=", these options take no further words: a prompt may follow.
        arguments = [
            f"--mcp-config={json.dumps({'mcpServers': {'scroll': server}})}",
            "--allowedTools=mcp__scroll__search,mcp__scroll__expand",
        ]
    # Under another address Claude Code loads all tools at once unless it is told to search them,
    # which costs 11,000 tokens in each request.
    search = environment.get("ENABLE_TOOL_SEARCH") or "true"
    return arguments, {"ANTHROPIC_BASE_URL": url, "ENABLE_TOOL_SEARCH": search}


def _codex(url: str, recall: Recall, environment: Mapping[str, str]) -> Additions:
    # Every user of the machine can read the arguments of a process, so the token is passed in the
    # environment, and Codex sends it in a header.
    base, _, token = url.rpartition("/")
    url = f"{base}/-"
    name, base_url = _codex_provider(environment)
    if base_url:
        settings = {f"model_providers.{name}.base_url": json.dumps(url)}
    else:
        name = "scroll"
        provider = {
            "name": '"OpenAI through Scroll"',
            "base_url": json.dumps(_codex_path(url, environment)),
            "wire_api": '"responses"',
            "requires_openai_auth": "true",
        }
        settings = {f"model_providers.scroll.{key}": value for key, value in provider.items()}
        settings["model_provider"] = '"scroll"'
    settings[f"model_providers.{name}.env_http_headers.{TOKEN_HEADER}"] = f'"{GATEWAY_TOKEN}"'
    if recall.command:
        settings["mcp_servers.scroll.command"] = json.dumps(recall.command[0])
        settings["mcp_servers.scroll.args"] = json.dumps(list(recall.command[1:]))
        # Codex sends its first requests without the tools of a server that has not started yet, and
        # adds them later, which changes the beginning of the request. It waits for a required one.
        settings["mcp_servers.scroll.required"] = "true"
        settings["mcp_servers.scroll.startup_timeout_sec"] = str(MCP_START_SECONDS)
    arguments = []
    for key, value in settings.items():
        arguments += ["-c", f"{key}={value}"]
    return arguments, {GATEWAY_TOKEN: token}


def _config_place(arguments: Sequence[str]) -> int:
    """Where settings are inserted into the user's arguments: before their last setting, if any.

    Codex ignores all settings before a subcommand if there are some behind it. Ours would be lost
    with them, and requests would go past the gateway.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for place in reversed(range(end)):
        word = arguments[place]
        if word.startswith("--config") or (word.startswith("-c") and not word.startswith("--")):
            return place
    return 0


def _codex_provider(environment: Mapping[str, str]) -> tuple[str, str]:
    """The provider of the user's configuration and its address; "" for the built-in one."""
    try:
        text = (_codex_home(environment) / "config.toml").read_text()
        configuration: dict[str, Any] = tomllib.loads(text)
    except (OSError, tomllib.TOMLDecodeError):
        return "", ""
    name = configuration.get("model_provider", "")
    provider = configuration.get("model_providers", {}).get(name, {})
    return name, str(provider.get("base_url", ""))


def _codex_home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("CODEX_HOME") or Path(environment.get("HOME", "")) / ".codex")


def _codex_default(environment: Mapping[str, str]) -> str:
    is_login = _has_codex_login(environment)
    return "https://chatgpt.com/backend-api/codex" if is_login else UPSTREAMS["openai"]


def _codex_path(url: str, environment: Mapping[str, str]) -> str:
    return url if _has_codex_login(environment) else f"{url}/v1"


def _has_codex_login(environment: Mapping[str, str]) -> bool:
    """Whether Codex would use a ChatGPT account, which has another address than the API."""
    try:
        login = json.loads((_codex_home(environment) / "auth.json").read_text())
    except (OSError, ValueError):
        return False
    return not login.get("OPENAI_API_KEY") and bool(login.get("tokens"))


def _opencode(url: str, recall: Recall, environment: Mapping[str, str]) -> Additions:
    options = {"options": {"baseURL": f"{url}/v1"}}
    configuration: dict[str, Any] = {"provider": {"anthropic": options, "openai": options}}
    if recall.command:
        server = {"type": "local", "command": list(recall.command), "enabled": True}
        configuration["mcp"] = {"scroll": server}
    merged = _merged(json.loads(environment.get("OPENCODE_CONFIG_CONTENT") or "{}"), configuration)
    return [], {"OPENCODE_CONFIG_CONTENT": json.dumps(merged)}


def _merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for name, value in more.items():
        old = result.get(name)
        both = isinstance(old, dict) and isinstance(value, dict)
        result[name] = _merged(old, value) if both and isinstance(old, dict) else value
    return result
