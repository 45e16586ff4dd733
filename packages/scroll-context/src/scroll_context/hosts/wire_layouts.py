"""Build the request body that a layout asks for, from slices of the client's body."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from scroll_context.hosts.slices import Span, UnreadableBody, decode
from scroll_context.hosts.wire import Action, WireMessage
from scroll_context.hosts.wire_requests import Edit, WireRequest
from scroll_context.models.protocol import NO_OUTPUT
from scroll_context.session.host import Drop, HostMessage, Insert, Keep, Layout, Replace

MOST_MARKS = 4
"""The cache marks that a request may have."""


def apply(request: WireRequest, layout: Layout) -> bytes:
    """The body that a layout asks for."""
    if layout.is_unchanged:
        return request.original
    actions, inserts = _arranged(request, layout)
    mark = _index_mark(request, actions)
    chunks = _chunks(request, actions, inserts, mark, layout.tail)
    if not chunks:
        raise UnreadableBody("a layout that leaves no message")
    head = request.body[: request.wire[0].span.start]
    foot = request.body[request.wire[-1].span.end :]
    return head + b",".join(chunks) + foot


def _arranged(
    request: WireRequest, layout: Layout
) -> tuple[list[tuple[Action, ...]], dict[int, list[Insert]]]:
    """The actions of each wire message, and the insertions before each position in the list."""
    flat: list[Action] = []
    waiting: list[tuple[int, Insert]] = []
    for item in layout.items:
        if isinstance(item, Insert):
            waiting.append((len(flat), item))
        else:
            flat.append(item)
    if len(flat) != len(request.messages):
        raise UnreadableBody(
            f"the layout is for {len(flat)} messages, the list has {len(request.messages)}"
        )
    flat = [
        _worded(message, action) for message, action in zip(request.messages, flat, strict=True)
    ]
    _keep_steps_together(request.messages, flat)
    actions = []
    # The number of the first HostMessage of each wire message, and of the end.
    firsts = [0]
    for message in request.wire:
        start = firsts[-1]
        firsts.append(start + len(message.parts))
        actions.append(tuple(flat[start : firsts[-1]]))
    inserts: dict[int, list[Insert]] = {}
    for number, insert in waiting:
        inserts.setdefault(_place(request, firsts, number), []).append(insert)
    return actions, inserts


def _worded(message: HostMessage, action: Action) -> Action:
    """The action as far as it changes something, and with a text that a provider accepts: an empty
    one is refused.
    """
    if isinstance(action, Keep):
        return action if action.thinking or message.thinking else Keep(action.index)
    if isinstance(action, Drop) or action.text.strip():
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
    if any(isinstance(actions[number], Drop) for number in step):
        for number in step:
            actions[number] = Drop(number)


def _place(request: WireRequest, firsts: Sequence[int], number: int) -> int:
    """The position in the list at which an insertion before HostMessage `number` is made: not
    inside a message, and not between calls and their results.
    """
    position = bisect_right(firsts, number) - 1
    if firsts[position] != number:
        position += 1
    while position < len(request.wire) and _answers(request.wire[position]):
        position += 1
    return position


def _answers(message: WireMessage) -> bool:
    return any(part.message.role == "tool" for part in message.parts)


def _chunks(
    request: WireRequest,
    actions: Sequence[tuple[Action, ...]],
    inserts: Mapping[int, Sequence[Insert]],
    mark: bytes,
    tail: str,
) -> list[bytes]:
    """The pieces of the new list. Messages that stay side by side are one slice of the body."""
    protocol, body = request.protocol, request.body
    last = _newest_request(request, actions) if tail else -1
    chunks: list[bytes] = []
    # The slice of messages that stay as they are, while it grows.
    run: Span | None = None
    for position, message in enumerate(request.wire):
        edits = actions[position]
        stays = all(isinstance(action, Keep) and action.thinking for action in edits)
        is_plain = stays and position != last and position not in inserts
        if run is not None and not is_plain:
            chunks.append(run.of(body))
            run = None
        for insert in inserts.get(position, ()):
            chunks.append(protocol.inserted(insert.text, mark if insert.is_index else b""))
            if insert.is_index:
                mark = b""
        if is_plain:
            run = Span(run.start if run else message.span.start, message.span.end)
            continue
        raw = message.span.of(body) if stays else _edited(request, position, edits)
        if raw and position == last:
            raw = protocol.with_tail(raw, tail)
        if raw:
            chunks.append(raw)
    if run is not None:
        chunks.append(run.of(body))
    for insert in inserts.get(len(request.wire), ()):
        chunks.append(protocol.inserted(insert.text, mark if insert.is_index else b""))
    return chunks


def _edited(request: WireRequest, position: int, actions: tuple[Action, ...]) -> bytes:
    """A message after its actions; empty if nothing of it remains."""
    if all(isinstance(action, Drop) for action in actions):
        return b""
    message = request.wire[position]
    edit = request.edits.get(position)
    if edit is None or edit.message is not message or edit.actions != actions:
        raw = message.span.of(request.body)
        edited = request.protocol.edited(raw, message.parts, actions)
        edit = request.edits[position] = Edit(message, actions, edited)
    return edit.raw


def _newest_request(request: WireRequest, actions: Sequence[tuple[Action, ...]]) -> int:
    """The position of the newest user or tool message that is sent; -1 if there is none."""
    for position in reversed(range(len(request.wire))):
        pairs = zip(request.wire[position].parts, actions[position], strict=True)
        for part, action in pairs:
            if part.message.role in ("user", "tool") and not isinstance(action, Drop):
                return position
    return -1


def _index_mark(request: WireRequest, actions: Sequence[tuple[Action, ...]]) -> bytes:
    """The cache mark for the index: a copy of the client's newest one, if there is room for it."""
    marks = list(request.protocol.marks([decode(value) for value in request.fields.values()]))
    if "cache_control" in request.fields:
        marks.append(request.fields["cache_control"])
    for message, edits in zip(request.wire, actions, strict=True):
        if message.marks and not all(isinstance(action, Drop) for action in edits):
            marks.extend(message.marks)
    newest = next((message.marks for message in reversed(request.wire) if message.marks), marks)
    return newest[-1] if newest and len(marks) < MOST_MARKS else b""
