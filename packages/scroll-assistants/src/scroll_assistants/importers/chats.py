"""Conversations of people as messages: exports of ChatGPT, Slack and WhatsApp, Markdown, plain
text, and tables.

An export of ChatGPT is a tree: the current turns come in order, each followed by the branches that
the user left there, which get the kind `branch`. A Slack channel is a session, and so is a WhatsApp
file. People there have the role `speaker` and a name, and reports of the service itself have the
kind `meta`. Only a person whom the caller has named as the owner (`Labels.me`) has the role `user`:
others may write "always …" too, and that is not an instruction of the user.

A text with lines that name a speaker ("## User", "**Assistant:** …", "Human: …") is a conversation.
Any other text is a document: each of its paragraphs is an event of the kind `document`, so that a
search finds the relevant part and a text that has grown adds its new paragraphs. The key of a
paragraph is made of its words, never of its place.
"""

import csv
import datetime as dt
import html
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from scroll_assistants.importers.read_plain import read_plain
from scroll_assistants.importers.records import (
    BRANCH,
    DOCUMENT,
    Format,
    fields,
    identifier,
    objects,
    placed,
)
from scroll_assistants.importers.shapes import call
from scroll_context.errors import BadInput
from scroll_context.importing import records
from scroll_context.importing.records import (
    MALFORMED,
    META,
    THINKING,
    Fault,
    Labels,
    RawMessage,
    fingerprint,
)
from scroll_context.importing.sources import is_plain_file, is_plain_folder
from scroll_context.importing.text_files import document, not_json, text_lines, whole_text
from scroll_context.origin import SPEAKER
from scroll_context.text.json_bounds import bounded_loads

# ChatGPT ------------------------------------------------------------------------------------------


def chatgpt(record: RawMessage) -> Iterator[RawMessage]:
    """The messages of a conversation: current turns, each followed by its abandoned branches."""
    conversation = record.value
    nodes = conversation.get("mapping")
    session = records.text(conversation, "conversation_id") or records.text(conversation, "id")
    if not isinstance(nodes, dict) or not session:
        raise BadInput("a conversation of ChatGPT needs an id and a mapping")
    title = records.text(conversation, "title")
    prefix = identifier(session)
    for name, branch in _in_order(nodes, conversation.get("current_node")):
        node = nodes[name]
        source = node.get("message") if isinstance(node, dict) else None
        if not isinstance(source, dict):
            continue
        message = _chatgpt_message(source)
        if message is None:
            continue
        if branch and message.get("tool_calls") is None and message["role"] != "tool":
            message["kind"] = BRANCH
        facts = {"title": title, "node": name, "parent": node.get("parent"), "branch": branch}
        about = {field: value for field, value in facts.items() if value}
        metadata = source.get("metadata")
        if isinstance(metadata, dict):
            about |= fields(metadata, model="model_slug")
        yield placed(
            record,
            Format.CHATGPT,
            message,
            session=session,
            key=f"{prefix}:{identifier(name)}",
            time=source.get("create_time") or conversation.get("create_time"),
            about=about,
        )


def _in_order(nodes: dict[str, Any], current: Any) -> Iterator[tuple[str, str]]:
    """The ids of all nodes, each with the id of the first node of its branch; "" for the current
    turns.
    """
    children: dict[str, list[str]] = {name: [] for name in nodes}
    parents: dict[str, str] = {}
    for name, node in nodes.items():
        parent = node.get("parent") if isinstance(node, dict) else None
        if isinstance(parent, str) and parent in nodes:
            parents[name] = parent
            children[parent].append(name)
    if not isinstance(current, str) or current not in nodes:
        current = next(reversed(nodes), "")
    path: list[str] = []
    seen: set[str] = set()
    while current and current not in seen:
        seen.add(current)
        path.append(current)
        current = parents.get(current, "")
    for turn in reversed(path):
        yield turn, ""
        yield from _subtrees([name for name in children[turn] if name not in seen], children, seen)
    yield from _subtrees([name for name in nodes if name not in seen], children, seen)


def _subtrees(
    tops: list[str], children: dict[str, list[str]], seen: set[str]
) -> Iterator[tuple[str, str]]:
    for top in tops:
        waiting = [top]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                yield name, top
                waiting += reversed(children[name])


def _chatgpt_message(message: dict[str, Any]) -> dict[str, Any] | None:
    """The role, content and kind of a message; None for a message without text."""
    author = message.get("author")
    role = records.text(author, "role") if isinstance(author, dict) else ""
    if not role or not isinstance(author, dict):
        raise BadInput("a message of ChatGPT needs an author with a role")
    content = message.get("content")
    if not isinstance(content, dict):
        return None
    parts = [content]
    for field in ("thoughts", "parts"):
        if isinstance(content.get(field), list):
            parts = content[field]
    text = "\n".join(filter(None, map(_part_text, parts)))
    if not text.strip():
        return None
    recipient = records.text(message, "recipient")
    if role == "assistant" and recipient not in ("", "all"):
        return call(recipient, text, "")
    turn: dict[str, Any] = {"role": role, "content": text}
    if role == "tool":
        turn["name"] = records.text(author, "name")
    kind = content.get("content_type")
    if kind in ("thoughts", "reasoning_recap"):
        turn["kind"] = THINKING
    elif kind in ("user_editable_context", "model_editable_context"):
        turn["kind"] = META
    return turn


_TEXT_FIELDS = ("summary", "title", "text", "result", "content")


def _part_text(part: Any) -> str:
    """The text of a part: for an image or a file its path in the export, for an unknown part its
    JSON.
    """
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    pointer = part.get("asset_pointer")
    if pointer:
        size = part.get("size_bytes")
        size_text = f", {size:,} bytes" if isinstance(size, int) else ""
        kind = str(part.get("content_type") or "file").removesuffix("_asset_pointer")
        return f"[{kind}: {pointer}{size_text}]"
    texts = [part[field] for field in _TEXT_FIELDS if part.get(field)]
    if texts and all(isinstance(text, str) for text in texts):
        return "\n".join(texts)
    rest = {
        field: value
        for field, value in part.items()
        if field not in ("content_type", "text") and value
    }
    if not rest or set(rest) == {"language"}:
        return ""
    return json.dumps(rest, ensure_ascii=False)


# Slack --------------------------------------------------------------------------------------------

_DAY = re.compile(r"\d{4}-\d\d-\d\d\.json")
# The most bytes of the list of people or of channels.
_LONGEST_LIST = 256 << 20
_MENTION = re.compile(r"<([@#!])([^>|]+)(?:\|([^>]*))?>")


def slack_root(folder: Path) -> Path | None:
    """The root of a Slack export: this folder, or the only one in it; None for another folder."""
    inner = [path for path in _channels(folder) if not path.name.startswith("__")]
    roots = [folder, *inner] if len(inner) == 1 else [folder]
    for root in roots:
        days = any(_days(channel) for channel in _channels(root))
        lists = (root / name for name in ("users.json", "channels.json", "dms.json"))
        if days and any(map(is_plain_file, lists)):
            return root
    return None


def _channels(folder: Path) -> list[Path]:
    """The folders in an export, without links, which may lead out of the export."""
    return sorted(path for path in folder.iterdir() if is_plain_folder(path))


def _days(channel: Path) -> list[Path]:
    """The files with the messages of a channel."""
    files = (path for path in channel.iterdir() if _DAY.fullmatch(path.name))
    return sorted(path for path in files if is_plain_file(path))


def slack(path: Path, labels: Labels) -> Iterator[RawMessage | Fault]:
    """The messages of an export, channel by channel and day by day.

    For a single file of an export, the names of people are missing.
    """
    if path.is_file():
        yield from _slack_day(path, path.stem, path.stem, {}, labels)
        return
    people = _slack_list(path, "users.json")
    names = {records.text(user, "id"): next(iter(_slack_names(user)), "") for user in people}
    labels = replace(labels, me=_slack_owners(people, labels.me))
    channels = _slack_list(path, "channels.json")
    ids = {records.text(channel, "name"): records.text(channel, "id") for channel in channels}
    for folder in _channels(path):
        channel_id = ids.get(folder.name) or folder.name
        for file in _days(folder):
            yield from _slack_day(file, folder.name, channel_id, names, labels)


def _slack_list(folder: Path, name: str) -> list[dict[str, Any]]:
    try:
        items = bounded_loads(read_plain(folder, [name], _LONGEST_LIST) or b"[]")
    except (ValueError, RecursionError):
        return []
    if not isinstance(items, list):
        return []
    return [item for item in items if isinstance(item, dict)]


def _slack_names(user: dict[str, Any]) -> list[str]:
    """The names of a person, the displayed name first."""
    profile = user["profile"] if isinstance(user.get("profile"), dict) else {}
    names = (
        profile.get("display_name"),
        profile.get("real_name"),
        user.get("real_name"),
        user.get("name"),
    )
    return [name for name in names if isinstance(name, str) and name]


def _slack_owners(people: list[dict[str, Any]], me: tuple[str, ...]) -> tuple[str, ...]:
    """The ids of the people with these names or ids.

    Anybody may choose a name, so a name must belong to one person only.
    """
    owners: list[str] = []
    for name in me:
        matches = [user for user in people if name in (user.get("id"), *_slack_names(user))]
        ids = [records.text(user, "id") for user in matches]
        if len(set(ids)) > 1:
            raise BadInput(
                f"{len(set(ids))} people are called {name!r}: {', '.join(ids)}. Name one by the id"
            )
        owners += ids or [name]
    return tuple(owners)


def _slack_day(
    file: Path, channel: str, channel_id: str, names: dict[str, str], labels: Labels
) -> Iterator[RawMessage | Fault]:
    where = f"{channel}/{file.name}"
    content = whole_text(file)
    if isinstance(content, Fault):
        yield Fault(content.line, f"{where}: {content.reason}")
        return
    try:
        messages = document(content)
        if not isinstance(messages, list):
            raise BadInput("expected a list of messages")
    except (ValueError, RecursionError, BadInput) as error:
        reason = str(error) if isinstance(error, BadInput) else not_json(error)
        yield Fault(getattr(error, "lineno", 1), f"{where}: {reason}")
        return
    for number, message in enumerate(messages, 1):
        record = RawMessage(number, message, labels, f"{where}, message {number}")
        try:
            time = records.text(message, "ts") if isinstance(message, dict) else ""
            if not time:
                raise BadInput("a message of Slack needs a ts")
            yield placed(
                record,
                Format.SLACK,
                _slack_message(message, names, labels.me),
                session=f"slack/{channel}",
                key=f"{identifier(channel_id)}:{identifier(time)}",
                time=time,
                about=fields(message, thread="thread_ts", user="user", subtype="subtype"),
            )
        except MALFORMED as error:
            yield record.fault(error)


_SPOKEN_SUBTYPES = ("bot_message", "thread_broadcast", "file_share", "me_message", "file_comment")
"""Subtypes of messages that somebody wrote; the service writes the others."""


def _slack_message(
    message: dict[str, Any], names: dict[str, str], owners: tuple[str, ...]
) -> dict[str, Any]:
    def mention(match: re.Match[str]) -> str:
        return f"{match[1]}{match[3] or names.get(match[2], match[2])}"

    texts = [html.unescape(_MENTION.sub(mention, records.text(message, "text")))]
    for file in objects(message, "files"):
        texts.append(f"[file: {records.text(file, 'name') or records.text(file, 'id')}]")
    for attachment in objects(message, "attachments"):
        text = records.text(attachment, "text") or records.text(attachment, "fallback")
        texts.append(html.unescape(text))
    user = records.text(message, "user")
    turn: dict[str, Any] = {
        "role": SPEAKER,
        "content": "\n".join(filter(None, texts)),
        "name": names.get(user) or records.text(message, "username") or user,
    }
    subtype = records.text(message, "subtype")
    # A program may post under any name, also in the name of a person.
    is_program = subtype == "bot_message" or bool(message.get("bot_id"))
    if user in owners and not is_program:
        turn["role"] = "user"
    if subtype and subtype not in _SPOKEN_SUBTYPES:
        turn |= {"role": "system", "kind": META}
    return turn


# WhatsApp -----------------------------------------------------------------------------------------

_STAMP = re.compile(
    r"[\u200e\u200f\ufeff]*\[?(\d{1,4})[./-](\d{1,2})[./-](\d{1,4}),?\s+"
    r"(\d{1,2})[:.](\d\d)(?:[:.](\d\d))?"
    r"(?:\s*([AaPp])\.?\s?[Mm]\.?)?(?:\]|\s+[-–])\s+(.*)",
    re.DOTALL,
)
_SENDER = re.compile(
    r"[\u200e\u200f]*([^:\n]{1,80}?): (.*)|[\u200e\u200f]*([^:\n]{1,80}?):$", re.DOTALL
)


def is_whatsapp(lines: list[str]) -> bool:
    """Whether the first lines of a text are those of an exported chat."""
    if not lines:
        return False
    if re.match(r"\d{4}\D\d\d\D\d\d\s", lines[0]):
        # This is the log of a program.
        return False
    stamped = [bool(_STAMP.match(line)) for line in lines]
    return stamped[0] and sum(stamped) * 3 >= len(stamped)


def whatsapp(path: Path, labels: Labels) -> Iterator[RawMessage | Fault]:
    """The messages of an exported chat. Lines without a time continue the message before them."""
    day_first = _day_is_first(path)
    seen: Counter[str] = Counter()
    line, stamp, text = 0, None, ""
    for item in text_lines(path):
        if isinstance(item, Fault):
            yield item
        elif match := _STAMP.match(item.text):
            if stamp is not None:
                yield _whatsapp_message(line, stamp, text, day_first, seen, labels)
            line, stamp, text = item.line, match, match[8]
        elif stamp is None:
            yield Fault(
                item.line, "a chat begins with a line that has a date and a time", item.offset
            )
        else:
            text += f"\n{item.text}"
    if stamp is not None:
        yield _whatsapp_message(line, stamp, text, day_first, seen, labels)


def _day_is_first(path: Path) -> bool:
    """Whether dates have the day before the month: any number above 12 decides, and a.m. and p.m.
    suggest that they have not.
    """
    is_american = False
    for item in text_lines(path):
        match = None if isinstance(item, Fault) else _STAMP.match(item.text)
        if match is None:
            continue
        if 12 < int(match[1]) < 32:
            return True
        if int(match[2]) > 12:
            return False
        has_slash = "/" in match[0][:6]
        is_american = is_american or (match[7] is not None and has_slash)
    return not is_american


def _whatsapp_message(
    line: int,
    stamp: "re.Match[str]",
    text: str,
    day_first: bool,
    seen: Counter[str],
    labels: Labels,
) -> RawMessage | Fault:
    sender = _SENDER.fullmatch(text)
    name = sender[1] or sender[3] if sender else ""
    words = sender[2] or "" if sender else text
    time_text = stamp[0][: stamp.start(8) - stamp.start()].strip()
    identity = fingerprint([labels.session_id, time_text, name, words]).hex()[:32]
    seen[identity] += 1
    try:
        time = _whatsapp_time(stamp, day_first)
    except ValueError as error:
        return Fault(line, f"not a date: {error}")
    message: dict[str, Any] = {
        "role": "system",
        "kind": META,
        "content": words.strip("\u200e\u200f"),
    }
    if name:
        speaker = name.strip("\u200e\u200f ~\u202f")
        message |= {"role": _role(speaker, labels), "kind": labels.kind, "name": speaker}
    record = RawMessage(line, None, labels)
    key = f"{identity}.{seen[identity]}"
    return placed(record, Format.WHATSAPP, message, session="", key=key, time=time)


def _whatsapp_time(stamp: "re.Match[str]", day_first: bool) -> str:
    first, second, third = int(stamp[1]), int(stamp[2]), int(stamp[3])
    if first > 31:
        year, month, day = first, second, third
    elif day_first:
        day, month, year = first, second, third
    else:
        month, day, year = first, second, third
    if year < 100:
        year += 2000
    hour = int(stamp[4])
    if stamp[7]:
        hour = hour % 12 + (12 if stamp[7] in "pP" else 0)
    minute = int(stamp[5])
    second = int(stamp[6] or 0)
    return dt.datetime(year, month, day, hour, minute, second).isoformat()


def _role(speaker: str, labels: Labels) -> str:
    return "user" if speaker in labels.me else SPEAKER


# texts and tables ---------------------------------------------------------------------------------

_ROLES = {
    **dict.fromkeys(
        ("user", "human", "you", "me", "prompt", "question", "customer", "client"), "user"
    ),
    **dict.fromkeys(
        """assistant ai bot model chatgpt gpt claude gemini copilot codex cursor deepseek response
        answer agent support""".split(),
        "assistant",
    ),
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
}
_NAMES = "|".join(_ROLES)
_HEADING = re.compile(
    rf"#{{1,6}}\s+\W{{0,4}}({_NAMES})(?:\s+(?:said|says|message))?\s*:?\W{{0,2}}", re.IGNORECASE
)
_BOLD = re.compile(rf"(?:\*\*|__)\W{{0,4}}({_NAMES})\s*:?\s*(?:\*\*|__)\s*:?\s*(.*)", re.IGNORECASE)
_PLAIN = re.compile(rf"({_NAMES})\s*:\s*(.*)", re.IGNORECASE)

ROLE_COLUMNS = ("role", "author", "sender", "speaker", "from", "name", "user", "type")
_CONTENT_COLUMNS = ("content", "message", "text", "body", "utterance")
_RENAMED = {
    **dict.fromkeys(
        ("conversation_id", "conversation", "session", "thread_id", "thread", "chat_id"),
        "session_id",
    ),
    **dict.fromkeys(("date", "time", "datetime", "created", "sent_at", "created_at"), "timestamp"),
}


def markdown(path: Path, labels: Labels) -> Iterator[RawMessage | Fault]:
    """A conversation in Markdown, or a document."""
    return _spoken(path, labels, (_HEADING, _BOLD))


def plain_text(path: Path, labels: Labels) -> Iterator[RawMessage | Fault]:
    """A conversation in plain text, or a document."""
    return _spoken(path, labels, (_PLAIN, _HEADING, _BOLD))


def _spoken(
    path: Path, labels: Labels, marks: tuple["re.Pattern[str]", ...]
) -> Iterator[RawMessage | Fault]:
    content = whole_text(path)
    if isinstance(content, Fault):
        yield content
        return
    turns: list[tuple[int, str, list[str]]] = []
    for number, line, is_code in _with_code(content):
        match = None if is_code else _speaker_mark(line.strip(), marks)
        if match:
            rest = match[2] if match.re.groups > 1 else ""
            turns.append((number, _ROLES[match[1].lower()], [rest] if rest else []))
        elif turns:
            turns[-1][2].append(line)
    if len(turns) < 2 or not any(role == "user" for _, role, _ in turns):
        yield from _paragraphs(content, labels)
        return
    for number, role, lines in turns:
        text = "\n".join(lines).strip("\n").rstrip()
        if text:
            yield RawMessage(number, {"role": role, "content": text}, labels)


def _speaker_mark(line: str, marks: tuple["re.Pattern[str]", ...]) -> "re.Match[str] | None":
    """The mark of a speaker that a line consists of or begins with."""
    for mark in marks:
        match = mark.fullmatch(line)
        if match:
            return match
    return None


def _paragraphs(content: str, labels: Labels) -> Iterator[RawMessage | Fault]:
    """The paragraphs of a document. A heading stays with its text, and a code block is not cut."""
    begun = 1
    lines: list[str] = []
    last = content.count("\n")
    is_heading_only = True
    for number, line, is_code in [*_with_code(content), (sys.maxsize, "", False)]:
        is_blank = not line.strip()
        continues = is_code or (is_heading_only and number <= last)
        if not is_blank or (lines and continues):
            begun = begun if lines else number
            lines.append(line)
            is_heading_only = is_heading_only and (is_blank or line.startswith("#"))
        elif lines:
            text = "\n".join(lines).strip("\n")
            yield RawMessage(begun, {"role": "user", "kind": DOCUMENT, "content": text}, labels)
            lines = []
            is_heading_only = True


def _with_code(content: str) -> Iterator[tuple[int, str, bool]]:
    """The lines of a text, each with its number and whether it is part of a code block."""
    fence = ""
    for number, line in enumerate(content.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            fence = "" if fence and stripped.startswith(fence) else fence or stripped[:3]
        yield number, line, bool(fence)


def columns_of(header: str) -> tuple[str, list[str]] | None:
    """The delimiter and the columns of a table with roles; None for any other line."""
    for delimiter in ",;\t|":
        columns = [name.strip().strip('"').lower() for name in header.split(delimiter)]
        has_role = not set(columns).isdisjoint(ROLE_COLUMNS)
        has_content = not set(columns).isdisjoint(_CONTENT_COLUMNS)
        if len(columns) > 1 and has_role and has_content:
            return delimiter, columns
    return None


def table(path: Path, labels: Labels) -> Iterator[RawMessage | Fault]:
    """The rows of a table, each a message."""
    start = next(text_lines(path), None)
    if start is None or isinstance(start, Fault):
        if start is not None:
            yield start
        return
    header = columns_of(start.text)
    if header is None:
        needed = f"one of {', '.join(ROLE_COLUMNS)} and one of {', '.join(_CONTENT_COLUMNS)}"
        yield Fault(start.line, f"a table of messages needs a line of column names with {needed}")
        return
    delimiter, columns = header
    role = next(name for name in ROLE_COLUMNS if name in columns)
    content = next(name for name in _CONTENT_COLUMNS if name in columns and name != role)
    text = whole_text(path)
    if isinstance(text, Fault):
        yield text
        return
    csv.field_size_limit(1 << 27)
    rows = csv.reader(text.splitlines(keepends=True), delimiter=delimiter, strict=True)
    line = 1
    try:
        for number, fields in enumerate(rows):
            if number and any(fields):
                row = dict(zip(columns, fields, strict=False))
                yield _row(line, row, len(fields) - len(columns), role, content, labels)
            line = rows.line_num + 1
    except csv.Error as error:
        yield Fault(line, f"not CSV: {error}")


def _row(
    line: int, row: dict[str, str], surplus: int, role: str, content: str, labels: Labels
) -> RawMessage | Fault:
    if surplus > 0:
        return Fault(
            line,
            f"{surplus} more fields than columns; "
            "is a delimiter in a text without quotation marks?",
        )
    if not row.get(role):
        return Fault(line, f"the row has no {role}")
    if content not in row:
        return Fault(line, f"the row has no {content}")
    message: dict[str, Any] = {
        _RENAMED.get(name, name): value for name, value in row.items() if value and name
    }
    text = message.pop(content, "")
    speaker = message.pop(role)
    usual_role = _ROLES.get(speaker.strip().lower())
    if usual_role == "user" and labels.me:
        # The caller has named the user, so anybody else who is called "customer" is another person.
        usual_role = None
    message |= {"role": usual_role or _role(speaker.strip(), labels), "content": text}
    if usual_role is None:
        message["name"] = speaker
    return RawMessage(line, message, labels)
