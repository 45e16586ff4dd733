"""The toolbox: calls tools for the cells and the model of one session, and records every call and
every result.

A call is an event before the tool starts, and its whole result is another event before it is given
to the cell or the model. So a call without a result is one that was running when the process died:
`unfinished` finds them, and `settle` gives each a result that says so, because a tool with effects
must never be called again as if nothing had happened. A call that never starts (wrong arguments, a
limit, a refusal) is recorded as well, call and result together.

Calls come from many threads and run at once; the toolbox holds no lock while a tool runs. A tool
that misses its deadline is abandoned: what it returns later goes nowhere, and the recorded result
says so.

The whole result is recorded: text as it is, anything else as JSON text, bytes as a payload with
their media type. Bytes in the midst of other values are events of their own, and the JSON names
their seqs, so that media never lie in the log as base64 text and every part of a result has an
address. The cell gets what the tool returned, as a value. A result over `CROSSING` does not fit
into one message to the kernel, which loads it from the store instead; it is then what its text in
the log says (dates as text, bytes by their seqs). A result over `MAX_RESULT` is refused: it is the
only one that is not kept.
"""

import contextlib
import inspect
import json
import keyword
import logging
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

import msgspec

from scroll_context.background import in_loop
from scroll_context.contents import MediaFacts
from scroll_context.errors import BadInput, StoreError, ToolFailed
from scroll_context.events import Event, Kind, Scope
from scroll_context.images import image_size, media_tokens
from scroll_context.kernel.protocol import Portable, Prelude, portable
from scroll_context.log.journal import Journal
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import TEXT
from scroll_context.log.rows import INLINE_LIMIT
from scroll_context.messages import ToolSpec
from scroll_context.text.printable import printable
from scroll_context.tools.handles import ResultRef, prelude_source, ref_of
from scroll_context.tools.signatures import RESERVED, brief_doc
from scroll_context.tools.tools import Media, Plain, Tool, inline, json_text, plain
from scroll_context.tools.tools import tool as make_tool
from scroll_context.work import Work

DESCRIBE_CHARS = 24_000
STUB_CHARS = 6_000  # of whole descriptions; more tools than that are described on one line each
NAMED_CHARS = 100  # of a name that no tool has
REFUSED_CHARS = 2_000  # of the arguments of a call that never started, and of what is said of it
CROSSING = (
    16 << 20
)  # bytes of JSON; as msgpack that is less than twice as much, and fits into a frame of the wire
MAX_RESULT = 256 << 20  # bytes
JSON = "application/json"
INLINE_BYTES = 1024  # bytes inside a JSON result that stay in its text, as base64

logger = logging.getLogger("scroll_context.tools")
logging.getLogger("scroll_context").addHandler(
    logging.NullHandler()
)  # silent unless the application listens


class ToolUse(msgspec.Struct, frozen=True):
    r"""What the confirmation callback is asked about.

    >>> from scroll_context import Agent, ScriptedModel, Session, Store, ToolUse, exec_cell, tool
    >>> @tool(effects=True)
    ... def send_mail(to: str) -> str:
    ...     '''Send the report.'''
    ...     return "sent"
    >>> def confirm(use: ToolUse) -> bool:
    ...     print("may", use.name, "run with", use.arguments)
    ...     return False
    >>> cell = exec_cell("try:\n    send_mail('ada')\nexcept Exception:\n    print('refused')")
    >>> with (
    ...     Store("mail.scroll", create=True) as store,
    ...     Session.open(store, tools=[send_mail], confirm=confirm) as session,
    ... ):
    ...     Agent(session, ScriptedModel([cell, "Not sent."])).run("Send it.").answer
    may send_mail run with {'to': 'ada'}
    'Not sent.'
    """

    name: str
    arguments: dict[str, Any]  # by name, as they were sent
    header: str  # the signature of the tool
    cell_seq: int | None


Confirm = Callable[[ToolUse], bool | Awaitable[bool]]
"""Decides whether a tool with effects may run: only True allows it.

It may be a coroutine function.
"""


class ToolOutcome(msgspec.Struct, frozen=True):
    """A result: the value itself, or for a large one only a reference to where the log has it.

    `sent` is the value as it crosses to a cell; `has_tables` says whether data frames or arrays
    are in it. `note` says how the value differs from what the tool returned.
    """

    value: Any
    call_seq: int
    result_seq: int
    ref: ResultRef | None = None
    sent: Portable | None = None
    has_tables: bool = False
    note: str = ""

    def for_cell(self) -> dict[str, Any]:
        """The answer to the cell that made the call."""
        if self.ref is None:
            return {"value": self.sent, "tables": self.has_tables}
        return {"handle": msgspec.to_builtins(self.ref), "note": self.note}


class Recorder:
    """Writes the events of one call.

    `call_seq` and `result_seq` are 0 until there is such an event.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        name: str,
        arguments: str,
        tool_call_id: str,
        metadata: dict[str, Any],
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._journal = journal
        self._arguments = arguments
        self._given = given or {}  # what is recorded with the call alone
        self._common: dict[str, Any] = {
            "name": name,
            "tool_call_id": tool_call_id,
            "metadata": metadata,
        }
        self.call_seq = 0
        self.result_seq = 0

    def begin(self) -> None:
        """Record the call."""
        call = {**self._common, "metadata": {**self._common["metadata"], **self._given}}
        draft = self._journal.draft(
            Kind.TOOL_CALL, role="assistant", content=self._arguments, **call
        )
        self.call_seq = self._journal.append(draft).seq

    def fail(self, state: str, text: str) -> None:
        """Record that there is no result.

        Of a call that never began, only the beginning of its arguments is kept.
        """
        if not self.call_seq:
            if len(self._arguments) > REFUSED_CHARS:
                beginning = {
                    "characters": len(self._arguments),
                    "beginning": self._arguments[:REFUSED_CHARS],
                }
                self._arguments = json_text(beginning, inline)
            self.begin()
        self._end(state, text)

    def finish(self, result: Plain, origin: Mapping[str, Any] | None = None) -> ToolOutcome:
        """Record a result; gives the value for the cell, or a reference when it is too large to
        cross.

        `origin` says which events it was made from, and is recorded with it.
        """
        metadata = self._common["metadata"] = {**self._common["metadata"], **(origin or {})}
        value = result.value
        if isinstance(value, bytes | bytearray | memoryview):
            media = result.media(value)
            size = len(media.data)
            self._check_size(size)
            if media.media_type.startswith("image/") and "inside_cell" not in metadata:
                # A tool that the model called itself shows it the image.
                tokens = media_tokens(media.media_type, size, *image_size(media.data))
                facts = MediaFacts(media_type=media.media_type, size=size, tokens=tokens)
                self._common["metadata"] = metadata | {"media": [msgspec.to_builtins(facts)]}
            event = self._end("ok", _label(media), media.data, media.media_type)
            if size > CROSSING:
                return ToolOutcome(None, self.call_seq, event.seq, ref_of(event))
            sent = Portable(media.data)
            return ToolOutcome(media.data, self.call_seq, event.seq, sent=sent)
        try:
            value, text, size = self._as_text(result)
            self._check_size(size)
            # This checks every value as well, so an unusable one is not recorded as a result.
            crossing = Portable(portable(value)) if size <= CROSSING else None
        except (TypeError, ValueError, RecursionError) as error:
            unusable = f"{self._common['name']} returned something that cannot be used: {error}"
            raise ToolFailed(unusable, kind="TypeError") from error
        # Small text beside large media goes as a reference too, and needs a body to refer to.
        is_inline = len(text.encode()) <= INLINE_LIMIT
        body = text if size > CROSSING and is_inline else None
        media_type = TEXT if isinstance(value, str) else JSON
        event = self._end("ok", text, body, media_type)
        if crossing is None:
            note = _simplified(result, size)
            return ToolOutcome(None, self.call_seq, event.seq, ref_of(event), note=note)
        has_tables = bool(result.pickled)
        return ToolOutcome(value, self.call_seq, event.seq, sent=crossing, has_tables=has_tables)

    def _as_text(self, result: Plain) -> tuple[Any, str, int]:
        """The value, the text that the log has of it, and the size of everything together."""
        value = result.value
        # The sizes of pickled tables, and of the media that are events of their own.
        apart: list[int] = [len(table.data) for table in result.pickled]

        def keep(data: bytes) -> Any:
            return self._part(result.media(data), apart)

        text = value if isinstance(value, str) else json_text(value, keep)
        if not text.isascii():
            cleaned = text.encode("utf-8", "replace").decode()
            if cleaned != text:
                # It has a lone surrogate, which neither the log nor the wire can hold.
                text = cleaned
                value = text if isinstance(value, str) else json.loads(text)
        return value, text, len(text.encode()) + sum(apart)

    def _part(self, media: Media, apart: list[int]) -> Any:
        """What the JSON says in the place of bytes."""
        if len(media.data) <= INLINE_BYTES:
            return inline(media.data)
        apart.append(len(media.data))
        self._check_size(sum(apart))
        event = self._append(
            Kind.ARTIFACT,
            media.data,
            media.media_type,
            role="tool",
            content=_label(media),
            reply_to=self.call_seq,
        )
        return {"artifact": event.seq, "media_type": media.media_type, "size": len(media.data)}

    def _end(
        self, state: str, content: str, body: bytes | str | None = None, media_type: str = TEXT
    ) -> Event:
        fields = {
            "role": "tool",
            "content": content,
            "reply_to": self.call_seq,
            "tool_state": state,
        }
        event = self._append(Kind.TOOL_RESULT, body, media_type, **fields)
        self.result_seq = event.seq
        return event

    def _append(
        self, kind: str, body: bytes | str | None = None, media_type: str = TEXT, **fields: Any
    ) -> Event:
        draft = self._journal.draft(kind, **fields, **self._common)
        return self._journal.append(draft, body=body, media_type=media_type)

    def _check_size(self, size: int) -> None:
        if size > MAX_RESULT:
            raise ToolFailed(
                f"{self._common['name']} returned {size:,} bytes; at most {MAX_RESULT:,} are taken, and nothing of it "
                "was kept. Ask for less at a time.",
                kind="ValueError",
            )


def _simplified(result: Plain, size: int) -> str:
    """What a cell must know of a table that is too large to cross as such; "" without one."""
    if not result.pickled:
        return ""
    kinds = " and ".join(sorted({table.type for table in result.pickled}))
    return (
        f"the result has {size:,} bytes, so it arrives as the log has it:"
        f" {kinds} as lists, dates as text. Ask for less at a time to get the {kinds}."
    )


def _label(media: Media) -> str:
    return f"[{media.media_type}, {len(media.data):,} bytes]"


class Toolbox:
    """The tools of one session. Share it between threads.

    `confirm` is asked before a tool with effects runs, one question at a time. Without it such
    tools run unasked: the application that gave them chose that.
    """

    def __init__(
        self,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]],
        *,
        journal: Journal,
        confirm: Confirm | None = None,
        default_timeout: float = 60.0,
    ) -> None:
        self.tools: dict[str, Tool[..., Any]] = {}
        self._constants: dict[str, str] = {}
        self._journal = journal
        if confirm is not None and not callable(confirm):
            raise BadInput(
                f"confirm is a function that is given a ToolUse and returns True or False, not {confirm!r}"
            )
        self._confirm = confirm
        self._default_timeout = default_timeout
        self._asking = threading.Lock()
        self._counting = threading.Lock()
        self._native: dict[str, Tool[..., Any]] = {}
        self.started = 0  # calls of this process that were not refused
        self._calls: dict[str, int] = {}  # made so far, before a resume too, of tools with a limit
        self._slots: dict[str, threading.Semaphore] = {}
        self.add(tools)

    def add(self, tools: Iterable[Tool[..., Any] | Callable[..., Any]]) -> None:
        """Take more tools."""
        for item in tools:
            tool = item if isinstance(item, Tool) else make_tool(item)
            space, dot, _ = tool.name.partition(".")
            spaces = {name.partition(".")[0] for name in self.tools if "." in name}
            if (
                tool.spec.name in self._native
                or tool.name in spaces
                or (dot and space in self.tools)
            ):
                raise BadInput(
                    f"the name {tool.name!r} is taken by another tool; give one of them another with name="
                )
            self.tools[tool.name] = self._native[tool.spec.name] = tool
            if tool.limits.max_calls is not None:
                self._calls[tool.name] = _calls_made(self._journal, tool.name)
            if tool.limits.max_concurrent is not None:
                self._slots[tool.name] = threading.Semaphore(tool.limits.max_concurrent)

    def bind(self, name: str, text: str) -> None:
        """Let cells find a text under a name, such as the path of the workspace that tools act on.

        Call `tools_changed` of the session's environment afterwards.
        """
        if not name.isidentifier() or keyword.iskeyword(name) or name in {*self.tools, *RESERVED}:
            raise BadInput(f"{name!r} cannot be bound for cells: take a Python name that is free")
        self._constants[name] = text

    # what the model is told -----------------------------------------------------------------------

    def describe(self, limit: int = DESCRIBE_CHARS) -> str:
        """All tools, sorted by name; less is said of each when all do not fit into `limit`
        characters.
        """
        tools = [self.tools[name] for name in sorted(self.tools)]
        if not tools:
            return ""
        head = [_map_text(tools)]
        if any(tool.effects for tool in tools):
            head.insert(0, _EFFECTS)
            if self._confirm is not None:
                head.insert(1, _ASKED)
        lines = [tool.line() for tool in tools]
        headers = [tool.line(described=False) for tool in tools]
        levels = (
            (min(limit, STUB_CHARS), "\n\n", ["\n".join(head), *(tool.stub for tool in tools)]),
            (limit, "\n", [*head, _HELP, *lines]),
            (limit, "\n", [*head, _HELP, *headers]),
        )
        for most, between, parts in levels:
            text = between.join(parts)
            if len(text) <= most:
                return text
        return brief_doc(", ".join(tool.name for tool in tools), lines=1, chars=limit - 2)

    def prelude(self) -> Prelude:
        """Functions for the tools inside the kernel, `map_calls`, and `ToolFailed` to catch."""
        table = {
            name: (
                tool.header,
                "\n".join(filter(None, (tool.doc, *tool.remarks))),
                tool.limits.max_concurrent,
            )
            for name, tool in sorted(self.tools.items())
        }
        names = sorted({name.partition(".")[0] for name in table} | self._constants.keys())
        constants = "".join(f"{name} = {text!r}\n" for name, text in self._constants.items())
        source = f"TOOLS = {table!r}\n{constants}" + prelude_source(
            "tools_prelude", "scroll_context.tools"
        )
        return Prelude("tools", source, (*names, "ToolFailed", "map_calls"))

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools for native calling, sorted by name."""
        return tuple(self.tools[name].spec for name in sorted(self.tools))

    # calling --------------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        cell_seq: int | None = None,
        tool_call_id: str = "",
        deadline: float | None = None,
        given: Mapping[str, Any] | None = None,
        work: Work | None = None,
    ) -> ToolOutcome:
        """Call a tool by its name (or its native name) and wait for it, at most until `deadline`
        (monotonic clock).

        `given` is what the cell at `cell_seq` has read so far; it is recorded with the call.
        `work` belongs to the cell: once it is over, no question is asked and no tool starts. A
        tool that has started is not stopped.

        Raises ToolFailed for everything that is not a result; both events are recorded by then.
        Raises QuotaReached when the session may not begin anything new; nothing is recorded then.
        """
        self._journal.require_room()
        tool = self.tools.get(name) or self._native.get(name)
        by_name = _names(tool, args, kwargs or {})
        recorder = Recorder(
            self._journal,
            name=tool.name if tool else printable(name[:NAMED_CHARS]),
            arguments=_arguments_text(by_name),
            tool_call_id=tool_call_id or f"call_{uuid.uuid4().hex}",
            given=given,
            metadata=({} if cell_seq is None else {"inside_cell": cell_seq})
            | ({"effects": True} if tool and tool.effects else {})
            | ({"echo": True} if tool and tool.echo else {}),
        )
        with self._faults(recorder), contextlib.ExitStack() as held:
            if tool is None:
                names = brief_doc(
                    ", ".join(sorted(self.tools)) or "none", lines=1, chars=REFUSED_CHARS // 2
                )
                raise ToolFailed(
                    f"there is no tool {name[:NAMED_CHARS]!r}; the tools are: {names}",
                    kind="NameError",
                )
            arguments = _converted(tool, args, kwargs or {})
            self._check_calls_left(tool)
            if tool.effects and self._confirm is not None:
                self._ask(ToolUse(tool.name, by_name, tool.header, cell_seq), deadline, work)
            _check_cell(tool.name, work)
            self._count(tool)
            until = time.monotonic() + (tool.limits.timeout or self._default_timeout)
            until = until if deadline is None else min(until, deadline)
            self._take_slot(tool, until, held)
            if time.monotonic() >= until:
                raise ToolFailed(
                    f"{tool.name} was not started: its time was already over", **_TIMEOUT
                )
            _check_cell(tool.name, work)
            recorder.begin()
            future = _started(tool, arguments)
            slot = held.pop_all()
            future.add_done_callback(
                lambda _: slot.close()
            )  # an abandoned call keeps its slot until it ends
            result = _result(tool, future, until)
            return recorder.finish(result, tool.origin(result.value) if tool.origin else None)

    def call_native(self, name: str, arguments: Mapping[str, Any], *, tool_call_id: str) -> Event:
        """Carry out a call that the model made itself; returns the event of the result, which may
        be an error.
        """
        try:
            seq = self.call(name, kwargs=arguments, tool_call_id=tool_call_id).result_seq
        except ToolFailed as error:
            assert error.result_seq is not None
            seq = error.result_seq
        return self._journal.log.get(seq)

    @contextlib.contextmanager
    def _faults(self, recorder: Recorder) -> Iterator[None]:
        """Record whatever ends a call without a result, and raise it with the addresses of its
        events.
        """
        try:
            yield
        except ToolFailed as error:
            if not recorder.result_seq:
                recorder.fail(error.state, f"{error.kind}: {error}")
            error.call_seq, error.result_seq = recorder.call_seq, recorder.result_seq
            raise
        except StoreError as error:
            if recorder.call_seq and not recorder.result_seq:
                with contextlib.suppress(
                    StoreError
                ):  # the log may have room for a line where a payload had none
                    recorder.fail(
                        "error", f"the call returned, and its result could not be recorded: {error}"
                    )
            raise
        except BaseException:  # Ctrl-C
            if not recorder.call_seq:
                recorder.fail("refused", "interrupted before it started")
            elif not recorder.result_seq:
                recorder.fail(
                    "error", "the wait for this call was interrupted; it may still take effect"
                )
            raise

    def _check_calls_left(self, tool: Tool[..., Any]) -> None:
        most = tool.limits.max_calls
        if most is not None and self._calls[tool.name] >= most:
            raise ToolFailed(
                f"{tool.name} may be called {most} times, and has been; use the results that you have",
                kind="PermissionError",
                state="refused",
            )

    def _count(self, tool: Tool[..., Any]) -> None:
        with self._counting:
            self._check_calls_left(
                tool
            )  # again: others may have been started while the user was asked
            self.started += 1
            if tool.name in self._calls:
                self._calls[tool.name] += 1

    def _ask(self, use: ToolUse, deadline: float | None, work: Work | None) -> None:
        assert self._confirm is not None
        if not self._asking.acquire(timeout=_remaining(deadline)):
            raise ToolFailed(
                f"{use.name} was not started: no time was left to ask the user", **_TIMEOUT
            )
        try:
            # The cell may have ended while the user answered the questions of other calls.
            _check_cell(use.name, work)
            try:
                decision = _decision(self._confirm, use, deadline)
                reason = "the user refused it"
            # The callback is foreign code; without its answer nothing runs.
            except Exception as error:  # noqa: BLE001
                decision = False
                reason = f"asking the user failed ({type(error).__name__}: {error})"
        finally:
            self._asking.release()
        if decision is True:
            return
        # A coroutine, a non-empty text such as "no" and other values are true in Python and no
        # consent.
        if decision is not False:
            shown = repr(decision)[:NAMED_CHARS]
            reason = f"the confirm function returned {shown}, and only True allows a call"
            logger.warning("%s was refused: %s", use.name, reason)
        raise ToolFailed(
            f"{use.name} was not run: {reason}. Do not try it again unasked; find out what is wanted instead",
            kind="PermissionError",
            state="refused",
        )

    def _take_slot(self, tool: Tool[..., Any], until: float, held: contextlib.ExitStack) -> None:
        slot = self._slots.get(tool.name)
        if slot is None:
            return
        if not slot.acquire(timeout=_remaining(until)):
            raise ToolFailed(
                f"{tool.name} was not started: its {tool.limits.max_concurrent} places stayed taken",
                **_TIMEOUT,
            )
        held.callback(slot.release)


def _check_cell(name: str, work: Work | None) -> None:
    """Refuse a call whose cell was interrupted, timed out or ended before the tool started."""
    if work is not None and work.is_over:
        raise ToolFailed(
            f"{name} was not run: the cell had ended before this call started",
            kind="PermissionError",
            state="refused",
        )


def _decision(confirm: Confirm, use: ToolUse, deadline: float | None) -> object:
    """Ask the program; a coroutine is awaited on the loop of asynchronous tools."""
    answer: object = confirm(use)
    if not inspect.isawaitable(answer):
        return answer
    future = in_loop(_awaited(answer), "tools")
    try:
        return future.result(None if deadline is None else _remaining(deadline))
    except TimeoutError:
        future.cancel()
        raise TimeoutError("no answer came while the cell had time left") from None


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def _calls_made(journal: Journal, name: str) -> int:
    """How many calls of a tool this session has started. What was refused was not started."""
    ((made,),) = journal.log.query(
        """SELECT count(*) FROM event WHERE session_id = :session AND agent_id = :agent AND kind = :call
        AND name = :name AND source_key IS NULL AND seq NOT IN (SELECT reply_to FROM event WHERE session_id = :session
        AND agent_id = :agent AND kind = :result AND reply_to IS NOT NULL AND tool_state = 'refused')""",
        {**_calls_of(journal.scope), "name": name},
    )
    return int(made)


def unfinished(log: EventLog, scope: Scope) -> list[Event]:
    """The tool calls of a session that were started here and have no result, oldest first.

    Ask this before a session goes on after a crash: these calls may have taken effect
    (`metadata.effects` says which could). Imported calls never ran here and are left out.
    """
    rows = log.query(
        """SELECT seq FROM event WHERE session_id = :session AND agent_id = :agent AND kind = :call
        AND source_key IS NULL AND seq NOT IN (SELECT reply_to FROM event WHERE session_id = :session
        AND agent_id = :agent AND kind = :result AND reply_to IS NOT NULL) ORDER BY seq""",
        _calls_of(scope),
    )
    return [call for call in log.get_many([seq for (seq,) in rows]) if not call.is_foreign]


def _calls_of(scope: Scope) -> dict[str, str]:
    return {
        "session": scope.session_id,
        "agent": scope.agent_id,
        "call": str(Kind.TOOL_CALL),
        "result": str(Kind.TOOL_RESULT),
    }


def settle(journal: Journal) -> list[Event]:
    """Give every unfinished call a result of state "unknown", so that it is reported once; return
    the calls.
    """
    calls = unfinished(journal.log, journal.scope)
    journal.append_many(
        journal.draft(
            Kind.TOOL_RESULT,
            role="tool",
            name=call.name,
            tool_call_id=call.tool_call_id,
            reply_to=call.seq,
            tool_state="unknown",
            metadata=call.metadata,
            content=f"the process ended while {call.name} was running: whether it took effect is not known. "
            "Check before you call it again.",
        )
        for call in calls
    )
    return calls


_EFFECTS = "# A tool that has effects, or may have them, can change the world: never repeat its call to be sure."
_ASKED = "# The user may be asked before such a tool is run."
_HELP = "# help(f) prints the whole description of f and, after a call, the shape of its results."


def _map_text(tools: Sequence[Tool[..., Any]]) -> str:
    """What the model is told of map_calls, true for these tools."""
    limits = {tool.limits.max_concurrent for tool in tools}
    if limits == {1}:
        at_once = "one after another, because these tools run one call at a time"
    elif 1 in limits:
        at_once = "up to 16 at once, but one at a time where the description of f says so"
    else:
        at_once = "up to 16 at once"
    return (
        f"# map_calls(f, [{{...}}, ...]) calls f with each dict of arguments, {at_once}."
        "\n# It returns a list of the results in order, with None where a call failed;"
        " its .errors maps positions to what went wrong."
    )


_TIMEOUT: dict[str, Any] = {"kind": "TimeoutError", "state": "timeout"}


def _names(
    tool: Tool[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by name as far as they have one, for the log and for the user."""
    if tool is not None:
        with contextlib.suppress(BadInput):
            return dict(tool.names(args, kwargs).arguments)
    return ({"*": list(args)} if args else {}) | dict(kwargs)


def _converted(
    tool: Tool[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    try:
        return tool.convert(tool.names(args, kwargs))
    except Exception as error:  # a model's own validators are foreign code
        raise ToolFailed(
            _message(error)[:REFUSED_CHARS], kind="TypeError", state="refused"
        ) from error


def _arguments_text(by_name: dict[str, Any]) -> str:
    """The canonical JSON of the arguments."""
    try:
        return json_text(plain(by_name, str_keys=True).value, inline, sort_keys=True)
    except (TypeError, RecursionError) as error:  # the check of the arguments will say more
        return json_text({"unreadable": str(error)}, inline)


def _started(tool: Tool[..., Any], arguments: inspect.BoundArguments) -> Future[Plain]:
    try:
        return tool.start(arguments)
    except RuntimeError as error:  # no more threads
        raise ToolFailed(f"{tool.name} could not be started: {error}") from error


def _result(tool: Tool[..., Any], future: Future[Plain], until: float) -> Plain:
    started = time.monotonic()
    wait([future], timeout=_remaining(until))
    if not future.done() and (future.cancel() or not future.done()):
        stopped = future.cancelled()
        raise ToolFailed(
            f"{tool.name} gave no answer in {until - started:.3g} s and was {'cancelled' if stopped else 'abandoned'}"
            + (
                "."
                if stopped
                else "; it may still be running, and what it returns is not recorded."
            )
            + (
                " It may have taken effect: check before you call it again." if tool.effects else ""
            ),
            **_TIMEOUT,
        )
    try:
        return future.result()
    except ToolFailed as error:
        raise ToolFailed(str(error), kind=error.kind, state=error.state) from error
    except BaseException as error:  # whatever the tool raised
        logger.warning("%s raised %s", tool.name, type(error).__name__, exc_info=error)
        raise ToolFailed(_message(error), kind=type(error).__name__) from error


def _message(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - an exception of foreign code may fail to give its text
        return type(error).__name__


def _remaining(until: float | None) -> float:
    return -1 if until is None else max(0.0, until - time.monotonic())
