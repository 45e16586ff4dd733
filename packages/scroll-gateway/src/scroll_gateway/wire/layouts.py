"""Build the request body that a layout asks for, from slices of the client's body.

A layout speaks of HostMessages, a body consists of wire messages. So the actions of a layout are
gathered for each wire message first: it stays as it is, it leaves, or it is edited.

Between two evictions, a layout only grows. So the bytes of all completed steps are kept
(`LaidOut`), and the next request is those bytes and the new messages: a list of 2,000 messages
costs hardly more than one of 50.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scroll_context.models.protocol import NO_OUTPUT
from scroll_context.session.host import Drop, HostMessage, Insert, Item, Keep, Layout, Replace
from scroll_gateway.wire.protocol import Action, WireMessage
from scroll_gateway.wire.requests import Edit, WireRequest
from scroll_gateway.wire.slices import Span, UnreadableBody, decode

MOST_MARKS = 4
"""The cache marks that a request may have."""

Edits = tuple[Action, ...] | None
"""The changes to a wire message: one action for each part. Empty if the message leaves, None if it
stays unchanged."""

Inserts = Mapping[int, Sequence[Insert]]
"""Insertions by the position of the wire message that they stand before."""


class Pieces(NamedTuple):
    """A run of messages as it is sent: before the index, the index, and behind it.

    The index stands alone, since its cache mark depends on the marks of the complete list.
    """

    before: list[bytes]
    index_text: str | None
    behind: list[bytes]
    # The cache marks of the messages that are sent.
    marks_before: list[bytes]
    marks_behind: list[bytes]

    def joined(self, more: "Pieces") -> "Pieces":
        """This run and the one that follows it."""
        if self.index_text is None:
            return Pieces(
                self.before + more.before,
                more.index_text,
                more.behind,
                self.marks_before + more.marks_before,
                more.marks_behind,
            )
        return self._replace(
            behind=self.behind + more.before + more.behind,
            marks_behind=self.marks_behind + more.marks_before + more.marks_behind,
        )

    def compact(self) -> "Pieces":
        """The same bytes in fewer pieces."""
        return self._replace(before=_compact(self.before), behind=_compact(self.behind))


NOTHING = Pieces([], None, [], [], [])


class LaidOut(NamedTuple):
    """The beginning of the newest list, as it was sent."""

    # How many wire messages it has, and the last of them.
    wire_count: int
    last: WireMessage | None
    # Its HostMessages and the items of the layout for them.
    messages: int
    items: tuple[Item, ...]
    pieces: Pieces

    def is_beginning_of(self, request: WireRequest, layout: Layout) -> bool:
        """Whether a request and its layout begin with the same messages and items."""
        if not 0 < self.wire_count <= len(request.wire):
            return False
        # A message object is only reused if all before it are.
        is_same_list = request.wire[self.wire_count - 1] is self.last
        return is_same_list and layout.items[: len(self.items)] == self.items


UNKNOWN = LaidOut(0, None, 0, (), NOTHING)


def apply(request: WireRequest, layout: Layout) -> bytes:
    """The body that a layout asks for."""
    if layout.is_unchanged and not _has_lone_thinking(request):
        return request.original
    known: LaidOut = request.shared.laid_out or UNKNOWN
    if layout.tail or not known.is_beginning_of(request, layout):
        known = UNKNOWN
    run = _Run(request, known, layout.items)
    pieces = known.pieces.joined(run.pieces(len(request.wire), layout.tail))
    if not layout.tail:
        request.shared.laid_out = run.completed()
    chunks = _with_index(request, pieces)
    if not chunks:
        raise UnreadableBody("a layout that leaves no message")
    head = request.body[: request.wire[0].span.start]
    foot = request.body[request.wire[-1].span.end :]
    return head + b",".join(chunks) + foot


class _Run:
    """The messages of a request behind the ones that are laid out already."""

    def __init__(self, request: WireRequest, known: LaidOut, items: tuple[Item, ...]) -> None:
        self._request = request
        self._known = known
        self._all_items = items
        self._items = items[len(known.items) :]
        self._wire = request.wire[known.wire_count :]
        self._messages = request.messages[known.messages :]
        actions: list[Action] = [item for item in self._items if not isinstance(item, Insert)]
        if len(actions) != len(self._messages):
            raise UnreadableBody(
                f"the layout is for {len(actions)} messages more, the list has "
                f"{len(self._messages)}"
            )
        if not request.protocol.accepts_lone_thinking:
            for number, message in enumerate(self._messages):
                if _is_lone_thinking(message):
                    actions[number] = Drop(number)
        actions = [
            action if isinstance(action, Drop) else _worded(message, action)
            for message, action in zip(self._messages, actions, strict=True)
        ]
        _keep_steps_together(self._messages, actions)
        self._edits = _edits(self._wire, actions)
        has_index = known.pieces.index_text is not None
        self._inserts = _inserts(self._wire, self._items, has_index=has_index)

    def pieces(self, end: int, tail: str = "") -> Pieces:
        """The parts that are sent of the messages before the position `end` of the list."""
        wire = self._wire[: end - self._known.wire_count]
        newest = _newest_request(wire, self._edits) if tail else -1
        sides: tuple[list[bytes], list[bytes]] = ([], [])
        marks: tuple[list[bytes], list[bytes]] = ([], [])
        index: Insert | None = None
        # The slice of messages that stay as they are, while it grows.
        run: Span | None = None
        for position, message in enumerate(wire):
            edit = self._edits[position]
            inserts = self._inserts.get(position, ())
            chunks = sides[index is not None]
            if run is not None and (edit is not None or inserts or position == newest):
                chunks.append(run.of(self._request.body))
                run = None
            for insert in inserts:
                index = self._insert(insert, sides, index)
            if edit == ():
                continue
            chunks = sides[index is not None]
            marks[index is not None].extend(message.marks)
            if edit is None and position != newest:
                run = Span(run.start if run else message.span.start, message.span.end)
                continue
            raw = self._sent(position, message, edit)
            if raw and position == newest:
                raw = self._request.protocol.with_tail(raw, tail)
            if raw:
                chunks.append(raw)
        if run is not None:
            sides[index is not None].append(run.of(self._request.body))
        if len(wire) == len(self._wire):
            for insert in self._inserts.get(len(wire), ()):
                index = self._insert(insert, sides, index)
        text = index.text if index is not None else None
        return Pieces(sides[0], text, sides[1], marks[0], marks[1])

    def _insert(
        self, insert: Insert, sides: tuple[list[bytes], list[bytes]], index: Insert | None
    ) -> Insert | None:
        """Add an insertion; returns the index, which may be this one."""
        if insert.is_index:
            return insert
        sides[index is not None].append(self._request.protocol.inserted(insert.text, b""))
        return index

    def _sent(self, position: int, message: WireMessage, edit: Edits) -> bytes:
        """The bytes of a message after its actions; empty if nothing of it remains."""
        raw = message.span.of(self._request.body)
        if edit is None:
            return raw
        place = self._known.wire_count + position
        known = self._request.shared.edits.get(place)
        if known is None or known.message is not message or known.actions != edit:
            edited = self._request.protocol.edited(raw, message.parts, edit)
            known = self._request.shared.edits[place] = Edit(message, edit, edited)
        return known.raw

    def completed(self) -> LaidOut:
        """The part of the list that later requests will begin with, while nothing is evicted: all
        steps before the newest one.
        """
        end = len(self._wire) - 1
        while end > 0 and (_answers(self._wire[end]) or end in self._inserts):
            end -= 1
        if end <= 0:
            return self._known
        count = self._known.wire_count + end
        messages = sum(len(message.parts) for message in self._wire[:end])
        pieces = self._known.pieces.joined(self.pieces(count)).compact()
        return LaidOut(
            count,
            self._wire[end - 1],
            self._known.messages + messages,
            self._all_items[: len(self._known.items) + _places(self._items, messages)],
            pieces,
        )


def _places(items: Sequence[Item], messages: int) -> int:
    """How many items stand for the first messages."""
    count = 0
    for place, item in enumerate(items):
        if count == messages:
            return place
        count += not isinstance(item, Insert)
    return len(items)


def _compact(chunks: list[bytes]) -> list[bytes]:
    return [b",".join(chunks)] if chunks else []


# what happens to each message -------------------------------------------------------------------


def _worded(message: HostMessage, action: Keep | Replace) -> Action:
    """The action as far as it changes something, and with a text that a provider accepts: an empty
    one is refused.
    """
    if isinstance(action, Keep):
        return action if action.thinking or message.thinking else Keep(action.index)
    if action.text.strip():
        return action
    if message.role == "tool":
        return Replace(action.index, NO_OUTPUT)
    return action if message.calls else Drop(action.index)


def _has_lone_thinking(request: WireRequest) -> bool:
    """Whether a provider would refuse the list for thinking that stands alone."""
    if request.protocol.accepts_lone_thinking:
        return False
    return any(map(_is_lone_thinking, request.messages))


def _is_lone_thinking(message: HostMessage) -> bool:
    """Whether a message is the thinking of a reply that was cut off before anything else."""
    return bool(message.thinking) and not message.text and not message.calls


def _keep_steps_together(messages: Sequence[HostMessage], actions: list[Action]) -> None:
    """Drop the rest of a step of which a call or a result is dropped."""
    step: list[int] = []
    open_calls: set[str] = set()
    for number, message in enumerate(messages):
        if message.role == "assistant":
            _drop_broken(step, actions)
            step = [number] if message.calls else []
            open_calls = {call.id for call in message.calls}
        elif message.role == "tool" and message.call_id in open_calls:
            step.append(number)
    _drop_broken(step, actions)


def _drop_broken(step: Sequence[int], actions: list[Action]) -> None:
    dropped = [number for number in step if isinstance(actions[number], Drop)]
    if dropped and len(dropped) < len(step):
        for number in step:
            actions[number] = Drop(number)


def _edits(wire: Sequence[WireMessage], actions: Sequence[Action]) -> list[Edits]:
    """The actions on each wire message."""
    edits: list[Edits] = []
    start = 0
    for message in wire:
        end = start + len(message.parts)
        edits.append(_edit_of(actions[start:end]))
        start = end
    return edits


def _edit_of(actions: Sequence[Action]) -> Edits:
    for action in actions:
        if not isinstance(action, Drop):
            break
    else:
        return ()
    for action in actions:
        if not (isinstance(action, Keep) and action.thinking):
            return tuple(actions)
    return None


def _inserts(wire: Sequence[WireMessage], items: Sequence[Item], *, has_index: bool) -> Inserts:
    """Where each insertion is made: not inside a message, and not between calls and results."""
    inserts: dict[int, list[Insert]] = {}
    # The number of the first HostMessage of each wire message.
    firsts = [0]
    number = 0
    for item in items:
        if not isinstance(item, Insert):
            number += 1
            continue
        if len(firsts) == 1:
            for message in wire:
                firsts.append(firsts[-1] + len(message.parts))
        position = bisect_right(firsts, number) - 1
        if firsts[position] != number:
            position += 1
        while position < len(wire) and _answers(wire[position]):
            position += 1
        # A second index would be a second cache mark.
        inserts.setdefault(position, []).append(Insert(item.text) if has_index else item)
        has_index = has_index or item.is_index
    return inserts


def _answers(message: WireMessage) -> bool:
    return any(part.message.role == "tool" for part in message.parts)


def _newest_request(wire: Sequence[WireMessage], edits: Sequence[Edits]) -> int:
    """The position of the newest user or tool message that is sent; -1 if there is none."""
    for position in reversed(range(len(wire))):
        actions = edits[position]
        for number, part in enumerate(wire[position].parts):
            stays = actions is None or (actions and not isinstance(actions[number], Drop))
            if stays and part.message.role in ("user", "tool"):
                return position
    return -1


# the index --------------------------------------------------------------------------------------


def _with_index(request: WireRequest, pieces: Pieces) -> list[bytes]:
    """The pieces of the new list. The index gets a cache mark, if there is room for it."""
    if pieces.index_text is None:
        return pieces.before
    mark = _index_mark(request, pieces)
    index = request.protocol.inserted(pieces.index_text, mark)
    return [*pieces.before, index, *pieces.behind]


def _index_mark(request: WireRequest, pieces: Pieces) -> bytes:
    """A copy of one of the client's cache marks; empty if it has none, or four.

    It is the next mark behind the index, so that its lifetime fits its place: providers refuse a
    mark that lives longer than one before it. Where there is none, it is the client's newest.
    """
    fields = [decode(request.fields.get(name, b"null")) for name in ("tools", "system")]
    marks = list(request.protocol.marks(fields))
    if "cache_control" in request.fields:
        marks.append(request.fields["cache_control"])
    marks += pieces.marks_before + pieces.marks_behind
    if not marks or len(marks) >= MOST_MARKS:
        return b""
    return pieces.marks_behind[0] if pieces.marks_behind else marks[-1]
