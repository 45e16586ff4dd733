"""The toolbox: calls tools for the cells and the model of one session, and records every call and
every result (recorder.py).

Calls come from many threads and run at once; the toolbox holds no lock while a tool runs.

**Who ends a call.** A call is an event before its tool starts, and exactly one result event ends
it, before the cell or the model gets an answer. The first of these writes it:

1. `Toolbox.call`, when the tool has returned ("ok") or raised ("error").
2. `Toolbox.call`, at the earlier one of two deadlines: the tool's own time limit and the end of the
   cell's time ("timeout"). A coroutine is cancelled. A thread cannot be stopped, so its tool is
   abandoned: it keeps its place among the concurrent calls until it returns, and its value is
   dropped.
3. `Toolbox.call`, when the waiting thread is interrupted ("error").
4. `close_unfinished_calls` (recorder.py), when the session is resumed after its process died
   ("unknown").

The end of a cell ends no call that has started: the tool may have taken effect already. A call that
never starts (an unknown name, wrong arguments, a limit, a refusal, a cell that has ended) is
recorded as well, call and result together. Calls that do not come here are ended by those who run
them: a host's own tool by the host's result message (`Session.follow`), a question of `ask` by
ask.py."""

import contextlib
import inspect
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
from scroll_context.errors import BadInput, StoreError, ToolFailed
from scroll_context.events import Event
from scroll_context.kernel.protocol import Prelude
from scroll_context.log.journal import Journal
from scroll_context.messages import ToolSpec
from scroll_context.text.printable import printable
from scroll_context.tools.handles import prelude_source
from scroll_context.tools.plain import ObservedShapes, Plain, inline, json_text, plain, shape_text
from scroll_context.tools.recorder import REFUSED_CHARS, Recorder, ToolOutcome, count_started_calls
from scroll_context.tools.signatures import RESERVED, brief_doc
from scroll_context.tools.tools import AnyTool, Tool
from scroll_context.tools.tools import tool as make_tool
from scroll_context.work import Work

DESCRIBE_CHARS = 24_000
# Complete descriptions up to this length; more tools are described on one line each.
STUB_CHARS = 6_000
# Characters that an error repeats of a name that no tool has, or of an answer to `confirm`.
QUOTED_CHARS = 100

logger = logging.getLogger("scroll_context.tools")
# Scroll is silent unless the application listens.
logging.getLogger("scroll_context").addHandler(logging.NullHandler())


class ToolUse(msgspec.Struct, frozen=True):
    r"""The call that a confirmation callback decides about.

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
    arguments: dict[str, Any]
    """By name, as they were sent."""
    header: str
    """The signature of the tool."""
    cell_seq: int | None


Confirm = Callable[[ToolUse], bool | Awaitable[bool]]
"""Decides whether a tool with effects may run: only True allows it.

It may be a coroutine function.
"""


class Toolbox:
    """The tools of one session. Share it between threads.

    `confirm` is asked before a tool with effects runs, one question at a time. Without it such
    tools run without a question: the application that added them chose that.
    """

    def __init__(
        self,
        tools: Iterable[AnyTool | Callable[..., Any]],
        *,
        journal: Journal,
        confirm: Confirm | None = None,
        default_timeout: float = 60.0,
    ) -> None:
        self.tools: dict[str, AnyTool] = {}
        self._constants: dict[str, str] = {}
        self._journal = journal
        if confirm is not None and not callable(confirm):
            raise BadInput(
                "confirm must be a function that takes a ToolUse and returns True or False, "
                f"not {confirm!r}"
            )
        self._confirm = confirm
        self._default_timeout = default_timeout
        self.shapes = ObservedShapes(journal)
        self._asking = threading.Lock()
        self._counting = threading.Lock()
        self._native: dict[str, AnyTool] = {}
        # Calls of this process that were not refused at once. It only grows: a cell's calls are the
        # difference of two values, and a call may be refused after its cell has ended.
        self.started = 0
        # Calls so far, before a resume too, of tools with a limit.
        self._calls: dict[str, int] = {}
        self._places: dict[str, threading.Semaphore] = {}
        self.add(tools)

    def add(self, tools: Iterable[AnyTool | Callable[..., Any]]) -> None:
        """Add more tools."""
        for item in tools:
            tool = item if isinstance(item, Tool) else make_tool(item)
            namespace, dot, _ = tool.name.partition(".")
            namespaces = {name.partition(".")[0] for name in self.tools if "." in name}
            hides_function = bool(dot) and namespace in self.tools
            if tool.spec.name in self._native or tool.name in namespaces or hides_function:
                raise BadInput(
                    f"the name {tool.name!r} is already used by another tool; rename one of them "
                    "with name="
                )
            self.tools[tool.name] = self._native[tool.spec.name] = tool
            if tool.limits.max_calls is not None:
                self._calls[tool.name] = count_started_calls(self._journal, tool.name)
            if tool.limits.max_concurrent is not None:
                self._places[tool.name] = threading.Semaphore(tool.limits.max_concurrent)

    def bind(self, name: str, text: str) -> None:
        """Let cells find a text under a name, such as the path of the workspace that tools act on.

        Call `tools_changed` of the session's environment afterwards.
        """
        if not name.isidentifier() or keyword.iskeyword(name) or name in {*self.tools, *RESERVED}:
            raise BadInput(f"{name!r} cannot be bound for cells: choose an unused Python name")
        self._constants[name] = text

    # descriptions for the model -------------------------------------------------------------------

    def describe(self, limit: int = DESCRIBE_CHARS) -> str:
        """All tools, sorted by name, as completely as fits into `limit` characters."""
        tools = [self.tools[name] for name in sorted(self.tools)]
        if not tools:
            return ""
        head = [_map_text(tools)]
        if any(tool.effects for tool in tools):
            head.insert(0, _EFFECTS)
            if self._confirm is not None:
                head.insert(1, _ASKED)
        stubs = "\n\n".join(["\n".join(head), *[tool.stub for tool in tools]])
        if len(stubs) <= min(limit, STUB_CHARS):
            return stubs
        for is_described in (True, False):
            lines = [tool.line(is_described) for tool in tools]
            text = "\n".join([*head, _HELP, *lines])
            if len(text) <= limit:
                return text
        return brief_doc(", ".join(tool.name for tool in tools), lines=1, chars=limit - 2)

    def prelude(self) -> Prelude:
        """Functions for the tools inside the kernel, `map_calls`, and `ToolFailed` to catch."""
        table = {}
        for name, tool in sorted(self.tools.items()):
            doc = "\n".join(filter(None, (tool.doc, *tool.remarks)))
            most = tool.limits.max_concurrent
            table[name] = (tool.header, doc, most, self.shapes.of(name))
        names = sorted({name.partition(".")[0] for name in table} | self._constants.keys())
        constants = "".join(f"{name} = {text!r}\n" for name, text in self._constants.items())
        code = prelude_source("tools_prelude", "scroll_context.tools")
        source = f"TOOLS = {table!r}\n{constants}{code}"
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

        `given` names the events that the cell at `cell_seq` has read so far; it is recorded with
        the call. `work` belongs to the cell: once it is over, no question is asked and no tool
        starts.

        The order is: check the arguments and the limit, ask the user, count the call, wait for a
        place among `max_concurrent`, record the call, start the tool.

        Raises ToolFailed for everything that is not a result; both events are recorded by then.
        Raises QuotaReached when the session may not begin anything new; nothing is recorded then.
        """
        self._journal.require_room()
        tool = self.tools.get(name) or self._native.get(name)
        by_name = _by_name(tool, args, kwargs or {})
        recorder = Recorder(
            self._journal,
            name=tool.name if tool else printable(name[:QUOTED_CHARS]),
            arguments=_arguments_text(by_name),
            tool_call_id=tool_call_id or f"call_{uuid.uuid4().hex}",
            given=given,
            metadata=_call_metadata(tool, cell_seq),
        )
        with (
            contextlib.ExitStack() as counted,
            self._recorded_failures(recorder),
            contextlib.ExitStack() as place,
        ):
            if tool is None:
                raise self._unknown_tool(name)
            arguments = _converted(tool, args, kwargs or {})
            self._check_calls_left(tool)
            if tool.effects and self._confirm is not None:
                self._ask(ToolUse(tool.name, by_name, tool.header, cell_seq), deadline, work)
            _check_cell(tool.name, work)
            self._count(tool)
            # After the failure is recorded, because the record decides whether the call counts.
            counted.callback(self._take_back_refused, tool, recorder)
            until = time.monotonic() + (tool.limits.timeout or self._default_timeout)
            if deadline is not None:
                until = min(until, deadline)
            self._take_place(tool, until, place)
            if time.monotonic() >= until:
                raise _timed_out(f"{tool.name} was not started: its time limit had already passed")
            _check_cell(tool.name, work)
            recorder.begin()
            future = _start(tool, arguments)
            # An abandoned call keeps its place until it ends.
            until_done = place.pop_all()
            future.add_done_callback(lambda _: until_done.close())
            result = _result(tool, future, until)
            shape = shape_text(result.value)
            origin = tool.origin(result.value) if tool.origin else {}
            outcome = recorder.finish(result, origin, self.shapes.facts(tool.name, shape))
            self.shapes.add(tool.name, shape, outcome.result_seq)
            return msgspec.structs.replace(outcome, shape=shape)

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
    def _recorded_failures(self, recorder: Recorder) -> Iterator[None]:
        """Record an error that ends a call without a result, and raise it with the addresses of
        the call's events.
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
                text = f"the call returned, but its result could not be recorded: {error}"
                # The log may have room for a line where a payload had none.
                with contextlib.suppress(StoreError):
                    recorder.fail("error", text)
            raise
        except BaseException:
            # Ctrl-C, for example.
            if not recorder.call_seq:
                recorder.fail("refused", "interrupted before it started")
            elif not recorder.result_seq:
                recorder.fail(
                    "error", "the wait for this call was interrupted; it may still take effect"
                )
            raise

    def _unknown_tool(self, name: str) -> ToolFailed:
        listing = ", ".join(sorted(self.tools)) or "none"
        names = brief_doc(listing, lines=1, chars=REFUSED_CHARS // 2)
        return ToolFailed(
            f"there is no tool {name[:QUOTED_CHARS]!r}; the tools are: {names}", kind="NameError"
        )

    def _check_calls_left(self, tool: AnyTool) -> None:
        most = tool.limits.max_calls
        if most is not None and self._calls[tool.name] >= most:
            raise _refused(
                f"{tool.name} was not run: it has used up its calls ({most}). Do not call it again "
                "in this session; use the results that you have, or say what is missing"
            )

    def _count(self, tool: AnyTool) -> None:
        with self._counting:
            # Checked again: other calls may have started while the user was asked.
            self._check_calls_left(tool)
            self.started += 1
            if tool.name in self._calls:
                self._calls[tool.name] += 1

    def _take_back_refused(self, tool: AnyTool, recorder: Recorder) -> None:
        """Do not count a call that the log does not count (`count_started_calls`): one that was
        refused after all, or not recorded.
        """
        if recorder.call_seq and recorder.state != "refused":
            return
        with self._counting:
            if tool.name in self._calls:
                self._calls[tool.name] -= 1

    def _ask(self, use: ToolUse, deadline: float | None, work: Work | None) -> None:
        assert self._confirm is not None
        if not self._asking.acquire(timeout=_remaining(deadline)):
            # Like a question without an answer, it is a refusal and does not count as a call.
            raise _refused(f"{use.name} was not started: no time was left to ask the user")
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
        # A coroutine or a non-empty text such as "no" is true in Python, but it is not consent.
        if decision is not False:
            answer = repr(decision)[:QUOTED_CHARS]
            reason = f"the confirm function returned {answer}, and only True allows a call"
            logger.warning("%s was refused: %s", use.name, reason)
        raise _refused(
            f"{use.name} was not run: {reason}. Do not try it again unasked; find out what is "
            "wanted instead"
        )

    def _take_place(self, tool: AnyTool, until: float, place: contextlib.ExitStack) -> None:
        """Wait until a tool with a limit of concurrent calls can take one more."""
        free = self._places.get(tool.name)
        if free is None:
            return
        if not free.acquire(timeout=_remaining(until)):
            raise _timed_out(
                f"{tool.name} was not started: its other calls were still running "
                f"(at most {tool.limits.max_concurrent} at once)"
            )
        place.callback(free.release)


def _check_cell(name: str, work: Work | None) -> None:
    """Refuse a call whose cell was interrupted, timed out or ended before the tool started."""
    if work is not None and work.is_over:
        raise _refused(f"{name} was not run: the cell had ended before this call started")


def _refused(text: str) -> ToolFailed:
    return ToolFailed(text, kind="PermissionError", state="refused")


def _timed_out(text: str) -> ToolFailed:
    return ToolFailed(text, kind="TimeoutError", state="timeout")


def _call_metadata(tool: AnyTool | None, cell_seq: int | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if cell_seq is not None:
        metadata["inside_cell"] = cell_seq
    if tool is not None and tool.effects:
        metadata["effects"] = True
    if tool is not None and tool.echo:
        metadata["echo"] = True
    return metadata


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


_EFFECTS = (
    "# A tool that has effects, or may have them, can change the world: never repeat its call to "
    "be sure."
)
_ASKED = "# The user may be asked before such a tool is run."
_HELP = (
    "# help(f) prints the complete description of f and, after a call, the shape of its results."
)


def _map_text(tools: Sequence[AnyTool]) -> str:
    """A description of map_calls that is true for these tools."""
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


def _by_name(
    tool: AnyTool | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by name as far as they have one, for the log and for the user."""
    if tool is not None:
        with contextlib.suppress(BadInput):
            return dict(tool.names(args, kwargs).arguments)
    return ({"*": list(args)} if args else {}) | dict(kwargs)


def _converted(
    tool: AnyTool, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    try:
        return tool.convert(tool.names(args, kwargs))
    except Exception as error:
        # The validators of a pydantic model are foreign code.
        text = _message(error)[:REFUSED_CHARS]
        raise ToolFailed(text, kind="TypeError", state="refused") from error


def _arguments_text(by_name: dict[str, Any]) -> str:
    """The canonical JSON of the arguments."""
    try:
        return json_text(plain(by_name, str_keys=True).value, inline, sort_keys=True)
    except (TypeError, RecursionError) as error:
        # The check of the arguments will say more.
        return json_text({"unreadable": str(error)}, inline)


def _start(tool: AnyTool, arguments: inspect.BoundArguments) -> Future[Plain]:
    try:
        return tool.start(arguments)
    except RuntimeError as error:
        # The process can have no more threads.
        raise ToolFailed(f"{tool.name} could not be started: {error}") from error


def _result(tool: AnyTool, future: Future[Plain], until: float) -> Plain:
    started = time.monotonic()
    wait([future], timeout=_remaining(until))
    if not future.done() and (future.cancel() or not future.done()):
        text = f"{tool.name} gave no answer in {until - started:.3g} s and was "
        if future.cancelled():
            text += "cancelled."
        else:
            text += "abandoned; it may still be running, and its result will not be recorded."
        if tool.effects:
            text += " It may have taken effect: check before you call it again."
        raise _timed_out(text)
    try:
        return future.result()
    except ToolFailed as error:
        raise ToolFailed(str(error), kind=error.kind, state=error.state) from error
    except BaseException as error:
        logger.warning("%s raised %s", tool.name, type(error).__name__, exc_info=error)
        raise ToolFailed(_message(error), kind=type(error).__name__) from error


def _message(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - an exception of foreign code may fail to give its text
        return type(error).__name__


def _remaining(until: float | None) -> float:
    return -1 if until is None else max(0.0, until - time.monotonic())
