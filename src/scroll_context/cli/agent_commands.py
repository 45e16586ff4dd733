"""Commands of the agent: chat, run, resume, fork, explain, trajectory. What they do is in the modules they import."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from scroll_context.cli.options import DEFAULT_STORE, AsJson, StoreFolder, open_store

if TYPE_CHECKING:
    from scroll_context.cli.agent_setup import Wishes

Model = Annotated[
    str,
    typer.Option(envvar="SCROLL_MODEL", metavar="SPEC", help="anthropic:NAME, openai:NAME, scripted:FILE.json, …"),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(envvar="SCROLL_BASE_URL", metavar="URL", help="A server that speaks the protocol of the model."),
]
Window = Annotated[
    int | None, typer.Option(min=1_000, metavar="TOKENS", help="Its context window.", show_default="as known")
]
ToolFiles = Annotated[
    list[Path] | None, typer.Option("--tools", metavar="FILE.py", help="A file of tools; repeatable.")
]
Mcp = Annotated[list[str] | None, typer.Option(metavar="COMMAND|URL", help="An MCP server; may be repeated.")]
Reach = Annotated[
    Literal["session", "task", "agent", "all"], typer.Option(help="How much of the store the model may read.")
]
Context = Annotated[
    str | None, typer.Option(metavar="NAME", help="How its view is made.", show_default="scroll, or as before")
]
AgentId = Annotated[str, typer.Option(metavar="ID", help="The agent that a new session belongs to.")]
TaskId = Annotated[str, typer.Option(metavar="ID", help="The task that a new session belongs to.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Stop after so many replies.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Stop after so many tokens, input and output.")]
Seconds = Annotated[float | None, typer.Option(min=0, help="Stop after so much time.")]
Dollars = Annotated[float | None, typer.Option(min=0, help="Stop after so much money, where prices are known.")]
Yes = Annotated[bool, typer.Option("--yes", help="Run tools with effects without asking.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def chat(
    model: Model = "",
    session: Annotated[
        str, typer.Option(metavar="ID", help="Its name; an existing one goes on.", show_default="a new one")
    ] = "",
    tools: ToolFiles = None,
    mcp: Mcp = None,
    base_url: BaseUrl = None,
    window: Window = None,
    reach: Reach = "agent",
    context: Context = None,
    agent: AgentId = "",
    task: TaskId = "",
    yes: Yes = False,
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Talk to an agent whose memory is the store.

    Ctrl-C stops the reply or the cell, Ctrl-D leaves. Everything is kept: the same --session goes on later, variables
    included. Creates the store if there is none.

    \b
    Examples:
      scroll chat --model anthropic:claude-sonnet-4-5
      scroll chat --model openai:qwen3 --base-url http://localhost:8000/v1 --window 32768 --tools my_tools.py
      scroll chat --session s-1f2e3d4c --mcp 'npx some-mcp-server'
    """
    from scroll_context.cli.chat import talk

    wishes = _wishes(
        model=model, base_url=base_url, window=window, tools=tools, mcp=mcp, reach=reach, context=context, agent=agent,
        task=task, yes=yes,
    )  # fmt: skip
    talk(store, session, wishes)


def run(
    prompt: Annotated[str, typer.Argument(help="What is to be done; - reads it from stdin.")],
    model: Model = "",
    session: Annotated[
        str, typer.Option(metavar="ID", help="A name for the new session.", show_default="made up")
    ] = "",
    tools: ToolFiles = None,
    mcp: Mcp = None,
    base_url: BaseUrl = None,
    window: Window = None,
    reach: Reach = "agent",
    context: Context = None,
    agent: AgentId = "",
    task: TaskId = "",
    steps: Steps = None,
    tokens: Tokens = None,
    seconds: Seconds = None,
    dollars: Dollars = None,
    yes: Yes = False,
    quiet: Quiet = False,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Give an agent one task, in a new session.

    The answer goes to stdout, progress to stderr. Status 3: a limit stopped it, and `scroll resume` goes on. Creates
    the store if there is none.

    \b
    Examples:
      scroll run 'Which routes did we rule out, and why?' --model anthropic:claude-sonnet-4-5
      git diff | scroll run - --model openai:gpt-5 --steps 20 --json
    """
    from scroll_context.cli.work import begin

    wishes = _wishes(
        model=model, base_url=base_url, window=window, tools=tools, mcp=mcp, reach=reach, context=context, agent=agent,
        task=task, yes=yes, quiet=quiet, as_json=as_json, steps=steps, tokens=tokens, seconds=seconds, dollars=dollars,
    )  # fmt: skip
    begin(store, session, prompt, wishes)


def resume(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session that goes on.")],
    prompt: Annotated[
        str | None, typer.Argument(help="What to do next.", show_default="go on where it stopped")
    ] = None,
    model: Model = "",
    tools: ToolFiles = None,
    mcp: Mcp = None,
    base_url: BaseUrl = None,
    window: Window = None,
    reach: Reach = "agent",
    context: Context = None,
    steps: Steps = None,
    tokens: Tokens = None,
    seconds: Seconds = None,
    dollars: Dollars = None,
    yes: Yes = False,
    quiet: Quiet = False,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Go on with a session, whatever ended it.

    View and variables are as they were. Without a prompt, the work that a limit, Ctrl-C or a crash ended is continued.

    \b
    Examples:
      scroll resume s-1f2e3d4c --model anthropic:claude-sonnet-4-5
      scroll resume s-1f2e3d4c 'And by train?' --model anthropic:claude-sonnet-4-5
    """
    from scroll_context.cli.work import go_on

    wishes = _wishes(
        model=model, base_url=base_url, window=window, tools=tools, mcp=mcp, reach=reach, context=context,
        yes=yes, quiet=quiet, as_json=as_json, steps=steps, tokens=tokens, seconds=seconds, dollars=dollars,
    )  # fmt: skip
    go_on(store, session, prompt, wishes)


def fork(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session to continue differently.")],
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The last event that both share.")],
    name: Annotated[
        str, typer.Option("--as", metavar="ID", help="A name for the new session.", show_default="made up")
    ] = "",
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Make a new session that shares another's past up to a seq.

    Its view and its variables are as they were there. The other session is not changed.

    \b
    Examples:
      scroll fork s-1f2e3d4c 120
      scroll fork s-1f2e3d4c 120 --as other-way
    """
    from scroll_context.cli.work import branch

    branch(store, session, seq, name, as_json)


def explain(
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="A request, or anything after one.")],
    full: Annotated[bool, typer.Option("--full", help="Print every message whole.")] = False,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show what a model saw at a request, and what had left.

    The request is rebuilt from the log and compared with the hash that was recorded when it was sent. Of a seq that is
    no request, the newest request before it is taken.

    \b
    Examples:
      scroll explain 240
      scroll explain 240 --full
    """
    from scroll_context.agent.explain import explain as explained
    from scroll_context.cli.explaining import print_explanation
    from scroll_context.cli.output import print_document

    with open_store(store) as opened:
        found = explained(opened, seq)
    if as_json:
        print_document(found)
    else:
        print_explanation(found, full)


def trajectory(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON to a new file.")] = None,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show the steps of a session: reasoning, action, observation.

    \b
    Examples:
      scroll trajectory s-1f2e3d4c
      scroll trajectory s-1f2e3d4c --out steps.json
    """
    from scroll_context.cli.work import print_steps

    print_steps(store, session, out, as_json)


def _wishes(
    *,
    tools: list[Path] | None,
    mcp: list[str] | None,
    steps: int | None = None,
    tokens: int | None = None,
    seconds: float | None = None,
    dollars: float | None = None,
    **others: Any,
) -> "Wishes":
    from scroll_context.agent.agent import Limits
    from scroll_context.cli.agent_setup import Wishes

    limits = Limits(steps=steps, tokens=tokens, seconds=seconds, dollars=dollars)
    return Wishes(tools=tuple(tools or ()), mcp=tuple(mcp or ()), limits=limits, **others)
