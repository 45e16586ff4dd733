"""One journal for each session of a log, shared by the tests of tools: a session has only one."""

from scroll_context.events import Scope
from scroll_context.log.journal import Journal
from scroll_context.log.log import EventLog

_open: dict[tuple[int, Scope], Journal] = {}


def journal_of(log: EventLog, scope: Scope) -> Journal:
    """The journal of a session; made at the first call, closed with the process."""
    key = id(log), scope
    if key not in _open or _open[key].log is not log:
        _open[key] = Journal(log, scope)
    return _open[key]
