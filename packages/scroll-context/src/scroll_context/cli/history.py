"""Commands that tell what happened in a session: read (what was said), trajectory (the steps it
took), explain (what a model saw).

A session is read as Markdown. What was said in it is foreign text: its headings are set below those
that say who speaks, HTML in it is not interpreted, and a page that is made of it loads nothing.
"""

import contextlib
import html
import itertools
import re
import sys
from collections.abc import Callable, Iterator
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
    store_option,
)
from scroll_context.cli.output import (
    Command,
    echo,
    new_file,
    note,
    one_line,
    print_document,
    print_table,
    visible,
)
from scroll_context.errors import PayloadDamaged, PayloadMissing, UnknownSession

if TYPE_CHECKING:
    from scroll_context.events import Event
    from scroll_context.log.log import EventLog
    from scroll_context.messages import Message
    from scroll_context.session.explain import Explanation

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
@click.option("--html", "as_html", is_flag=True, help="Write an HTML page instead of Markdown.")
@click.option(
    "-o", "--out", type=FILE, metavar="FILE", help="Write to a new file instead of stdout."
)
@store_option
def read(
    session: str, cells: bool, full: bool, as_html: bool, out: Path | None, store: Place
) -> None:
    """Read a session as a conversation.

    Shows messages and replies in order, as Markdown. A terminal shows them rendered.

    \b
    Examples:
      scroll read s-1f2e3d4c
      scroll read s-1f2e3d4c --cells > session.md
      scroll read s-1f2e3d4c --html -o session.html
    """
    from scroll_context.session.history import lineage

    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(open_store(store))
        passages = _passages(lineage(opened, session), _text_of(opened.log), cells, full)
        first = next(passages, None)
        if first is None:
            raise UnknownSession(
                f"there is no session {session!r}; `scroll sessions` lists those there are"
            )
        sections = itertools.chain([first], passages)
        if out is None and not as_html and sys.stdout.isatty():
            from scroll_context.cli.watch import Screen

            screen = Screen()
            for passage in sections:
                screen.print(passage.heading, "bold")
                screen.markdown(passage.body)
            return
        lines = _page(session, sections) if as_html else _markdown(session, sections)
        if out is None:
            for line in lines:
                echo(line)
        else:
            file = stack.enter_context(new_file(out))
            for line in lines:
                file.write(visible(line).encode() + b"\n")
    if out is not None:
        note(f"written to {out}")


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
    from scroll_context.view.headline import without_headline

    for event in events:
        match event.kind:
            case "conversation":
                text = (
                    without_headline(text_of(event))
                    if event.role == "assistant"
                    else text_of(event)
                )
                if event.payload and not event.payload.is_text:
                    text += (
                        f"\n\n*{event.payload.media_type}, {event.payload.size:,} bytes: "
                        f"`scroll get {event.seq}`*"
                    )
                if text.strip():
                    heading = (
                        f"{event.role or 'unknown'} · {event.created_at[:16].replace('T', ' ')} · "
                        f"seq {event.seq}"
                    )
                    yield Section(event.role, heading, _below(text))
            case "cell" | "tool_call" if cells:
                what = "cell" if event.kind == "cell" else f"call of {one_line(event.name, SHOWN)}"
                yield Section(
                    event.kind, f"{what} · seq {event.seq}", _fenced(text_of(event), "python")
                )
            case "observation" | "tool_result" if cells:
                text = text_of(event)
                cut = 0 if full else max(len(text) - PRINTED, 0)
                more = f"\n… {cut:,} more characters" if cut else ""
                what = (
                    "printed"
                    if event.kind == "observation"
                    else f"result of {one_line(event.name, SHOWN)}"
                )
                state = "" if event.tool_state in ("", "ok") else f" · {event.tool_state}"
                heading = f"{what}{state} · seq {event.seq}"
                yield Section(event.kind, heading, _fenced(text[: len(text) - cut] + more, "text"))


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
    """Show what a model saw at a request, and what had left its view.

    The request is rebuilt from the log and compared with the hash that was recorded when it was
    sent. If SEQ is not a request, the nearest earlier request is used, and the plans that later
    removed the event are named.

    \b
    Examples:
      scroll explain 240
      scroll explain 240 --full
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
    window = f" of a window of {explanation.window:,}" if explanation.window else ""
    counted = (
        f"; the provider counted {explanation.reported:,}, {explanation.cached:,} of them cached"
        if explanation.reported
        else ""
    )
    echo(f"context {explanation.context}: about {explanation.tokens:,} tokens{window}{counted}")
    if explanation.verified and explanation.is_layout:
        echo(
            "verified: the host sent these of its own messages, folded and placed like this",
            colour="green",
        )
        if explanation.sent:
            echo(f"SHA-256 of the body that was sent: {explanation.sent}")
    elif explanation.verified:
        echo("verified: these are the messages that were sent, to the byte", colour="green")
    else:
        echo(f"not verified: {explanation.doubt}", colour="red")
    answered = (
        f"answered at seq {explanation.reply}" if explanation.reply else "there was no answer"
    )
    for line in explanation.later:
        echo(f"the event you asked about was later {line}")
    echo(f"{answered}; tools: {one_line(', '.join(explanation.tools)) or 'none'}\n")
    for position, message in enumerate(explanation.messages):
        _print_message(position, message, full)
    if not explanation.departures:
        echo("\nNothing had left the view." if explanation.messages else "")
    for (plan, reason), left in itertools.groupby(
        explanation.departures, key=lambda departure: (departure.plan, departure.reason)
    ):
        echo(f"\nleft by plan {plan}: {reason}", bold=True)
        rows = [
            (
                f"{departure.seq}"
                if departure.seq == departure.last
                else f"{departure.seq}-{departure.last}",
                departure.how,
                departure.rule,
                departure.now,
            )
            for departure in left
        ]
        print_table(("seq", "how", "rule", "where it stands"), rows, fit=True)


def _print_message(position: int, message: "Message", full: bool) -> None:
    from scroll_context.view.tokens import estimate

    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    text = "\n".join(part for part in (message.text, *calls, message.tail) if part)
    echo(f"{position}", bold=True, end="")
    echo(f"  {message.role}  about {estimate(text):,} tokens")
    echo(text + "\n" if full else f"    {one_line(text, SHOWN)}")


@click.command(cls=Command)
@session_argument
@click.option("--out", type=FILE, metavar="FILE", help="Write the JSON to a new file.")
@store_option
@json_option
def trajectory(session: str, out: Path | None, store: Place, as_json: bool) -> None:
    """Show the steps of a session: reasoning, action, observation.

    \b
    Examples:
      scroll trajectory s-1f2e3d4c
      scroll trajectory s-1f2e3d4c --out steps.json
    """
    from scroll_context.session.explain import trajectory as steps_of
    from scroll_context.session.history import lineage

    with open_store(store) as opened:
        first = next(lineage(opened, session), None)
        if first is None:
            raise UnknownSession(
                f"there is no session {session!r}; `scroll sessions` lists those there are"
            )
        document = steps_of(
            lineage(opened, session), _text_of(opened.log), first.task_id or session
        )
    if out is not None:
        with new_file(out) as file:
            file.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        note(f"{len(document['steps'])} steps in {out}")
    elif as_json:
        print_document(document)
    else:
        _print_steps(document)


def _print_steps(document: dict[str, Any]) -> None:
    for step in document["steps"]:
        echo(f"{step['step_index']}", bold=True, end="")
        echo(f"  seq {step['seq']}  {one_line(step['action']['tool'])}")
        if step["reasoning"].strip():
            echo(f"    {one_line(step['reasoning'], SHOWN)}")
        arguments = step["action"]["args"]
        text = (
            arguments.get("source") or arguments.get("answer")
            if isinstance(arguments, dict)
            else None
        )
        echo(f"    {one_line(text or msgspec.json.encode(arguments).decode(), SHOWN)}")
        if step.get("observation", "").strip():
            echo(f"    → {one_line(step['observation'], SHOWN)}")
    metrics = document["metrics"]
    echo(
        f"{metrics['step_count']} steps, {metrics['tokens_in']:,} tokens in, "
        f"{metrics['tokens_out']:,} out, {metrics['wall_time_s']:,} s"
    )
