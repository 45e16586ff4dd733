"""Recall as plain tools, for models and hosts without a kernel to call `ms` from.

`recall_tools` gives the four tools that a host offers: search, grep, expand, outline. An adapter
lists their `spec`s to its model and answers a call with `call_tool(tools, name, arguments)`.

The tools return what `ms` returns, cut to what a reader takes in at once: without code nothing can
be filtered before it is shown. Rows come in pages, and a note says how to continue. The grant, the
checks and the notes are those of `ms`. Calls and results are recorded like those of other tools,
marked as echoes, so that a model never finds its own recalls.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from scroll_context.errors import BadInput
from scroll_context.events import source_facts
from scroll_context.messages import ToolSpec
from scroll_context.recall.memory import Memory
from scroll_context.recall.reader import WHOLE_TEXT
from scroll_context.tools.tools import Tool, tool

# Characters of a hit; a longer text is shown by the part that matched.
HIT_CHARS = 1_200
# Characters of all texts that one expand shows.
PAGE_CHARS = 24_000
# Rows of one answer.
MAX_ROWS = 60

RECALL_TOOLS = ("search", "grep", "expand", "outline")
"""The tools that hosts offer."""
ALL_TOOLS = (*RECALL_TOOLS, "sql_query", "recall")
"""Those, and the tools that only some contexts give to their model."""

Scalar = str | int | float | bool | None
_SHOWN = ("seq", "session_id", "role", "kind", "name", "created_at", "headline")

Role = Annotated[str | None, "user, assistant or tool"]
Session = Annotated[str | int | None, "id of a session, or its number in the outline"]
FromDate = Annotated[str | None, "a date such as 2024-07-31"]
ToDate = Annotated[str | None, "a date; it is included"]


def recall_tools(
    memory: Memory, names: Iterable[str] = RECALL_TOOLS, prefix: str = ""
) -> list[Tool[..., Any]]:
    """The tools of these names, each called `prefix` + name.

    >>> from scroll_context import Session, SessionOptions, Store
    >>> from scroll_context.hosts import recall_tools
    >>> options = SessionOptions(context="plain")
    >>> store = Store("w.scroll", create=True)
    >>> with store, Session.open(store, options=options) as session:
    ...     tools = recall_tools(session.environment.memory)
    >>> [tool.name for tool in tools]
    ['search', 'grep', 'expand', 'outline']
    """
    offered = _RecallTools(memory, prefix)
    tools: list[Tool[..., Any]] = []
    for name in names:
        if name not in ALL_TOOLS:
            raise BadInput(
                f"there is no recall tool {name!r:.80}; there are {', '.join(ALL_TOOLS)}"
            )
        recall_tool = tool(getattr(offered, name), name=f"{prefix}{name}")
        recall_tool.echo = True
        recall_tool.origin = _origin
        tools.append(recall_tool)
    return tools


def tool_specs(tools: Iterable[Tool[..., Any]]) -> tuple[ToolSpec, ...]:
    """The tools as a model sees them: names, descriptions and schemas.

    >>> from scroll_context import tool
    >>> from scroll_context.hosts import tool_specs
    >>> @tool
    ... def now() -> str:
    ...     "The current time."
    ...     return "noon"
    >>> [spec.name for spec in tool_specs([now])]
    ['now']
    """
    return tuple(recall_tool.spec for recall_tool in tools)


def call_tool(
    tools: Iterable[Tool[..., Any]], name: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer a model's call: `rows`, and a `note` where there is something to say about them.

    >>> from scroll_context import Session, SessionOptions, Store
    >>> from scroll_context.hosts import call_tool, recall_tools
    >>> options = SessionOptions(context="plain")
    >>> store = Store("w.scroll", create=True)
    >>> with store, Session.open(store, options=options) as session:
    ...     event = session.say("The code is 4711.")
    ...     tools = recall_tools(session.environment.memory)
    ...     answer = call_tool(tools, "expand", {"seq": event.seq})
    >>> answer["rows"][0]["content"]
    'The code is 4711.'
    """
    by_name = {recall_tool.name: recall_tool for recall_tool in tools}
    if name not in by_name:
        raise BadInput(f"there is no recall tool {name!r:.80}; there are {', '.join(by_name)}")
    recall_tool = by_name[name]
    fitted = recall_tool.convert(recall_tool.names((), arguments))
    answer: dict[str, Any] = recall_tool(*fitted.args, **fitted.kwargs)
    return answer


class _RecallTools:
    """The functions; their docstrings are what the model reads."""

    def __init__(self, memory: Memory, prefix: str) -> None:
        self._memory = memory
        self._prefix = prefix

    def recall(
        self,
        query: Annotated[str, "words to look for"],
        k: Annotated[int, "how many passages to return"] = 5,
    ) -> dict[str, Any]:
        """Search everything that was said and done in earlier work, by words, best first.

        All words are tried first, then any of them. Uppercase OR, AND, NOT, "exact phrases" and
        prefix* work.
        """
        return _hits(self._call("search", query, k))

    def search(
        self,
        query: Annotated[str, "words to look for"],
        k: Annotated[int, "how many hits to return, at most 60"] = 10,
        role: Role = None,
        kind: Annotated[str | None, "conversation, tool_call, tool_result, ..."] = None,
        session_id: str | None = None,
        first_seq: int | None = None,
        last_seq: int | None = None,
        created_from: FromDate = None,
        created_to: ToDate = None,
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
            filters["seq_range"] = (first_seq or 0, last_seq or self._last_seq())
        selected = {name: value for name, value in filters.items() if value is not None}
        return _hits(self._call("search", query, min(k, MAX_ROWS), **selected))

    def grep(
        self,
        text: Annotated[
            str, "the text, or with regex the expression, to look for; case does not matter"
        ],
        regex: Annotated[bool, "whether the text is a regular expression"] = False,
        role: Role = None,
        session_id: Session = None,
        created_from: FromDate = None,
        created_to: ToDate = None,
        after_seq: Annotated[int, "continue behind this seq"] = 0,
    ) -> dict[str, Any]:
        """Find every event that contains a text, in order, with the total: to count, or to be sure
        of having all.

        At most 60 rows per page; the note says how to continue.
        """
        filters: dict[str, Any] = {
            "role": role,
            "session_id": session_id,
            "created_from": created_from,
            "created_to": created_to,
        }
        if after_seq:
            filters["seq_range"] = (after_seq + 1, self._last_seq())
        answer = self._call("grep", text, regex, limit=MAX_ROWS, **filters)
        note = answer["note"]
        rows = [_short(row, "match", "count", "repeats") for row in answer["rows"]]
        if answer["truncated"] and rows:
            last = rows[-1]["seq"]
            note = note.replace(f"seq_range=({last + 1}, …)", f"after_seq={last}")
        return _answer(rows, note)

    def expand(
        self,
        seq: Annotated[int, "the event to return, or the first of several"],
        last: Annotated[int | None, "the last of several"] = None,
        start: Annotated[int, "where in a long text to begin, in characters"] = 0,
    ) -> dict[str, Any]:
        """Return the exact events at a seq, or from one seq to another.

        At most 60 events per page; a long text comes in pages of its own.
        """
        answer = self._call("expand", *((seq,) if last is None else (seq, last)))
        rows, note = answer["rows"], answer["note"]
        if len(rows) > MAX_ROWS:
            note = (
                f"only the first {MAX_ROWS} of {len(rows)} events are here: continue with "
                f"seq={rows[MAX_ROWS]['seq']}. {note}"
            ).strip()
            rows = rows[:MAX_ROWS]
        page = PAGE_CHARS // len(rows)
        return _answer([self._page(row, max(0, start), page) for row in rows], note)

    def _page(self, row: Mapping[str, Any], start: int, page: int) -> dict[str, Any]:
        """A row with a page of its text, and how to continue."""
        body = row.get("payload")
        content = row["content"]
        if body and body["text"] and body["size"] > WHOLE_TEXT:
            text, more = self._memory.lookup.page(row["seq"], start, page)
            size = f"{body['size']:,} bytes"
        else:
            text, more = content[start : start + page], len(content) > start + page
            size = f"{len(content):,} characters"
        page_row = _short(row) | {"content": text}
        if more:
            call = f"{self._prefix}expand(seq={row['seq']}, start={start + page})"
            page_row["more"] = f"{size} in all; continue with {call}"
        return page_row

    def outline(
        self,
        query: Annotated[str | None, "only sessions with hits for these words"] = None,
        created_from: FromDate = None,
        created_to: ToDate = None,
        after: Annotated[int, "continue behind the session with this number"] = 0,
    ) -> dict[str, Any]:
        """List the sessions: number, dates, first and last seq, and what each was about.

        At most 60 sessions per page; the note says how to continue.
        """
        answer = self._call("outline", created_from, created_to, query)
        note = answer["note"]
        rows = [_outline_row(row) for row in answer["rows"] if row["n"] > after]
        if len(rows) > MAX_ROWS:
            last = rows[MAX_ROWS - 1]["n"]
            note = f"only {MAX_ROWS} of {note}: continue with after={last}"
            rows = rows[:MAX_ROWS]
        return _answer(rows, note)

    def sql_query(
        self,
        sql: Annotated[str, "one SELECT"],
        params: Annotated[list[Scalar] | None, "values for its ? marks"] = None,
    ) -> dict[str, Any]:
        """Run read-only SQL on hist.conversation_history.

        Columns: seq, session_id, agent_id, task_id, kind, role, name, content, headline,
        step_index, msg_index, metadata, created_at.
        """
        answer = self._call("sql_query", sql, params or ())
        return _answer(answer["rows"], answer["note"])

    def _call(self, method: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        value: dict[str, Any] = self._memory.call(f"ms.{method}", *args, **kwargs).value
        return value

    def _last_seq(self) -> int:
        return self._memory.reader.log.last_seq()


def _origin(answer: Any) -> dict[str, Any]:
    """The events that an answer shows, for the event that records it: an erasure of one of them
    must find it.
    """
    rows = answer["rows"]
    seqs = [row["seq"] for row in rows if isinstance(row.get("seq"), int)]
    return source_facts("seqs", seqs, MAX_ROWS, unknown=len(seqs) < len(rows))


def _answer(rows: list[dict[str, Any]], note: str) -> dict[str, Any]:
    return {"rows": rows, "note": note} if note else {"rows": rows}


def _hits(answer: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for row in answer["rows"]:
        is_short = len(row["content"]) <= HIT_CHARS and "payload" not in row
        rows.append(_short(row, "content" if is_short else "snippet"))
    return _answer(rows, answer["note"])


def _outline_row(row: Mapping[str, Any]) -> dict[str, Any]:
    line = {
        "n": row["n"],
        "session_id": row["session_id"],
        "from": row["from"],
        "seqs": "{}-{}".format(*row["seqs"]),
        "about": ", ".join(row["terms"]),
    }
    return line | {name: row[name] for name in ("hits", "misdated") if row.get(name)}


def _short(row: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """The address of a row, without empty fields, and more fields of it."""
    return {name: row[name] for name in (*_SHOWN, *more) if row.get(name)}
