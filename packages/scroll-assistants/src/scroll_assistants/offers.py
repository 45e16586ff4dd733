"""The briefs of a prompt hook, for a prompt or a tool call; each event is offered once per session.

Each hook is a process of its own, so what was offered is kept in a small file of the state folder,
one for each session of an assistant. The file has a line of JSON for each brief. It is removed when
a session starts or is cleared. After a compaction it names the last event that was compacted: the
assistant no longer sees the session up to there, so that too can be offered.

An assistant waits for this, so it imports next to nothing until it has to.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

from scroll_context.files import state_folder

# Files of sessions that have offered nothing for so long are removed.
KEPT_SECONDS = 30 * 24 * 3600

Select = Callable[..., Any]


def offer(
    store: str,
    select: Select,
    event: dict[str, Any],
    session: str,
    tasks: tuple[str, ...],
    tokens: int,
) -> str:
    """The brief of the event's prompt or tool call; "" if nothing bears on it."""
    from scroll_assistants.project import without_marked
    from scroll_context.brief.brief import brief_of_call, brief_of_prompt
    from scroll_context.brief.relevance import Reach, open_source

    source = open_source(store, select)
    if source is None:
        return ""
    file = _file(store, session)
    labels = (("task_id", tasks),) if tasks else ()
    reach = _recalled(file, Reach(labels, asking=session))
    prompt = event.get("prompt")
    if isinstance(prompt, str):
        brief = brief_of_prompt(source, without_marked(prompt), reach, tokens)
    else:
        brief = brief_of_call(source, event.get("tool_input"), reach, tokens)
    if brief.text:
        _remember(file, {"seqs": sorted(brief.seqs), "subjects": sorted(brief.subjects)})
    return brief.text


def begin(store: str, select: Select, session: str, source: str) -> None:
    """Forget what was offered, unless a session is resumed: its window has it still."""
    if source == "resume":
        return
    file = _file(store, session)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(file)
    if source == "compact":
        rows = select("SELECT max(seq) FROM event WHERE session_id = ?", [session])
        ((last,),) = rows
        if last:
            _remember(file, {"until": last})


def remove_old() -> None:
    """Remove the files of sessions that ended long ago."""
    folder = os.path.join(state_folder(), "offers")
    before = time.time() - KEPT_SECONDS
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime < before:
                os.unlink(entry.path)


def _file(store: str, session: str) -> str:
    name = hashlib.sha256(f"{store}\n{session}".encode("utf-8", "surrogateescape")).hexdigest()
    return os.path.join(state_folder(), "offers", name[:32])


def _remember(file: str, line: dict[str, Any]) -> None:
    os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
    with open(file, "a", encoding="utf-8") as opened:
        # One write, so that the lines of hooks that run at once do not mix.
        opened.write(json.dumps(line) + "\n")


def _recalled(file: str, reach: Any) -> Any:
    """The reach without what this session was offered before."""
    seqs: set[int] = set()
    subjects: set[str] = set()
    until = 0
    with contextlib.suppress(FileNotFoundError), open(file, encoding="utf-8") as lines:
        for line in lines:
            try:
                offered = json.loads(line)
                seqs.update(offered.get("seqs", ()))
                subjects.update(offered.get("subjects", ()))
                until = max(until, offered.get("until", 0))
            except (ValueError, TypeError, AttributeError):
                # A line that a killed hook left torn costs a repetition.
                continue
    return reach._replace(exclude=frozenset(seqs), subjects=frozenset(subjects), until=until)
