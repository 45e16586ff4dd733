"""The options of the commands that run an agent, declared once."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from scroll_context.cli.options import AsJson
from scroll_context.cli.output import note
from scroll_context.errors import BadInput

if TYPE_CHECKING:
    from scroll_context.agent.agent import Limits
    from scroll_context.models import Model

KEY = "SCROLL_API_KEY"
"""The variable with the key for a server at --base-url; other providers use the variable that is usual for them."""

ModelSpec = Annotated[
    str,
    typer.Option(envvar="SCROLL_MODEL", metavar="SPEC", help="anthropic:NAME, openai:NAME, scripted:FILE.json, …"),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(envvar="SCROLL_BASE_URL", metavar="URL", help="A server that speaks the protocol of the model."),
]
Window = Annotated[
    int | None, typer.Option(min=1_000, metavar="TOKENS", help="The model's context window.", show_default="as known")
]
ToolFiles = Annotated[
    list[Path] | None, typer.Option("--tools", metavar="FILE.py", help="A file of tools; repeatable.")
]
Mcp = Annotated[list[str] | None, typer.Option(metavar="COMMAND|URL", help="An MCP server; may be repeated.")]
Reach = Annotated[
    Literal["session", "task", "agent", "all"], typer.Option(help="How much of the store the model may read.")
]
Context = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How its view is made: scroll, or to compare: summarize, retrieval, codeact, react, …",
        show_default="scroll, or as before",
    ),
]
Ask = Annotated[
    str | None,
    typer.Option(metavar="SPEC", help="A second model that cells may ask to read for them.", show_default="none"),
]
AgentId = Annotated[str, typer.Option(metavar="ID", help="The agent that a new session belongs to.")]
TaskId = Annotated[str, typer.Option(metavar="ID", help="The task that a new session belongs to.")]
Steps = Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after so many replies.")]
Tokens = Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after so many tokens, input and output.")]
Seconds = Annotated[float | None, typer.Option(min=0, metavar="N", help="Stop after so much time.")]
Dollars = Annotated[
    float | None, typer.Option(min=0, metavar="N", help="Stop after so much money, where prices are known.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Run tools with effects without asking.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for on the command line. Each field is an option."""

    model: ModelSpec = ""
    base_url: BaseUrl = None
    window: Window = None
    tools: ToolFiles = None
    mcp: Mcp = None
    ask: Ask = None
    reach: Reach = "agent"
    context: Context = None
    agent: AgentId = ""
    task: TaskId = ""
    steps: Steps = None
    tokens: Tokens = None
    seconds: Seconds = None
    dollars: Dollars = None
    yes: Yes = False
    quiet: Quiet = False
    as_json: AsJson = False

    @property
    def limits(self) -> "Limits":
        from scroll_context.agent.agent import Limits

        return Limits(steps=self.steps, tokens=self.tokens, seconds=self.seconds, dollars=self.dollars)

    def connect(self) -> "tuple[Model, Model | None]":
        """The models of --model and --ask, each asked again when its provider failed for now."""
        if not self.model:
            raise BadInput(
                "no model is named; give --model, for example anthropic:NAME, openai:NAME (with --base-url for your "
                "own server) or scripted:FILE.json, or set SCROLL_MODEL"
            )
        model = _patient(connected(self.model, self.base_url, self.window))
        if self.ask is None:
            return model, None
        same_provider = self.ask.partition(":")[0] == self.model.partition(":")[0]
        return model, _patient(connected(self.ask, self.base_url if same_provider else None))


def connected(spec: str, base_url: str | None, window: int | None = None, key: str = KEY) -> "Model":
    """The model of this name; `key` is the variable with the key for a server at `base_url`."""
    from scroll_context.models import connect

    return connect(spec, base_url=base_url, api_key=os.environ.get(key), window=window)


def _patient(model: "Model") -> "Model":
    from scroll_context.models import with_retries

    return with_retries(model, on_retry=lambda _, wait, error: note(f"{error} (trying again in {wait:.0f} s)"))
