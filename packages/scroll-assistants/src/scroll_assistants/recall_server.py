"""The server behind `scroll mcp`: a coding assistant searches, reads, analyses and extends the
history in a store.

There are five tools, because every schema costs tokens in each request of the assistant: `search`
and `expand` read, `brief` gives what bears on a task, `exec` runs a cell in a jailed kernel with
`ms`, `note` records a text. Answers are compact texts with seqs; an error is a text with a remedy.
The server reaches one project (the one that it was started for) unless its reach is `all`.

Searches and expansions are not recorded: they change nothing, and the assistant's own transcript
has them. Cells are recorded in a session of their client, as echoes, so that recall never returns
them. Each client has its own kernel (client_kernels.py). Over standard streams, and over HTTP if
the protocol has sessions, the connection identifies the client. The newer protocol has no sessions,
so there a client names its kernel with the secret name from its first answer.

The transports are in mcp_stdio.py and mcp_http.py. An assistant waits for its servers when it
starts, so sessions and kernels are imported with the first cell.
"""

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

from anyio import CancelScope, to_thread

from scroll_assistants.client_kernels import (
    AGENT,
    LEASE_SECONDS,
    MAX_KERNELS,
    Kernels,
    Reach,
    new_name,
)
from scroll_assistants.project import marked
from scroll_assistants.recall_texts import (
    NOTE,
    event_heading,
    heading,
    on_one_line,
    quoted,
    seqs_of,
    span_of,
)
from scroll_context.background import in_thread
from scroll_context.errors import BadInput, KernelError, ScrollError, UnknownSeq, UnknownSession
from scroll_context.events import Grant, Kind, Scope
from scroll_context.log.journal import Journal
from scroll_context.log.schema import utc_now
from scroll_context.origin import SPEAKER
from scroll_context.store import Store
from scroll_context.text.printable import printable
from scroll_context.work import Work

if TYPE_CHECKING:
    from scroll_context.recall.memory import Memory
    from scroll_context.session.session import Session

T = TypeVar("T")

MAX_HITS = 50
ROLES = ("user", "assistant", "tool", "system", SPEAKER)
SNIPPET_CHARS = 300

# The limits of `expand`: characters in an answer, requests that read at once, their time.
PAGE_CHARS = 12_000
MAX_EXPANSIONS = 4
EXPAND_SECONDS = 60.0

# The most lines of the resource that lists a session.
MAX_LINES = 200

# What the addresses of resources begin with.
RESOURCES = "scroll://"

NO_BRIEF = "nothing recorded bears on that"

# The most characters of a note.
MAX_NOTE = 20_000

PROGRESS_SECONDS = 2.0

_logger = logging.getLogger("scroll_context.mcp")


class Answer(NamedTuple):
    """The answer of a tool. An error is a text that the model can act on."""

    text: str
    is_error: bool = False


class Caller(Protocol):
    """The client that calls a tool."""

    @property
    def kernel(self) -> str:
        """The name of its kernel; "" if the protocol cannot identify clients."""

    async def report_progress(self, done: float, total: float, message: str) -> None: ...


class RecallServer:
    """The tools and resources, on one store. `close` ends the kernels.

    If the client's transcript is captured into this store, `client_session` is its session. If the
    client does not report its session, `assistant` is its name.
    """

    def __init__(
        self,
        store: Store,
        *,
        task: str,
        earlier_tasks: tuple[str, ...] = (),
        reach: Reach = "task",
        max_kernels: int = MAX_KERNELS,
        client_session: str = "",
        assistant: str = "",
    ) -> None:
        self.store = store
        self.task = task
        self.reach = reach
        scope = Scope("", AGENT, task, earlier_tasks)
        self.grant = scope.widest(reach)
        self._scope = scope
        self._client = _CapturedClient(store, self.grant, client_session, assistant)
        self._made: Memory | None = None
        self._making = threading.Lock()
        self._kernels = Kernels(store, scope, reach, max_kernels)
        # The kernel of the client over standard streams.
        self.own_kernel = new_name()
        self._noting = asyncio.Lock()
        self._expansions = asyncio.Semaphore(MAX_EXPANSIONS)

    @property
    def _memory(self) -> "Memory":
        """Made with the first call, by whichever thread is first."""
        from scroll_context.recall.memory import Memory

        with self._making:
            if self._made is None:
                self._made = Memory(self.store, self._scope, self.reach, self._client)
            return self._made

    @property
    def open_kernels(self) -> int:
        return self._kernels.open

    async def close(self) -> None:
        await self._kernels.close()
        if self._made is not None:
            self._made.close()

    async def serving(self, work: Awaitable[None]) -> None:
        """Run the work of a transport. Meanwhile idle kernels are closed, and at the end all."""
        closing_idle = asyncio.create_task(self._kernels.close_idle_for_ever())
        try:
            await work
        finally:
            closing_idle.cancel()
            with CancelScope(shield=True):
                await self.close()

    # tools; tool_schemas.py has what the model reads about them ----------------------------------

    async def call(self, tool: str, arguments: Mapping[str, Any], caller: Caller) -> Answer:
        """Call a tool, whose arguments have been checked."""
        match tool:
            case "search":
                return await self.search(**arguments)
            case "expand":
                return await self.expand(**arguments)
            case "brief":
                return await self.brief(**arguments)
            case "exec":
                return await self.exec(caller, **arguments)
            case "note":
                return await self.note(**arguments)
        return Answer(f"there is no tool {tool[:40]!r}", is_error=True)

    async def search(
        self,
        query: str,
        k: int = 10,
        role: str = "",
        session_id: str = "",
        created_from: str = "",
        created_to: str = "",
    ) -> Answer:
        """Hits for words, best first."""

        def work() -> str:
            if role and role not in ROLES:
                raise BadInput(f"there is no role {role[:40]!r}; roles are {', '.join(ROLES)}")
            arguments = {
                "role": role,
                "session_id": session_id,
                "created_from": created_from,
                "created_to": created_to,
            }
            filters = {name: value for name, value in arguments.items() if value}
            answer = self._memory.call("ms.search", query, min(k, MAX_HITS), **filters).value
            lines = []
            for row in answer["rows"]:
                is_short = len(row["content"]) <= SNIPPET_CHARS
                text = row["content"] if is_short else row["snippet"]
                lines.append(f"{heading(row, self.task)}\n  {on_one_line(text, SNIPPET_CHARS)}")
            is_empty = not lines
            if answer["note"]:
                lines.append(f"({answer['note']})")
            if is_empty and self._is_reach_empty():
                lines.append(self._empty_reach_note())
            return "\n".join(lines)

        return await _answer(lambda: _in_thread(work))

    async def expand(self, seqs: Any, start: int = 0) -> Answer:
        """The exact texts at seqs, in pages."""
        return await _answer(
            lambda: self._expanding(lambda: self._pages(seqs_of(seqs), max(0, start)))
        )

    async def brief(self, prompt: str) -> Answer:
        """The few earlier events that bear on a prompt."""

        def work() -> str:
            from scroll_context.brief.brief import brief_of_prompt
            from scroll_context.brief.relevance import reach_of, source_of

            source = source_of(self.store)
            if source is None:
                return NO_BRIEF
            reach = reach_of(self.grant)._replace(
                asking=self._client.session_id, exclude=frozenset(self._client.visible_seqs())
            )
            return brief_of_prompt(source, prompt, reach).text or NO_BRIEF

        return await _answer(lambda: _in_thread(work))

    async def prompt_messages(self, prompt: str) -> list[dict[str, Any]]:
        """The messages of the prompt `brief`: what bears on the user's words, and the words."""
        brief = await self.brief(prompt)
        text = prompt if brief.text == NO_BRIEF else f"{marked(brief.text)}\n\n{prompt}"
        return [{"role": "user", "content": {"type": "text", "text": text}}]

    async def exec(self, caller: Caller, source: str, kernel: str = "") -> Answer:
        """Run a cell."""
        own = caller.kernel
        issued = new_name()

        async def work() -> str:
            # A client that its connection identifies has one kernel, whose name it does not know.
            if kernel and (own or not self._kernels.knows(kernel)):
                raise BadInput(f"you were given no kernel {kernel[:80]!r}; leave `kernel` out")
            try:
                async with self._kernels.use(own or kernel or issued) as session:
                    text = await self._run(session, source, caller)
            except KernelError as error:
                raise KernelError(
                    f"exec is not possible: {error} `search` and `expand` still work."
                ) from error
            if own or kernel:
                return text
            return f'{text}\n[pass kernel="{issued}" to keep these variables]'

        return await _answer(work)

    async def note(self, text: str) -> Answer:
        """Record a text."""

        def work() -> str:
            if not text.strip() or len(text) > MAX_NOTE:
                size = len(text.strip())
                raise BadInput(f"a note has 1 to {MAX_NOTE:,} characters, not {size:,}; shorten it")
            scope = Scope(f"notes-{self.task}", AGENT, self.task)
            journal = Journal(self.store.log, scope, wait=LEASE_SECONDS)
            try:
                event = journal.append(journal.draft(NOTE, role="assistant", content=text))
            finally:
                journal.close()
            return f"kept as seq {event.seq}"

        async with self._noting:
            return await _answer(lambda: to_thread.run_sync(work))

    # resources ------------------------------------------------------------------------------------

    async def read(self, uri: str) -> str:
        """The text of a resource. Raises ScrollError if there is none within reach."""
        kind, _, name = uri.removeprefix(RESOURCES).partition("/")
        if not uri.startswith(RESOURCES) or kind not in ("event", "session"):
            raise UnknownSeq(f"there is no resource {uri[:80]!r}")
        if kind == "event":
            return await self._expanding(lambda: self._pages(seqs_of(name), 0))
        return await self._expanding(lambda: self._session_lines(unquote(name)))

    def _session_lines(self, session_id: str) -> str:
        """A session: one line for each of its messages."""
        events = self.store.log.iterate(session_id=session_id, kind=[Kind.CONVERSATION, NOTE])
        lines = [
            f"{event_heading(event, self.task)}: "
            f"{on_one_line(event.headline or event.content, 120)}"
            for event in events
            if self.grant.permits(event)
        ]
        if not lines:
            raise UnknownSession(
                f"no session {session_id!r} within reach; hits of `search` name sessions"
            )
        more = len(lines) - MAX_LINES
        if more > 0:
            lines[MAX_LINES:] = [f"({more:,} more; `expand` takes ranges of seqs)"]
        return "\n".join(lines)

    # work -----------------------------------------------------------------------------------------

    def _is_reach_empty(self) -> bool:
        return self.reach != "all" and not self.store.log.sessions(self.grant)

    def _empty_reach_note(self) -> str:
        return (
            "(nothing is recorded for this project yet, which is task "
            f"{self.task!r} of the store. The user can import its past with `scroll import`, "
            "or start the server with --reach all)"
        )

    async def _expanding(self, read: Callable[[], str]) -> str:
        """Read bodies in a thread, a few requests at once.

        A request that its client cancels stops at the next piece, and occupies its place until
        then.
        """
        work = Work(time.monotonic() + EXPAND_SECONDS)

        def run() -> str:
            with work.in_this_thread():
                return read()

        async with self._expansions:
            reading = asyncio.wrap_future(in_thread(run, "mcp-expand"))
            try:
                await asyncio.wait([reading])
            except BaseException:
                work.stop()
                with CancelScope(shield=True):
                    await asyncio.wait([reading])
                # asyncio logs the error of the stopped work unless somebody reads it.
                reading.exception()
                raise
        return reading.result()

    def _pages(self, seqs: Sequence[int], start: int) -> str:
        events = self.store.log.get_many(seqs, self.grant)
        if not events:
            first = ", ".join(map(str, seqs[:10]))
            raise UnknownSeq(
                f"nothing within reach at seq {first}. Take seqs from the hits of `search`."
            )
        parts: list[str] = []
        room = PAGE_CHARS
        for place, event in enumerate(events):
            if room <= 0:
                rest = span_of(events[place:])
                parts.append(f'(the page is full; expand(seqs="{rest}") continues)')
                break
            begin = start if place == 0 else 0
            text, more = self._memory.lookup.page(event.seq, begin, room)
            size = f"{len(event.content):,} characters"
            if event.payload is not None:
                size = f"{event.payload.size:,} bytes"
                if not event.payload.is_text:
                    text += f" (`scroll show {event.seq} --raw` writes the bytes)"
            end = begin + room
            room -= len(text) + 100
            parts.append(f"{event_heading(event, self.task)}\n{quoted(printable(text))}")
            if more:
                next_page = f'expand(seqs="{event.seq}", start={end})'
                parts.append(f"({end:,} characters of {size}; {next_page} continues)")
                room = 0
        return "\n\n".join(parts)

    async def _run(self, session: "Session", source: str, caller: Caller) -> str:
        """Run a cell and report its progress to the client.

        When the client cancels, the cell is interrupted.
        """
        began = time.monotonic()
        call_id = f"mcp-{uuid.uuid4().hex}"
        cell = asyncio.wrap_future(
            in_thread(lambda: session.run(source, call_id, echo=True), "mcp-cell")
        )
        try:
            while not (await asyncio.wait([cell], timeout=PROGRESS_SECONDS))[0]:
                seconds = time.monotonic() - began
                calls = session.environment.memory.calls
                await caller.report_progress(
                    seconds, session.cell_timeout, f"running for {seconds:.0f} s, {calls} recalls"
                )
        except BaseException:
            with CancelScope(shield=True):
                # The cell may not have started at the first interrupt, so it is repeated.
                while not cell.done():
                    session.interrupt()
                    await asyncio.wait([cell], timeout=0.05)
            raise
        return cell.result().content


class _CapturedClient:
    """The events that a captured client already sees: its current turn with the user's question.

    That is the newest turn within reach, if it belongs to the client's session. If the client does
    not report its session, the turn counts as the client's if a capture of that assistant recorded
    it after this server started.
    """

    def __init__(self, store: Store, grant: Grant, session_id: str, assistant: str) -> None:
        self._store = store
        self._grant = grant
        self.session_id = session_id
        self._assistant = assistant
        self._since = utc_now()

    def visible_seqs(self) -> Collection[int]:
        if not (self.session_id or self._assistant):
            return ()
        log = self._store.log
        turns = log.tail(20, grant=self._grant, role="user", kind=Kind.CONVERSATION)
        # A session with a slash in its name belongs to a sub-agent.
        own_turns = (turn for turn in reversed(turns) if "/" not in turn.session_id)
        newest = next(own_turns, None)
        if newest is None:
            return ()
        is_own = newest.session_id == self.session_id
        if not self.session_id:
            is_own = newest.agent_id == self._assistant and newest.recorded_at >= self._since
        if not is_own:
            # The client has started another session since, or is not captured.
            return ()
        events = log.iterate(after=newest.seq - 1, session_id=newest.session_id)
        return [event.seq for event in events]

    def index_lines(self) -> list[dict[str, Any]]:
        return []

    def provenance(self, name: str) -> dict[str, Any]:
        raise BadInput(f"there is no session here, so nothing is known about {name!r}")


async def _answer(work: Callable[[], Awaitable[str]]) -> Answer:
    """The text of the work as a result. An error becomes a result that the model can act on."""
    try:
        return Answer(await work())
    except ScrollError as error:
        return Answer(str(error), is_error=True)
    except Exception as error:
        # This is a fault of ours. Its text is of more use than the bare fact.
        _logger.exception("a tool failed")
        text = (
            f"{type(error).__name__}: {error}. This is a fault of the server, which has logged it; "
            "try another way."
        )
        return Answer(text, is_error=True)


async def _in_thread(work: Callable[[], T]) -> T:
    return await to_thread.run_sync(work, abandon_on_cancel=True)
