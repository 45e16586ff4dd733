"""Where the work in a project stands, as a text for an assistant that begins or has just lost its
past.

It says, each with its seq: the last requests of the user in their own words, what the assistant
said last, tasks that are open, files that were changed, decisions, and what the user asked for once
and for all. After a compaction it names the seqs that are no longer seen. It ends with how to
search. Everything is read from the log; texts are clipped, never rephrased. The number of events
that are read is bounded, and so is the text.

Only own sessions and captured assistants are read: words from imported files have no place in it.
The session that goes on is the latest by time, since `import --all` records one assistant after the
other. Every quoted text begins behind a seq or a bullet, and each further line of it is marked, so
no text can pass for a heading or for another entry.

An assistant waits for this, and importing msgspec alone takes longer than all of its queries. So it
imports little and reads through a function that runs a SELECT: `EventLog.query`, or a bare
connection to the log file.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from scroll_assistants.project import CLOSING, OPENING
from scroll_context.origin import FROM_USER_SQL, NOT_IMPORTED_SQL
from scroll_context.text.printable import printable
from scroll_context.text.stance import standing
from scroll_context.text.words import clip, prose, sentences

Query = Callable[[str, Sequence[Any]], Iterable[tuple[Any, ...]]]
"""Runs one SELECT on the log."""

READ_EVENTS = 400  # of the session whose work goes on
READ_TURNS = 600  # of the user in this project that are searched for standing instructions,
NEWEST = 12_000  # among so many events of its latest sessions,
SESSIONS = 100  # of which there are so many at most
REQUESTS = 4
REQUEST_CHARS = 1_200  # of one request; a longer one is cut, with its seq
LISTED = 8  # of files, tasks, decisions and instructions
BYTES_A_TOKEN = (
    3  # on the safe side: English has more, and a CJK character is a token of three bytes
)

HOW_TO_SEARCH = (
    "To see more, call the tools of the MCP server `scroll`: `search` (words) finds anything that was said or done in "
    "this project, `expand` gives the exact text at seqs. Search before you ask the user again, or redo work."
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
    r"\b(?:decid(?:ed|e to)|decision|we(?:'ll| will)? (?:go|stick) with|let's (?:go with|use|keep|drop)|settled on|"
    r"agreed (?:on|to)|chose|going with)\b",
    re.IGNORECASE,
)
_CUT = "… (cut; `expand` has all)"
_FURTHER_LINE = "\n  > "  # before the second line of a quoted text, and each behind it
_END_MARK = re.compile(r"<\s*/\s*scroll-context\s*>", re.IGNORECASE)
_DONE = ("completed", "done", "deleted", "cancelled")


class _Row(NamedTuple):
    """One event, as far as it is shown."""

    seq: int
    at: str
    session: str
    kind: str
    role: str
    name: str
    text: str
    is_from_user: int


class _Part(NamedTuple):
    """A heading, its lines with the most important one first, and its share of the text in percent."""

    heading: str
    lines: list[str]
    share: int


def handover(
    query: Query, *, task: str, session: str, source: str, tokens: int, folder: str = ""
) -> str:
    """The context for a session that begins; "" when nothing is known.

    `task` is the project, or "" for all of them; `source` is startup, resume, clear or compact.
    After `clear` only standing instructions are named, since the user has asked for an empty slate.
    """
    turns = _turns(query, task)
    goes_on = source in ("compact", "resume") and any(turn.session == session for turn in turns)
    last = (
        session
        if goes_on
        else next((turn.session for turn in turns if turn.session != session), "")
    )
    parts: list[_Part] = []
    if goes_on:
        parts.append(_Part("Recorded word for word", [_span(query, session)], 6))
    if last and source != "clear":
        said = _session(query, task, last)
        calls = [event for event in said if event.kind == "tool_call"]
        spoken = [
            row
            for row in said
            if row.kind == "conversation" and (row.is_from_user or row.role == "assistant")
        ]
        requests = [event for event in spoken if event.is_from_user][:REQUESTS]
        replies = [event for event in spoken if event.role == "assistant"][:1]
        decisions = [*_notes(query, task), *islice(_decisions(spoken), LISTED)]
        where = "" if goes_on else f" (session {_line(last, 80)})"
        parts += [
            _Part(
                f"The user's last requests, verbatim, newest first{where}",
                [_request(row) for row in requests],
                40,
            ),
            _Part(
                "The assistant's last words",
                [f"[{row.seq}] {_line(row.text, 400)}" for row in replies],
                9,
            ),
            _Part("Open tasks", _open_tasks(calls)[:LISTED], 10),
            _Part("Files changed, newest first", _files(calls, folder), 8),
            _Part("Decisions, newest first", decisions, 12),
        ]
    in_time = sorted(turns, key=lambda turn: (turn.at, turn.seq))
    instructions = standing((turn.seq, turn.text) for turn in in_time)[-LISTED:]
    bullets = [f"- [{seq}] {_line(text, 200)}" for seq, text in reversed(instructions)]
    parts.append(_Part("Standing instructions of the user, newest first", bullets, 15))
    opening = _COMPACTED if goes_on and source == "compact" else _EARLIER
    around = len(opening) + len(HOW_TO_SEARCH) + len(OPENING) + len(CLOSING) + 5
    body = _fitted(parts, BYTES_A_TOKEN * tokens - around)
    lines = [_END_MARK.sub("(end)", line) for line in body]  # a message may have quoted it
    return "\n".join([OPENING, opening, *lines, "", HOW_TO_SEARCH, CLOSING]) if body else ""


# reading ------------------------------------------------------------------------------------------------

_COLUMNS = (
    f"seq, created_at, session_id, kind, role, name, substr(content, 1, 20000), {FROM_USER_SQL}"
)
_SAID = "content NOT IN ('', '[erased]') AND metadata NOT LIKE '%\"echo\":t%'"


_LATEST_SESSIONS = f"""
    WITH RECURSIVE names(id) AS (
        SELECT min(session_id) FROM event
        UNION ALL SELECT (SELECT min(session_id) FROM event WHERE session_id > id) FROM names WHERE id IS NOT NULL
    )
    SELECT id FROM names JOIN event ON seq = (SELECT max(seq) FROM event WHERE session_id = id)
    WHERE instr(id, '/') = 0 AND EXISTS (
        SELECT 1 FROM event WHERE seq IN (
            (SELECT max(seq) FROM event WHERE session_id = id), (SELECT min(seq) FROM event WHERE session_id = id)
        ) AND ? IN ('', task_id) AND {NOT_IMPORTED_SQL}
    )
    ORDER BY created_at DESC, seq DESC LIMIT ?"""
"""The sessions whose last events are the latest by time, of those that the user's own work began or
ended. A file may bring any number of sessions with times to come: they would take all the places.
Each name costs a step in the index of sessions. A session with a slash in its name is a
sub-agent's, to whom the user does not speak."""


def _turns(query: Query, task: str) -> list[_Row]:
    """Turns of the user in the latest sessions, those of the latest session first, the newest of
    each first.
    """
    turns: list[_Row] = []
    left = NEWEST
    for (session,) in list(query(_LATEST_SESSIONS, [task, SESSIONS])):
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
            f"SELECT {_COLUMNS} FROM event WHERE session_id = ? AND seq > ? AND ? IN ('', task_id) AND {FROM_USER_SQL} "
            f"AND {_SAID} ORDER BY seq DESC LIMIT ?",
            [session, first, task, READ_TURNS - len(turns)],
        )
        turns += [_Row(*row) for row in rows]
    return turns


def _session(query: Query, task: str, session: str) -> list[_Row]:
    """What was said and called in a session, newest first."""
    rows = query(
        f"SELECT {_COLUMNS} FROM event WHERE session_id = ? AND kind IN ('conversation', 'tool_call') "
        f"AND ? IN ('', task_id) AND {_SAID} AND {NOT_IMPORTED_SQL} ORDER BY seq DESC LIMIT ?",
        [session, task, READ_EVENTS],
    )
    return [_Row(*row) for row in rows]


def _span(query: Query, session: str) -> str:
    ((first, last),) = query("SELECT min(seq), max(seq) FROM event WHERE session_id = ?", [session])
    return (
        f"This session has seqs {first}-{last}, also what a compaction removed from your window; "
        f'expand(seqs="{max(first, last - 19)}-{last}") reads its end.'
    )


def _notes(query: Query, task: str) -> list[str]:
    """What was kept with the tool `note`, newest first."""
    rows = query(
        "SELECT seq, substr(content, 1, 1000) FROM event WHERE session_id = ? AND kind = 'note' "
        f"AND {_SAID} AND {NOT_IMPORTED_SQL} ORDER BY seq DESC LIMIT 3",
        [f"notes-{task}"],
    )
    return [f"- [{seq}] note: {_line(text, 200)}" for seq, text in rows]


# telling ------------------------------------------------------------------------------------------------


def _line(text: str, length: int) -> str:
    """A text on one line, without characters that are not seen."""
    return clip(printable(text), length)


def _request(row: _Row) -> str:
    """A request in the user's own words and lines."""
    text = printable(row.text).strip()
    if len(text) > REQUEST_CHARS:
        text = text[:REQUEST_CHARS] + _CUT
    return f"[{row.seq}] {_FURTHER_LINE.join(text.split(chr(10)))}"


def _files(calls: Sequence[_Row], folder: str) -> list[str]:
    """A line with the files that calls changed, newest first, relative to the project where they
    lie in it.
    """
    found: dict[str, None] = {}
    for call in calls:
        names = _FILE.findall(call.text) if call.name in _CHANGING else _PATCHED.findall(call.text)
        for name in names:
            path = name.replace("\\\\", "\\")
            is_inside = folder and path.startswith((f"{folder}/", f"{folder}\\"))
            found[_line(path[len(folder) + 1 :] if is_inside else path, 300)] = None
    return [f"- {', '.join(islice(found, LISTED))}"] if found else []


def _open_tasks(calls: Sequence[_Row]) -> list[str]:
    """The tasks on the assistant's own list that are not done.

    It writes the list whole, or task by task.
    """
    states: dict[str, str] = {}
    created: list[str] = []
    for call in calls:
        if call.name in ("TodoWrite", "write_todos", "update_plan"):
            items = _arguments(call).get("todos") or _arguments(call).get("plan") or []
            return [
                f"- {_line(str(item.get('content') or item.get('step') or item.get('description')), 160)}"
                for item in items
                if isinstance(item, dict) and item.get("status") not in _DONE
            ]
        if call.name == "TaskUpdate":
            states.setdefault(
                str(_arguments(call).get("taskId")), str(_arguments(call).get("status"))
            )
        elif call.name == "TaskCreate":
            created.append(str(_arguments(call).get("subject")))
    created.reverse()  # they are numbered from 1 in the order in which they were made
    return [
        f"- {_line(subject, 160)}"
        for number, subject in enumerate(created, 1)
        if states.get(str(number)) not in _DONE
    ]


def _arguments(call: _Row) -> dict[str, Any]:
    try:
        found = json.loads(call.text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _decisions(spoken: Iterable[_Row]) -> Iterator[str]:
    """Sentences that tell a choice, each with its speaker, newest first."""
    known: set[str] = set()
    for row in spoken:
        if not _DECISION.search(row.text):
            continue
        for sentence in sentences(prose(row.text[:4_000])):
            text = _line(sentence, 200)
            if text not in known and _DECISION.search(sentence) and not sentence.endswith("?"):
                known.add(text)
                yield f"- [{row.seq}] {'user' if row.is_from_user else 'assistant'}: {text}"


def _fitted(parts: Sequence[_Part], room: int) -> list[str]:
    """The parts within so many bytes: each within its share and what those before it have left
    over.

    A first line that is too long is cut; of the others as many are told as fit.
    """
    lines: list[str] = []
    left = 0
    for part in parts:
        left += room * part.share // 100
        used = len(part.heading.encode()) + 5
        kept: list[str] = []
        for line in filter(None, part.lines):
            size = len(line.encode()) + 1
            if used + size > left:
                if not kept and left - used > 60:
                    room_here = left - used - len(_CUT.encode()) - 1
                    kept.append(
                        line.removesuffix(_CUT).encode()[:room_here].decode(errors="ignore") + _CUT
                    )
                    used = left
                break
            kept.append(line)
            used += size
        if kept:
            lines += ["", f"## {part.heading}", *kept]
            left -= used
    return lines
