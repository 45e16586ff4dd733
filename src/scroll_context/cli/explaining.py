"""An explanation on paper: the request, its messages, and a line for everything that had left the view."""

from itertools import groupby

import typer

from scroll_context.cli.output import one_line, print_table, visible
from scroll_context.messages import Message
from scroll_context.session.explain import Explanation
from scroll_context.view.tokens import estimate
from scroll_context.view.working import Departure

SHOWN = 300  # characters of a message without --full


def print_explanation(found: Explanation, full: bool) -> None:
    """Everything about a request, for a person."""
    typer.secho(f"request {found.seq}", bold=True, nl=False)
    typer.echo(visible(f"  session {found.session_id}  {found.asked_at[:19]}  model {found.model}"))
    typer.echo(_size(found))
    if found.verified:
        typer.secho("verified: these are the messages that were sent, to the byte", fg=typer.colors.GREEN)
    else:
        typer.secho(f"not verified: {found.doubt}", fg=typer.colors.RED)
    answered = f"answered at seq {found.reply}" if found.reply else "there was no answer"
    typer.echo(f"{answered}; tools: {', '.join(found.tools) or 'none'}\n")
    for position, message in enumerate(found.messages):
        _print_message(position, message, full)
    _print_departures(found)


def _size(found: Explanation) -> str:
    window = f" of a window of {found.window:,}" if found.window else ""
    counted = f"; the provider counted {found.reported:,}, {found.cached:,} of them cached" if found.reported else ""
    return f"context {found.context}: about {found.tokens:,} tokens{window}{counted}"


def _print_message(position: int, message: Message, full: bool) -> None:
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    text = "\n".join(part for part in (message.text, *calls, message.tail) if part)
    typer.secho(f"{position}", bold=True, nl=False)
    typer.echo(f"  {message.role}  about {estimate(text):,} tokens")
    typer.echo(visible(text) + "\n" if full else f"    {one_line(text, SHOWN)}")


def _print_departures(found: Explanation) -> None:
    """What had left, plan by plan."""
    if not found.departures:
        typer.echo("\nNothing had left the view." if found.messages else "")
    for (plan, reason), left in groupby(found.departures, key=lambda one: (one.plan, one.reason)):
        typer.secho(f"\nleft by plan {plan}: {reason}", bold=True)
        print_table(("seq", "how", "where it stands"), [(_span(one), one.how, one.now) for one in left], fit=True)


def _span(one: Departure) -> str:
    return str(one.seq) if one.seq == one.last else f"{one.seq}-{one.last}"
