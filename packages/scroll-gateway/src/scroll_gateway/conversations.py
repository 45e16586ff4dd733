"""The conversations of a gateway: which one a request belongs to, and what is sent for it.

One conversation is one session of the store, under the client's own name for it. A client that
names none is known by its list: the request belongs to the conversation whose list it continues. A
list that begins like a known one and then differs is a fork: it continues the other session with
all of its folds, so its first request has the prefix that the provider knows.

Everything that must last is in the log. After a restart, a request finds its session there, and
what is sent begins with the same bytes as before.
"""

import logging
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy

from msgspec.structs import replace

from scroll_context.errors import ScrollError
from scroll_context.events import Grant, Kind
from scroll_context.session.follow import known_beginning
from scroll_context.session.host import HostMessage, Keep, Layout, Replace
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session, fork
from scroll_context.store import Store
from scroll_context.view.eviction import ViewBudget
from scroll_context.view.wording import MARK
from scroll_gateway import recall
from scroll_gateway.sdk_client import LOW_MARK
from scroll_gateway.splices import SplicedReply, Splices
from scroll_gateway.sums import Meter, Sums
from scroll_gateway.wire.layouts import apply
from scroll_gateway.wire.messages import THREAD
from scroll_gateway.wire.protocol import Protocol
from scroll_gateway.wire.requests import ListReader, WireRequest
from scroll_gateway.wire.session import Exchange, WiredSession
from scroll_gateway.wire.session_hints import session_hints
from scroll_gateway.wire.slices import KeptByProvider, UnreadableBody, field_spans

MOST_OPEN = 64
"""Sessions that are open at once. The one that was used longest ago makes room."""
MOST_PARENTS = 200
"""The newest sessions, among which the parent of a fork is looked for."""

RECALL_NAMES = frozenset(
    words + name
    for words in ("mcp__scroll__", "scroll_")
    for name in ("search", "expand", "exec", "note")
) | {recall.NAME}
"""Scroll's MCP tools, as assistants name them, and the tool that the gateway answers itself."""
CONTEXTS = {"claude-code": "gateway", "codex": "gateway", "opencode": "gateway-opencode"}
"""The context that has the names of a program's recall tools."""
CACHE_SECONDS = {False: 300.0, True: 3600.0}
"""How long providers keep a prompt in their cache; longer if a cache mark asks for an hour."""

_UNCHANGED = re.compile(
    r"(?:<system-reminder>)?(?:Wasted call|File unchanged since|This file is already in your)"
)
"""How Claude Code answers a second reading of a file that has not changed, in its versions."""
_PATHS = ("file_path", "path", "notebook_path")
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)

_logger = logging.getLogger("scroll_gateway")


class Conversation(WiredSession):
    """One conversation: its session, and the sums of its requests."""

    def __init__(
        self, session: Session, *, window: int, is_named: bool, offers_recall: bool
    ) -> None:
        super().__init__(session, window=window, recall_names=RECALL_NAMES)
        self.is_named = is_named
        # Where the gateway answers recalls itself: how the program's list differs.
        self._splices = Splices(session) if offers_recall else None
        self._programs: dict[str, ListReader] = {}
        self.meter = Meter()
        # The newest list, as the program has it.
        self._latest: list[HostMessage] = []
        # When the newest request came; 0 before the first one.
        self._used_at = 0.0
        # The places of refused second readings in the newest list.
        self._refused: list[int] = []
        # For each refused second reading of a file, by its call, the note that is sent with it.
        self._notes: dict[str, str] = {}

    def begin_with(self, protocol: Protocol, reader: ListReader) -> None:
        """Take the reader of the first request, so that its list is not read twice."""
        readers = self._readers if self._splices is None else self._programs
        readers.setdefault(protocol.name, reader)

    def reply_to(self, protocol: Protocol, body: bytes) -> Exchange | SplicedReply | None:
        """The exchange for a program's request; None for one to send as it came."""
        if self._splices is None:
            return self._followed(protocol, body)
        reader = copy(self._programs.get(protocol.name) or ListReader(protocol))
        request = reader.read(body)
        if not recall.can_offer(request):
            return self._followed(protocol, body)
        exchange = self.followed(protocol, self._splices.provider_body(request))
        if exchange is None:
            return None
        self._programs[protocol.name] = reader
        self._latest = request.messages
        return SplicedReply(self._splices, request, exchange)

    def _followed(self, protocol: Protocol, body: bytes) -> Exchange | None:
        """The exchange for a request whose list is the provider's too."""
        exchange = self.followed(protocol, body)
        if exchange is not None:
            self._latest = exchange.request.messages
        return exchange

    def continues(self, request: WireRequest) -> bool:
        """Whether a request has the list of the newest one at its beginning."""
        count = len(self._latest)
        return bool(count) and _contents(request.messages[:count]) == _contents(self._latest)

    def is_cold(self, request: WireRequest) -> bool:
        before, self._used_at = self._used_at, time.monotonic()
        idle = self._used_at - before
        if not before or idle <= min(CACHE_SECONDS.values()):
            return False
        marks = b"".join(mark for message in request.wire for mark in message.marks)
        return idle > CACHE_SECONDS[b'"1h"' in marks]

    def applied(self, request: WireRequest, layout: Layout) -> bytes:
        body = apply(request, self._with_addresses(request, layout))
        self.meter.add(request, body, evicted=layout.evicted)
        return body

    def _with_addresses(self, request: WireRequest, layout: Layout) -> Layout:
        """The layout, with the address of the first reading where a client refused a second one."""
        messages = request.messages
        start = request.reused_messages
        places = [place for place in self._refused if place < start]
        places += [place for place in range(start, len(messages)) if _is_refused(messages[place])]
        self._refused = places
        if not places:
            return layout
        for place in places:
            call_id = messages[place].call_id
            if call_id not in self._notes:
                self._notes[call_id] = self._note(messages, layout, place)
        items = [
            Replace(
                item.index, messages[item.index].text + self._notes[messages[item.index].call_id]
            )
            if isinstance(item, Keep) and item.index in places
            else item
            for item in layout.items
        ]
        return replace(layout, items=tuple(items))

    def _note(self, messages: Sequence[HostMessage], layout: Layout, place: int) -> str:
        """Where the content stands that a client refused to read again; "" if that is unknown."""
        targets = {
            call.id: _target(call.arguments) for message in messages for call in message.calls
        }
        target = targets.get(messages[place].call_id)
        for earlier in reversed(range(place)):
            message = messages[earlier]
            is_reading = message.role == "tool" and message.name == messages[place].name
            if is_reading and not _is_refused(message) and targets.get(message.call_id) == target:
                seq = layout.seqs[earlier]
                expand = self.session.context.words.expand
                return f"\n{MARK}the earlier result is seq {seq} · {expand}({seq}) returns it]"
        return ""


class Conversations:
    """All conversations of one gateway, on one store. Safe to use from several threads."""

    def __init__(
        self, store: Store, *, window: int, task_id: str = "", earlier_tasks: tuple[str, ...] = ()
    ) -> None:
        self._store = store
        self._window = window
        self._task_id = task_id
        self._earlier_tasks = earlier_tasks
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Conversation] = OrderedDict()
        self._closed = Sums()

    def exchange(
        self, protocol: Protocol, headers: Mapping[str, str], body: bytes
    ) -> Exchange | SplicedReply | None:
        """A request that is followed; None for one to send as it came.

        A fault of ours is recorded and logged, and costs the client nothing. `KeptByProvider` says
        that the client is to send its complete list, which the Anthropic SDK does when asked.
        """
        conversation: Conversation | None = None
        try:
            with self._lock:
                conversation = self._find(protocol, headers, body)
            if conversation is not None:
                return conversation.reply_to(protocol, body)
        except (UnreadableBody, ScrollError) as error:
            if isinstance(error, KeptByProvider) and error.field == THREAD:
                raise
            _logger.warning("a request is sent as it came: %s", error)
            self._record_fault(conversation, error)
        except Exception as error:
            _logger.warning("a request is sent as it came", exc_info=True)
            self._record_fault(conversation, error)
        return None

    def sums(self) -> Sums:
        """The sums of all conversations."""
        total = Sums()
        with self._lock:
            total.add(self._closed)
            for conversation in self._open.values():
                total.add(conversation.meter.sums)
        return total

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._close(next(iter(self._open)))

    # finding the conversation of a request

    def _find(
        self, protocol: Protocol, headers: Mapping[str, str], body: bytes
    ) -> Conversation | None:
        name = _name(headers, body)
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        reader = ListReader(protocol, RECALL_NAMES)
        request = reader.read(body)
        program = session_hints(headers, {}).program
        named = self._named(name, request, program) if name else None
        conversation = named if name else self._unnamed(request, program)
        if conversation is not None:
            conversation.begin_with(protocol, reader)
        return conversation

    def _named(self, name: str, request: WireRequest, program: str) -> Conversation | None:
        log = self._store.log
        is_known = bool(log.tail(1, session_id=name))
        if not request.has_tools and not (
            is_known and known_beginning(log, [name], request.messages)
        ):
            # A title or the like, asked for beside the conversation.
            return None
        parent = "" if is_known else self._parent(request)
        return self._opened(name, parent, program, is_named=True)

    def _unnamed(self, request: WireRequest, program: str) -> Conversation | None:
        continued = [
            (len(conversation._latest), name)
            for name, conversation in self._open.items()
            if not conversation.is_named and conversation.continues(request)
        ]
        if continued:
            _, name = max(continued)
            self._open.move_to_end(name)
            return self._open[name]
        if not (request.has_tools or _has_reply(request.messages)):
            return None
        parent = self._parent(request)
        if parent and parent not in self._open:
            # The gateway was restarted, and this is the first request of the conversation since.
            return self._opened(parent, "", program, is_named=False)
        return self._opened(f"chat-{uuid.uuid4().hex[:12]}", parent, program, is_named=False)

    def _parent(self, request: WireRequest) -> str:
        """The session whose list begins like this one, replies included; "" if there is none."""
        if not _has_reply(request.messages):
            return ""
        log = self._store.log
        sessions = log.sessions(Grant(task_id=(self._task_id, *self._earlier_tasks)))[
            -MOST_PARENTS:
        ]
        names = [session.session_id for session in sessions]
        beginning = known_beginning(log, names, request.messages)
        if beginning is None:
            return ""
        name, count = beginning
        spoken = [message for message in request.messages if message.role != "system"]
        return name if _has_reply(spoken[:count]) else ""

    def _opened(self, name: str, parent: str, program: str, *, is_named: bool) -> Conversation:
        options = SessionOptions(
            context=CONTEXTS.get(program, "gateway-recall"),
            budget=ViewBudget(low=LOW_MARK),
            reach="session",
        )
        if parent:
            # At its newest event, so that everything that was folded stays folded.
            newest = self._store.log.tail(1, session_id=parent)[-1].seq
            session = fork(
                self._store,
                parent,
                newest,
                session_id=name,
                options=options,
                earlier_tasks=self._earlier_tasks,
            )
        else:
            session = Session.open_or_resume(
                self._store,
                name,
                # As importers of the program's own history name it: both are one session.
                agent_id=program,
                task_id=self._task_id,
                earlier_tasks=self._earlier_tasks,
                options=options,
            )
        conversation = Conversation(
            session,
            window=self._window,
            is_named=is_named,
            offers_recall=program not in CONTEXTS,
        )
        self._open[name] = conversation
        while len(self._open) > MOST_OPEN:
            self._close(next(iter(self._open)))
        return conversation

    def _close(self, name: str) -> None:
        conversation = self._open.pop(name)
        self._closed.add(conversation.meter.sums)
        conversation.session.close()

    def _record_fault(self, conversation: Conversation | None, error: Exception) -> None:
        if conversation is None:
            self._closed.faults += 1
            return
        conversation.meter.sums.faults += 1
        try:
            conversation.session.record(
                Kind.FAILURE,
                content=f"the request was sent as it came: {type(error).__name__}: {error}",
            )
        except Exception:
            _logger.warning("the fault could not be recorded", exc_info=True)


def _name(headers: Mapping[str, str], body: bytes) -> str:
    """The client's own name for a conversation; "" where it has none."""
    hints = session_hints(headers, {})
    if not hints.session:
        fields = {name: span.of(body) for name, span in field_spans(body).items()}
        hints = session_hints(headers, fields)
        if not _UUID.search(hints.session):
            # A cache key may be shared by all conversations of a program.
            return ""
    return f"{hints.session}/{hints.agent}" if hints.agent else hints.session


def _has_reply(messages: Sequence[HostMessage]) -> bool:
    return any(message.role == "assistant" for message in messages)


def _is_refused(message: HostMessage) -> bool:
    return message.role == "tool" and _UNCHANGED.match(message.text) is not None


def _target(arguments: object) -> object:
    """The file that a call reads."""
    if not isinstance(arguments, dict):
        return None
    return next((arguments[name] for name in _PATHS if name in arguments), None)


def _contents(messages: Sequence[HostMessage]) -> list[tuple[object, ...]]:
    return [
        (message.role, message.text, message.call_id, [call.id for call in message.calls])
        for message in messages
    ]
