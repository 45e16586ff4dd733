"""The options of the commands that run an agent, and the models that they name."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from scroll_context.cli.options import FILE, json_option
from scroll_context.cli.output import note
from scroll_context.errors import BadInput

if TYPE_CHECKING:
    from scroll_context.agent.agent import Limits
    from scroll_context.models import Model
    from scroll_context.session.options import Reach

KEY = "SCROLL_API_KEY"
"""The variable with the key for a server at --base-url; other providers use the variable that is
usual for them.
"""

REACHES = ("session", "task", "agent", "all")


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options in OPTIONS that the user gave on the command line."""

    model: str = ""
    base_url: str | None = None
    window: int | None = None
    tools: tuple[Path, ...] = ()
    mcp: tuple[str, ...] = ()
    ask: str | None = None
    reach: "Reach | None" = None
    context: str | None = None
    agent: str = ""
    task: str = ""
    system: str = ""
    steps: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    dollars: float | None = None
    yes: bool = False
    quiet: bool = False
    as_json: bool = False

    @property
    def limits(self) -> "Limits":
        from scroll_context.agent.agent import Limits

        return Limits(
            steps=self.steps, tokens=self.tokens, seconds=self.seconds, dollars=self.dollars
        )

    @property
    def instructions(self) -> str:
        """The text of --system, or of the file that it names."""
        if not self.system.startswith("@"):
            return self.system
        try:
            return Path(self.system[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"the system prompt in {self.system[1:]} cannot be read: {error}"
            ) from error

    def connect(self, again: Callable[[], None] = lambda: None) -> "tuple[Model, Model | None]":
        """The models of --model and --ask, each retried after temporary provider failures.

        `again` is called before a request to --model is repeated.
        """
        if not self.model:
            raise BadInput(
                "no model is named; give --model, for example anthropic:NAME, openai:NAME (with "
                "--base-url for your own server) or scripted:FILE.json, or set SCROLL_MODEL"
            )
        model = _patient(connected(self.model, self.base_url, self.window), again)
        if self.ask is None:
            return model, None
        same_provider = self.ask.partition(":")[0] == self.model.partition(":")[0]
        return model, _patient(connected(self.ask, self.base_url if same_provider else None))


Option = Callable[[Callable[..., None]], Callable[..., None]]


def reach_option(default: str) -> Option:
    """--reach; the help shows this default."""
    return click.option(
        "--reach",
        type=click.Choice(REACHES),
        show_default=default,
        help="How much of the store the model may read.",
    )


def context_option(default: str) -> Option:
    """--context; the help shows this default."""
    return click.option(
        "--context",
        metavar="NAME",
        show_default=default,
        help="How the context is managed: scroll, or a baseline for comparison (summarize, …).",
    )


_POSITIVE = click.IntRange(min=1)
# Each is a field of AgentOptions.
OPTIONS: dict[str, Option] = {
    "model": click.option(
        "--model",
        envvar="SCROLL_MODEL",
        metavar="SPEC",
        default="",
        help="anthropic:NAME, openai:NAME, scripted:FILE.json, …",
    ),
    "base_url": click.option(
        "--base-url",
        envvar="SCROLL_BASE_URL",
        metavar="URL",
        help="A server that speaks the model's protocol.",
    ),
    "window": click.option(
        "--window",
        type=click.IntRange(min=1_000),
        metavar="TOKENS",
        show_default="the model's own, if known",
        help="The model's context window.",
    ),
    "tools": click.option(
        "--tools",
        type=FILE,
        multiple=True,
        metavar="FILE.py",
        help="A file with tools; may be repeated.",
    ),
    "mcp": click.option(
        "--mcp", multiple=True, metavar="COMMAND|URL", help="An MCP server; may be repeated."
    ),
    "ask": click.option(
        "--ask",
        metavar="SPEC",
        show_default="none",
        help="A second model that the agent's code can call to read long text.",
    ),
    "reach": reach_option("agent with --agent, else session"),
    "context": context_option("scroll"),
    "agent": click.option(
        "--agent", metavar="ID", default="", help="The agent that a new session belongs to."
    ),
    "task": click.option(
        "--task", metavar="ID", default="", help="The task that a new session belongs to."
    ),
    "system": click.option(
        "--system",
        metavar="TEXT|@FILE",
        default="",
        help="Text appended to the system prompt.",
    ),
    "steps": click.option(
        "--steps", type=_POSITIVE, metavar="N", help="Stop after this many replies."
    ),
    "tokens": click.option(
        "--tokens",
        type=_POSITIVE,
        metavar="N",
        help="Stop after this many input and output tokens.",
    ),
    "seconds": click.option(
        "--seconds", type=click.FloatRange(min=0), metavar="N", help="Stop after this much time."
    ),
    "dollars": click.option(
        "--dollars",
        type=click.FloatRange(min=0),
        metavar="N",
        help="Stop after this cost in US dollars. If the price of the model is not known, the run "
        "fails after the first reply.",
    ),
    "yes": click.option("--yes", is_flag=True, help="Run tools with side effects without asking."),
    "quiet": click.option("--quiet", "-q", is_flag=True, help="Show no progress."),
    "as_json": json_option,
}


def agent_options(*, without: tuple[str, ...] = (), **replaced: Option) -> Option:
    """Give a command the options of an agent, as one argument `options`.

    `replaced` has options for this command that take the place of those in OPTIONS.
    """
    options = OPTIONS | replaced
    names = [name for name in options if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**arguments: Any) -> None:
            command(
                options=AgentOptions(**{name: arguments.pop(name) for name in names}), **arguments
            )

        decorated: Callable[..., None] = called
        for name in reversed(names):
            decorated = options[name](decorated)
        return decorated

    return decorate


def connected(
    spec: str, base_url: str | None, window: int | None = None, key: str = KEY
) -> "Model":
    """The model of this name; `key` is the variable with the key for a server at `base_url`."""
    from scroll_context.models import connect

    return connect(spec, base_url=base_url, api_key=os.environ.get(key), window=window)


def _patient(model: "Model", again: Callable[[], None] = lambda: None) -> "Model":
    from scroll_context.models import with_retries

    def tell(_: int, wait: float, error: Exception) -> None:
        again()
        note(f"{error} (trying again in {wait:.0f} s)")

    return with_retries(model, on_retry=tell)
