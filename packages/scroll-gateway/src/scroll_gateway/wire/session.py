"""A session under a client that speaks one of the wire protocols.

`WiredSession` takes the body of a request and gives the body to send in its place; it records the
reply. It knows nothing of HTTP libraries and servers: `sdk_client` puts it below an SDK. Any fault
in here must cost the client nothing: its own bytes are sent, and a warning is logged.
"""

import hashlib
import logging
import threading
from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

from scroll_context.errors import ContextOverflow
from scroll_context.messages import ToolSpec
from scroll_context.models.overflow import is_overflow
from scroll_context.session.host import Layout
from scroll_context.session.session import Session
from scroll_gateway.wire.chat import Chat
from scroll_gateway.wire.layouts import apply
from scroll_gateway.wire.messages import Messages
from scroll_gateway.wire.protocol import Protocol, WireReply
from scroll_gateway.wire.replies import ReplyReader
from scroll_gateway.wire.requests import ListReader, WireRequest
from scroll_gateway.wire.responses import Responses
from scroll_gateway.wire.slices import UnreadableBody, decode

PROTOCOLS: tuple[Protocol, ...] = (Messages(), Chat(), Responses())

MOST_REPLY = 64 * 2**20
"""Bytes of a reply that are held to be recorded. A provider could send without end."""

_logger = logging.getLogger("scroll_gateway.wire")
# A program that uses `wrap` decides itself where warnings go.
_logger.addHandler(logging.NullHandler())


def protocol_of(method: str, path: str) -> Protocol | None:
    """The protocol of a request for a reply; None for all other requests."""
    if method != "POST":
        return None
    matches = (protocol for protocol in PROTOCOLS if path.endswith(protocol.path))
    return next(matches, None)


class WiredSession:
    """One session, and the requests of one conversation. Safe to use from several threads."""

    def __init__(
        self, session: Session, *, window: int, recall_names: Collection[str] = ()
    ) -> None:
        self.session = session
        self._window = window
        # The names of tools by which the client recalls history: their results are echoes.
        self._recall_names = frozenset(recall_names)
        self._lock = threading.Lock()
        self._readers: dict[str, ListReader] = {}
        # How the conversation begins, once a request of it has been followed.
        self._opening: object = None
        self._tools: tuple[bytes, tuple[ToolSpec, ...]] = (b"", ())

    def exchange(self, method: str, path: str, body: bytes) -> "Exchange | None":
        """A request for a reply that is to be followed; None for one to send as it is."""
        protocol = protocol_of(method, path)
        if protocol is None:
            return None
        try:
            return self.followed(protocol, body)
        except UnreadableBody as error:
            _logger.warning("a request is sent as it came: %s", error)
        except Exception:
            _logger.warning("a request is sent as it came", exc_info=True)
        return None

    def followed(self, protocol: Protocol, body: bytes) -> "Exchange | None":
        """As `exchange`, for a host that handles faults itself."""
        with self._lock:
            # A copy, so that a request on the side leaves the reader of the conversation as it is.
            reader = copy(self._readers.get(protocol.name) or self._new_reader(protocol))
            request = reader.read(body)
            if self._is_aside(request):
                return None
            self._readers[protocol.name] = reader
            sent = self._laid_out(request, overflowed=False)
            self._opening = _opening(request)
            return Exchange(self, request, sent)

    def laid_out_again(self, request: WireRequest) -> bytes:
        """The body after the provider refused the first one as too long."""
        with self._lock:
            return self._laid_out(request, overflowed=True)

    def _laid_out(self, request: WireRequest, *, overflowed: bool) -> bytes:
        system = [request.protocol.system(request.fields), *request.system_texts]
        layout = self.session.follow(
            request.messages,
            system="\n\n".join(system).strip(),
            tools=self._tool_specs(request.fields.get("tools", b"")),
            window=self._window,
            model_name=request.model,
            overflowed=overflowed,
            is_cold=self.is_cold(request),
        )
        return self.applied(request, layout)

    # what hosts may do differently

    def is_cold(self, request: WireRequest) -> bool:
        """Whether the provider's cache of the conversation has expired."""
        del request
        return False

    def applied(self, request: WireRequest, layout: Layout) -> bytes:
        """The body that a layout asks for."""
        return apply(request, layout)

    # the parts

    def _new_reader(self, protocol: Protocol) -> ListReader:
        return ListReader(protocol, self._recall_names)

    def _is_aside(self, request: WireRequest) -> bool:
        """Whether a request is not part of the conversation: it has no tools and begins otherwise.

        Programs ask for titles and the like through the same client.
        """
        is_other = self._opening is not None and _opening(request) != self._opening
        return is_other and not request.has_tools

    def _tool_specs(self, raw: bytes) -> tuple[ToolSpec, ...]:
        if raw != self._tools[0]:
            self._tools = (raw, tuple(_tool_spec(tool) for tool in decode(raw) or ()))
        return self._tools[1]


class Exchange:
    """One request on its way to the provider, and its reply on the way back."""

    def __init__(self, wired: WiredSession, request: WireRequest, body: bytes) -> None:
        # The body to send.
        self.body = body
        # The reply, once it is complete.
        self.reply: WireReply | None = None
        self._wired = wired
        # The request as the provider would have got it.
        self.request = request
        self._reader: ReplyReader | None = None
        self._size = 0

    def shorter(self, status: int, error: bytes) -> bytes | None:
        """The body to send once more, if the provider refused this one as too long and something
        can leave.
        """
        if not is_overflow(status, error):
            return None
        try:
            self.body = self._wired.laid_out_again(self.request)
            return self.body
        except ContextOverflow as overflow:
            _logger.warning("%s", overflow)
        except Exception:
            _logger.warning("a refused request could not be made shorter", exc_info=True)
        return None

    def continued(self, items: Sequence[bytes]) -> "Exchange":
        """The request with more items at the end of its list, for a host that answers a call."""
        request = self.request
        end = request.wire[-1].span.end
        body = b",".join([request.body[:end], *items]) + request.body[end:]
        exchange = self._wired.followed(request.protocol, body)
        assert exchange is not None
        return exchange

    def start_reply(self, content_type: str) -> None:
        """A response with a reply begins."""
        self._reader = ReplyReader(self.request.protocol, content_type)

    def feed(self, chunk: bytes) -> None:
        """Take bytes of the response, before the client gets them."""
        if self._reader is None:
            return
        self._size += len(chunk)
        if self._size > MOST_REPLY:
            self._reader = None
            _logger.warning("a reply of more than %d bytes is not recorded", MOST_REPLY)
            return
        try:
            self._reader.feed(chunk)
            if self._reader.has_ended:
                self.finish()
        except Exception:
            self._reader = None
            _logger.warning("a reply is not recorded", exc_info=True)

    def finish(self) -> None:
        """Record the reply, if it is complete. The second call does nothing."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        try:
            self.reply = reader.reply()
            if self.reply is not None:
                sent = hashlib.sha256(self.body).hexdigest()
                self._wired.session.replied(self.reply.reply, id=self.reply.id, sent=sent)
        except Exception:
            _logger.warning("a reply is not recorded", exc_info=True)


def _opening(request: WireRequest) -> object:
    """The first message that is not of the system."""
    messages = (message for message in request.messages if message.role != "system")
    first = next(messages, None)
    return (first.role, first.text) if first else None


def _tool_spec(tool: dict[str, Any]) -> ToolSpec:
    """A tool in the form of any of the three protocols."""
    function = tool.get("function") or tool
    return ToolSpec(
        str(function.get("name") or tool.get("type") or ""),
        str(function.get("description") or ""),
        function.get("parameters") or function.get("input_schema") or {},
    )
