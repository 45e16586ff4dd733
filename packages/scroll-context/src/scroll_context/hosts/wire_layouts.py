"""Build the request body that a layout asks for, from slices of the client's body.

A layout speaks of HostMessages, a body consists of wire messages. So the actions of a layout are
gathered for each wire message first: it stays as it is, it leaves, or it is edited. Most requests
have hundreds of messages that left long ago, so the loops over all messages do little for those.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from scroll_context.hosts.slices import Span, UnreadableBody, decode
from scroll_context.hosts.wire import Action, WireMessage
from scroll_context.hosts.wire_requests import Edit, WireRequest
from scroll_context.models.protocol import NO_OUTPUT
from scroll_context.session.host import Drop, HostMessage, Insert, Keep, Layout, Replace

MOST_MARKS = 4
"""The cache marks that a request may have."""

Edits = tuple[Action, ...] | None
"""What is done to a wire message: one action for each part. Empty if all of it leaves, None if it
stays as it is."""

Inserts = Mapping[int, Sequence[Insert]]
"""Insertions by the position of the wire message that they stand before."""


def apply(request: WireRequest, layout: Layout) -> bytes:
    """The body that a layout asks for."""
    if layout.is_unchanged:
        return request.original
    actions: list[Action] = [item for item in layout.items if not isinstance(item, Insert)]
    if len(actions) != len(request.messages):
        raise UnreadableBody(
            f"the layout is for {len(actions)} messages, the list has {len(request.messages)}"
        )
    actions = [
        action if isinstance(action, Drop) else _worded(message, action)
        for message, action in zip(request.messages, actions, strict=True)
    ]
    _keep_steps_together(request.messages, actions)
    edits = _edits(request.wire, actions)
    chunks = _chunks(request, edits, _inserts(request.wire, layout), layout.tail)
    if not chunks:
        raise UnreadableBody("a layout that leaves no message")
    head = request.body[: request.wire[0].span.start]
    foot = request.body[request.wire[-1].span.end :]
    return head + b",".join(chunks) + foot


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
    """What is done to each wire message."""
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


def _inserts(wire: Sequence[WireMessage], layout: Layout) -> Inserts:
    """Where each insertion is made: not inside a message, and not between calls and results."""
    inserts: dict[int, list[Insert]] = {}
    # The number of the first HostMessage of each wire message.
    firsts = [0]
    number = 0
    has_index = False
    for item in layout.items:
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


# the new list -----------------------------------------------------------------------------------


def _chunks(
    request: WireRequest, edits: Sequence[Edits], inserts: Inserts, tail: str
) -> list[bytes]:
    """The pieces of the new list. Messages that stay side by side are one slice of the body."""
    newest = _newest_request(request.wire, edits) if tail else -1
    chunks: list[bytes] = []
    # The slice of messages that stay as they are, while it grows.
    run: Span | None = None
    for position, message in enumerate(request.wire):
        edit = edits[position]
        if run is not None and (edit is not None or position in inserts or position == newest):
            chunks.append(run.of(request.body))
            run = None
        if position in inserts:
            chunks += _inserted(request, edits, inserts[position], position)
        if edit == ():
            continue
        if edit is None and position != newest:
            run = Span(run.start if run else message.span.start, message.span.end)
            continue
        raw = message.span.of(request.body) if edit is None else _edited(request, position, edit)
        if raw and position == newest:
            raw = request.protocol.with_tail(raw, tail)
        if raw:
            chunks.append(raw)
    if run is not None:
        chunks.append(run.of(request.body))
    end = len(request.wire)
    return chunks + _inserted(request, edits, inserts.get(end, ()), end)


def _inserted(
    request: WireRequest, edits: Sequence[Edits], inserts: Sequence[Insert], position: int
) -> list[bytes]:
    """New messages at a position. The index gets a cache mark, if there is room for it."""
    chunks = []
    for insert in inserts:
        mark = _index_mark(request, edits, position) if insert.is_index else b""
        chunks.append(request.protocol.inserted(insert.text, mark))
    return chunks


def _edited(request: WireRequest, position: int, actions: tuple[Action, ...]) -> bytes:
    """A message after its actions; empty if nothing of it remains."""
    message = request.wire[position]
    edit = request.edits.get(position)
    if edit is None or edit.message is not message or edit.actions != actions:
        raw = message.span.of(request.body)
        edited = request.protocol.edited(raw, message.parts, actions)
        edit = request.edits[position] = Edit(message, actions, edited)
    return edit.raw


def _newest_request(wire: Sequence[WireMessage], edits: Sequence[Edits]) -> int:
    """The position of the newest user or tool message that is sent; -1 if there is none."""
    for position in reversed(range(len(wire))):
        actions = edits[position]
        for number, part in enumerate(wire[position].parts):
            stays = actions is None or (actions and not isinstance(actions[number], Drop))
            if stays and part.message.role in ("user", "tool"):
                return position
    return -1


def _index_mark(request: WireRequest, edits: Sequence[Edits], position: int) -> bytes:
    """A copy of one of the client's cache marks; empty if it has none, or four.

    It is the next mark behind the index, so that its lifetime fits its place: providers refuse a
    mark that lives longer than one before it. Where there is none, it is the client's newest.
    """
    fields = [decode(request.fields.get(name, b"null")) for name in ("tools", "system")]
    marks = list(request.protocol.marks(fields))
    if "cache_control" in request.fields:
        marks.append(request.fields["cache_control"])
    behind: list[bytes] = []
    for place, message in enumerate(request.wire):
        if message.marks and edits[place] != ():
            marks += message.marks
            behind += message.marks if place >= position else ()
    if not marks or len(marks) >= MOST_MARKS:
        return b""
    return behind[0] if behind else marks[-1]
