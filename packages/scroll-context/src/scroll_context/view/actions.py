"""The effect of a tool call, read from its name and arguments: the command it runs, the file it
touches, the list of open work it writes.

Assistants name their tools and arguments in many ways; the rules here know the common ones and make
nothing of the others. Pure, and lenient like everything that reads a model's arguments.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from scroll_context.view.headline import cut
from scroll_context.view.wording import without_marks

LABEL_CHARS = 80
NAMES = 12
"""Names that a line of the index carries."""

_PATH_KEYS = ("file_path", "path", "filename", "notebook_path", "target_file", "filepath")
_SEARCH_KEYS = ("pattern", "query", "regex", "search")
_EDITORS = re.compile(r"edit|write|create|patch|replace|insert|update|append", re.I)
_EDIT_KEYS = frozenset({"old_string", "new_string", "old_str", "new_str", "file_text", "edits"})
_EDITOR_COMMANDS = frozenset({"create", "str_replace", "insert", "undo_edit"})
_PATCHED = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$|^\+\+\+ b/(.+)$", re.M)
_PREFIX = re.compile(r"^(?:cd [^&;|]+&&\s*|set -\w+;?\s*|export [^&;]+(?:&&|;)\s*|timeout \S+\s+)+")
_SUFFIX = re.compile(
    r"(?:\s*2>&1|\s*\|\s*(?:tail|head)\b[^|;&]*|\s*;\s*echo [^;|]*|\s*\|\|\s*true)+$"
)
_EFFECT = re.compile(
    r"\b(?:git (?:commit|push|merge|rebase|reset|tag|checkout|stash|rm|mv|revert)"
    r"|rm |mv |(?:pip|npm|yarn|pnpm|cargo|apt|apt-get|brew|uv) (?:\w+ )?(?:install|publish|add)"
    r"|kubectl (?:apply|delete)|docker (?:push|rm)|terraform apply|curl .*-X (?:POST|PUT|DELETE))"
)
_NAME = re.compile(
    r"(?:[\w.@~-]*/)+[\w.@-]*\w"
    r"|\b[\w-]+\.(?:py|js|ts|tsx|jsx|rs|go|java|rb|c|h|cpp|md|json|toml|ya?ml|sql|csv|txt|sh|html"
    r"|css)\b"
    r"|\b[A-Za-z]\w*_\w+\b|\b[a-z]+[A-Z]\w+\b|\b[A-Z][a-z]+[A-Z]\w+\b"
    r"|\b[A-Za-z]+-?\d[\w-]*\b|#\d+\b|\b\d{2,}(?:[.,]\d+)*\b"
)
_DIGITS = re.compile(r"\d+")


class Action(msgspec.Struct, frozen=True):
    """One call, as the index and the state of the work name it."""

    label: str
    # The shell command, without the parts that only shape its output.
    command: str = ""
    # The files that the call names, and whether it changes them.
    files: tuple[str, ...] = ()
    edits: bool = False
    # Open items, if the call writes a list of work; None if it does not.
    todo: tuple[str, ...] | None = None
    # Whether the command changes more than files.
    effect: bool = False
    # The arguments of a call that names no file, in which names are looked for.
    subject: str = ""


def action(name: str, arguments: Any) -> Action:
    """The action of a tool call, given the decoded arguments."""
    values = arguments if isinstance(arguments, dict) else {}
    todo = _todo(values)
    if todo is not None:
        return Action(f"{name}({len(todo)} open)", todo=todo)
    search = next((values[key] for key in _SEARCH_KEYS if isinstance(values.get(key), str)), "")
    files = () if search else _files(values)
    command = "" if files or search else _command(values)
    if command:
        label = f"{name}({cut(command, LABEL_CHARS)})"
        is_effect = bool(_EFFECT.search(command))
        return Action(label, command, effect=is_effect, subject=command)
    is_editor = bool(_EDITORS.search(name)) and values.get("command") != "view"
    has_edit = not _EDIT_KEYS.isdisjoint(values) or values.get("command") in _EDITOR_COMMANDS
    edits = bool(files) and (is_editor or has_edit or bool(_patched(values)))
    if files:
        return Action(f"{name}({cut(', '.join(files), LABEL_CHARS)})", files=files, edits=edits)
    if search:
        where = ", ".join(_files(values))
        label = f"{cut(search, 50)} in {where}" if where else search
        return Action(f"{name}({cut(label, LABEL_CHARS)})", subject=search)
    shown = values.values() if isinstance(arguments, dict) else [arguments]
    text = ", ".join(value if isinstance(value, str) else _json(value) for value in shown)
    return Action(f"{name}({cut(text, 60)})", subject=text[:400])


def names_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Files, identifiers and numbers in some texts, in order."""
    names = (match[0] for text in texts for match in _NAME.finditer(text[:400]))
    return tuple(dict.fromkeys(cut(name, 60) for name in names))[:NAMES]


def merged_names(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The names for several lines: those that many share first; of names that differ only in their
    numbers, the first and the last.
    """
    counts: dict[str, int] = {}
    by_form: dict[str, list[str]] = {}
    for names in lists:
        for name in names:
            form = _without_numbers(name)
            counts[form] = counts.get(form, 0) + 1
            alike = by_form.setdefault(form, [])
            if name in alike:
                continue
            if len(alike) == 2:
                alike.pop()
            alike.append(name)
    order = {form: place for place, form in enumerate(by_form)}
    ranked = sorted(by_form, key=lambda form: (-counts[form], order[form]))
    chosen: list[str] = []
    for form in ranked:
        if len(chosen) + len(by_form[form]) <= NAMES:
            chosen += by_form[form]
    return tuple(chosen)


@lru_cache(maxsize=4096)
def _without_numbers(name: str) -> str:
    """A name with 0 for each number. Kept, because each eviction joins lines with equal names."""
    return _DIGITS.sub("0", name)


def written_names(names: Sequence[str], limit: int) -> str:
    """As many names as fit into `limit` characters; `rows_1…rows_9` for numbered ones."""
    parts: list[str] = []
    before = ""
    for name in names:
        form = _without_numbers(name)
        if form == before and form != name:
            parts[-1] = f"{parts[-1]}…{name}"
        else:
            parts.append(name)
        before = form
    text = ""
    for part in parts:
        longer = f"{text}, {part}" if text else part
        if len(longer) <= limit:
            text = longer
    return without_marks(text)


def _command(values: dict[str, Any]) -> str:
    for key in ("command", "cmd", "script"):
        value = values.get(key)
        if isinstance(value, list):
            words = [str(word) for word in value]
            is_shell = len(words) == 3 and words[1] in ("-c", "-lc")
            value = words[2] if is_shell else " ".join(words)
        if isinstance(value, str) and value.strip():
            line = " ".join(value[:400].split())
            bare = _SUFFIX.sub("", _PREFIX.sub("", line))
            return cut(bare or line, 120)
    return ""


def _files(values: dict[str, Any]) -> tuple[str, ...]:
    for key in _PATH_KEYS:
        value = values.get(key)
        if isinstance(value, str) and value.strip():
            return (_short(value),)
    return _patched(values)


def _patched(values: dict[str, Any]) -> tuple[str, ...]:
    for key in ("patch", "input", "diff"):
        text = values.get(key)
        if isinstance(text, str):
            paths = [match[1] or match[2] for match in _PATCHED.finditer(text)]
            return tuple(dict.fromkeys(map(_short, paths)))[:4]
    return ()


def _short(path: str) -> str:
    """A path by its last three parts, which say more than the directory that all have in common."""
    parts = " ".join(path.split()).split("/")
    return "/".join(parts[-3:]) if len(parts) > 4 else "/".join(parts)


def _todo(values: dict[str, Any]) -> tuple[str, ...] | None:
    """The open items of a list of work, as assistants write it."""
    for key, text_keys in (("todos", ("content", "text")), ("plan", ("step", "content"))):
        items = values.get(key)
        if isinstance(items, list) and items and all(isinstance(item, dict) for item in items):
            texts = []
            for item in items:
                text = next((item[name] for name in text_keys if item.get(name)), "")
                if item.get("status") not in ("completed", "done", "cancelled"):
                    texts.append(cut(str(text), 80))
            return tuple(filter(None, texts))
    return None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
