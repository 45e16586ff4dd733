"""Options that several commands share, and opening the store that they name."""

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from scroll_context.store.log import EventLog
    from scroll_context.store.store import Store

StoreFolder = Annotated[
    Path, typer.Option("--store", envvar="SCROLL_STORE", metavar="DIR", help="The folder of the store.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Session = Annotated[str | None, typer.Option(metavar="ID", help="Only this session.")]
Agent = Annotated[str | None, typer.Option(metavar="ID", help="Only this agent.")]
Task = Annotated[str | None, typer.Option(metavar="ID", help="Only this task.")]
LockTimeout = Annotated[
    float,
    typer.Option(envvar="SCROLL_LOCK_TIMEOUT", min=0, metavar="SECONDS", help="How long to wait for another writer."),
]

DEFAULT_STORE = Path(".scroll")


def open_store(folder: Path) -> "Store":
    """An existing store; commands that only read never create one."""
    from scroll_context.store.store import Store

    return Store(folder)


def open_log(folder: Path) -> "EventLog":
    """The log of an existing store, for commands that have no use for the search index."""
    from scroll_context.store.log import EventLog
    from scroll_context.store.payloads import PayloadStore

    return EventLog(folder, PayloadStore(folder / "payloads"))


def parse_span(text: str) -> tuple[int, int]:
    """`12` or `3-9`, both ends included."""
    match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", text.strip(), re.ASCII)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a seq (12) or a range of seqs (3-9)")
    lo = int(match[1])
    hi = int(match[2]) if match[2] else lo
    if hi < lo:
        raise typer.BadParameter(f"{text!r} runs backwards; write {hi}-{lo}")
    return lo, hi


def parse_time(text: str | None) -> str | None:
    """An ISO date or time as the log compares it: with a zone, it becomes UTC."""
    if text is None:
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a date or time; write 2026-03-01 or 2026-03-01T09:30") from None
    return text if moment.tzinfo is None else moment.astimezone(dt.UTC).isoformat()
