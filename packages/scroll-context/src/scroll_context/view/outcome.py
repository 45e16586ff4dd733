"""The outcome of a tool call in one line: what a reader of the complete text would remember.

Test runs, compilers, tracebacks, git, searches, tables, JSON and HTTP errors have a form of their
own, and the lines that say most are known: the last line of a test run, the first error, the count
of matches. Every rule looks at lines and is tried in a fixed order; a text of no known form is
described by its first and last line. Pure, and the same for the same text: no model, no guess about
what a tool is for.

A rule may also see that the work failed although the call did not: a program that drives a session
reports a test run with failures as a call that went well.
"""

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import msgspec

from scroll_context.view.headline import cut

OUTCOME_CHARS = 160
READ_CHARS = 10_000
"""Characters that are read at each end of a text.

No more than a view holds of a clipped text, so that a text has the same outcome in all its forms.
"""
_END_LINES = 40
"""Lines at the end within which an error is the outcome, and not something that was read."""
_COMMON_LETTERS = " \netaoinsrhldcumfpgwybvk"
"""Letters of ordinary text, the commonest first."""
_SHAPE_LINES = 400
"""Lines by which the form of a listing or a table is recognised."""


class Output(NamedTuple):
    """The output of a tool, as text and as the lines that are not blank."""

    text: str
    lines: list[str]


class Outcome(msgspec.Struct, frozen=True):
    """The outcome that a text reports, in one line."""

    text: str = ""
    # Whether the text itself reports a failure.
    failed: bool = False


class _Word(NamedTuple):
    """A word that a rule looks for, and the letter of it that is rarest in ordinary text."""

    text: str
    rarest: str


def _words(*texts: str) -> tuple[_Word, ...]:
    return tuple(_Word(text, max(text, key=_rarity)) for text in texts)


def _rarity(letter: str) -> int:
    place = _COMMON_LETTERS.find(letter)
    return place if place >= 0 else len(_COMMON_LETTERS)


def _present(words: Sequence[_Word], text: str) -> list[str]:
    """The words that a text has.

    A single letter is found twenty times as fast as a word, so it is looked for first.
    """
    return [word for word, rarest in words if rarest in text and word in text]


def outcome(text: str, *, is_error: bool = False, is_partial: bool = False) -> Outcome:
    """The outcome that a tool's output reports, in at most OUTCOME_CHARS characters.

    `is_error` says that the call is known to have failed, so that the reason is looked for.
    `is_partial` says that only the two ends of the output are given.
    """
    if len(text) > 2 * READ_CHARS:
        text = text[:READ_CHARS] + "\n" + text[-READ_CHARS:]
        is_partial = True
    if "\x1b" in text or "\r" in text:
        text = _ESCAPES.sub("", text)
    lines = list(filter(None, map(str.rstrip, text.splitlines())))
    if not lines:
        return Outcome("")
    output = Output(text, lines)
    status = _exit_status(lines)
    for rule in _RULES:
        report = rule(output)
        if report is not None:
            break
    else:
        rule = _plain_text
        report = _error_line(lines, anywhere=is_error or status > 0) or _plain_text(output)
    line = report.text
    if is_partial and rule in _COUNTING and not report.failed:
        line = f"at least {line}"
    if status and f"exit {status}" not in line:
        line = f"exit {status}: {line}" if line else f"exit {status}"
    return Outcome(cut(line, OUTCOME_CHARS), report.failed or status > 0)


def edit_size(arguments: Any) -> str:
    """The lines that an edit adds and removes, as `+12 −3`; "" if the call is not an edit."""
    if not isinstance(arguments, dict):
        return ""
    for old_name, new_name in (("old_string", "new_string"), ("old_str", "new_str")):
        old, new = arguments.get(old_name), arguments.get(new_name)
        if isinstance(old, str) and isinstance(new, str):
            return _counts(*_changed(old.splitlines(), new.splitlines()))
    edits = arguments.get("edits")
    if isinstance(edits, list) and edits:
        return _all_edits(edits)
    for name in ("patch", "diff", "input"):
        patch = arguments.get(name)
        if isinstance(patch, str) and (counted := _patch_counts(patch.splitlines())):
            return _counts(*counted)
    for name in ("content", "file_text", "insert_text"):
        content = arguments.get(name)
        if isinstance(content, str) and any(key in arguments for key in _PATH_KEYS):
            return _counts(len(content.splitlines()), 0)
    return ""


def _all_edits(edits: list[Any]) -> str:
    added = removed = 0
    for edit in edits:
        if isinstance(edit, dict):
            old = str(edit.get("old_string", edit.get("oldText", "")))
            new = str(edit.get("new_string", edit.get("newText", "")))
            more, less = _changed(old.splitlines(), new.splitlines())
            added, removed = added + more, removed + less
    return _counts(added, removed) if added or removed else ""


_PATH_KEYS = ("file_path", "path", "filename", "notebook_path", "target_file")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r(?=\n)")
_EXIT = re.compile(
    r"(?:exit(?:ed)?(?: with)?(?: code| status)?|exit_code\"?|returncode|Process exited with code)"
    r"[:= ]+(\d{1,3})\b",
    re.I,
)
_EXIT_WORDS = ("exit", "returncode")


def _exit_status(lines: Sequence[str]) -> int:
    """The exit status that the first or the last line names; 0 if they name none."""
    for line in (lines[0], lines[-1]):
        if len(line) < 120 and _may_have(_EXIT_WORDS, line):
            match = _EXIT.search(line)
            if match:
                return int(match[1])
    return 0


def _may_have(words: Sequence[str], line: str) -> bool:
    """Whether a line has one of these words in capital or small letters.

    In doubt it has: letters beyond ASCII may stand for others to a pattern that ignores case.
    """
    if not line.isascii():
        return True
    return any(map(line.lower().__contains__, words))


# test runs ----------------------------------------------------------------------------------------

_COUNTED = r"\d+ (?:failed|passed|errors?|skipped|xfailed|xpassed|deselected|warnings?|rerun)"
_TEST_SUMMARIES: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(summary), re.compile(failing))
    for summary, failing in (
        # pytest
        (rf"^=*\s*({_COUNTED}(?:, {_COUNTED})*) in [\d.]+s.*$", r"\d+ (?:failed|error)"),
        (r"^=*\s*(no tests ran) in [\d.]+s\s*=*$", r"no tests ran"),
        # cargo test
        (r"^(test result: .*?;)(?: 0 ignored; 0 measured;.*)?$", r"FAILED"),
        # jest and vitest
        (r"^\s*(Tests:?\s+(?:\d+ \w+[,|]? ?\|? ?)+(?:\d+ total|\(\d+\)))", r"\d+ failed"),
        # mocha
        (r"^\s*(\d+ passing.*)$", r"\Z."),
        (r"^\s*(\d+ failing)$", r"failing"),
        # maven, rspec, PHPUnit, dotnet, TAP
        (
            r"^(?:\[\w+\]\s*)?(Tests run: \d+, Failures: \d+.*?)(?:, Time.*)?$",
            r"(?:Failures|Errors): [1-9]",
        ),
        (r"^(\d+ examples?, \d+ failures?.*)$", r"[1-9]\d* failures?"),
        (r"^(Tests: \d+, Assertions: \d+.*)$", r"(?:Failures|Errors): [1-9]"),
        (r"^(OK \(\d+ tests?.*\))$", r"\Z."),
        (r"^\s*((?:Failed|Passed)!\s+- Failed:.*?)(?:, Duration.*)?$", r"Failed!"),
    )
)
_TEST_WORDS = _words(
    "failed",
    "passed",
    "error",
    "skipped",
    "deselected",
    "warning",
    "rerun",
    "no tests ran",
    "test result: ",
    "Tests",
    "passing",
    "failing",
    "example",
    "OK (",
    "Failed!",
    "Passed!",
)
"""Each summary has one of these words. Most texts have none, so their lines are not looked at."""
_FIRST_FAILURE = re.compile(
    r"^(?:E\s{2,}(?P<assertion>\S.*)"
    r"|(?:FAILED|ERROR) (?P<test>\S+(?: - .*)?)"
    r"|(?:FAIL|ERROR): (?P<unit>\S+.*)"
    r"|test (?P<cargo>\S+) \.\.\. FAILED"
    r"|\s*--- FAIL: (?P<go>\S+)"
    r"|\s*● (?P<jest>.+)"
    r"|not ok (?P<tap>.+)"
    r"|\s*1\) (?P<mocha>.+))"
)
_RAN = re.compile(r"Ran (\d+ tests?) in ")
_UNITTEST = re.compile(r"^(OK|FAILED)(?: \(([^)]*)\))?$")
_GO_PACKAGE = re.compile(r"^(ok|FAIL)\s+(\S+)\s+(?:[\d.]+s|\(cached\)|\[build failed\])")


def _test_run(output: Output) -> Outcome | None:
    lines = output.lines
    summary, failed = "", False
    for line in reversed(_with_words(_TEST_WORDS, lines[-60:])):
        for pattern, failing in _TEST_SUMMARIES:
            match = pattern.match(line)
            if match and not (summary and not failing.search(line)):
                has_failed = bool(failing.search(line))
                if not summary or (has_failed and not failed):
                    summary, failed = " ".join(match[1].split()).rstrip(";"), has_failed
    if not summary:
        return _unittest_run(lines) or _go_run(lines)
    return _with_failure(summary, failed, lines)


def _with_words(words: Sequence[_Word], lines: Sequence[str]) -> list[str]:
    """The lines that have one of the words.

    A rule looks only at these. Searching the joined lines for plain words first takes a tenth of
    the time that the patterns of a rule take at every line.
    """
    present = _present(words, "\n".join(lines))
    if not present:
        return []
    if len(present) == 1:
        [word] = present
        return [line for line in lines if word in line]
    return [line for line in lines if any(word in line for word in present)]


def _unittest_run(lines: Sequence[str]) -> Outcome | None:
    match = _UNITTEST.match(lines[-1])
    if not match:
        return None
    counts = filter(None, map(_RAN.match, lines[-6:]))
    ran = next((count[1] for count in counts), "")
    if not ran:
        return None
    failed = match[1] == "FAILED"
    summary = f"{match[1]} ({match[2]}), {ran}" if match[2] else f"{match[1]}, {ran}"
    return _with_failure(summary, failed, lines)


_GO_STARTS = ("ok", "FAIL")
_GO_WORDS = _words("\nok", "\nFAIL")


def _go_run(lines: Sequence[str]) -> Outcome | None:
    if not _present(_GO_WORDS, "\n" + "\n".join(lines)):
        return None
    candidates = [line for line in lines if line.startswith(_GO_STARTS)]
    matches = [match for line in candidates if (match := _GO_PACKAGE.match(line))]
    if not matches:
        return None
    failing = [match[2] for match in matches if match[1] == "FAIL"]
    if not failing:
        return Outcome(f"ok: {_count(len(matches), 'package')}")
    summary = f"FAIL {', '.join(failing)}"
    return _with_failure(summary, True, lines)


def _with_failure(summary: str, failed: bool, lines: Sequence[str]) -> Outcome:
    if not failed:
        return Outcome(summary)
    first = ""
    named = ""
    for line in lines:
        match = _FIRST_FAILURE.match(line)
        if match is None or match[0].startswith("ERROR collecting"):
            continue
        if match["assertion"]:
            first = first or match["assertion"]
        else:
            named = named or next(filter(None, match.groups()))
    # The line with the name of a failed test repeats the assertion, if it has one.
    test, _, reason = named.partition(" - ")
    parts = [summary, cut(test, 60), cut(reason or first, 70)]
    return Outcome("; ".join(filter(None, parts)), True)


# linters, compilers, package managers -------------------------------------------------------------

_VERDICTS: tuple[tuple[re.Pattern[str], bool], ...] = tuple(
    (re.compile(pattern), failed)
    for pattern, failed in (
        (r"^(Found \d+ errors?.*)$", True),
        (r"^(Success: no issues found.*)$", False),
        (r"^(All checks passed!)$", False),
        (r"^✖ (\d+ problems? .*)$", True),
        (r"^(error: could not compile .*)$", True),
        (r"^(make(?:\[\d+\])?: \*\*\* .*)$", True),
        (r"^(?:\[\w+\]\s*)?(BUILD (?:FAILURE|FAILED).*)$", True),
        (r"^(?:\[\w+\]\s*)?(BUILD SUCCESS(?:FUL)?.*)$", False),
        (r"^\s*(Finished [`\w].*)$", False),
        (r"^(added \d+ packages?.*)$", False),
        (r"^(up to date, audited .*)$", False),
        (r"^(Successfully installed .*)$", False),
        (r"^(\d+ files? (?:reformatted|left unchanged|already formatted).*)$", False),
    )
)
_VERDICT_WORDS = _words(
    "Found ",
    "Success: ",
    "All checks passed!",
    "✖ ",
    "error: could not",
    "make",
    "BUILD ",
    "Finished ",
    "added ",
    "up to date",
    "Successfully installed",
    "reformatted",
    "left unchanged",
    "already formatted",
)
_ERROR_WORDS = _words("error", "npm ERR!", ": ")
_COMPILE_ERROR = re.compile(
    r"^(?:error(?:\[E\d+\])?: .+|\S+?[:(]\d+[:,]\d+\)?:? (?:fatal )?error\b.*|\S+:\d+: error: .+"
    r"|\S+:\d+:\d+: [A-Z]+\d+ .+|\S+\.go:\d+:\d+: .+|npm (?:ERR!|error) .+)"
)


def _build(output: Output) -> Outcome | None:
    lines = output.lines
    # A document may quote an error anywhere; a compiler ends with it.
    errors = _compile_errors(lines[-_END_LINES:])
    if errors:
        errors = _compile_errors(lines)
    verdict, failed = "", False
    for line in reversed(_with_words(_VERDICT_WORDS, lines[-30:])):
        for pattern, is_failure in _VERDICTS:
            if not verdict and (match := pattern.match(line)):
                verdict, failed = match[1].strip(), is_failure
    if verdict and not failed:
        return Outcome(verdict)
    errors = [error for error in errors if error != verdict]
    if not errors and not verdict:
        return None
    first = cut(errors[0], 110) if errors else ""
    count = _count(len(errors), "error") if len(errors) > 1 else ""
    if errors and errors[0].startswith("npm "):
        return Outcome("; ".join(errors[:2]), True)
    return Outcome("; ".join(filter(None, (verdict or count, first))), True)


def _compile_errors(lines: Sequence[str]) -> list[str]:
    candidates = _with_words(_ERROR_WORDS, lines)
    return [line.strip() for line in candidates if _COMPILE_ERROR.match(line)]


# tracebacks ---------------------------------------------------------------------------------------

_RAISED = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit|Fault|Failure)\b.*"
    r"|[a-z_]\w*(?:\.\w+)+(?::.*)?$)"
)
_PLACE = re.compile(r'^\s*File "([^"]+)", line (\d+)')
_STACK = re.compile(r"^\s+at .+[:(]|^\s+from .+:\d+")
_PANICS = re.compile(
    r"^(?:panic: .*|thread '.*' \(?.*panicked at .*|Exception in thread .*|Unhandled exception.*"
    r"|PHP Fatal error: .*|Fatal error: .*|Uncaught .*|Segmentation fault.*|Killed$"
    r"|fatal error: .*|\S+\.rb:\d+:in .*|Error: .*|[A-Z]\w*Error: .*|[\w.]+Exception: .*)"
)
_TRACEBACK = "Traceback (most recent"
_TRACEBACK_WORDS = _words(_TRACEBACK)
_PANIC_WORDS = _words(
    "panic",
    "xception",
    "atal error",
    "Uncaught ",
    "Segmentation fault",
    "Killed",
    ".rb:",
    "Error: ",
)


def _traceback(output: Output) -> Outcome | None:
    lines = output.lines
    if _present(_TRACEBACK_WORDS, output.text):
        starts = [at for at, line in enumerate(lines) if line.startswith(_TRACEBACK)]
        if starts:
            return _python_traceback(lines[starts[-1] + 1 :])
    first = max(0, len(lines) - _END_LINES)
    if not _with_words(_PANIC_WORDS, lines[first:]):
        return None
    for at, line in enumerate(lines[first:], first):
        if _PANICS.match(line):
            after = lines[at + 1 : at + 4]
            if line.endswith(":") and after:
                return Outcome(f"{line} {after[0].strip()}", True)
            is_stack = any(_STACK.match(other) for other in after)
            if is_stack or line.startswith(("panic", "PHP", "Segm", "Kill", "Unh", "thread")):
                place = after[0].strip() if is_stack else ""
                return Outcome("; ".join(filter(None, (cut(line, 110), cut(place, 50)))), True)
            if re.match(r"\S+\.rb:\d+:in ", line):
                return Outcome(line, True)
    return None


def _python_traceback(lines: Sequence[str]) -> Outcome | None:
    place = ""
    for at, line in enumerate(lines):
        if match := _PLACE.match(line):
            path = match[1].rsplit("/", 1)[-1]
            place = f"{path}:{match[2]}"
        elif not line.startswith(" ") and _RAISED.match(line):
            if len(lines) - at > _END_LINES:
                return None
            return Outcome(f"{cut(line, 120)} at {place}" if place else line, True)
    return None


# values, searches, tables -------------------------------------------------------------------------


def _json(output: Output) -> Outcome | None:
    body = output.text.strip()
    if body[:1] not in "{[" or body[-1:] not in "}]":
        return None
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(value, list):
        return Outcome(_list_shape(value))
    return _json_error(value) or Outcome(_object_shape(value))


def _list_shape(items: list[Any]) -> str:
    rows = [item for item in items if isinstance(item, dict)]
    if items and len(rows) == len(items):
        columns = list(dict.fromkeys(key for row in rows[:50] for key in row))
        return _table_shape(len(rows), columns)
    return _count(len(items), "item")


def _object_shape(value: dict[str, Any]) -> str:
    parts = []
    for key, item in value.items():
        if isinstance(item, list):
            parts.append(f"{key}: {_list_shape(item)}")
        elif isinstance(item, dict):
            parts.append(f"{key}: {{…}}")
        else:
            parts.append(f"{key}: {cut(str(item), 40)}")
    return ", ".join(parts)


def _json_error(value: dict[str, Any]) -> Outcome | None:
    error = value.get("error") or value.get("errors") or value.get("exception")
    status = value.get("status") or value.get("status_code") or value.get("statusCode")
    is_bad_status = isinstance(status, int) and status >= 400
    is_refusal = value.get("success") is False or value.get("ok") is False
    if not (error or is_bad_status or is_refusal or value.get("status") == "error"):
        return None
    if isinstance(error, list) and error:
        error = error[0]
    words: list[str] = [str(status)] if is_bad_status else []
    for source in (error, value):
        if isinstance(source, dict):
            words += [
                str(source[key])
                for key in ("type", "code", "message", "detail", "reason", "title")
                if isinstance(source.get(key), str | int)
            ]
        elif isinstance(source, str):
            words.append(source)
    return Outcome("error: " + ": ".join(dict.fromkeys(words)), True)


# The name ends in a word, and a lookbehind checks that: `\w\.?\w*` took 0.2 s for a line of 4,000
# letters, and four times as long for one of 8,000.
_MATCH_LINE = re.compile(r"^((?:[\w.@+~-]*/)*[\w.@+~-]*(?<=\w)\.?)[:-](\d+)[:-]")
_PATH_LINE = re.compile(r"^\s*(?:\./|/|~/)?(?:[\w.@+-]+/)*[\w.@+-]+(?:/|\.\w+)$")
_NUMBERED = re.compile(r"^\s*(\d+)(?:→|\t|│| \|)")


def _has_separator(line: str) -> bool:
    return ":" in line or "-" in line


def _has_no_space(line: str) -> bool:
    return " " not in line.lstrip()


def _matches(
    pattern: re.Pattern[str],
    lines: Sequence[str],
    least: int,
    may_match: Callable[[str], bool] = bool,
) -> "list[re.Match[str]]":
    """The matches of a pattern in lines, if there are at least so many; else none.

    `may_match` is a quick test that each line with a match passes.
    """
    misses = len(lines) - least
    matches = []
    for line in lines:
        match = pattern.match(line) if may_match(line) else None
        if match is not None:
            matches.append(match)
            continue
        misses -= 1
        if misses < 0:
            return []
    return matches


def _source(output: Output) -> Outcome | None:
    """A file with its lines numbered: what it says is about the file, and not about the work."""
    lines = output.lines
    sample = lines[:_SHAPE_LINES]
    matches = _matches(_NUMBERED, sample, max(2, len(sample) * 3 // 4))
    if not matches:
        return None
    last = _NUMBERED.match(lines[-1]) or matches[-1]
    return Outcome(f"lines {matches[0][1]}-{last[1]}")


def _search(output: Output) -> Outcome | None:
    lines = output.lines
    sample = lines[:_SHAPE_LINES]
    most = -(-len(sample) * 4 // 5)
    matches = _matches(_MATCH_LINE, sample, most, _has_separator)
    if matches and not _compile_errors(sample):
        files = list(dict.fromkeys(match[1] for match in matches))
        return Outcome(f"{_count(len(lines), 'match', 'matches')} in {_listed(files, 'file')}")
    if len(lines) > 1 and _matches(_PATH_LINE, sample, most, _has_no_space):
        return Outcome(_listed([line.strip() for line in lines], "path"))
    return None


_ROWS = re.compile(r"^[\[(]?(\d[\d,]*) rows?(?: x (\d+) columns)?[\])]?$")


def _table(output: Output) -> Outcome | None:
    lines = output.lines
    if match := _ROWS.match(lines[-1].strip()):
        columns = lines[0].replace("|", " ").split()
        count = f" × {match[2]} columns" if match[2] else ""
        return Outcome(f"{match[1]} rows{count}: {', '.join(columns[:8])}")
    for separator in (",", "\t", "|", ";"):
        width = lines[0].count(separator)
        sample = lines[:_SHAPE_LINES]
        if not width or len(lines) < 3 or (width < 2 and separator == ","):
            continue
        even = [line for line in sample if line.count(separator) == width]
        if len(even) * 10 < len(sample) * 9:
            continue
        columns = [column.strip(' "') for column in lines[0].strip("| ").split(separator)]
        if any(len(column.split()) > 5 or len(column) > 40 for column in columns):
            continue
        is_rule = bool(re.fullmatch(r"[\s|:+-]+", lines[1]))
        return Outcome(_table_shape(len(lines) - 1 - is_rule, columns))
    return None


# git, patches, HTTP -------------------------------------------------------------------------------

_COMMIT = re.compile(r"^\[[^\]]+ [0-9a-f]{6,}\] (.+)$")
_CHANGED = re.compile(
    r"^\s*(\d+) files? changed(?:, (\d+) insertions?\(\+\))?"
    r"(?:, (\d+) deletions?\(-\))?"
)
_CHANGED_WORDS = _words("file changed", "files changed")
_STATUS_LINE = re.compile(
    r"^(?:[ MADRCU?]{2}|\s+(?:modified|new file|deleted|renamed):) ?\s*([^\s(]\S*)"
)
_TROUBLE_WORDS = _words("CONFLICT (", "fatal: ", " ! [rejected]", "error: ")
_GIT_TROUBLE = re.compile(r"^(?:CONFLICT \(.*|fatal: .*| ! \[rejected\].*|error: .*)")
_LOG_LINE = re.compile(r"^(?:commit )?([0-9a-f]{7,40})\b(?: (.*))?$")


def _git(output: Output) -> Outcome | None:
    lines = output.lines
    end = _with_words(_TROUBLE_WORDS, lines[-_END_LINES:])
    trouble = [line.strip() for line in end if _GIT_TROUBLE.match(line)]
    if trouble and not any(line.startswith("error: could not compile") for line in trouble):
        return Outcome("; ".join(trouble[:2]), True)
    sizes = [_CHANGED.match(line) for line in _with_words(_CHANGED_WORDS, lines)]
    changed = next(filter(None, sizes), None)
    commit = next((match for line in lines[:5] if (match := _COMMIT.match(line))), None)
    if changed:
        size = _counts(int(changed[2] or 0), int(changed[3] or 0))
        where = f"{size} in {_count(int(changed[1]), 'file')}"
        return Outcome(f"{lines[0].strip()}: {where}" if commit else where)
    if lines[0].startswith("On branch"):
        paths = [match[1] for line in lines if (match := _STATUS_LINE.match(line))]
        state = _listed(paths, "file") if paths else lines[-1].strip()
        return Outcome(f"{lines[0].strip().lower()}: {state}")
    least_commits = 1 if lines[0].startswith("commit ") else len(lines)
    commits = _matches(_LOG_LINE, lines, least_commits)
    if commits:
        return Outcome(f"{_count(len(commits), 'commit')}, first {lines[0].strip()}")
    return None


def _patch(output: Output) -> Outcome | None:
    lines = output.lines
    counted = _patch_counts(lines)
    if counted is None:
        return None
    files = [line[6:].strip() for line in lines if line.startswith("+++ b/")]
    where = f" in {_listed(files, 'file')}" if files else ""
    return Outcome(_counts(*counted) + where)


_HTTP = re.compile(
    r"^(?:HTTP/[\d.]+ (?P<wire>[45]\d\d.*)|.*?\b(?P<client>[45]\d\d (?:Client|Server) Error: .*)"
    r"|(?:HTTP |Error |Status:? )(?P<short>[45]\d\d\b.*)|(?P<curl>curl: \(\d+\) .*))"
)
_HTTP_WORDS = _words("HTTP", "Error", "Status", "curl: (")
_ERROR_PAGE = re.compile(r"<title>\s*([45]\d\d [^<]{2,60})</title>", re.I)


def _http(output: Output) -> Outcome | None:
    for line in _with_words(_HTTP_WORDS, output.lines[:40]):
        match = _HTTP.match(line)
        if match:
            reason = next(filter(None, match.groups()))
            return Outcome(reason if match["curl"] else f"HTTP {reason}", True)
    head = output.text[:2_000]
    title = _ERROR_PAGE.search(head) if "</" in head else None
    return Outcome(f"HTTP {title[1].strip()}", True) if title else None


# texts of no known form ---------------------------------------------------------------------------

_ERROR_LINE = re.compile(
    r"^(?:.{0,40}\b(?:error|fatal|failed|failure|denied|refused|aborted|panic)\b.*"
    r"|.*(?:command not found|No such file or directory|Permission denied|timed out"
    r"|does not exist|not recognized).*|[A-Z]\w*(?:Error|Exception)\b.*)",
    re.I,
)
_ERROR_START = re.compile(
    r"^(?:(?:\w+: )?(?:error|fatal|E)\s*[:!]|.*(?:command not found$|No such file or directory"
    r"|Permission denied)|[A-Z]\w*(?:Error|Exception):|Error\b)",
    re.I,
)
_ERROR_START_WORDS = (":", "!", "error", "not found", "no such file", "permission denied")


def _error_line(lines: Sequence[str], *, anywhere: bool) -> Outcome | None:
    """The first line that names an error: any line if the call is known to have failed, else one
    that begins so, at either end of a short text.
    """
    if anywhere:
        candidates = [line for line in lines if _ERROR_LINE.match(line)]
        failing = [line for line in lines if _EXIT.fullmatch(line.strip())]
        rest = [line for line in lines if line not in failing]
        if not candidates:
            return _plain_text(Output("", rest or list(lines)))
        return Outcome(candidates[0].strip(), True)
    ends = (*lines[:2], *lines[-2:])
    for line in ends:
        if _may_have(_ERROR_START_WORDS, line) and _ERROR_START.match(line):
            return Outcome(line.strip(), True)
    return None


def _plain_text(output: Output) -> Outcome:
    """The text itself if it is short, else where it begins and where it ends."""
    lines = output.lines
    if len(lines) <= 2:
        return Outcome(" / ".join(line.strip() for line in lines))
    first, last = cut(lines[0].strip(), 70), cut(lines[-1].strip(), 60)
    return Outcome(f"{len(lines):,} lines: {first} … {last}")


_RULES: tuple[Callable[[Output], Outcome | None], ...] = (
    _source,
    _json,
    _patch,
    _test_run,
    _search,
    _traceback,
    _build,
    _git,
    _http,
    _table,
)
_COUNTING = frozenset({_search, _patch, _table, _plain_text})
"""The rules whose count is too low if only a part of the output is read."""


# counting -----------------------------------------------------------------------------------------


_PATCH_STARTS = ("@@", "*** Begin Patch", "diff --git")
_PATCH_WORDS = _words(*_PATCH_STARTS)


def _patch_counts(lines: Sequence[str]) -> tuple[int, int] | None:
    marked = _with_words(_PATCH_WORDS, lines)
    if not any(line.startswith(_PATCH_STARTS) for line in marked):
        return None
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return added, removed


def _changed(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How many lines an edit adds and removes; lines that it repeats unchanged do not count."""
    if len(old) * len(new) > 250_000:
        return len(new), len(old)
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    same = sum(block.size for block in blocks)
    return len(new) - same, len(old) - same


def _counts(added: int, removed: int) -> str:
    return f"+{added} −{removed}"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def _listed(names: Sequence[str], noun: str) -> str:
    shown = ", ".join(names[:2])
    return f"{_count(len(names), noun)}: {shown}{', …' if len(names) > 2 else ''}"


def _table_shape(rows: int, columns: Sequence[str]) -> str:
    names = ", ".join(columns[:8]) + (", …" if len(columns) > 8 else "")
    return f"{_count(rows, 'row')} × {_count(len(columns), 'column')}: {names}"
