"""The titles of sessions, the same ones wherever sessions are listed.

A session is called by the title that its source gave it (ChatGPT, opencode, Cursor and others name
their conversations), and otherwise by the first sentence of its user that says something.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from scroll_context.events import EVERYTHING, Grant
from scroll_context.log.filters import conditions
from scroll_context.origin import FROM_PERSON_SQL
from scroll_context.text.printable import one_line
from scroll_context.text.terms import opening

if TYPE_CHECKING:
    from scroll_context.log.log import EventLog

# Characters of a title.
LENGTH = 70
# Turns of a session in which a title is looked for: the first ones may be greetings.
TURNS = 4


def session_titles(
    log: "EventLog", grant: Grant = EVERYTHING, sessions: Sequence[str] | None = None
) -> dict[str, str]:
    """The title of each session that has one, on one line; of `sessions` alone if they are named.

    Only turns within the grant are read.
    """
    where, values = conditions(grant)
    if sessions is not None:
        where += f" AND session_id IN ({', '.join('?' * len(sessions))})"
        values += sessions
    rows = log.query(
        f"""SELECT session_id, substr(content, 1, 2000), metadata FROM (
            SELECT session_id, content, metadata, seq,
                row_number() OVER (PARTITION BY session_id ORDER BY seq) number
            FROM event WHERE {FROM_PERSON_SQL} AND {where}
        ) WHERE number <= {TURNS} ORDER BY seq""",
        values,
    )
    titles: dict[str, str] = {}
    turns: dict[str, list[str]] = {}
    for session, content, metadata in rows:
        if session not in turns:
            titles[session] = _source_title(metadata)
        turns.setdefault(session, []).append(str(content))
    for session, texts in turns.items():
        title = titles[session] or opening(texts, LENGTH)
        titles[session] = one_line(title, LENGTH)
    return titles


def _source_title(metadata: Any) -> str:
    """The title that the importer of a conversation recorded with its messages."""
    try:
        fields = msgspec.json.decode(metadata)
    except (msgspec.DecodeError, TypeError):
        return ""
    for value in fields.values() if isinstance(fields, dict) else ():
        title = value.get("title") if isinstance(value, dict) else None
        if isinstance(title, str) and title.strip():
            return title
    return ""
