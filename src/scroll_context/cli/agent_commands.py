"""Commands of the agent: chat, run, resume, fork, explain, trajectory. What they do is in the modules they import."""

from pathlib import Path
from typing import Annotated

import typer

from scroll_context.cli.agent_options import Wishes
from scroll_context.cli.options import DEFAULT_STORE, AsJson, StoreFolder, open_store, spread


@spread(without=("steps", "tokens", "seconds", "dollars", "quiet", "as_json"))
def chat(
    *,
    session: Annotated[
        str, typer.Option(metavar="ID", help="Its name; an existing one goes on.", show_default="a new one")
    ] = "",
    wishes: Wishes,
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

    talk(store, session, wishes)


@spread()
def run(
    *,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What is to be done; - reads it from stdin.")],
    session: Annotated[
        str, typer.Option(metavar="ID", help="A name for the new session.", show_default="made up")
    ] = "",
    wishes: Wishes,
    store: StoreFolder = DEFAULT_STORE,
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

    begin(store, session, prompt, wishes)


@spread(without=("agent", "task"))
def resume(
    *,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session that goes on.")],
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What to do next.", show_default="go on where it stopped")
    ] = None,
    wishes: Wishes,
    store: StoreFolder = DEFAULT_STORE,
) -> None:
    """Go on with a session, whatever ended it.

    View and variables are as they were. Without a prompt, the work that a limit, Ctrl-C or a crash ended is continued.

    \b
    Examples:
      scroll resume s-1f2e3d4c --model anthropic:claude-sonnet-4-5
      scroll resume s-1f2e3d4c 'And by train?' --model anthropic:claude-sonnet-4-5
    """
    from scroll_context.cli.work import go_on

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
    from scroll_context.cli.explaining import print_explanation
    from scroll_context.cli.output import print_document
    from scroll_context.session.explain import explain as explained

    with open_store(store) as opened:
        found = explained(opened, seq)
    if as_json:
        print_document(found)
    else:
        print_explanation(found, full)


def trajectory(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Write the JSON to a new file.")
    ] = None,
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
