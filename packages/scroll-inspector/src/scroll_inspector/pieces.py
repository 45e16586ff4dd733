"""A request in pieces: one for each event that it shows, with the tokens that were counted for it.

Every page that says how many tokens something has asks here, and what is said here was counted by
the view. So the rows of a request, its bar, the index and the chart of the window show the same
numbers, and the pieces add up to the estimate that was recorded when the request was sent.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from scroll_context.contents import MediaFacts
from scroll_context.events import Event
from scroll_context.messages import Message
from scroll_context.session.context import WindowedContext
from scroll_context.session.past import Seen
from scroll_context.view.entries import Entry, UserMessage
from scroll_context.view.layout import in_order, lay_out
from scroll_context.view.passage import Form, Passage
from scroll_context.view.steps import Step
from scroll_context.view.tokens import MESSAGE_TOKENS, estimate
from scroll_context.view.wording import SEAM
from scroll_context.view.working import WorkingView

FORMS = {Form.FULL: "", Form.CLIPPED: "clipped", Form.FOLDED: "folded"}


class Line(NamedTuple):
    """A line of the index or of the variable list."""

    text: str
    # The request before did not have it.
    is_new: bool


class PieceKey(NamedTuple):
    """How a piece is found in the request before."""

    kind: str
    seq: int


class SentPiece(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a message that one event stands for."""

    # system, index, user, notice, reply, result, harness
    kind: str
    # Of the event; 0 where there is none.
    seq: int = 0
    text: str
    # As the view counted them; 0 for words of the harness, which it does not count.
    tokens: int = 0
    # clipped or folded
    form: str = ""
    # entered, folded, clipped, changed
    change: str = "kept"
    # Of the index.
    lines: tuple[Line, ...] = ()
    media: tuple[MediaFacts, ...] = ()

    @property
    def key(self) -> PieceKey:
        """There is one system prompt, whichever event it comes from."""
        return PieceKey(self.kind, 0 if self.kind == "system" else self.seq)


class MessagePieces(NamedTuple):
    """The pieces of one message, and the seqs of the cells that its calls ran."""

    pieces: tuple[SentPiece, ...]
    addresses: tuple[int, ...] = ()


def request_tokens(request: Event) -> int:
    """The estimate that was recorded when a request was sent, of everything in it."""
    tokens = request.metadata.get("tokens", 0)
    return tokens if isinstance(tokens, int) else 0


def pieces_of(seen: Seen) -> list[MessagePieces]:
    """The pieces of each message of a request."""
    assert seen.context is not None
    assert seen.rendered is not None
    messages = seen.rendered.messages
    if seen.request.metadata.get("layout"):
        return list(_of_host(seen, seen.context.view))
    expected = _expected(seen, seen.context, messages)
    return [
        _matched(message, expected[place] if place < len(expected) else None)
        for place, message in enumerate(messages)
    ]


class _Expected(NamedTuple):
    """A message that the view should have been rendered as."""

    role: str
    pieces: list[SentPiece]
    addresses: tuple[int, ...] = ()


def _expected(
    seen: Seen, context: WindowedContext, messages: tuple[Message, ...]
) -> list[_Expected]:
    """The messages that a view is rendered as, in the order of view/working.py: system prompt,
    index, entries. User messages that follow each other are one.
    """
    expected: list[_Expected] = []
    if messages and messages[0].role == "system":
        expected.append(_Expected("system", [_system_piece(seen, messages[0])]))
    preface = context.preface()
    if preface or (preface is None and not context.view.index.is_empty):
        place = len(expected)
        text = messages[place].text if place < len(messages) else ""
        expected.append(_Expected("user", [_index_piece(text, context)]))
    for entry in context.view.entries:
        role = expected[-1].role if expected else "system"
        if isinstance(entry, Step):
            if role in ("system", "assistant"):
                expected.append(_Expected("user", [SentPiece(kind="harness", text="")]))
            expected += _of_step(entry)
        elif role == "user":
            expected[-1].pieces.append(_entry_piece(entry, entry.messages[0].text))
        else:
            expected.append(_Expected("user", [_entry_piece(entry, entry.messages[0].text)]))
    if len(expected) < len(messages):
        expected.append(_Expected("user", [SentPiece(kind="harness", text="")]))
    return expected


def _matched(message: Message, expected: _Expected | None) -> MessagePieces:
    """The pieces of a message. One that is not the sum of its pieces is a single piece, without an
    address.
    """
    if expected is None or expected.role != message.role:
        return MessagePieces((SentPiece(kind="harness", text=message.text),))
    pieces = expected.pieces
    if len(pieces) == 1:
        # A context may word the message in its own way.
        return MessagePieces((replace(pieces[0], text=message.text),), expected.addresses)
    if "\n\n".join(piece.text for piece in pieces) == message.text:
        return MessagePieces(tuple(pieces), expected.addresses)
    tokens = sum(piece.tokens for piece in pieces)
    return MessagePieces((SentPiece(kind="harness", text=message.text, tokens=tokens),))


def _system_piece(seen: Seen, message: Message) -> SentPiece:
    tokens = estimate(message.text)
    if not seen.request.metadata.get("layout"):
        tokens += MESSAGE_TOKENS
    return SentPiece(kind="system", seq=seen.setup.seq, text=message.text, tokens=tokens)


def _index_piece(text: str, context: WindowedContext) -> SentPiece:
    index, seam, _ = text.partition(SEAM)
    preface = context.preface()
    tokens = context.view.index.tokens if preface is None else estimate(preface)
    return SentPiece(kind="index", text=index + seam, tokens=tokens)


def _of_step(step: Step) -> Iterator[_Expected]:
    reply, *results = step.messages
    piece = SentPiece(
        kind="reply",
        seq=step.seq,
        text=reply.text,
        tokens=step.reply.tokens,
        form=FORMS[step.reply.form],
    )
    yield _Expected("assistant", [piece], step.addresses)
    for result, message in zip(step.results, results, strict=True):
        if result is None:
            tokens = estimate(message.text) + MESSAGE_TOKENS
            missing = SentPiece(kind="result", text=message.text, tokens=tokens)
            yield _Expected("tool", [missing])
        else:
            tokens = result.body.tokens + MESSAGE_TOKENS
            yield _Expected("tool", [_body_piece("result", result.body, message.text, tokens)])


def _entry_piece(entry: Entry, text: str) -> SentPiece:
    """The piece of a user message or a notice."""
    assert not isinstance(entry, Step)
    kind = "user" if isinstance(entry, UserMessage) else "notice"
    return _body_piece(kind, entry.body, text, entry.tokens)


def _body_piece(kind: str, body: Passage, text: str, tokens: int) -> SentPiece:
    return SentPiece(
        kind=kind,
        seq=body.seq,
        text=text,
        tokens=tokens,
        form=FORMS[body.form],
        media=body.media,
    )


def _of_host(seen: Seen, view: WorkingView) -> Iterator[MessagePieces]:
    """The pieces of a host's request, whose messages are never joined: one for each message."""
    layout = lay_out(view)
    messages = seen.rendered.messages if seen.rendered else ()
    if messages and messages[0].role == "system":
        yield MessagePieces((_system_piece(seen, messages[0]),))
    for entry in in_order(view, layout):
        if entry is None:
            index = SentPiece(kind="index", text=layout.index, tokens=view.index.tokens)
            yield MessagePieces((index,))
        elif isinstance(entry, Step):
            for expected in _of_step(entry):
                yield MessagePieces(tuple(expected.pieces), expected.addresses)
        else:
            yield MessagePieces((_entry_piece(entry, entry.body.sent_text),))
