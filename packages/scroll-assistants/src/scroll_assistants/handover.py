"""The hand-over: a text about the state of a project, for an assistant that starts or has just been
compacted.

It lists, each with its seq: the user's last requests verbatim, the assistant's last reply, open
tasks, changed files, decisions, and standing instructions. After a compaction it names the seqs of
the session. It ends with instructions for searching. Everything is read from the log; texts are
clipped, never rephrased. The number of events that are read is bounded, and so is the text.

Only own sessions and captured assistants are read; the hand-over never quotes imported files. The
session to continue is the latest by time, since `import --all` records one assistant after the
other. Every quoted text begins after a seq or a bullet, and each further line of it is marked, so
no text can pass for a heading or for another entry.

An assistant waits for this, and importing msgspec alone takes longer than all of its queries. So
this module imports little and reads through a function that runs a SELECT: `EventLog.query`, or a
bare connection to the log file.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from scroll_assistants.project import CLOSING, OPENING, marked
from scroll_context.origin import FROM_USER_SQL, NOT_IMPORTED_SQL
from scroll_context.text.printable import printable
from scroll_context.text.stance import standing
from scroll_context.text.words import clip, prose, sentences

Query = Callable[[str, Sequence[Any]], Iterable[tuple[Any, ...]]]
"""Runs one SELECT on the log."""

# The number of events that are read from the session to continue.
READ_EVENTS = 400
# Standing instructions are searched for in this many user turns, among the newest events of at most
# this many sessions.
READ_TURNS = 600
NEWEST = 12_000
SESSIONS = 100
REQUESTS = 4
# A longer request is cut, with its seq.
REQUEST_CHARS = 1_200
# The most files, tasks, decisions and instructions in each list.
LISTED = 8
# A low estimate: English has more bytes per token, and a CJK character is a token of three bytes.
BYTES_A_TOKEN = 3

HOW_TO_SEARCH = (
    "To see more, call the tools of the MCP server `scroll`: `search` (words) finds anything that "
    "was said or done in this project, `expand` gives the exact text at seqs. Search before you "
    "ask the user again, or redo work."
)
_EARLIER = (
    "What Scroll recorded of earlier work in this project; what the user says now comes before it."
)
_COMPACTED = "This session was compacted. Scroll has the whole of it."

_CHANGING = frozenset(
    "Write Edit MultiEdit NotebookEdit write_file replace edit_file search_replace".split()
)
_FILE = re.compile(r'"(?:file_path|notebook_path|target_file|path)"\s*:\s*"((?:[^"\\]|\\.)+)"')
_PATCHED = re.compile(r"\*\*\* (?:Update|Add|Delete) File: (.+?)(?:\\n|\n|$)")
_DECISION = re.compile(
    r"\b(?:decid(?:ed|e to)|decision|we(?:'ll| will)? (?:go|stick) with"
    r"|let's (?:go with|use|keep|drop)|settled on|agreed (?:on|to)|chose|going with)\b",
    re.IGNORECASE,
)
_CUT = "… (cut; `expand` has all)"
# Separates the lines of a quoted text.
_FURTHER_LINE = "\n  > "
_DONE = ("completed", "done", "deleted", "cancelled")


class _Row(NamedTuple):
    """The columns of an event that the hand-over uses."""

    seq: int
    at: str
    session: str
    kind: str
    role: str
    name: str
    text: str
    is_from_user: int


class _Part(NamedTuple):
    """A section of the text: its heading, and its lines with the most important first."""

    heading: str
    lines: list[str]
    # In percent of the text.
    share: int


def handover(
    query: Query,
    *,
    tasks: Sequence[str],
    session: str,
    source: str,
    tokens: int,
    folder: str = "",
) -> str:
    """The context for a session that starts; "" if nothing is recorded.

    `tasks` are those of the project, or none for all projects; `source` is startup, resume, clear
    or compact. After `clear` only standing instructions are named, since the user has asked for an
    empty slate.
    """
    turns = _turns(query, tasks)
    other_sessions = (turn.session for turn in turns if turn.session != session)
    is_same_session = source in ("compact", "resume") and any(
        turn.session == session for turn in turns
    )
    parts: list[_Part] = []
    if is_same_session:
        parts.append(_Part("Recorded word for word", [_span(query, session)], 6))
    last = session if is_same_session else next(other_sessions, "")
    if last and source != "clear":
        where = "" if is_same_session else f" (session {_line(last, 80)})"
        parts += _session_parts(query, tasks, last, where, folder)
    in_time = sorted(turns, key=lambda turn: (turn.at, turn.seq))
    instructions = standing((turn.seq, turn.text) for turn in in_time)[-LISTED:]
    bullets = [f"- [{seq}] {_line(text, 200)}" for seq, text in reversed(instructions)]
    parts.append(_Part("Standing instructions of the user, newest first", bullets, 15))
    opening = _COMPACTED if is_same_session and source == "compact" else _EARLIER
    around = len(opening) + len(HOW_TO_SEARCH) + len(OPENING) + len(CLOSING) + 5
    body = _fitted(parts, BYTES_A_TOKEN * tokens - around)
    if not body:
        return ""
    return marked("\n".join([opening, *body, "", HOW_TO_SEARCH]))


def _session_parts(
    query: Query, tasks: Sequence[str], session: str, where: str, folder: str
) -> Iterator[_Part]:
    """The sections about the session to continue."""
    rows = _session(query, tasks, session)
    calls = [row for row in rows if row.kind == "tool_call"]
    spoken = [
        row
        for row in rows
        if row.kind == "conversation" and (row.is_from_user or row.role == "assistant")
    ]
    requests = [row for row in spoken if row.is_from_user][:REQUESTS]
    replies = [row for row in spoken if row.role == "assistant"][:1]
    yield _Part(
        f"The user's last requests, verbatim, newest first{where}",
        [_request(row) for row in requests],
        40,
    )
    yield _Part(
        "The assistant's last words",
        [f"[{row.seq}] {_line(row.text, 400)}" for row in replies],
        9,
    )
    yield _Part("Open tasks", _open_tasks(calls)[:LISTED], 10)
    yield _Part("Files changed, newest first", _files(calls, folder), 8)
    decisions = [*_notes(query, tasks), *islice(_decisions(spoken), LISTED)]
    yield _Part("Decisions, newest first", decisions, 12)


# reading ------------------------------------------------------------------------------------------

_COLUMNS = (
    f"seq, created_at, session_id, kind, role, name, substr(content, 1, 20000), {FROM_USER_SQL}"
)
_HAS_TEXT = "content NOT IN ('', '[erased]') AND metadata NOT LIKE '%\"echo\":t%'"


_LATEST_SESSIONS = f"""
    WITH RECURSIVE names(id) AS (
        SELECT min(session_id) FROM event
        UNION ALL
        SELECT (SELECT min(session_id) FROM event WHERE session_id > id)
        FROM names WHERE id IS NOT NULL
    )
    SELECT id FROM names JOIN event ON seq = (SELECT max(seq) FROM event WHERE session_id = id)
    WHERE instr(id, '/') = 0 AND EXISTS (
        SELECT 1 FROM event WHERE seq IN (
            (SELECT max(seq) FROM event WHERE session_id = id),
            (SELECT min(seq) FROM event WHERE session_id = id)
        ) AND {{condition}} AND {NOT_IMPORTED_SQL}
    )
    ORDER BY created_at DESC, seq DESC LIMIT ?"""
"""The sessions with the latest last events, if the user's own work began or ended them. Without
that condition, a file with many sessions dated in the future would take all the places. Each
session name costs a step in the index of sessions. A session with a slash in its name belongs to a
sub-agent, to whom the user does not speak."""


def _within(tasks: Sequence[str]) -> str:
    """The condition that an event belongs to one of the tasks, or to any if there are none."""
    return f"task_id IN ({', '.join('?' * len(tasks))})" if tasks else "1"


def _turns(query: Query, tasks: Sequence[str]) -> list[_Row]:
    """User turns of the latest sessions, latest session first, newest turn of each first."""
    turns: list[_Row] = []
    left = NEWEST
    latest = _LATEST_SESSIONS.format(condition=_within(tasks))
    for (session,) in list(query(latest, [*tasks, SESSIONS])):
        if left <= 0 or len(turns) >= READ_TURNS:
            break
        oldest = list(
            query(
                "SELECT seq FROM event WHERE session_id = ? ORDER BY seq DESC LIMIT 1 OFFSET ?",
                [session, left],
            )
        )
        first = oldest[0][0] if oldest else 0
        ((size,),) = query(
            "SELECT count(*) FROM event WHERE session_id = ? AND seq > ?", [session, first]
        )
        left -= size
        rows = query(
            f"SELECT {_COLUMNS} FROM event WHERE session_id = ? AND seq > ? "
            f"AND {_within(tasks)} AND {FROM_USER_SQL} AND {_HAS_TEXT} "
            "ORDER BY seq DESC LIMIT ?",
            [session, first, *tasks, READ_TURNS - len(turns)],
        )
        turns += [_Row(*row) for row in rows]
    return turns


def _session(query: Query, tasks: Sequence[str], session: str) -> list[_Row]:
    """The messages and tool calls of a session, newest first."""
    rows = query(
        f"SELECT {_COLUMNS} FROM event WHERE session_id = ? "
        f"AND kind IN ('conversation', 'tool_call') AND {_within(tasks)} "
        f"AND {_HAS_TEXT} AND {NOT_IMPORTED_SQL} ORDER BY seq DESC LIMIT ?",
        [session, *tasks, READ_EVENTS],
    )
    return [_Row(*row) for row in rows]


def _span(query: Query, session: str) -> str:
    ((first, last),) = query("SELECT min(seq), max(seq) FROM event WHERE session_id = ?", [session])
    return (
        f"This session has seqs {first}-{last}, also what a compaction removed from your window; "
        f'expand(seqs="{max(first, last - 19)}-{last}") reads its end.'
    )


def _notes(query: Query, tasks: Sequence[str]) -> list[str]:
    """Notes that were recorded with the tool `note`, newest first."""
    sessions = [f"notes-{task}" for task in tasks]
    rows = query(
        "SELECT seq, substr(content, 1, 1000) FROM event "
        f"WHERE session_id IN ({', '.join('?' * len(sessions))}) AND kind = 'note' "
        f"AND {_HAS_TEXT} AND {NOT_IMPORTED_SQL} ORDER BY seq DESC LIMIT 3",
        sessions,
    )
    return [f"- [{seq}] note: {_line(text, 200)}" for seq, text in rows]


# writing ------------------------------------------------------------------------------------------


def _line(text: str, length: int) -> str:
    """A text on one line, without invisible characters."""
    return clip(printable(text), length)


def _request(row: _Row) -> str:
    """A request in the user's own words and lines."""
    text = printable(row.text).strip()
    if len(text) > REQUEST_CHARS:
        text = text[:REQUEST_CHARS] + _CUT
    return f"[{row.seq}] {_FURTHER_LINE.join(text.split(chr(10)))}"


def _files(calls: Sequence[_Row], folder: str) -> list[str]:
    """A line with the files that calls changed, newest first. Paths inside the project are relative
    to it.
    """
    paths: dict[str, None] = {}
    for call in calls:
        pattern = _FILE if call.name in _CHANGING else _PATCHED
        for name in pattern.findall(call.text):
            path = name.replace("\\\\", "\\")
            if folder and path.startswith((f"{folder}/", f"{folder}\\")):
                path = path[len(folder) + 1 :]
            paths[_line(path, 300)] = None
    return [f"- {', '.join(islice(paths, LISTED))}"] if paths else []


def _open_tasks(calls: Sequence[_Row]) -> list[str]:
    """The tasks on the assistant's own list that are not done.

    Assistants write the complete list, or task by task.
    """
    states: dict[str, str] = {}
    created: list[str] = []
    for call in calls:
        if call.name in ("TodoWrite", "write_todos", "update_plan"):
            return _open_items(_arguments(call))
        if call.name == "TaskUpdate":
            update = _arguments(call)
            states.setdefault(str(update.get("taskId")), str(update.get("status")))
        elif call.name == "TaskCreate":
            created.append(str(_arguments(call).get("subject")))
    # Tasks are numbered from 1 in the order of their creation; calls come newest first.
    created.reverse()
    return [
        f"- {_line(subject, 160)}"
        for number, subject in enumerate(created, 1)
        if states.get(str(number)) not in _DONE
    ]


def _open_items(arguments: dict[str, Any]) -> list[str]:
    """The items of a complete list that are not done."""
    lines = []
    for item in arguments.get("todos") or arguments.get("plan") or []:
        if isinstance(item, dict) and item.get("status") not in _DONE:
            text = item.get("content") or item.get("step") or item.get("description")
            lines.append(f"- {_line(str(text), 160)}")
    return lines


def _arguments(call: _Row) -> dict[str, Any]:
    try:
        arguments = json.loads(call.text)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _decisions(spoken: Iterable[_Row]) -> Iterator[str]:
    """Sentences that state a decision, each with its speaker, newest first."""
    seen: set[str] = set()
    for row in spoken:
        if not _DECISION.search(row.text):
            continue
        speaker = "user" if row.is_from_user else "assistant"
        for sentence in sentences(prose(row.text[:4_000])):
            text = _line(sentence, 200)
            is_decision = _DECISION.search(sentence) and not sentence.endswith("?")
            if is_decision and text not in seen:
                seen.add(text)
                yield f"- [{row.seq}] {speaker}: {text}"


def _fitted(parts: Sequence[_Part], room: int) -> list[str]:
    """The lines of the parts within `room` bytes.

    Each part has its share and the bytes that the parts before it did not use. A first line that is
    too long is cut; further lines are added as long as they fit.
    """
    lines: list[str] = []
    left = 0
    for part in parts:
        left += room * part.share // 100
        used = len(part.heading.encode()) + 5
        body: list[str] = []
        for line in filter(None, part.lines):
            size = len(line.encode()) + 1
            if used + size <= left:
                body.append(line)
                used += size
                continue
            if not body and left - used > 60:
                body.append(_cut(line, left - used - 1))
                used = left
            break
        if body:
            lines += ["", f"## {part.heading}", *body]
            left -= used
    return lines


def _cut(line: str, room: int) -> str:
    """The beginning of a line, with the mark of a cut, within `room` bytes."""
    beginning = line.removesuffix(_CUT).encode()[: room - len(_CUT.encode())]
    return beginning.decode(errors="ignore") + _CUT
