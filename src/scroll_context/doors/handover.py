"""Where the work in a project stands, as a text for an assistant that begins or has just lost its past.

It says, each with its seq: the last requests of the user in their own words, what the assistant said last, tasks that
are open, files that were changed, decisions, and what the user asked for once and for all. After a compaction it names
the seqs that are no longer seen. It ends with how to search. Everything is read from the log; texts are clipped, never
rephrased. The number of events that are read is bounded, and so is the text.

An assistant waits for this, and importing msgspec alone takes longer than all of its queries. So it imports little
and reads through a function that runs a SELECT: `EventLog.query`, or a bare connection to the log file.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from scroll_context.origin import FROM_USER_SQL, NOT_IMPORTED_SQL
from scroll_context.project import CLOSING, OPENING
from scroll_context.text.printable import printable
from scroll_context.text.stance import standing
from scroll_context.text.words import clip, prose, sentences

Query = Callable[[str, Sequence[Any]], Iterable[tuple[Any, ...]]]
"""Runs one SELECT on the log."""

READ_EVENTS = 400  # of the session whose work goes on
READ_TURNS = 600  # of the user in this project that are searched for standing instructions,
NEWEST = 12_000  # among so many of its newest events
REQUESTS = 4
REQUEST_CHARS = 1_200  # of one request; a longer one is cut, with its seq
LISTED = 8  # of files, tasks, decisions and instructions
BYTES_A_TOKEN = 3  # on the safe side: English has more, and a CJK character is a token of three bytes

HOW_TO_SEARCH = (
    "To see more, call the tools of the MCP server `scroll`: `search` (words) finds anything that was said or done in "
    "this project, `expand` gives the exact text at seqs. Search before you ask the user again, or redo work."
)
_EARLIER = "What Scroll recorded of earlier work in this project; what the user says now comes before it."
_COMPACTED = "This session was compacted. Scroll has the whole of it."

_CHANGING = frozenset("Write Edit MultiEdit NotebookEdit write_file replace edit_file search_replace".split())
_FILE = re.compile(r'"(?:file_path|notebook_path|target_file|path)"\s*:\s*"((?:[^"\\]|\\.)+)"')
_PATCHED = re.compile(r"\*\*\* (?:Update|Add|Delete) File: (.+?)(?:\\n|\n|$)")
_DECISION = re.compile(
    r"\b(?:decid(?:ed|e to)|decision|we(?:'ll| will)? (?:go|stick) with|let's (?:go with|use|keep|drop)|settled on|"
    r"agreed (?:on|to)|chose|going with)\b",
    re.IGNORECASE,
)
_CUT = "… (cut; `expand` has all)"
_DONE = ("completed", "done", "deleted", "cancelled")


class _Said(NamedTuple):
    """One event, as far as it is told."""

    seq: int
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


def handover(query: Query, *, task: str, session: str, source: str, tokens: int, folder: str = "") -> str:
    """The context for a session that begins; "" when nothing is known.

    `task` is the project, or "" for all of them; `source` is startup, resume, clear or compact. After `clear` only
    standing instructions are named, since the user has asked for an empty slate.
    """
    turns = _turns(query, task)
    goes_on = source in ("compact", "resume") and any(turn.session == session for turn in turns)
    last = session if goes_on else next((turn.session for turn in turns if turn.session != session), "")
    parts: list[_Part] = []
    if goes_on:
        parts.append(_Part("Recorded word for word", [_span(query, session)], 6))
    if last and source != "clear":
        said = _session(query, task, last)
        calls = [event for event in said if event.kind == "tool_call"]
        spoken = [event for event in said if event.kind == "conversation"]
        requests = [event for event in spoken if event.is_from_user][:REQUESTS]
        replies = [event for event in spoken if event.role == "assistant"][:1]
        decisions = [*_notes(query, task), *islice(_decisions(spoken), LISTED)]
        where = "" if goes_on else f" (session {last})"
        parts += [
            _Part(f"The user's last requests, verbatim, newest first{where}", [_request(one) for one in requests], 40),
            _Part("The assistant's last words", [f"[{one.seq}] {clip(one.text, 400)}" for one in replies], 9),
            _Part("Open tasks", _open_tasks(calls)[:LISTED], 10),
            _Part("Files changed, newest first", [", ".join(_files(calls, folder)[:LISTED])], 8),
            _Part("Decisions, newest first", _bullets(decisions), 12),
        ]
    found = standing((turn.seq, turn.text) for turn in reversed(turns))[-LISTED:]
    parts.append(_Part("Standing instructions of the user, newest first", _bullets(reversed(found)), 15))
    opening = _COMPACTED if goes_on and source == "compact" else _EARLIER
    around = len(opening) + len(HOW_TO_SEARCH) + len(OPENING) + len(CLOSING) + 5
    body = _fitted(parts, BYTES_A_TOKEN * tokens - around)
    lines = [line.replace(CLOSING, "(end)") for line in body]  # a message may have quoted it
    return "\n".join([OPENING, opening, *lines, "", HOW_TO_SEARCH, CLOSING]) if body else ""


# reading ------------------------------------------------------------------------------------------------

_COLUMNS = f"seq, session_id, kind, role, name, substr(content, 1, 20000), {FROM_USER_SQL}"
_SAID = (
    "content NOT IN ('', '[erased]') AND content NOT LIKE '[Request interrupted%' AND metadata NOT LIKE '%\"echo\":t%'"
)


def _turns(query: Query, task: str) -> list[_Said]:
    """The newest turns of the user, newest first. Sub-agents, whose sessions have a slash, are not told by the user."""
    of_task, values = ("task_id = ? AND task_id <> ''", [task]) if task else ("1", [])
    oldest = list(query(f"SELECT seq FROM event WHERE {of_task} ORDER BY seq DESC LIMIT 1 OFFSET ?", [*values, NEWEST]))
    rows = query(
        f"SELECT {_COLUMNS} FROM event WHERE {of_task} AND seq > ? AND {FROM_USER_SQL} "
        f"AND instr(session_id, '/') = 0 AND {_SAID} ORDER BY seq DESC LIMIT ?",
        [*values, oldest[0][0] if oldest else 0, READ_TURNS],
    )
    return [_Said(*row) for row in rows]


def _session(query: Query, task: str, session: str) -> list[_Said]:
    """What was said and called in a session, newest first."""
    rows = query(
        f"SELECT {_COLUMNS} FROM event WHERE session_id = ? AND kind IN ('conversation', 'tool_call') "
        f"AND ? IN ('', task_id) AND {_SAID} AND {NOT_IMPORTED_SQL} ORDER BY seq DESC LIMIT ?",
        [session, task, READ_EVENTS],
    )
    return [_Said(*row) for row in rows]


def _span(query: Query, session: str) -> str:
    ((first, last),) = query("SELECT min(seq), max(seq) FROM event WHERE session_id = ?", [session])
    return (
        f"This session has seqs {first}-{last}, also what a compaction removed from your window; "
        f'expand(seqs="{max(first, last - 19)}-{last}") reads its end.'
    )


def _notes(query: Query, task: str) -> list[tuple[int, str]]:
    """What was kept with the tool `note`, newest first."""
    return [
        (seq, clip(text, 200))
        for seq, text in query(
            "SELECT seq, substr(content, 1, 1000) FROM event WHERE session_id = ? AND kind = 'note' "
            f"AND {_SAID} AND {NOT_IMPORTED_SQL} ORDER BY seq DESC LIMIT 3",
            [f"notes-{task}"],
        )
    ]


# telling ------------------------------------------------------------------------------------------------


def _request(event: _Said) -> str:
    text = printable(event.text).strip()
    if len(text) > REQUEST_CHARS:
        text = text[:REQUEST_CHARS] + _CUT
    return f"[{event.seq}] {text}"


def _bullets(found: Iterable[tuple[int, str]]) -> list[str]:
    return [f"- [{seq}] {printable(text)}" for seq, text in found]


def _files(calls: Sequence[_Said], folder: str) -> list[str]:
    """The files that calls changed, newest first, relative to the project where they lie in it."""
    found: dict[str, None] = {}
    for call in calls:
        names = _FILE.findall(call.text) if call.name in _CHANGING else _PATCHED.findall(call.text)
        for name in names:
            path = name.replace("\\\\", "\\")
            is_inside = folder and path.startswith((f"{folder}/", f"{folder}\\"))
            found[printable(path[len(folder) + 1 :] if is_inside else path)] = None
    return list(found)


def _open_tasks(calls: Sequence[_Said]) -> list[str]:
    """The tasks on the assistant's own list that are not done. It writes the list whole, or task by task."""
    states: dict[str, str] = {}
    created: list[str] = []
    for call in calls:
        if call.name in ("TodoWrite", "write_todos", "update_plan"):
            items = _arguments(call).get("todos") or _arguments(call).get("plan") or []
            return [
                f"- {clip(printable(str(item.get('content') or item.get('step') or item.get('description'))), 160)}"
                for item in items
                if isinstance(item, dict) and item.get("status") not in _DONE
            ]
        if call.name == "TaskUpdate":
            states.setdefault(str(_arguments(call).get("taskId")), str(_arguments(call).get("status")))
        elif call.name == "TaskCreate":
            created.append(str(_arguments(call).get("subject")))
    created.reverse()  # they are numbered from 1 in the order in which they were made
    return [
        f"- {clip(printable(subject), 160)}"
        for number, subject in enumerate(created, 1)
        if states.get(str(number)) not in _DONE
    ]


def _arguments(call: _Said) -> dict[str, Any]:
    try:
        found = json.loads(call.text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _decisions(spoken: Iterable[_Said]) -> Iterator[tuple[int, str]]:
    """Sentences that tell a choice, newest first."""
    known: set[str] = set()
    for event in spoken:
        if _DECISION.search(event.text):
            for sentence in sentences(prose(event.text[:4_000])):
                told = clip(sentence, 200)
                if told not in known and _DECISION.search(sentence) and not sentence.endswith("?"):
                    known.add(told)
                    yield event.seq, told


def _fitted(parts: Sequence[_Part], room: int) -> list[str]:
    """The parts within so many bytes: each within its share and what those before it have left over.

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
                    kept.append(line.removesuffix(_CUT).encode()[:room_here].decode(errors="ignore") + _CUT)
                    used = left
                break
            kept.append(line)
            used += size
        if kept:
            lines += ["", f"## {part.heading}", *kept]
            left -= used
    return lines
