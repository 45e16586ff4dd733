"""Scroll as the session store of the Claude Agent SDK: transcripts to resume and to search.

    options = ClaudeAgentOptions(session_store=ScrollSessionStore("work.scroll"))

The SDK mirrors each line of a transcript here, and reads the lines back to resume a session, on
another machine too. A line is an opaque JSON object that must come back unchanged, so each is an
event of its own (kind `wire`), which search does not see. The messages in the lines are recorded
beside it, as the importer of Claude Code transcripts reads them: user, assistant, tool calls and
tool results, in the session of the same id. The importer belongs to scroll-assistants, and is found
through its entry point. A message has the same source key as in an import or a capture of the
transcript, so it is recorded once.

This stores a history. It does not bound requests, which the SDK's own program makes.
"""

import asyncio
import datetime as dt
import itertools
import json
import tempfile
import threading
import uuid
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from claude_agent_sdk import SessionStore, fold_session_summary

from scroll_context import Draft, Event, Kind, Store
from scroll_context.events import IMPORTED
from scroll_context.hosts.adapter import Closing
from scroll_context.importing.layouts import layout_named, read
from scroll_context.importing.records import Imported, Labels
from scroll_context.importing.run import pieces_of
from scroll_context.importing.text_files import Position
from scroll_context.log.foreign import ForeignWriter
from scroll_context.log.schema import PAGE
from scroll_context.origin import Origin

LAYOUT = "claude-code"
SOURCE = "claude-agent-sdk"
MESSAGES, SUMMARY = "messages", "summary"
"""In the metadata of a line: the seqs of its messages, and the SDK's summary up to it."""

LEASE_SECONDS = 30.0

Entry = dict[str, Any]
Key = Mapping[str, str]


class ScrollSessionStore(Closing, SessionStore):
    """Keeps the transcripts of the SDK in a store.

    `place` is a path, an address or an open Store. Secrets are replaced in the messages, which
    models may find, unless `redact` is False; the lines themselves are kept exactly. `close` closes
    a store that this object opened.
    """

    bounds: ClassVar[bool] = False
    stores: ClassVar[bool] = True
    executes: ClassVar[bool] = False

    def __init__(self, place: Store | str | Path, *, redact: bool = True) -> None:
        self._layout = layout_named(LAYOUT)
        self._redact = redact
        self._lock = threading.Lock()
        # What the reader must remember of earlier lines, such as the names of called tools.
        self._positions: dict[tuple[str, str], Position] = {}
        self.store = place if isinstance(place, Store) else Store(place, create=True)
        is_own = self.store is not place
        self._close = weakref.finalize(self, self.store.close if is_own else _nothing)

    # the interface of the SDK ---------------------------------------------------------------------

    async def append(self, key: Key, entries: Sequence[Entry]) -> None:
        await asyncio.to_thread(self._append, key, entries)

    async def load(self, key: Key) -> list[Entry] | None:
        lines = await asyncio.to_thread(lambda: list(self._lines(key)))
        return [json.loads(line) for line in lines] or None

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        newest = await asyncio.to_thread(self._newest, project_key)
        return [{"session_id": event.session_id, "mtime": _mtime(event)} for event in newest]

    async def list_session_summaries(self, project_key: str) -> list[dict[str, Any]]:
        newest = await asyncio.to_thread(self._newest, project_key)
        return [_summary(event) for event in newest]

    async def list_subkeys(self, key: Key) -> list[str]:
        events = await asyncio.to_thread(lambda: list(self._events(key, with_subkeys=True)))
        names = dict.fromkeys(event.name for event in events)
        return [name.partition("\n")[2] for name in names if "\n" in name]

    async def delete(self, key: Key) -> None:
        """Erase the lines of a transcript and their messages, and those of its sub-agents."""
        await asyncio.to_thread(self._delete, key)

    # the same, with the disk ----------------------------------------------------------------------

    def _append(self, key: Key, entries: Sequence[Entry]) -> None:
        session_id = key["session_id"]
        with (
            self._lock,
            self.store.append_foreign(
                Origin.CAPTURED, SOURCE, redact=self._redact, wait=LEASE_SECONDS
            ) as writer,
        ):
            writer.hold({session_id})
            new = self._new(key, entries)
            if not new:
                return
            lines = [json.dumps(entry) for entry in new.values()]
            seqs = self._record_messages(key, lines, writer)
            facts: list[dict[str, Any]] = [
                {Origin.CAPTURED: SOURCE, MESSAGES: line_seqs} for line_seqs in seqs.values()
            ]
            if "subpath" not in key:
                facts[-1][SUMMARY] = self._folded(key, list(new.values()))
            drafts = [
                Draft(
                    session_id=session_id,
                    kind=Kind.WIRE,
                    name=_name(key),
                    content=line,
                    source_key=source_key,
                    metadata=metadata,
                )
                for source_key, line, metadata in zip(new, lines, facts, strict=True)
            ]
            self.store.log.append_many(drafts, writer.leases.epochs)

    def _new(self, key: Key, entries: Sequence[Entry]) -> dict[str, Entry]:
        """The entries that are not recorded yet, by source key.

        The SDK sends a batch again if it is not sure that it arrived. Entries without an id, such
        as titles, are always new.
        """
        place = f"{IMPORTED}{LAYOUT}:line:{json.dumps([key['session_id'], _name(key)])}"
        by_key = {f"{place}:{entry.get('uuid') or uuid.uuid4()}": entry for entry in entries}
        names = list(by_key)
        recorded: set[str] = set()
        for start in range(0, len(names), PAGE):
            page = names[start : start + PAGE]
            marks = ", ".join("?" * len(page))
            sql = f"SELECT source_key FROM event WHERE source_key IN ({marks})"
            recorded.update(name for (name,) in self.store.log.query(sql, page))
        return {name: entry for name, entry in by_key.items() if name not in recorded}

    def _record_messages(
        self, key: Key, lines: Sequence[str], writer: ForeignWriter
    ) -> dict[int, list[int]]:
        """Record the messages in these lines. Returns the seqs of each line, by its number."""
        place = key["session_id"], _name(key)
        if place not in self._positions:
            self._positions[place] = Position()
            self._messages(key, list(self._lines(key)))
        messages = self._messages(key, lines)
        seqs = iter(writer.append(pieces_of(messages)))
        by_line: defaultdict[int, list[int]] = defaultdict(list)
        for number in range(1, len(lines) + 1):
            by_line[number] = []
        for message in messages:
            by_line[message.line] += itertools.islice(seqs, len(message.pieces))
        return by_line

    def _messages(self, key: Key, lines: Sequence[str]) -> list[Imported]:
        """The messages that the Claude Code importer reads in these lines.

        A line that it cannot read has no messages here; the SDK gets it back all the same.
        """
        position = self._positions[key["session_id"], _name(key)]
        position.offset = position.lines = 0
        with tempfile.TemporaryDirectory(prefix="scroll-") as folder:
            transcript = Path(folder) / "transcript.jsonl"
            transcript.write_text("".join(f"{line}\n" for line in lines))
            labels = Labels(session_id=key["session_id"])
            items = list(read(transcript, self._layout, labels, position=position))
        return [item for item in items if isinstance(item, Imported)]

    def _folded(self, key: Key, entries: list[Entry]) -> dict[str, Any]:
        """The SDK's own summary of a transcript that ends with these entries."""
        newest = [
            event
            for event in self._newest(key["project_key"])
            if event.session_id == key["session_id"]
        ]
        earlier = _summary(newest[0]) if newest else None
        data: dict[str, Any] = fold_session_summary(earlier, key, entries)["data"]
        return data

    def _events(self, key: Key, *, with_subkeys: bool = False) -> Iterator[Event]:
        """The lines of a transcript. Erased ones have lost their name."""
        name = _name(key)
        for event in self.store.log.iterate(session_id=key["session_id"], kind=[Kind.WIRE]):
            is_below = with_subkeys and event.name.startswith(f"{name}\n")
            if event.name == name or is_below:
                yield event

    def _lines(self, key: Key) -> Iterator[str]:
        return map(self.store.log.text, self._events(key))

    def _newest(self, project_key: str) -> list[Event]:
        """The newest line of each session of a project, without those of sub-agents."""
        sql = "SELECT max(seq) FROM event WHERE kind = ? AND name = ? GROUP BY session_id"
        rows = self.store.log.query(sql, [Kind.WIRE, project_key])
        return self.store.log.get_many([seq for (seq,) in rows])

    def _delete(self, key: Key) -> None:
        with self._lock:
            seqs: set[int] = set()
            for event in self._events(key, with_subkeys="subpath" not in key):
                seqs |= {event.seq, *event.metadata.get(MESSAGES, ())}
                self._positions.pop((event.session_id, event.name), None)
            if seqs:
                self.store.erase(seqs=seqs)


def _name(key: Key) -> str:
    """How the lines of a transcript are named: by project, and by sub-agent if it is one's."""
    return "\n".join(filter(None, [key["project_key"], key.get("subpath")]))


def _mtime(event: Event) -> int:
    """When a line was stored, in milliseconds since 1970."""
    return int(dt.datetime.fromisoformat(event.recorded_at).timestamp() * 1000)


def _summary(event: Event) -> dict[str, Any]:
    """The summary of a session, from its newest line."""
    return {
        "session_id": event.session_id,
        "mtime": _mtime(event),
        "data": event.metadata.get(SUMMARY, {}),
    }


def _nothing() -> None:
    """For a store that its opener closes."""
