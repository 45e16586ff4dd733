"""Commands that tell what happened in a session: explain (what a model saw) and trajectory (the steps it took)."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scroll_context.cli.options import FILE, json_option, open_store, store_option
from scroll_context.cli.output import Command, echo, new_file, note, one_line, print_document, print_table
from scroll_context.errors import UnknownSeq

if TYPE_CHECKING:
    from scroll_context.messages import Message
    from scroll_context.session.explain import Explanation

SHOWN = 300  # characters of a message, or of a part of a step


@click.command(cls=Command)
@click.argument("seq", type=click.IntRange(min=1), metavar="SEQ")
@click.option("--full", is_flag=True, help="Print every message whole.")
@store_option
@json_option
def explain(seq: int, full: bool, store: Path, as_json: bool) -> None:
    """Show what a model saw at a request, and what had left.

    The request is rebuilt from the log and compared with the hash that was recorded when it was sent. Of a seq that is
    no request, the newest request before it is taken.

    \b
    Examples:
      scroll explain 240
      scroll explain 240 --full
    """
    from scroll_context.session.explain import explain as explained

    with open_store(store) as opened:
        found = explained(opened, seq)
    if as_json:
        print_document(found)
    else:
        print_explanation(found, full)


def print_explanation(found: "Explanation", full: bool) -> None:
    """Everything about a request, for a person."""
    echo(f"request {found.seq}", bold=True, end="")
    echo(f"  session {one_line(found.session_id)}  {found.asked_at[:19]}  model {one_line(found.model)}")
    window = f" of a window of {found.window:,}" if found.window else ""
    counted = f"; the provider counted {found.reported:,}, {found.cached:,} of them cached" if found.reported else ""
    echo(f"context {found.context}: about {found.tokens:,} tokens{window}{counted}")
    if found.verified:
        echo("verified: these are the messages that were sent, to the byte", colour="green")
    else:
        echo(f"not verified: {found.doubt}", colour="red")
    answered = f"answered at seq {found.reply}" if found.reply else "there was no answer"
    echo(f"{answered}; tools: {one_line(', '.join(found.tools)) or 'none'}\n")
    for position, message in enumerate(found.messages):
        _print_message(position, message, full)
    if not found.departures:
        echo("\nNothing had left the view." if found.messages else "")
    for (plan, reason), left in groupby(found.departures, key=lambda one: (one.plan, one.reason)):
        echo(f"\nleft by plan {plan}: {reason}", bold=True)
        rows = [(f"{one.seq}" if one.seq == one.last else f"{one.seq}-{one.last}", one.how, one.now) for one in left]
        print_table(("seq", "how", "where it stands"), rows, fit=True)


def _print_message(position: int, message: "Message", full: bool) -> None:
    from scroll_context.view.tokens import estimate

    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    text = "\n".join(part for part in (message.text, *calls, message.tail) if part)
    echo(f"{position}", bold=True, end="")
    echo(f"  {message.role}  about {estimate(text):,} tokens")
    echo(text + "\n" if full else f"    {one_line(text, SHOWN)}")


@click.command(cls=Command)
@click.argument("session", metavar="SESSION")
@click.option("--out", type=FILE, metavar="FILE", help="Write the JSON to a new file.")
@store_option
@json_option
def trajectory(session: str, out: Path | None, store: Path, as_json: bool) -> None:
    """Show the steps of a session: reasoning, action, observation.

    \b
    Examples:
      scroll trajectory s-1f2e3d4c
      scroll trajectory s-1f2e3d4c --out steps.json
    """
    import msgspec

    from scroll_context.session.history import lineage
    from scroll_context.session.trajectory import trajectory as steps_of

    with open_store(store) as opened:
        first = next(lineage(opened, session), None)
        if first is None:
            raise UnknownSeq(f"there is no session {session!r}; `scroll sessions` lists those there are")
        found = steps_of(lineage(opened, session), opened.log.text, first.task_id or session)
    if out is not None:
        with new_file(out) as file:
            file.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        note(f"{len(found['steps'])} steps in {out}")
    elif as_json:
        print_document(found)
    else:
        _print_steps(found)


def _print_steps(found: dict[str, Any]) -> None:
    import msgspec

    for step in found["steps"]:
        echo(f"{step['step_index']}", bold=True, end="")
        echo(f"  seq {step['seq']}  {one_line(step['action']['tool'])}")
        if step["reasoning"].strip():
            echo(f"    {one_line(step['reasoning'], SHOWN)}")
        arguments = step["action"]["args"]
        said = arguments.get("source") or arguments.get("answer") if isinstance(arguments, dict) else None
        echo(f"    {one_line(said or msgspec.json.encode(arguments).decode(), SHOWN)}")
        if step.get("observation", "").strip():
            echo(f"    → {one_line(step['observation'], SHOWN)}")
    metrics = found["metrics"]
    echo(
        f"{metrics['step_count']} steps, {metrics['tokens_in']:,} tokens in, {metrics['tokens_out']:,} out, "
        f"{metrics['wall_time_s']:,} s"
    )
