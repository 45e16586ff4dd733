"""Commands that show what happened in a session: read (its messages or its steps) and explain (what
a model saw).

A session is read as Markdown. What was said in it is foreign text: its headings are set below those
that say who speaks, HTML in it is not interpreted, and a page that is made of it loads nothing.
"""

import contextlib
import html
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from scroll_context.cli.options import (
    FILE,
    Place,
    json_option,
    open_store,
    session_argument,
    session_named,
    store_option,
)
from scroll_context.cli.output import (
    Command,
    echo,
    edit_as_diff,
    new_file,
    note,
    one_line,
    print_document,
    print_table,
    visible,
)
from scroll_context.errors import PayloadDamaged, PayloadMissing
from scroll_context.text.printable import visible_json

if TYPE_CHECKING:
    from scroll_context.events import Event
    from scroll_context.log.log import EventLog
    from scroll_context.messages import Message
    from scroll_context.session.explain import Explanation
    from scroll_context.store import Store

# Kinds of events that --cells adds to a conversation.
_WORK = ("cell", "observation", "tool_call", "tool_result")

TextOf = Callable[["Event"], str]

# Characters of a message, or of a part of a step.
SHOWN = 300
# Characters of printed output or a tool result that are shown without --full.
PRINTED = 4_000

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; }}
body {{ max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
section {{ border-left: 3px solid #8888; margin: 1.5rem 0; padding: 0 1rem; }}
section {{ overflow-wrap: break-word; }}
section.user {{ border-color: #2a7; }} section.assistant {{ border-color: #27c; }}
h2 {{ font-size: .85rem; font-weight: 600; opacity: .7; }}
pre {{ overflow-x: auto; background: #8882; padding: .7rem; border-radius: .3rem; }}
</style></head><body>
<h1>{title}</h1>
"""


class Section(msgspec.Struct, frozen=True):
    """One message, call or result: a heading in plain text, and a body in Markdown."""

    role: str
    heading: str
    body: str


@click.command(cls=Command)
@session_argument
@click.option("--cells", is_flag=True, help="Also show cells, tool calls and their results.")
@click.option("--full", is_flag=True, help="With --cells, print long results in full.")
@click.option("--steps", is_flag=True, help="Show steps: reasoning, action, observation.")
@click.option("--html", "as_html", is_flag=True, help="Write an HTML page instead of Markdown.")
@click.option(
    "-o", "--out", type=FILE, metavar="FILE", help="Write to a new file instead of stdout."
)
@store_option
@json_option
def read(
    session: str,
    cells: bool,
    full: bool,
    steps: bool,
    as_html: bool,
    out: Path | None,
    store: Place,
    as_json: bool,
) -> None:
    """Read a session as a conversation.

    SESSION is a session id or any unique prefix of one. Messages and replies are shown in order,
    as Markdown; a terminal shows them rendered. File edits are shown as diffs.

    With --steps, shows each of the agent's steps instead: its reasoning, action and observation.
    With --json as well, the output has the format of trajectories in `scroll eval`.

    \b
    Examples:
      scroll read trip-2
      scroll read trip-4 --cells > session.md
      scroll read trip-4 --html -o session.html
      scroll read trip-4 --steps
      scroll read trip-2 --json
    """
    if as_html and (as_json or steps):
        raise click.UsageError("--html makes a page of the conversation; leave out the others.")
    lines: Iterable[str]
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(open_store(store))
        name = session_named(opened.log, session)
        if steps:
            lines = _steps(opened, name, as_json=as_json)
        elif as_json:
            lines = [_json_text(_conversation(opened, name, cells))]
        else:
            passages = _passages(_events(opened, name), _text_of(opened.log), cells, full)
            if out is None and not as_html and sys.stdout.isatty():
                _print_rendered(passages)
                return
            lines = _page(name, passages) if as_html else _markdown(name, passages)
        if out is None:
            for line in lines:
                echo(line)
            return
        file = stack.enter_context(new_file(out))
        for line in lines:
            file.write(visible(line).encode() + b"\n")
    note(f"written to {out}")


def _events(store: "Store", session: str) -> "Iterator[Event]":
    """The events of a session, with those that a fork inherited."""
    from scroll_context.session.past import lineage

    return lineage(store, session)


def _print_rendered(passages: "Iterable[Section]") -> None:
    from scroll_context.cli.watch import Screen

    screen = Screen()
    for passage in passages:
        screen.print(passage.heading, "bold")
        screen.markdown(passage.body)


def _json_text(value: Any) -> str:
    document = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return visible_json(document)


def _conversation(store: "Store", session: str, cells: bool) -> dict[str, Any]:
    """The messages of a session for programs, with complete texts."""
    text_of = _text_of(store.log)
    kinds = {"conversation", *(_WORK if cells else ())}
    messages = [
        {
            "seq": event.seq,
            "session_id": event.session_id,
            "role": event.role,
            "kind": event.kind,
            "name": event.name,
            "tool_state": event.tool_state,
            "created_at": event.created_at,
            "content": text_of(event),
        }
        for event in _events(store, session)
        if event.kind in kinds
    ]
    return {"session_id": session, "messages": messages}


def _text_of(log: "EventLog") -> TextOf:
    """A function for the text of an event. If the payload is lost, it notes that, and returns the
    part that the row holds: one lost payload must not end the reading of a session.
    """

    def text_of(event: "Event") -> str:
        try:
            return log.text(event)
        except (PayloadMissing, PayloadDamaged) as error:
            note(f"seq {event.seq}: {error}")
            return event.content

    return text_of


def _passages(
    events: "Iterator[Event]", text_of: "Callable[[Event], str]", cells: bool, full: bool
) -> Iterator[Section]:
    for event in events:
        match event.kind:
            case "conversation":
                body = _message(event, text_of(event))
                if body.strip():
                    when = event.created_at[:16].replace("T", " ")
                    heading = f"{event.role or 'unknown'} · {when} · seq {event.seq}"
                    yield Section(event.role, heading, _below(body))
            case "cell" | "tool_call" if cells:
                what = "cell" if event.kind == "cell" else f"call of {one_line(event.name, SHOWN)}"
                yield Section(event.kind, f"{what} · seq {event.seq}", _code(text_of(event)))
            case "observation" | "tool_result" if cells:
                what = "printed"
                if event.kind == "tool_result":
                    what = f"result of {one_line(event.name, SHOWN)}"
                state = "" if event.tool_state in ("", "ok") else f" · {event.tool_state}"
                text = text_of(event)
                if not full and len(text) > PRINTED:
                    text = f"{text[:PRINTED]}\n… {len(text) - PRINTED:,} more characters"
                heading = f"{what}{state} · seq {event.seq}"
                yield Section(event.kind, heading, _fenced(text, "text"))


def _message(event: "Event", text: str) -> str:
    """The text of a message, without its headline, and with a note about a payload of bytes."""
    from scroll_context.view.headline import without_headline

    if event.role == "assistant":
        text = without_headline(text)
    if event.payload and not event.payload.is_text:
        text += (
            f"\n\n*{event.payload.media_type}, {event.payload.size:,} bytes: "
            f"`scroll show {event.seq} --raw`*"
        )
    return text


def _code(text: str) -> str:
    """A cell or a tool call; an edit of a file as a diff."""
    diff = edit_as_diff(text)
    return _fenced(text, "python") if diff is None else _fenced(diff, "diff")


def _fenced(text: str, language: str) -> str:
    """A block of code, whatever is in it."""
    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _below(text: str) -> str:
    """Markdown whose headings are below those that say who speaks, except in blocks of code."""
    lines, fence = [], ""
    for line in text.split("\n"):
        mark = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if mark and not fence:
            fence = mark[1]
        elif fence and line.strip().startswith(fence):
            fence = ""
        lines.append(re.sub(r"^( {0,3})(#{1,4} )", r"\1##\2", line) if not fence else line)
    return "\n".join([*lines, fence] if fence else lines)


def _markdown(session: str, passages: Iterator[Section]) -> Iterator[str]:
    yield f"# {one_line(session)}\n"
    for passage in passages:
        yield f"## {passage.heading}\n\n{passage.body.strip()}\n"


def _page(session: str, passages: Iterator[Section]) -> Iterator[str]:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table")
    yield PAGE.format(title=html.escape(one_line(session)))
    for passage in passages:
        kind = passage.role if passage.role in ("user", "assistant") else "other"
        body = parser.render(visible(passage.body))
        yield (
            "<section "
            f'class="{kind}"><h2>{html.escape(one_line(passage.heading))}</h2>\n{body}</section>'
        )
    yield "</body></html>"


@click.command(cls=Command)
@click.argument("seq", type=click.IntRange(min=1), metavar="SEQ")
@click.option("--full", is_flag=True, help="Print every message in full.")
@store_option
@json_option
def explain(seq: int, full: bool, store: Place, as_json: bool) -> None:
    """Show what the model saw in a request, and what it no longer saw.

    The request is rebuilt from the log and compared with the hash that was recorded when it was
    sent. If SEQ is not a request, the nearest earlier request is used, and the evictions that later
    removed the event from the view are listed.

    \b
    Examples:
      scroll explain 240
      scroll explain 240 --full
      scroll sql "SELECT seq FROM hist.events WHERE kind = 'request'"
    """
    from scroll_context.session.explain import explain as explained

    with open_store(store) as opened:
        explanation = explained(opened, seq)
    if as_json:
        print_document(explanation)
    else:
        print_explanation(explanation, full)


def print_explanation(explanation: "Explanation", full: bool) -> None:
    """Everything about a request, for a person."""
    echo(f"request {explanation.seq}", bold=True, end="")
    echo(
        f"  session {one_line(explanation.session_id)}  {explanation.asked_at[:19]}  model "
        f"{one_line(explanation.model)}"
    )
    size = f"about {explanation.tokens:,} tokens"
    if explanation.window:
        size += f" of a window of {explanation.window:,}"
    if explanation.reported:
        size += f"; the provider counted {explanation.reported:,}, {explanation.cached:,} of them"
        size += " cached"
    echo(f"context {explanation.context}: {size}")
    if explanation.verified and explanation.is_layout:
        echo(
            "verified: the host sent these messages, folded and placed like this",
            colour="green",
        )
        if explanation.sent:
            echo(f"SHA-256 of the body that was sent: {explanation.sent}")
    elif explanation.verified:
        echo("verified: these are the messages that were sent, byte for byte", colour="green")
    else:
        echo(f"not verified: {explanation.doubt}", colour="red")
    answered = f"answered at seq {explanation.reply}" if explanation.reply else "not answered"
    for line in explanation.later:
        echo(f"this event was later {line}")
    echo(f"{answered}; tools: {one_line(', '.join(explanation.tools)) or 'none'}\n")
    for position, message in enumerate(explanation.messages):
        _print_message(position, message, full)
    if not explanation.departures:
        echo("\nNothing had left the view." if explanation.messages else "")
    for (plan, reason), left in itertools.groupby(
        explanation.departures, key=lambda departure: (departure.plan, departure.reason)
    ):
        echo(f"\nleft by plan {plan}: {reason}", bold=True)
        rows = []
        for departure in left:
            seqs = str(departure.seq)
            if departure.last != departure.seq:
                seqs += f"-{departure.last}"
            rows.append((seqs, departure.how, departure.rule, departure.now))
        print_table(("seq", "how", "rule", "where it is now"), rows, fit=True)


def _print_message(position: int, message: "Message", full: bool) -> None:
    from scroll_context.view.tokens import estimate

    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    text = "\n".join(part for part in (message.text, *calls, message.tail) if part)
    echo(f"{position}", bold=True, end="")
    echo(f"  {message.role}  about {estimate(text):,} tokens")
    echo(text + "\n" if full else f"    {one_line(text, SHOWN)}")


def _steps(store: "Store", session: str, *, as_json: bool) -> Iterator[str]:
    """The steps of a session, as lines of text or as one JSON document."""
    from scroll_context.session.accounts import trajectory

    first = next(_events(store, session))
    document = trajectory(_events(store, session), _text_of(store.log), first.task_id or session)
    if as_json:
        yield _json_text(document)
        return
    for step in document["steps"]:
        yield f"{step['step_index']}  seq {step['seq']}  {one_line(step['action']['tool'])}"
        if step["reasoning"].strip():
            yield (f"    {one_line(step['reasoning'], SHOWN)}")
        arguments = step["action"]["args"]
        text = None
        if isinstance(arguments, dict):
            text = arguments.get("source") or arguments.get("answer")
        yield (f"    {one_line(text or msgspec.json.encode(arguments).decode(), SHOWN)}")
        if step.get("observation", "").strip():
            yield (f"    → {one_line(step['observation'], SHOWN)}")
    metrics = document["metrics"]
    yield (
        f"{metrics['step_count']} steps, {metrics['tokens_in']:,} tokens in, "
        f"{metrics['tokens_out']:,} out, {metrics['wall_time_s']:,} s"
    )
