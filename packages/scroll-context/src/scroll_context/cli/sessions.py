"""`scroll sessions`: the sessions of a store, narrowed and paged."""

import contextlib
import itertools
from typing import TYPE_CHECKING

import click

from scroll_context.cli.options import (
    Narrowing,
    Place,
    json_option,
    narrowing_options,
    open_log,
    store_option,
    time_options,
)
from scroll_context.cli.output import Command, note, paged, print_document, print_table

if TYPE_CHECKING:
    from scroll_context.log.log import SessionInfo


@click.command(cls=Command)
@narrowing_options(session=False)
@time_options
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Only the newest N sessions."
)
@store_option
@json_option
def sessions(
    narrowing: Narrowing,
    since: str | None,
    until: str | None,
    limit: int | None,
    store: Place,
    as_json: bool,
) -> None:
    """List the sessions, oldest first.

    A session has the title that its source gave it, or else the user's first meaningful sentence.
    On a terminal, a long list is shown in your pager.

    \b
    Examples:
      scroll sessions
      scroll sessions --limit 2
      scroll sessions --from 2w --json
    """
    import msgspec

    from scroll_context.events import Grant
    from scroll_context.log.titles import session_titles

    with contextlib.closing(open_log(store)) as log:
        place = narrowing.resolve(log)
        infos = log.sessions(Grant(agent_id=place.agent, task_id=place.task))
        titles = session_titles(log)
    infos = [info for info in infos if _is_within(info, since, until)]
    infos = infos[-limit:] if limit else infos
    if as_json:
        print_document(
            [
                {**msgspec.structs.asdict(info), "title": titles.get(info.session_id, "")}
                for info in infos
            ]
        )
    elif infos:
        with paged():
            _print_sessions(infos, titles)
    else:
        note("no session matches")


def _is_within(info: "SessionInfo", since: str | None, until: str | None) -> bool:
    """Whether a session has an event between two times; its first and last event decide."""
    from scroll_context.log import times

    if since is not None and info.last_at < times.bound(since, upper=False):
        return False
    if until is None:
        return True
    last = times.bound(until, upper=True)
    return info.first_at[: len(last)] <= last


def _print_sessions(infos: "list[SessionInfo]", titles: dict[str, str]) -> None:
    rows = [
        (
            info.session_id,
            info.agent_id,
            info.task_id,
            f"{info.events:,}",
            f"{info.first_seq}-{info.last_seq}",
            info.first_at[:10],
            info.last_at[:16].replace("T", " "),
            titles.get(info.session_id, ""),
        )
        for info in infos
    ]
    columns = ("session", "agent", "task", "events", "seqs", "first", "last", "title")
    # Empty columns are left out.
    filled = [True, *(any(values) for values in list(zip(*rows, strict=True))[1:])]
    print_table(
        list(itertools.compress(columns, filled)),
        [list(itertools.compress(row, filled)) for row in rows],
        numeric=("events",),
        fit=True,
    )
