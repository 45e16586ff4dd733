"""Options and arguments that several commands share, and opening the store that they name."""

import contextlib
import datetime as dt
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
import msgspec

from scroll_context.cli.output import note
from scroll_context.cli.settings import VARIABLE, default_store, ignored_store, usual_store
from scroll_context.errors import BadInput, NotAStore, ScrollError, UnknownSession
from scroll_context.log.address import is_address
from scroll_context.projects import is_task_of, project_of, tasks_of_project

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


_AGO = {"h": "hours", "d": "days", "w": "weeks"}


def parse_time(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """A date or time as the store reads it; `yesterday` and `2w` (two weeks ago) work too.

    Times in the log are UTC, and so are these days.
    """
    if text is None:
        return None
    from scroll_context.log import times

    now = dt.datetime.now(dt.UTC)
    match text.strip().lower():
        case "today":
            return now.date().isoformat()
        case "yesterday":
            return (now.date() - dt.timedelta(days=1)).isoformat()
    age = re.fullmatch(r"(\d{1,5})([hdw])", text.strip(), re.ASCII)
    try:
        if age:
            moment = now - dt.timedelta(**{_AGO[age[2]]: int(age[1])})
            return moment.isoformat(timespec="seconds").removesuffix("+00:00")
        times.bound(text, upper=False)
    except OverflowError:
        raise click.BadParameter(f"{text!r} is too long ago") from None
    except BadInput as error:
        raise click.BadParameter(
            f"{error}; today, yesterday, 12h, 3d and 2w (ago) work too"
        ) from None
    return text


def parse_age(_: click.Context, __: click.Parameter, text: str | None) -> dt.timedelta | None:
    """`90d`, `12h` or `4w`."""
    if text is None:
        return None
    if not text[:-1].isdecimal() or text[-1:] not in _AGO:
        raise click.BadParameter(f"{text!r} is not an age; write 90d, 12h or 4w")
    return dt.timedelta(**{_AGO[text[-1]]: int(text[:-1])})


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
            f"the store {ignored} in this folder is not used, because it may have come with a "
            f"repository; this command uses {used}. To use the other one, pass --store {ignored}"
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
    show_default="~/.scroll if that is a store, else ~/.local/share/scroll",
    callback=_chosen_store,
    help="The directory of the store, or its postgresql:// URL.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
session_option = click.option(
    "--session", metavar="ID", shell_complete=complete_session, help="Only this session."
)
session_argument = click.argument("session", metavar="SESSION", shell_complete=complete_session)
agent_option = click.option("--agent", metavar="ID", help="Only this agent.")
task_option = click.option("--task", metavar="ID", help="Only this task.")


project_option = click.option(
    "--project",
    "in_project",
    metavar="NAME|DIR",
    help="Only this project, by its name or its folder.",
)


class Narrowing(msgspec.Struct, frozen=True):
    """Which events a command reads, as the command line says it."""

    session: str | None = None
    agent: str | None = None
    task: str | tuple[str, ...] | None = None
    in_project: str | None = None

    def resolve(self, log: "EventLog", *, full_names: bool = False) -> "Narrowing":
        """The same with the full session name, and with the tasks of the project.

        With `full_names`, a session is not found by a prefix of its name, because a command that
        deletes data must not act on any session other than the one that the user named.
        """
        if self.task is not None and self.in_project is not None:
            raise click.UsageError(
                "--project and --task both choose a task; give only one of them."
            )
        session = self.session
        if session is not None and not full_names:
            session = session_named(log, session)
        task = self.task if self.in_project is None else _tasks_of(log, self.in_project)
        return Narrowing(session, self.agent, task)


def narrowing_options(*, session: bool = True) -> Callable[[Callable[..., None]], Any]:
    """Give a command --session, --agent, --task and --project, as one argument `narrowing`."""
    options = {"agent": agent_option, "task": task_option, "in_project": project_option}
    if session:
        options = {"session": session_option, **options}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**arguments: Any) -> None:
            narrowing = Narrowing(**{name: arguments.pop(name) for name in options})
            command(narrowing=narrowing, **arguments)

        decorated: Callable[..., None] = called
        for option in reversed(options.values()):
            decorated = option(decorated)
        return decorated

    return decorate


# Sessions or projects that an error names.
_NAMED = 5


def session_named(log: "EventLog", text: str) -> str:
    """The session of this name, or the only one whose name begins so.

    Raises UnknownSession.
    """
    if log.tail(1, session_id=text):
        return text
    rows = log.query(
        "SELECT DISTINCT session_id FROM event WHERE substr(session_id, 1, ?) = ? LIMIT ?",
        (len(text), text, _NAMED + 1),
    )
    names = [str(name) for (name,) in rows]
    if len(names) == 1:
        return names[0]
    if names:
        raise UnknownSession(
            f"several sessions begin with {text!r}: {_listed(names)}; type more of the name"
        )
    raise UnknownSession(
        f"there is no session {text!r}; `scroll sessions` lists the sessions of the store"
    )


def _tasks_of(log: "EventLog", project: str) -> tuple[str, ...]:
    """The tasks of a project, which is named by its folder or by the name of that folder."""
    if os.sep in project or project in (".", "..") or project.startswith("~"):
        return project_of(Path(project).expanduser()).tasks
    rows = log.query(
        "SELECT DISTINCT task_id FROM event WHERE substr(task_id, 1, ?) = ?",
        (len(project), project),
    )
    names = [str(name) for (name,) in rows]
    tasks = [name for name in names if is_task_of(name, project)]
    # A subfolder may have the name of its project.
    projects = {tasks_of_project(task) for task in tasks}
    if len(projects) == 1:
        return projects.pop()
    if tasks:
        raise BadInput(
            f"several projects are called {project!r}: {_listed(tasks)}; name one with --task, or "
            "name its folder"
        )
    raise BadInput(
        f"there is no project {project!r} in the store; `scroll sessions` lists the tasks"
    )


def _listed(names: list[str]) -> str:
    more = ", …" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def time_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --from and --to, as `since` and `until`."""
    since = click.option(
        "--from",
        "since",
        metavar="TIME",
        callback=parse_time,
        help="From this time on: a date, a time, yesterday, or 2w for two weeks ago.",
    )
    until = click.option(
        "--to",
        "until",
        metavar="TIME",
        callback=parse_time,
        help="Up to this time; a date means the end of that day.",
    )
    return since(until(command))


by_option = click.option(
    "--by",
    metavar="NAME",
    default="",
    help="The person who asked for it, recorded in the log.",
    show_default="you",
)
lock_timeout_option = click.option(
    "--lock-timeout",
    envvar="SCROLL_LOCK_TIMEOUT",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=30.0,
    show_default=True,
    help="The time to wait for another writer.",
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
    """Refuse an empty folder. A server reports a missing store itself."""
    if isinstance(place, Path) and (
        not place.exists() or (place.is_dir() and not any(place.iterdir()))
    ):
        raise NotAStore(
            f"there is no store in {place}. `scroll import FILE --store {quote(str(place))}` "
            "creates one."
        )
