"""The view of a host's messages: each is shown unchanged, with another text, or not at all.

`view/working.py` renders a view as messages of its own. A host has messages already, so all it
needs is the difference. `lay_out` gives that difference as values, from the view alone: the same
events give the same layout, live and in a replay, and its hash tells whether they did.

The index stands behind the messages that precede the first evicted one, so that a provider's cache
of those survives an eviction.
"""

import hashlib
from collections.abc import Iterator

import msgspec

from scroll_context.messages import Message, canonical
from scroll_context.view.entries import Entry, Notice, UserMessage
from scroll_context.view.passage import Shown, replacement
from scroll_context.view.steps import Step
from scroll_context.view.tokens import estimate
from scroll_context.view.wording import HOST_SEAM
from scroll_context.view.working import RENDERER_VERSION, Rendered, WorkingView


class ViewLayout(msgspec.Struct, frozen=True):
    """Everything that a view shows, in order, and the place of the index."""

    shown: tuple[Shown, ...]
    # How many of them precede the index.
    before_index: int
    index: str
    hash: str

    @property
    def visible(self) -> frozenset[int]:
        """The seqs that are shown in full, which search need not return."""
        return frozenset([part.seq for part in self.shown if part.text is None])


def lay_out(view: WorkingView) -> ViewLayout:
    """The layout of a view."""
    shown: list[Shown] = []
    before_index = 0
    first_evicted = view.index.first_evicted
    in_front = True
    for entry in view.entries:
        in_front = in_front and entry.seq < first_evicted
        shown += _parts(entry, view.rewritten_at)
        if in_front:
            before_index = len(shown)
    index = _index_text(view)
    digest = hashlib.sha256(canonical((before_index, index, shown))).hexdigest()
    return ViewLayout(tuple(shown), before_index, index, digest)


def as_rendered(view: WorkingView, layout: ViewLayout, system: str, tail: str) -> Rendered:
    """A host's request as messages of ours, for a person who looks at it afterwards.

    What was sent are the host's own objects; the texts are the same.
    """
    messages = [Message(role="system", text=system)] if system.strip() else []
    for entry in in_order(view, layout):
        if entry is None:
            messages.append(Message(role="user", text=layout.index, cache_mark=True))
        else:
            messages += entry.own_messages if isinstance(entry, UserMessage) else entry.messages
    if messages and tail.strip():
        messages[-1] = msgspec.structs.replace(messages[-1], tail=tail.strip())
    return Rendered(
        tuple(messages),
        layout.hash,
        view.tokens + estimate(system) + estimate(tail),
        view.last_seq,
        layout.visible,
        RENDERER_VERSION,
    )


def in_order(view: WorkingView, layout: ViewLayout) -> Iterator[Entry | None]:
    """The entries in the order in which a host sends them; None is the index."""
    count = 0
    is_placed = not layout.index
    for entry in view.entries:
        if not is_placed and count >= layout.before_index:
            yield None
            is_placed = True
        yield entry
        count += len(_parts(entry, view.rewritten_at))
    if not is_placed:
        yield None


def _index_text(view: WorkingView) -> str:
    """The index with a note for each turn whose steps left it, and the seam; "" if it is empty."""
    if view.index.is_empty:
        return ""
    notes = [entry.note for entry in view.entries if isinstance(entry, UserMessage) and entry.gone]
    return "\n\n".join([view.index.render(), *notes, HOST_SEAM])


def _parts(entry: Entry, rewritten_at: int) -> tuple[Shown, ...]:
    if isinstance(entry, Step):
        return entry.shown if entry.seq > rewritten_at else entry.shown_without_thinking
    notice = entry.body.shown if isinstance(entry, Notice) else ""
    return (Shown(entry.seq, entry.seq, replacement(entry.body), notice=notice),)
