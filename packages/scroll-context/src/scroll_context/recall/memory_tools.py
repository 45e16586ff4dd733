"""Parts of the memory surface as native tools, for models that have no kernel to call `ms` from.

They return what `ms` returns, cut to what a reader can take in at once: without code nothing can be
filtered before it is shown. Calls and results are recorded like any other's, marked as echoes, so
that a model never finds its own recalls. The grant, the checks and the notes are those of the
memory surface.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from scroll_context.events import packed_seqs
from scroll_context.recall.memory import WHOLE_TEXT, MemorySurface
from scroll_context.tools.tools import Tool, tool

HIT_CHARS = 1_200  # of a hit; a longer text is shown by the part that matched
PAGE_CHARS = 24_000  # of all texts that one expand shows
MAX_ROWS = 60  # of one expand

Scalar = str | int | float | bool | None
_SHOWN = ("seq", "session_id", "role", "kind", "name", "created_at", "headline")


def memory_tools(memory: MemorySurface, names: Iterable[str]) -> list[Tool[..., Any]]:
    """The tools of these names: search, expand and sql_query are called ms_search and so on; recall
    is recall.
    """
    offered = _MemoryTools(memory)
    made: list[Tool[..., Any]] = []
    for name in names:
        one = tool(getattr(offered, name), name=name if name == "recall" else f"ms_{name}")
        one.echo = True
        one.origin = _origin
        made.append(one)
    return made


class _MemoryTools:
    """The functions; their docstrings are what the model reads."""

    def __init__(self, memory: MemorySurface) -> None:
        self._memory = memory

    def recall(
        self,
        query: Annotated[str, "words to look for"],
        k: Annotated[int, "how many passages to return"] = 5,
    ) -> dict[str, Any]:
        """Search everything that was said and done in earlier work, by words, best first.

        All words are tried first, then any of them. Uppercase OR, AND, NOT, "exact phrases" and
        prefix* work.
        """
        return _hits(self._memory.call("ms.search", query, k).value)

    def search(
        self,
        query: Annotated[str, "words to look for"],
        k: Annotated[int, "how many hits to return"] = 10,
        role: Annotated[str | None, "user, assistant or tool"] = None,
        kind: Annotated[str | None, "conversation, tool_call, tool_result, ..."] = None,
        session_id: str | None = None,
        first_seq: int | None = None,
        last_seq: int | None = None,
        created_from: Annotated[str | None, "a date such as 2024-07-31"] = None,
        created_to: Annotated[str | None, "a date; it is included"] = None,
    ) -> dict[str, Any]:
        """Find events by words, best first; a long text is shown by the part that matched.

        All words are tried first, then any of them. Uppercase OR, AND, NOT, "exact phrases" and
        prefix* work.
        """
        filters: dict[str, Any] = {
            "role": role,
            "kind": kind,
            "session_id": session_id,
            "created_from": created_from,
            "created_to": created_to,
        }
        if first_seq is not None or last_seq is not None:
            filters["seq_range"] = (first_seq or 0, last_seq or self._memory.store.log.last_seq())
        given = {name: value for name, value in filters.items() if value is not None}
        return _hits(self._memory.call("ms.search", query, k, **given).value)

    def expand(
        self,
        seq: Annotated[int, "the event to return, or the first of several"],
        last: Annotated[int | None, "the last of several"] = None,
        start: Annotated[int, "where in a long text to begin, in characters"] = 0,
    ) -> dict[str, Any]:
        """Return the exact events at a seq, or from one seq to another.

        A long text comes in pages.
        """
        answer = self._memory.call("ms.expand", *((seq,) if last is None else (seq, last))).value
        rows, note = answer["rows"], answer["note"]
        if len(rows) > MAX_ROWS:
            note = f"{len(rows)} events; the first {MAX_ROWS} are returned. Go on from seq {rows[MAX_ROWS]['seq']}. {note}"
            rows = rows[:MAX_ROWS]
        page = PAGE_CHARS // len(rows)
        return _answer([self._page(row, max(0, start), page) for row in rows], note)

    def _page(self, row: Mapping[str, Any], start: int, page: int) -> dict[str, Any]:
        """A row with a page of its text, and how to go on."""
        body = row.get("payload")
        if body and body["text"] and body["size"] > WHOLE_TEXT:
            text, more = self._memory.page(row["seq"], start, page)
            size = f"{body['size']:,} bytes"
        else:
            text, more = row["content"][start : start + page], len(row["content"]) > start + page
            size = f"{len(row['content']):,} characters"
        shown = _known(row) | {"content": text}
        if more:
            shown["more"] = (
                f"{size} in all; ms_expand(seq={row['seq']}, start={start + page}) goes on"
            )
        return shown

    def sql_query(
        self,
        sql: Annotated[str, "one SELECT"],
        params: Annotated[list[Scalar] | None, "values for its ? marks"] = None,
    ) -> dict[str, Any]:
        """Run read-only SQL on hist.conversation_history.

        Columns: seq, session_id, agent_id, task_id, kind, role, name, content, headline,
        step_index, msg_index, metadata, created_at.
        """
        answer = self._memory.call("ms.sql_query", sql, params or ()).value
        return _answer(answer["rows"], answer["note"])

    def grep(
        self,
        text: Annotated[
            str, "the text, or with regex the expression, to look for; case does not matter"
        ],
        regex: Annotated[bool, "whether the text is a regular expression"] = False,
        role: Annotated[str | None, "user, assistant or tool"] = None,
        session: Annotated[str | int | None, "id of a session, or its number in ms_outline"] = None,
        created_from: Annotated[str | None, "a date such as 2024-07-31"] = None,
        created_to: Annotated[str | None, "a date; it is included"] = None,
        after_seq: Annotated[int, "go on behind this seq"] = 0,
    ) -> dict[str, Any]:
        """Find every event that holds a text, in order, with the total: to count, or to be sure of
        having all.
        """
        filters: dict[str, Any] = {
            "role": role,
            "session_id": session,
            "created_from": created_from,
            "created_to": created_to,
        }
        if after_seq:
            filters["seq_range"] = (after_seq + 1, self._memory.store.log.last_seq())
        answer = self._memory.call("ms.grep", text, regex, limit=MAX_ROWS, **filters).value
        rows = [
            _known(row) | {name: row[name] for name in ("text", "repeats") if row.get(name)}
            for row in answer["rows"]
        ]
        return _answer(rows, answer["note"])

    def outline(
        self,
        query: Annotated[str | None, "only sessions with hits for these words"] = None,
        created_from: Annotated[str | None, "a date such as 2024-07-31"] = None,
        created_to: Annotated[str | None, "a date; it is included"] = None,
    ) -> dict[str, Any]:
        """List the sessions: number, dates, first and last seq, and what each was about."""
        answer = self._memory.call("ms.outline", created_from, created_to, query).value
        rows = [
            {
                "n": row["n"],
                "from": row["from"],
                "seqs": "{}-{}".format(*row["seqs"]),
                "about": ", ".join(row["terms"]),
            }
            | {name: row[name] for name in ("hits", "misdated") if row.get(name)}
            for row in answer["rows"]
        ]
        return _answer(rows, answer["note"])

    def gist(
        self,
        session: Annotated[
            str | int | None, "id of a session, or its number in ms_outline; all without one"
        ] = None,
        query: Annotated[str | None, "only turns with these words"] = None,
        role: Annotated[str, "whose words: user or assistant"] = "user",
        chars: Annotated[int, "how long the extract may be"] = 6_000,
    ) -> dict[str, Any]:
        """Extract the most telling sentences of a session, of a subject or of everything, spread
        evenly over it.
        """
        answer = self._memory.call("ms.gist", session, query=query, role=role, chars=chars).value
        return _answer(answer["rows"], answer["note"])

    def standing(
        self, topic: Annotated[str, "only what bears on this; everything without it"] = ""
    ) -> dict[str, Any]:
        """List the user's standing instructions and preferences, newest last."""
        answer = self._memory.call("ms.standing", topic).value
        return _answer(
            [
                {name: row[name] for name in ("seq", "date", "kind", "text")}
                for row in answer["rows"]
            ],
            answer["note"],
        )


def _origin(answer: Any) -> dict[str, Any]:
    """Which events an answer shows, for the event that records it: an erasure of one of them must
    find it.
    """
    rows = answer["rows"]
    seqs = [row["seq"] for row in rows if isinstance(row.get("seq"), int)]
    facts: dict[str, Any] = {"seqs": packed_seqs(seqs, MAX_ROWS)} if seqs else {}
    return facts if len(seqs) == len(rows) else facts | {"unknown": True}


def _answer(rows: list[dict[str, Any]], note: str) -> dict[str, Any]:
    return {"rows": rows, "note": note} if note else {"rows": rows}


def _hits(answer: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for row in answer["rows"]:
        whole = len(row["content"]) <= HIT_CHARS
        rows.append(
            _known(row) | ({"content": row["content"]} if whole else {"snippet": row["snippet"]})
        )
    return _answer(rows, answer["note"])


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _SHOWN if row.get(name)}
