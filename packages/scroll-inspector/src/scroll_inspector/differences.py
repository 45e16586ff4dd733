"""The difference between a request and the one before it, message by message.

A message is cut into pieces (pieces.py), and a piece is known by its event, so it can be found
again in the request before. A piece that only one of the two requests has was added or has left,
and the eviction plans between them say why.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from scroll_context.messages import Message, ToolCall, canonical
from scroll_context.session.explain import whereabouts
from scroll_context.session.past import Past, Seen
from scroll_context.text.words import clip
from scroll_context.view.entries import Entry
from scroll_context.view.steps import Step
from scroll_context.view.working import WorkingView
from scroll_inspector.pieces import Line, PieceKey, SentPiece, pieces_of
from scroll_inspector.plans import NumberedPlan, plans_between

PREVIEW = 200
"""Characters of a message in one line; the page shows as many as there is room for."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a request."""

    position: int
    message: Message
    pieces: tuple[SentPiece, ...]
    # The same, like all before it, in the request before.
    in_prefix: bool
    # The seqs of the cells that its calls ran, 0 where that is not known.
    addresses: tuple[int, ...] = ()
    # The variable list.
    tail: tuple[Line, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    @property
    def change(self) -> str:
        changes = (piece.change for piece in self.pieces if piece.change != "kept")
        return next(changes, "kept")

    @property
    def preview(self) -> str:
        """The message in one line."""
        if self.pieces[0].kind == "index":
            return "the index of earlier work"
        words = [self.message.text[: 4 * PREVIEW], *map(_call_line, self.message.tool_calls)]
        words += [item.label for piece in self.pieces for item in piece.media]
        return clip(" ".join(filter(None, words)), PREVIEW)


def _call_line(call: ToolCall) -> str:
    if isinstance(call.arguments, str):
        return f"{call.name}({call.arguments[:PREVIEW]})"
    values = [str(value)[:PREVIEW] for value in call.arguments.values()]
    return f"{call.name}({', '.join(values)})"


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """An entry, or a text, that the request before showed in full and this one does not."""

    seq: int
    last: int
    # evicted, folded, clipped
    how: str
    # The entry in one line.
    line: str
    # Of the entry; 0 for a text, of which a part remains.
    tokens: int = 0
    plan: int
    # Where it stands now.
    now: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The differences from the request before."""

    # Seq of that request.
    before: int | None
    plans: tuple[NumberedPlan, ...] = ()
    entered: tuple[SentPiece, ...] = ()
    left: tuple[Departure, ...] = ()
    # Lines that were joined with others.
    index_gone: tuple[str, ...] = ()
    index_new: int = 0
    variables_gone: tuple[str, ...] = ()


class _EarlierPiece(NamedTuple):
    """A piece of the request before, with the bytes that must be the same in the next one."""

    piece: SentPiece
    content: bytes


class _Before(msgspec.Struct, frozen=True):
    """The request before, as far as the next one is compared with it."""

    messages: tuple[Message, ...] = ()
    pieces: dict[PieceKey, "_EarlierPiece"] = {}
    index: frozenset[str] = frozenset()
    variables: tuple[str, ...] = ()


def _before(seen: Seen | None) -> _Before:
    if seen is None or seen.context is None or seen.rendered is None:
        return _Before()
    messages = seen.rendered.messages
    pieces: dict[PieceKey, _EarlierPiece] = {}
    for message, cut in zip(messages, pieces_of(seen), strict=True):
        for piece in cut.pieces:
            pieces[piece.key] = _EarlierPiece(piece, _part_of(message, piece))
    lines: list[str] = []
    index = pieces.get(PieceKey("index", 0))
    if index is not None:
        lines = index.piece.text.split("\n")
    tail = messages[-1].tail if messages else ""
    variables = tail.split("\n") if tail else []
    return _Before(messages, pieces, frozenset(lines), tuple(variables))


def compared(past: Past, before: Seen | None, seen: Seen) -> tuple[tuple[Sent, ...], Difference]:
    """The messages of a request with their changes, and everything else that is different."""
    before_seq = before.request.seq if before else None
    if seen.context is None or seen.rendered is None:
        return (), Difference(before=before_seq)
    old = _before(before)
    sent = _sent(seen, old, is_first=before is None)
    plans = plans_between(past, before_seq or 0, seen.request.seq)
    left: tuple[Departure, ...] = ()
    if before is not None and before.context is not None:
        left = tuple(_departures(before.context.view, seen.context.view, plans))
    pieces = [piece for message in sent for piece in message.pieces]
    index = next((piece for piece in pieces if piece.kind == "index"), None)
    index_gone: list[str] = []
    index_new = 0
    if index is not None:
        index_gone = sorted(old.index - set(index.text.split("\n")), key=_address)
        index_new = sum(line.is_new for line in index.lines)
    variables = {line.text for line in sent[-1].tail} if sent else set()
    difference = Difference(
        before=before_seq,
        plans=tuple(plans),
        entered=tuple(piece for piece in pieces if piece.change == "entered"),
        left=left,
        index_gone=tuple(index_gone),
        index_new=index_new,
        variables_gone=tuple(line for line in old.variables if line not in variables),
    )
    return sent, difference


def _sent(seen: Seen, old: _Before, *, is_first: bool) -> tuple[Sent, ...]:
    assert seen.rendered is not None
    messages = seen.rendered.messages
    repeated = _same_beginning(old.messages, messages)
    sent = []
    for place, (message, cut) in enumerate(zip(messages, pieces_of(seen), strict=True)):
        lines = message.tail.split("\n") if message.tail else []
        pieces = [_with_change(piece, message, old, is_first) for piece in cut.pieces]
        sent.append(
            Sent(
                position=place,
                message=message,
                pieces=tuple(pieces),
                in_prefix=place < repeated,
                addresses=cut.addresses,
                tail=tuple(Line(line, line not in old.variables) for line in lines),
            )
        )
    return tuple(sent)


def _bare(message: Message) -> bytes:
    """A message as the next request repeats it."""
    return canonical(replace(message, cache_mark=False, tail=""))


def _same_beginning(old: tuple[Message, ...], new: tuple[Message, ...]) -> int:
    """How many messages of a request are, from its beginning on, those of the request before."""
    for place, (old_message, new_message) in enumerate(zip(old, new, strict=False)):
        if _bare(old_message) != _bare(new_message):
            return place
    return min(len(old), len(new))


def _address(line: str) -> tuple[int, str]:
    """The first seq of an index line, by which lines are sorted."""
    number = re.match(r"[0-9]+", line.removeprefix("- seq "))
    return int(number[0]) if number else 0, line


def _part_of(message: Message, piece: SentPiece) -> bytes:
    """The bytes that must be the same for a piece to be the same: of a reply also its calls and
    thinking.
    """
    return _bare(message) if piece.kind == "reply" else piece.text.encode("utf-8", "surrogatepass")


def _with_change(piece: SentPiece, message: Message, old: _Before, is_first: bool) -> SentPiece:
    """A piece with its change since the request before."""
    lines: list[Line] = []
    if piece.kind == "index":
        for line in piece.text.split("\n"):
            is_new = not is_first and bool(line) and line not in old.index
            lines.append(Line(line, is_new))
    earlier = old.pieces.get(piece.key)
    if earlier is None:
        change = "kept" if is_first and piece.kind == "system" else "entered"
    elif earlier.content == _part_of(message, piece):
        change = "kept"
    elif piece.form and piece.form != earlier.piece.form:
        change = piece.form
    else:
        change = "changed"
    return replace(piece, change=change, lines=tuple(lines))


def _departures(
    old: WorkingView, new: WorkingView, plans: Iterable[NumberedPlan]
) -> Iterator[Departure]:
    """The entries that left the view between two requests, oldest first."""
    for plan_seq, plan in plans:
        shortened = [(seq, "folded") for seq in plan.folded]
        shortened += [(seq, "clipped") for seq, _ in plan.clipped]
        for seq, how in shortened:
            entry = old.get(seq)
            if entry is not None and new.get(seq) is not None:
                now = whereabouts(new, seq)
                line = line_of(entry)
                yield Departure(seq=seq, last=seq, how=how, line=line, plan=plan_seq, now=now)
        for first, last in plan.evicted:
            entry = old.get(first)
            if entry is not None:
                yield Departure(
                    seq=first,
                    last=last,
                    how="evicted",
                    line=line_of(entry),
                    tokens=entry.tokens,
                    plan=plan_seq,
                    now=whereabouts(new, first),
                )


def line_of(entry: Entry) -> str:
    """An entry in one line."""
    if isinstance(entry, Step):
        return entry.ended_headline().full()
    return clip(entry.body.shown[: 4 * PREVIEW], PREVIEW)
