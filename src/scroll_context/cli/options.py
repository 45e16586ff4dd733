"""Options that several commands share, and opening the store that they name."""

import datetime as dt
import functools
import inspect
import re
from collections.abc import Callable, Collection
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scroll_context.errors import NotAStore

if TYPE_CHECKING:
    from scroll_context.store.log import EventLog
    from scroll_context.store.store import Store

StoreFolder = Annotated[
    Path, typer.Option("--store", envvar="SCROLL_STORE", metavar="DIR", readable=False, help="The folder of the store.")
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

Command = Callable[..., None]


def spread(*, without: Collection[str] = (), **defaults: Any) -> Callable[[Command], Command]:
    """Let several commands declare the same options once, as the fields of a struct that they take as one argument.

    Typer reads options from a signature, so the command gets the one in which every field stands for itself. Fields
    `without` stay as the struct has them and are no options; `defaults` are other defaults than the struct's. All
    parameters of the command are keyword-only.
    """

    def spread_out(command: Command) -> Command:
        from msgspec.structs import fields

        signature = inspect.signature(command)
        [whole] = [one for one in signature.parameters.values() if hasattr(one.annotation, "__struct_fields__")]
        offered = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(field.name, field.default),
                annotation=field.type,
            )
            for field in fields(whole.annotation)
            if field.name not in without
        ]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            chosen = whole.annotation(**{option.name: given.pop(option.name) for option in offered})
            command(**given, **{whole.name: chosen})

        own = list(signature.parameters.values())
        place = own.index(whole)
        own[place : place + 1] = offered
        called.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return called

    return spread_out


def open_store(folder: Path) -> "Store":
    """An existing store; commands that only read never create one."""
    from scroll_context.store.store import Store

    _require_store(folder)
    return Store(folder)


def open_log(folder: Path) -> "EventLog":
    """The log of an existing store, for commands that have no use for the search index."""
    from scroll_context.store.log import EventLog
    from scroll_context.store.payloads import PayloadStore

    _require_store(folder)
    return EventLog(folder, PayloadStore(folder / "payloads"))


def _require_store(folder: Path) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        raise NotAStore(
            f"there is no store in {folder}. `scroll import FILE --store {quote(str(folder))}` creates one."
        )


def parse_span(text: str, of: str) -> tuple[int, int]:
    """`12` or `3-9`, both ends included. `of` is the option or argument that it was given for."""
    match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", text.strip(), re.ASCII)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a seq (12) or a range of seqs (3-9)", param_hint=of)
    lo = int(match[1])
    hi = int(match[2]) if match[2] else lo
    if hi < lo:
        raise typer.BadParameter(f"{text!r} runs backwards; write {hi}-{lo}", param_hint=of)
    return lo, hi


def parse_time(text: str | None, of: str) -> str | None:
    """An ISO date or time, given for the option `of`, as the log compares it: with a zone, it becomes UTC."""
    if text is None:
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a date or time; write 2026-03-01 or 2026-03-01T09:30", param_hint=of
        ) from None
    return text if moment.tzinfo is None else moment.astimezone(dt.UTC).isoformat()
