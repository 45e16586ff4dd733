"""Options and arguments that several commands share, and opening the store that they name."""

import contextlib
import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from scroll_context.cli.output import note
from scroll_context.cli.settings import VARIABLE, default_store, ignored_store, usual_store
from scroll_context.errors import BadInput, NotAStore, ScrollError
from scroll_context.log.address import is_address

if TYPE_CHECKING:
    from scroll_context.log.log import EventLog
    from scroll_context.store import Store


FILE = click.Path(path_type=Path)
"""A path, as `Path`; whether it exists is for the command to say."""

Place = Path | str
"""Where a store is: a folder, or the address of one that hosts share."""


def parse_place(value: Place) -> Place:
    """The type of an option that names a store."""
    return value if is_address(value) else Path(value)


def parse_span(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """`12` or `3-9`, both ends included, as a pair."""
    return None if text is None else _span(text)


def parse_spans(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> list[tuple[int, int]]:
    """Several of them."""
    return [_span(text) for text in texts]


def _span(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", text.strip(), re.ASCII)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a seq (12) or a range of seqs (3-9)")
    lo = int(match[1])
    hi = int(match[2]) if match[2] else lo
    if hi < lo:
        raise click.BadParameter(f"{text!r} runs backwards; write {hi}-{lo}")
    return lo, hi


def parse_time(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """A date or time as the store reads it."""
    if text is None:
        return None
    from scroll_context.log import times

    try:
        times.bound(text, upper=False)
    except BadInput as error:
        raise click.BadParameter(str(error)) from None
    return text


def parse_age(_: click.Context, __: click.Parameter, text: str | None) -> dt.timedelta | None:
    """`90d`, `12h` or `4w`."""
    if text is None:
        return None
    units = {"h": "hours", "d": "days", "w": "weeks"}
    if not text[:-1].isdecimal() or text[-1:] not in units:
        raise click.BadParameter(f"{text!r} is not an age; write 90d, 12h or 4w")
    return dt.timedelta(**{units[text[-1]]: int(text[:-1])})


def _chosen_store(ctx: click.Context, parameter: click.Parameter, value: Place) -> Place:
    """`scroll --store DIR COMMAND` means the same as `scroll COMMAND --store DIR`, which wins."""
    before: Place | None = ctx.find_root().params.get("store")
    source = ctx.get_parameter_source(parameter.name or "")
    if before is not None and source is not click.core.ParameterSource.COMMANDLINE:
        return before
    if source is click.core.ParameterSource.DEFAULT and not ctx.resilient_parsing:
        _report_ignored_store(value)
    return value


def _report_ignored_store(used: Place) -> None:
    ignored = ignored_store()
    if ignored is not None:
        note(
            f"the store {ignored} in this folder is not used, since it may have come with a "
            f"repository; this command uses {used}. To use the other, name it: --store {ignored}"
        )


PLAIN_NAME = re.compile(r"\w[\w.,@+/-]*")
"""Names that mean nothing else to bash, zsh and fish: they insert a completion as it is."""


def complete_session(ctx: click.Context, _: click.Parameter, typed: str) -> list[str]:
    """The sessions of the store that begin with what was typed, for the completion of a shell.

    A session is named by whoever recorded or imported it, so a name that a shell would read as more
    than a word is not offered.
    """
    try:
        place = ctx.find_root().params.get("store") or ctx.params.get("store") or usual_store()
        with contextlib.closing(open_log(parse_place(place))) as log:
            names = [info.session_id for info in log.sessions()]
    except (ScrollError, OSError):
        return []
    return [name for name in names if name.startswith(typed) and PLAIN_NAME.fullmatch(name)]


store_option = click.option(
    "--store",
    envvar=VARIABLE,
    metavar="DIR",
    type=parse_place,
    default=default_store,
    show_default="your own: ~/.scroll, or your folder for application data",
    callback=_chosen_store,
    help="The directory of the store, or its postgresql:// address.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
session_option = click.option(
    "--session", metavar="ID", shell_complete=complete_session, help="Only this session."
)
session_argument = click.argument("session", metavar="SESSION", shell_complete=complete_session)
agent_option = click.option("--agent", metavar="ID", help="Only this agent.")
task_option = click.option("--task", metavar="ID", help="Only this task.")


def scope_options(command: Callable[..., None]) -> Callable[..., None]:
    """Which events: of a session, an agent, a task."""
    return session_option(agent_option(task_option(command)))


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
by_option = click.option(
    "--by",
    metavar="NAME",
    default="",
    help="Who asked for it; recorded in the log.",
    show_default="you",
)
lock_timeout_option = click.option(
    "--lock-timeout",
    envvar="SCROLL_LOCK_TIMEOUT",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=30.0,
    show_default=True,
    help="How long to wait for another writer.",
)


def open_store(place: Place) -> "Store":
    """An existing store; commands that only read never create one."""
    from scroll_context.store import Store

    require_store(place)
    return Store(place)


def open_log(place: Place) -> "EventLog":
    """The log of an existing store, for commands that have no use for the search index."""
    from scroll_context.store import open_log as open_existing

    require_store(place)
    return open_existing(place)


def require_store(place: Place) -> None:
    """Refuse a folder that holds nothing. A server says by itself what it lacks."""
    if isinstance(place, Path) and (
        not place.exists() or (place.is_dir() and not any(place.iterdir()))
    ):
        raise NotAStore(
            f"there is no store in {place}. `scroll import FILE --store {quote(str(place))}` "
            "creates one."
        )
