"""Earlier work, besides earlier words: when a file was last changed, how a command ended, where an
error occurred and what followed.

Everything is read from the recorded tool calls and their results; a line says what they show and no
more. The rules for calls and outcomes are those of the view (view/actions.py, view/outcome.py), and
are imported only when there is something to show, because an assistant waits for this.
"""

import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tantivy import Occur, Query

from scroll_context.brief.relevance import (
    COLUMNS,
    HAS_TEXT,
    Reach,
    Row,
    Source,
    found_seqs,
    labelled,
    rows,
)
from scroll_context.search import tokenize
from scroll_context.search.tokenize import SCHEMA
from scroll_context.text.printable import printable
from scroll_context.text.words import clip

if TYPE_CHECKING:
    from scroll_context.view.actions import Action

# The newest calls or results that are looked at for one subject.
LOOKED_AT = 60
# Words of a subject that are looked up as a phrase.
PHRASE = 12
# Outcomes of a command, and steps after an error, that are listed.
LISTED = 3
# Events after a call among which its result is looked for, and after an error among which the
# steps that followed are.
FOLLOWING = 200
STEPS = 60
# Subjects of each kind in one text.
SUBJECTS = 2
LINE = 200
# Characters of a text, and of a line of it, in which subjects are looked for.
READ_TEXT = 20_000
LONGEST_LINE = 500

# The rules compare only the beginning of a longer command.
_SHORT_COMMAND = 120
# What shapes the output of a command, and what stands before a command without being part of it.
_SHAPING = re.compile(r"[|;<>&]|\b\d>")
_PREFIXES = ("cd ", "set ", "export ", "timeout ")

_FILE = re.compile(r"(?<![\w/.@-])(?:[\w.@~-]*/)*[\w@-][\w.@-]*\.[A-Za-z]\w{0,5}\b(?![\w/(])")
_WEB = re.compile(r"\b\w+://\S+|\bwww\.\S+|(?<!\S)\S+@\S+")
_ERROR = re.compile(
    r"^.*?(?P<error>\b\w*(?:Error|Exception)\b: .{3,}"
    r"|\b(?:error|fatal|panic)(?:\[\w+\])?: .{3,}|npm ERR! .{3,})$",
    re.MULTILINE,
)


class Deed(NamedTuple):
    """A line about earlier work on one subject."""

    # What it is about, such as `file:src/api.py`.
    subject: str
    # The event that it begins with.
    seq: int
    text: str


def deeds_for_text(source: Source, text: str, reach: Reach) -> Iterator[Deed]:
    """Earlier work on the files and errors that a text names."""
    # A pasted text may be of any length, and the patterns take time for long lines.
    text = "\n".join(line[:LONGEST_LINE] for line in text[:READ_TEXT].splitlines())
    errors = dict.fromkeys(match["error"].strip() for match in _ERROR.finditer(text))
    for error in list(errors)[:SUBJECTS]:
        yield from error_deed(source, error, reach)
    files = dict.fromkeys(_FILE.findall(_WEB.sub(" ", text)))
    for path in list(files)[:SUBJECTS]:
        yield from file_deed(source, path, reach)


def deeds_for_call(source: Source, arguments: Any, reach: Reach) -> Iterator[Deed]:
    """Earlier work on the file or command that a tool call is about to use."""
    if not isinstance(arguments, dict):
        return
    for key in ("file_path", "notebook_path", "path", "target_file"):
        path = arguments.get(key)
        if isinstance(path, str) and path:
            yield from file_deed(source, path, reach)
            return
    if arguments.get("command") or arguments.get("cmd"):
        yield from command_deed(source, arguments, reach)


# files --------------------------------------------------------------------------------------------


def file_deed(source: Source, path: str, reach: Reach) -> Iterator[Deed]:
    """When a file was last changed, and by which call of which session."""
    name = os.path.basename(path.rstrip("/"))
    calls = _newest(source, name, "tool_call", reach)
    changes = [call for call in calls if _changes(call, path)]
    if not changes:
        return
    last = changes[0]
    count = ""
    if len(changes) > 1:
        sessions = len({call.session for call in changes})
        where = "1 session" if sessions == 1 else f"{sessions} sessions"
        count = f"; {len(changes)} changes in {where}"
    text = (
        f"{quoted(path)} was last changed {last.day} by {quoted(last.name)} "
        f"[{last.seq}]{_where(last)}{count}"
    )
    yield Deed(f"file:{path}", last.seq, text)


def _changes(call: Row, path: str) -> bool:
    """Whether a call changed this file; of a bare name, any file with that name."""
    action = _action(call)
    if not action.edits:
        return False
    wanted = path.replace("\\", "/").split("/")
    for file in action.files:
        parts = file.replace("\\", "/").split("/")
        # The rules shorten long paths to their last parts.
        common = min(len(parts), len(wanted))
        if parts[-common:] == wanted[-common:]:
            return True
    return False


# commands -----------------------------------------------------------------------------------------


def _part_of_command(arguments: dict[str, Any]) -> str:
    """Words that every call with the same command has; "" if that is not sure.

    Most commands are new. The rules that compare commands take longer to import than everything
    else that the hook does, so a command is looked up by this part first.
    """
    line = arguments.get("command") or arguments.get("cmd")
    if not isinstance(line, str) or len(line) > _SHORT_COMMAND:
        return ""
    part = _SHAPING.split(line.rpartition("&&")[2])[0].strip()
    return "" if part.startswith(_PREFIXES) else part


def command_deed(source: Source, arguments: dict[str, Any], reach: Reach) -> Iterator[Deed]:
    """How a command ended the last times."""
    part = _part_of_command(arguments)
    if part and not _newest(source, part, "tool_call", reach):
        return
    from scroll_context.view.actions import action

    command = action("", arguments).command
    if len(tokenize.words(command)) < 2:
        # A bare `ls` says nothing about the work.
        return
    endings = []
    first = 0
    for call in _newest(source, command, "tool_call", reach):
        if _action(call).command != command:
            continue
        result = _result(source, call)
        if result is None:
            continue
        first = first or result.seq
        endings.append(f"{result.day} {_outcome(result)} [{result.seq}]")
        if len(endings) == LISTED:
            break
    if endings:
        text = f"`{quoted(command)}` was run before: {'; '.join(endings)}"
        yield Deed(f"command:{command}", first, text)


# errors -------------------------------------------------------------------------------------------


def error_deed(source: Source, error: str, reach: Reach) -> Iterator[Deed]:
    """Where an error was met before, and what followed."""
    if len(tokenize.words(error)) < 3:
        return
    met = _newest(source, error, "tool_result", reach)
    if not met:
        return
    last = met[0]
    steps = _steps_after(source, last)
    then = f"; then {', '.join(steps)}" if steps else ""
    text = f"“{quoted(error)}” was met {last.day} [{last.seq}]{_where(last)}{then}"
    yield Deed(f"error:{error}", last.seq, text)


def _steps_after(source: Source, result: Row) -> list[str]:
    """The changes that followed a result in its session, and how the next command ended."""
    following = source.select(
        f"SELECT {COLUMNS} FROM event WHERE session_id = ? AND seq > ? "
        f"AND kind IN ('tool_call', 'tool_result') AND {HAS_TEXT} ORDER BY seq LIMIT ?",
        [result.session, result.seq, STEPS],
    )
    steps: list[str] = []
    command: Row | None = None
    for row in (Row(*values) for values in following):
        if row.kind == "tool_result":
            if command is not None and steps:
                steps.append(f"{quoted(_action(command).label)} gave {_outcome(row)} [{row.seq}]")
                break
            continue
        action = _action(row)
        command = row if action.command else None
        if action.edits and len(steps) < LISTED:
            steps.append(f"{quoted(action.label)} [{row.seq}]")
    return steps


# reading ------------------------------------------------------------------------------------------


def _newest(source: Source, subject: str, kind: str, reach: Reach) -> list[Row]:
    """The newest events of a kind that hold the words of a subject in a row, newest first."""
    words = tokenize.words(tokenize.normal(subject))[:PHRASE]
    if not words:
        return []
    phrase = Query.term_query(SCHEMA, "text", words[0], "freq")
    if len(words) > 1:
        phrase = Query.phrase_query(SCHEMA, "text", list(words))
    clauses = [(Occur.Must, phrase), (Occur.Must, labelled("kind", kind)), *reach.clauses()]
    hits = source.searcher.search(
        Query.boolean_query(clauses), LOOKED_AT, count=False, order_by_field="seq"
    ).hits
    events = rows(source, found_seqs(source, hits))
    return [row for row in events if row.is_own and reach.permits(row.seq, row.session)]


def _result(source: Source, call: Row) -> Row | None:
    """The result of a call."""
    found = source.select(
        f"SELECT {COLUMNS} FROM event WHERE seq > ? AND seq <= ? AND session_id = ? "
        "AND kind = 'tool_result' AND (reply_to = ? OR (tool_call_id <> '' AND tool_call_id = "
        f"(SELECT tool_call_id FROM event WHERE seq = ?))) AND {HAS_TEXT} LIMIT 1",
        [call.seq, call.seq + FOLLOWING, call.session, call.seq, call.seq],
    )
    return next((Row(*values) for values in found), None)


def _action(call: Row) -> "Action":
    from scroll_context.view.actions import action

    try:
        arguments = json.loads(call.text)
    except ValueError:
        # A long call is cut, and a patch is text.
        arguments = {"input": call.text}
    return action(call.name, arguments if isinstance(arguments, dict) else {"input": arguments})


def _outcome(result: Row) -> str:
    from scroll_context.view.outcome import outcome

    report = outcome(result.text)
    words = quoted(report.text) or "no output"
    return f"“{words}”{' (failed)' if report.failed else ''}"


def _where(row: Row) -> str:
    return f" in session {quoted(row.session, 40)}"


def quoted(text: str, chars: int = LINE) -> str:
    """A text on one line, without invisible characters."""
    return clip(printable(text), chars)
