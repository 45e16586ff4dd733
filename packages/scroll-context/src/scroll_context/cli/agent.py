"""Commands that run an agent: chat, run, resume and fork.

The answer of a run is data and goes to stdout, progress goes to stderr. However a run ends, its
session is in the store, and the last line on stderr says how to resume it.
"""

import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

import click

from scroll_context.cli.agent_session import (
    AgentOptions,
    agent_options,
    context_option,
    open_session,
    reach_option,
    reach_text,
    stoppable,
)
from scroll_context.cli.commands import INTERRUPTED, STOPPED_BY_LIMIT
from scroll_context.cli.options import (
    Place,
    complete_session,
    json_option,
    open_store,
    session_argument,
    session_named,
    store_option,
)
from scroll_context.cli.output import Command, echo, note, print_document, utf8
from scroll_context.errors import BadInput, ModelError, UnknownSession

if TYPE_CHECKING:
    from scroll_context.agent.agent import Run
    from scroll_context.models import Model
    from scroll_context.store import Store

WHY_NO_ANSWER = {
    "stopped": "it was interrupted",
    "steps": "it reached the limit of --steps",
    "tokens": "it reached the limit of --tokens",
    "time": "it reached the limit of --seconds",
    "money": "it reached the limit of --dollars",
    "silent": "the model gave only empty replies",
    "cut": "its replies reached the limit of output tokens; the partial text is above",
}


_OF_A_RUN = ("steps", "tokens", "seconds", "dollars", "quiet", "as_json")
_OF_A_NEW_SESSION = ("agent", "task")


@click.command(cls=Command)
@click.option(
    "--session",
    metavar="ID",
    default="",
    show_default="a new one",
    shell_complete=complete_session,
    help="The session id; an existing session is resumed.",
)
@agent_options(
    without=_OF_A_RUN, context=context_option("scroll, or the policy of the resumed session")
)
@store_option
def chat(session: str, options: AgentOptions, store: Place) -> None:
    """Talk to an agent whose memory is the store.

    Ctrl-C stops the current reply or cell, and Ctrl-D exits. Nothing is lost: the same --session
    resumes the chat later, with its variables. The store is created if there is none.

    \b
    Examples:
      scroll chat --model anthropic:claude-sonnet-4-5
      scroll chat --model openai:qwen3 --base-url http://localhost:8000/v1 --window 32768
      scroll chat --model openai:gpt-5 --tools my_tools.py
      scroll chat --session s-1f2e3d4c --mcp 'npx some-mcp-server'
    """
    if sys.stdout.isatty():
        # The next line is printed over this one.
        echo("starting …", end="\r")
    from scroll_context.cli.chat import talk

    talk(store, session, options)


@click.command(cls=Command)
@click.argument("prompt")
@click.option(
    "--session",
    metavar="ID",
    default="",
    show_default="generated",
    help="A name for the new session.",
)
@agent_options()
@store_option
def run(prompt: str, session: str, options: AgentOptions, store: Place) -> None:
    """Give an agent one prompt, in a new session.

    The prompt "-" is read from stdin. The answer goes to stdout, progress to stderr. Exits 3 if the
    run ended without an answer, for example at a limit; `scroll resume` continues it. The store is
    created if there is none.

    \b
    Examples:
      scroll run 'Which routes did we rule out, and why?' --model anthropic:claude-sonnet-4-5
      git diff | scroll run - --model openai:gpt-5 --steps 20 --json
    """
    from scroll_context.store import Store

    message = _read(prompt)
    # The models come before the store, so that a misspelt one leaves nothing behind.
    models = options.connect()
    with Store(store, create=isinstance(store, Path)) as opened:
        if session and opened.log.tail(1, session_id=session):
            raise BadInput(
                f"session {session!r} already exists; `scroll resume {quote(session)}` resumes it"
            )
        _work(opened, session, message, models, options)


@click.command(cls=Command)
@session_argument
@click.argument("prompt", required=False)
@agent_options(
    without=_OF_A_NEW_SESSION,
    reach=reach_option("session"),
    context=context_option("the session's own"),
)
@store_option
def resume(session: str, prompt: str | None, options: AgentOptions, store: Place) -> None:
    """Resume a session.

    SESSION is a session id or any unique prefix of one. Its view and its variables are restored.
    Without a prompt, the agent picks up work that was interrupted by a limit, Ctrl-C or a crash.

    \b
    Examples:
      scroll resume trip-4 'And by train?' --model anthropic:claude-sonnet-4-5
      scroll resume trip-4 'And by bus?' --model openai:qwen3 --base-url http://localhost:8000/v1
    """
    from scroll_context.events import Kind
    from scroll_context.session.past import lineage

    message = None if prompt is None else _read(prompt)
    models = options.connect()
    with open_store(store) as opened:
        session = session_named(opened.log, session)
        messages = [event for event in lineage(opened, session) if event.kind == Kind.CONVERSATION]
        if not messages:
            raise UnknownSession(
                f"there is no session {session!r} to resume; `scroll sessions` lists the sessions "
                "of the store"
            )
        last = messages[-1]
        finished = (
            last.role == "assistant"
            and not last.metadata.get("tool_calls")
            and not last.metadata.get("cut")
        )
        if message is None and finished:
            raise BadInput(
                f"session {session!r} has already answered (seq {last.seq}); add a prompt with "
                "the next task"
            )
        _work(opened, session, message, models, options)


@click.command(cls=Command)
@session_argument
@click.argument("seq", type=click.IntRange(min=1))
@click.option(
    "--as",
    "name",
    metavar="ID",
    default="",
    show_default="generated",
    help="A name for the new session.",
)
@store_option
@json_option
def fork(session: str, seq: int, name: str, store: Place, as_json: bool) -> None:
    """Start a new session from an earlier point in another one.

    The new session has the history, the view and the variables that SESSION had at event SEQ.
    SESSION itself is not changed. Prints the name of the new session.

    \b
    Examples:
      scroll fork trip-4 120
      scroll fork trip-4 120 --as by-train
    """
    from scroll_context.session.session import fork as fork_session

    with open_store(store) as opened:
        session = session_named(opened.log, session)
        with fork_session(opened, session, seq, session_id=name) as made:
            called = made.scope.session_id
    if as_json:
        print_document({"session_id": called, "parent": session, "at_seq": seq})
    else:
        echo(called)
        note(f"to resume it: `scroll resume {quote(called)} PROMPT --model SPEC`")


def _read(prompt: str) -> str:
    message = utf8(sys.stdin.read() if prompt == "-" else prompt)
    if not message.strip():
        raise BadInput("the prompt is empty; describe the task")
    return message


def _work(
    store: "Store",
    name: str,
    message: str | None,
    models: "tuple[Model, Model | None]",
    options: AgentOptions,
) -> None:
    """Run an agent until it ends, show it at work, and print what came of it."""
    from scroll_context.agent.agent import Agent
    from scroll_context.cli.watch import Consent, Screen, Watch

    model, asked = models
    screen = Screen(err=True)
    can_ask: Literal["ask", "never"] = "ask" if sys.stdin.isatty() else "never"
    consent = Consent(screen, "always" if options.yes else can_ask)
    with open_session(store, name, options, consent, asked) as session:
        if not options.quiet:
            note(reach_text(session.reach, session.scope))
            session.subscribe(Watch(screen, stream=False).event)
        agent = Agent(session, model, limits=options.limits, instructions=options.instructions)
        called = session.scope.session_id
        go_on = f"`scroll resume {quote(called)}` continues where it stopped"
        try:
            with stoppable(agent, consent):
                done = agent.run(message)
        except ModelError:
            note(f"nothing is lost: {go_on}")
            raise
    _report(done, called, go_on, options.as_json)


def _report(done: "Run", session_id: str, go_on: str, as_json: bool) -> None:
    if as_json:
        document = {
            "state": done.state,
            "answer": done.answer,
            "session_id": session_id,
            "totals": done.totals,
        }
        print_document(document)
    elif done.state == "answered":
        echo(done.answer)
    if done.state == "answered":
        note(f"session {session_id}")
        return
    note(f"no answer yet: {WHY_NO_ANSWER[done.state]}. Nothing is lost: {go_on}")
    raise click.exceptions.Exit(INTERRUPTED if done.state == "stopped" else STOPPED_BY_LIMIT)
