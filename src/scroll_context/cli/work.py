"""What `run`, `resume`, `fork` and `trajectory` do.

The answer is data and goes to stdout, what happens on the way goes to stderr. However a run ends, its session is in
the store, and the last line on stderr says how to go on.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console

from scroll_context.agent.agent import Agent, Run
from scroll_context.cli.agent_options import Wishes
from scroll_context.cli.agent_setup import newest_message, opened
from scroll_context.cli.main import INTERRUPTED
from scroll_context.cli.options import open_store
from scroll_context.cli.output import new_file, note, one_line, print_document, utf8, visible
from scroll_context.cli.watch import Consent, Watch
from scroll_context.errors import BadInput, ModelError, UnknownSeq
from scroll_context.models import Model
from scroll_context.session.session import fork as fork_session
from scroll_context.session.session import lineage
from scroll_context.session.trajectory import trajectory
from scroll_context.store.store import Store

STOPPED_BY_LIMIT = 3

_WHY = {
    "stopped": "it was interrupted",
    "steps": "it took as many steps as --steps allows",
    "tokens": "it used as many tokens as --tokens allows",
    "time": "it took as long as --seconds allows",
    "money": "it cost as much as --dollars allows",
    "silent": "the model gave only empty replies",
}


class Outcome(msgspec.Struct, frozen=True):
    """What --json prints of a run."""

    state: str
    answer: str
    session_id: str
    totals: Any


def begin(folder: Path, name: str, prompt: str, wishes: Wishes) -> None:
    """One task in a new session."""
    message = _read(prompt)
    models = wishes.connect()  # before the store is created: a misspelt model leaves nothing behind
    with Store(folder, create=True) as store:
        if name and store.log.tail(1, session_id=name):
            raise BadInput(f"there is a session {name!r} already; `scroll resume {name}` goes on with it")
        _work(store, name, message, models, wishes)


def go_on(folder: Path, name: str, prompt: str | None, wishes: Wishes) -> None:
    """More work in a session that exists."""
    message = None if prompt is None else _read(prompt)
    models = wishes.connect()
    with open_store(folder) as store:
        last = newest_message(store, name)
        if last is None:
            raise UnknownSeq(f"there is no session {name!r} to go on with; `scroll sessions` lists those there are")
        finished = last.role == "assistant" and not last.metadata.get("tool_calls") and not last.metadata.get("cut")
        if message is None and finished:
            raise BadInput(f"session {name!r} has given its answer (seq {last.seq}); say what it is to do next")
        _work(store, name, message, models, wishes)


def branch(folder: Path, parent: str, seq: int, name: str, as_json: bool) -> None:
    """A fork, ready to be resumed."""
    with open_store(folder) as store, fork_session(store, parent, seq, session_id=name) as session:
        made = session.scope.session_id
    if as_json:
        print_document({"session_id": made, "parent": parent, "at_seq": seq})
    else:
        typer.echo(made)
        note(f"go on with it: scroll resume {made} 'PROMPT'")


def print_steps(folder: Path, name: str, out: Path | None, as_json: bool) -> None:
    """A session as a trajectory."""
    with open_store(folder) as store:
        first = next(lineage(store, name), None)
        if first is None:
            raise UnknownSeq(f"there is no session {name!r}; `scroll sessions` lists those there are")
        found = trajectory(lineage(store, name), store.log.text, first.task_id or name)
    if out is not None:
        with new_file(out) as file:
            file.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        note(f"{len(found['steps'])} steps in {out}")
    elif as_json:
        print_document(found)
    else:
        _print_trajectory(found)


def _print_trajectory(found: dict[str, Any]) -> None:
    for step in found["steps"]:
        typer.secho(f"{step['step_index']}", bold=True, nl=False)
        typer.echo(f"  seq {step['seq']}  {visible(step['action']['tool'])}")
        if step["reasoning"].strip():
            typer.echo(f"    {one_line(step['reasoning'], 300)}")
        arguments = step["action"]["args"]
        said = arguments.get("source") or arguments.get("answer") if isinstance(arguments, dict) else None
        typer.echo(f"    {one_line(said or msgspec.json.encode(arguments).decode(), 300)}")
        if step.get("observation", "").strip():
            typer.echo(f"    → {one_line(step['observation'], 300)}")
    metrics = found["metrics"]
    typer.echo(
        f"{metrics['step_count']} steps, {metrics['tokens_in']:,} tokens in, {metrics['tokens_out']:,} out, "
        f"{metrics['wall_time_s']:,} s"
    )


def _read(prompt: str) -> str:
    message = utf8(sys.stdin.read() if prompt == "-" else prompt)
    if not message.strip():
        raise BadInput("the prompt is empty; say what is to be done")
    return message


def _work(store: Store, name: str, message: str | None, models: tuple[Model, Model | None], wishes: Wishes) -> None:
    """Run an agent until it ends, show it at work, and print what came of it."""
    model, asked = models
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    consent = Consent(console, "always" if wishes.yes else "ask" if sys.stdin.isatty() else "never")
    with opened(store, name, wishes, consent, asked) as session:
        if not wishes.quiet:
            session.on_event = Watch(console, stream=False).event
        agent = Agent(session, model, limits=wishes.limits)
        called = session.scope.session_id
        try:
            with stoppable(agent, consent):
                run = agent.run(message)
        except ModelError:
            note(f"nothing is lost: {_how_to_go_on(called)}")
            raise
    _report(run, called, wishes.as_json)


def _report(run: Run, session_id: str, as_json: bool) -> None:
    if as_json:
        print_document(Outcome(run.state, run.answer, session_id, run.totals))
    elif run.state == "answered":
        typer.echo(visible(run.answer))
    if run.state == "answered":
        note(f"session {session_id}")
        return
    note(f"no answer yet: {_WHY[run.state]}. Nothing is lost: {_how_to_go_on(session_id)}")
    raise typer.Exit(INTERRUPTED if run.state == "stopped" else STOPPED_BY_LIMIT)


def _how_to_go_on(session_id: str) -> str:
    return f"`scroll resume {session_id}` goes on where it stopped"


@contextlib.contextmanager
def stoppable(agent: Agent, consent: Consent) -> Iterator[None]:
    """Ctrl-C stops what the agent is doing, and neither the process nor the session, nor what it is to do next."""
    stopping: list[threading.Thread] = []

    def stop(*_: object) -> None:
        consent.stopped.set()
        # In a thread, since a handler runs between any two instructions and must not wait for a lock held below it.
        stopping.append(threading.Thread(target=agent.stop, daemon=True))
        stopping[-1].start()

    consent.stopped.clear()
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for thread in stopping:
            thread.join()
