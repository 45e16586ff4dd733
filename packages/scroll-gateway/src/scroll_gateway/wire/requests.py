"""Cut a request body into the messages of its list.

Reading a list that continues the previous one costs a comparison of bytes and the parsing of the
new messages. A JSON parser that has read equal bytes is in an equal state, so the messages before
the first difference need not be parsed again.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from scroll_context.session.host import HostMessage
from scroll_gateway.wire.protocol import Action, Part, Protocol, WireMessage
from scroll_gateway.wire.slices import (
    KeptByProvider,
    Span,
    UnreadableBody,
    after_comma,
    common_prefix,
    decode,
    field_spans,
    item_spans,
)


class Edit(NamedTuple):
    """A message, the actions on it, and the bytes that it became."""

    message: WireMessage
    actions: tuple[Action, ...]
    raw: bytes


class Shared(msgspec.Struct):
    """The state that requests of a conversation keep about earlier ones."""

    # Messages that a layout changed, by position: a later request with the same change of the same
    # message gets the same bytes.
    edits: dict[int, Edit] = {}
    # The beginning of the newest list as it was sent (`wire_layouts.LaidOut`).
    laid_out: Any = None


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request body, cut into its messages."""

    protocol: Protocol
    # The body as the client sent it.
    original: bytes
    # The body that the spans refer to: the original, or one with a list in place of a string.
    body: bytes
    # All fields of the body but the list.
    fields: dict[str, bytes]
    wire: list[WireMessage]
    # The messages of `wire`, one after the other.
    messages: list[HostMessage]
    # The texts of the list that belong to the system prompt.
    system_texts: list[str]
    # How many of `wire`, and of `messages`, are those of the previous request.
    reused: int
    reused_messages: int
    # What all requests of a conversation share.
    shared: "Shared"

    @property
    def model(self) -> str:
        name = decode(self.fields.get("model", b'""'))
        return name if isinstance(name, str) else ""

    @property
    def has_tools(self) -> bool:
        return self.protocol.has_tools(self.fields, self.body)


class _Cut(NamedTuple):
    """A body whose list is found."""

    # How many messages at the beginning of the list are known.
    reused: int
    body: bytes
    # Where the list begins, behind its bracket.
    start: int
    fields: dict[str, bytes]
    # The items that are not known.
    spans: list[Span]


class ListReader:
    """Reads the requests of one conversation, each in the light of the one before."""

    def __init__(self, protocol: Protocol, recall_names: Collection[str] = ()) -> None:
        self._protocol = protocol
        # The results of these tools only repeat history.
        self._recall_names = frozenset(recall_names)
        self._previous: WireRequest | None = None
        # Where the list of the previous body begins, behind its bracket.
        self._start = 0
        self._names: dict[str, str] = {}
        self._shared = Shared()

    def read(self, original: bytes) -> WireRequest:
        """Cut a body into messages. UnreadableBody says that it must be sent as it came."""
        cut = self._cut(original)
        wire, messages, system_texts = self._reused(cut.reused)
        reused_messages = len(messages)
        wire.extend(self._new_messages(cut.body, cut.spans, wire))
        messages += [part.message for message in wire[cut.reused :] for part in message.parts]
        system_texts += _system_texts(messages[reused_messages:])
        request = WireRequest(
            protocol=self._protocol,
            original=original,
            body=cut.body,
            fields=cut.fields,
            wire=wire,
            messages=messages,
            system_texts=system_texts,
            reused=cut.reused,
            reused_messages=reused_messages,
            shared=self._shared,
        )
        self._previous = request
        self._start = cut.start
        return request

    def _reused(self, count: int) -> tuple[list[WireMessage], list[HostMessage], list[str]]:
        """The first messages of the previous request, and their system texts."""
        if self._previous is None or not count:
            return [], [], []
        wire, messages = self._previous.wire, self._previous.messages
        dropped = [part.message for message in wire[count:] for part in message.parts]
        system_texts = self._previous.system_texts
        system_count = len(system_texts) - len(_system_texts(dropped))
        return wire[:count], messages[: len(messages) - len(dropped)], system_texts[:system_count]

    def _cut(self, original: bytes) -> "_Cut":
        """Find the list of a body and its new items."""
        reused, offset = self._known(original)
        # The body without the items that are known. It is JSON exactly if the body is.
        short = original[: self._start] + original[offset:] if reused else original
        skipped = len(original) - len(short)
        fields = field_spans(short)
        span = fields.pop(self._protocol.list_field, None)
        others = {name: value.of(short) for name, value in fields.items()}
        if state := self._protocol.server_state(others):
            raise KeptByProvider(state)
        if span is None:
            raise UnreadableBody(f"a body without {self._protocol.list_field}")
        if short[span.start : span.start + 1] == b'"':
            item = b'[{"role":"user","content":' + span.of(short) + b"}]"
            body = short[: span.start] + item + short[span.end :]
            spans = item_spans(body, span.start, span.start + len(item))
            return _Cut(0, body, span.start + 1, others, spans)
        spans = item_spans(short, span.start, span.end)
        if skipped:
            spans = [Span(start + skipped, end + skipped) for start, end in spans]
        return _Cut(reused, original, span.start + 1, others, spans)

    def _known(self, body: bytes) -> tuple[int, int]:
        """How many messages of the previous request this body begins with, and where the first
        item after them stands. The last of them is read again, since a reply may have grown.
        """
        if self._previous is None:
            return 0, 0
        common = common_prefix(self._previous.body, body)
        wire = self._previous.wire
        reused = bisect_right(wire, common, key=lambda message: message.span.end) - 1
        if reused <= 0:
            return 0, 0
        return reused, after_comma(body, wire[reused - 1].span.end)

    def _new_messages(
        self, body: bytes, spans: Sequence[Span], before: Sequence[WireMessage]
    ) -> Iterator[WireMessage]:
        protocol = self._protocol
        values = [decode(span.of(body)) for span in spans]
        at_head = not before or _is_head(before[-1])
        position = len(before)
        for group in protocol.groups(values):
            span = Span(spans[group.start].start, spans[group.stop - 1].end)
            items = values[group.start : group.stop]
            try:
                parts = protocol.parts(items, self._names, at_head=at_head)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise UnreadableBody(
                    f"message {position} has an unknown shape: {error!r}"
                ) from error
            parts = self._with_raw(span.of(body), parts, position)
            message = WireMessage(span, parts, protocol.marks(items))
            at_head = at_head and _is_head(message)
            position += 1
            yield message

    def _with_raw(self, raw: bytes, parts: tuple[Part, ...], position: int) -> tuple[Part, ...]:
        """The parts of a message, each with its slice of the bytes."""
        cuts = [0, len(raw)]
        if len(parts) > 1:
            spans = self._protocol.blocks(raw)
            cuts[1:1] = [spans[part.first].start for part in parts[1:]]
        out = []
        for number, part in enumerate(parts):
            message = msgspec.structs.replace(
                part.message,
                raw=raw[cuts[number] : cuts[number + 1]],
                wire=position,
                echo=part.message.role == "tool" and part.message.name in self._recall_names,
            )
            out.append(Part(message, part.first, part.last))
        return tuple(out)


def _system_texts(messages: Sequence[HostMessage]) -> list[str]:
    """The texts of these messages that belong to the system prompt."""
    return [message.text for message in messages if message.role == "system" and not message.notice]


def _is_head(message: WireMessage) -> bool:
    return all(part.message.role == "system" and not part.message.notice for part in message.parts)
