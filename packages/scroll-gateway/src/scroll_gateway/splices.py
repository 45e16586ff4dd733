"""Replies in which the gateway answered a recall itself, and the two forms that each of them has.

The model of a program without MCP calls the recall tool. If that is all that its reply calls, the
gateway answers and continues in the same reply: the program sees one reply. If the reply also calls
tools of the program, the recall is hidden, and its result is put back when the program sends the
results of its own tools.

So the program's list differs from the provider's. A `Splice` says how, for one reply. It is in the
log before the program has the end of the reply, and a restart finds it there.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from scroll_context.events import Kind, id_of, packed_seqs
from scroll_context.kernel.results import MAX_SEQS
from scroll_context.session.follow import mark_of
from scroll_context.session.host import HostMessage
from scroll_context.session.session import Session
from scroll_gateway import recall
from scroll_gateway.splicers import SPLICERS, Result, Splicer, StreamEvents, decode_event
from scroll_gateway.wire.protocol import Protocol, WireMessage, WireReply
from scroll_gateway.wire.requests import WireRequest
from scroll_gateway.wire.session import MOST_REPLY, Exchange

MOST_RECALLS = 12
"""Recalls in one reply. After these the model is told to answer, and then the reply is cut."""

_METADATA = "splice"
_ENOUGH = f"{recall.NAME} was used {MOST_RECALLS} times in this reply. Answer with what you have."

_logger = logging.getLogger("scroll_gateway")


class TooManyRecalls(Exception):
    """A model that does nothing but recall."""


class EndlessReply(Exception):
    """A stream that does not end. The program sees a stream that is cut."""


class Splice(msgspec.Struct, frozen=True, kw_only=True):
    """One reply that a program has in another form than the provider. Items are JSON."""

    # Items of the provider's list before the last reply: replies that recalled, and the results.
    before: list[str] = []
    # Those replies themselves: the program's message begins with the parts that it was shown.
    earlier: list[Any] = []
    # The last reply and the results of its recall, where that was hidden.
    last: list[str] = []
    results: list[str] = []


class Splices:
    """The splices of one conversation, by the place of the reply in the program's list."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._by_key: dict[str, Splice] = {}
        # The keys of the replies in the newest list.
        self._keys: list[tuple[WireMessage, str]] = []
        for event in session.events():
            key = event.metadata.get(_METADATA) if event.kind == Kind.WIRE else None
            # An erased splice leaves the program's own form of the reply.
            if isinstance(key, str) and not (event.is_foreign or event.is_erased):
                text = session.store.log.text(event)
                self._by_key[key] = msgspec.json.decode(text, type=Splice)

    def add(
        self, before: HostMessage, reply: HostMessage, splice: Splice, recalled: Collection[int]
    ) -> None:
        """Record the splice of a reply that stands behind a message.

        It names the recalled events, so that an erasure of one of them takes the splice too: texts
        inside it are escaped twice and would not be found by their words.
        """
        key = _key(before, reply)
        text = msgspec.json.encode(splice).decode()
        metadata = {_METADATA: key, "seqs": packed_seqs(recalled, MAX_SEQS)}
        self._session.record(Kind.WIRE, content=text, metadata=metadata)
        self._by_key[key] = splice

    def provider_body(self, request: WireRequest) -> bytes:
        """The program's request with the replies as the provider knows them, and with the tool."""
        head = request.body[: request.wire[0].span.start]
        foot = request.body[request.wire[-1].span.end :]
        items = request.body[len(head) : len(request.body) - len(foot)]
        if self._by_key:
            items = b",".join(self._items(request))
        tools = request.fields["tools"]
        longer = recall.with_tool(request.protocol, tools)
        if tools in head:
            head = longer.join(head.rsplit(tools, 1))
        else:
            foot = longer.join(foot.split(tools, 1))
        return head + items + foot

    def _items(self, request: WireRequest) -> Iterator[bytes]:
        splicer = SPLICERS[request.protocol.name]
        results: Sequence[bytes] = ()
        for message, key in self._keys_of(request.wire):
            raw = message.span.of(request.body)
            splice = self._by_key.get(key)
            if splice is None:
                yield from splicer.with_results(raw, results) if results else [raw]
                results = ()
                continue
            yield from map(_bytes, splice.before)
            rest = splicer.rest(raw, splice.earlier) if splice.earlier else raw
            if splice.last:
                yield from map(_bytes, splice.last)
            elif rest:
                yield rest
            results = [_bytes(result) for result in splice.results]
        yield from results

    def _keys_of(self, wire: Sequence[WireMessage]) -> list[tuple[WireMessage, str]]:
        keys: list[tuple[WireMessage, str]] = []
        for place, message in enumerate(wire):
            if place < len(self._keys) and self._keys[place][0] is message:
                keys.append(self._keys[place])
                continue
            reply = message.parts[0].message
            is_reply = place > 0 and reply.role == "assistant"
            key = _key(wire[place - 1].parts[-1].message, reply) if is_reply else ""
            keys.append((message, key))
        self._keys = keys
        return keys


def _key(before: HostMessage, reply: HostMessage) -> str:
    return id_of(mark_of(before), mark_of(reply))


def _bytes(item: str) -> bytes:
    return item.encode("utf-8", "surrogateescape")


def _texts(items: Sequence[bytes]) -> list[str]:
    return [item.decode("utf-8", "surrogateescape") for item in items]


class SplicedReply:
    """The reply to one request of a program, made of one or more replies of the provider."""

    def __init__(self, splices: Splices, request: WireRequest, exchange: Exchange) -> None:
        # The exchange with the provider that is under way.
        self.exchange = exchange
        self._splices = splices
        self._request = request
        self._splicer: Splicer = SPLICERS[request.protocol.name]
        self._editor = self._splicer.editor()
        self._events = StreamEvents()
        # Bytes of the provider's reply that is under way.
        self._size = 0
        self._before: list[bytes] = []
        self._earlier: list[Mapping[str, Any]] = []
        self._recalled: set[int] = set()

    @property
    def protocol(self) -> Protocol:
        return self._request.protocol

    # a streamed reply

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes of the provider's stream. Returns those that the program gets now."""
        self._size += len(chunk)
        if self._size > MOST_REPLY:
            # What is held of it would grow without end, and its recalls could not be answered.
            raise EndlessReply(f"a reply of more than {MOST_REPLY} bytes")
        self.exchange.feed(chunk)
        edited = []
        for raw in self._events.feed(chunk):
            is_comment = b"data:" not in raw
            edited.append(raw if is_comment else self._editor.edit(raw, decode_event(raw)))
        return b"".join(edited)

    def end(self) -> bytes:
        """The end of the program's stream."""
        return b"".join(self._editor.held) + self._events.rest

    # a reply in one piece

    def shown(self, content: bytes) -> bytes:
        """The body that the program gets for a reply that was not streamed."""
        reply = self.exchange.reply
        if reply is None or not (self._earlier or _recalls(reply)):
            return content
        return msgspec.json.encode(self._splicer.shown([*self._earlier, reply.value]))

    # both

    def next_exchange(self) -> Exchange | None:
        """Answer the recalls of a complete reply; the exchange that continues it, if one does."""
        self.exchange.finish()
        reply = self.exchange.reply
        if reply is None:
            return None
        calls = _recalls(reply)
        if not calls:
            if self._earlier:
                self._record(reply, Splice(before=_texts(self._before), earlier=self._earlier))
            return None
        items = self._splicer.reply_items(reply.value)
        results = self._splicer.result_items([self._answered(call) for call in calls])
        if len(calls) < len(reply.reply.tool_calls):
            splice = Splice(
                before=_texts(self._before),
                earlier=self._earlier,
                last=_texts(items),
                results=_texts(results),
            )
            self._record(reply, splice)
            return None
        self._before += [*items, *results]
        self._earlier.append(reply.value)
        self._editor.next_reply()
        self._events = StreamEvents()
        self._size = 0
        self.exchange = self.exchange.continued([*items, *results])
        return self.exchange

    def _answered(self, call: Any) -> Result:
        count = len(self._earlier)
        if count > 2 * MOST_RECALLS:
            raise TooManyRecalls(f"more than {2 * MOST_RECALLS} recalls in one reply")
        if count >= MOST_RECALLS:
            return Result(call, _ENOUGH)
        answer = recall.answer(self._splices._session, call.arguments)
        self._recalled.update(answer.seqs)
        return Result(call, answer.text)

    def _record(self, reply: WireReply, splice: Splice) -> None:
        """Record the splice under the form of the reply that the program has."""
        shown = self.protocol.reply(self._splicer.shown([*self._earlier, reply.value])).reply
        message = HostMessage(role="assistant", text=shown.text, calls=shown.tool_calls)
        self._splices.add(self._request.messages[-1], message, splice, self._recalled)


def _recalls(reply: WireReply) -> list[Any]:
    return [call for call in reply.reply.tool_calls if call.name == recall.NAME]
