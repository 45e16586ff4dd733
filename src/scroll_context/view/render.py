"""A view as the messages that a provider receives, in an order that keeps the cached prefix whole.

System prompt (constant); one user message with the index and the seam (changed only by an eviction); the live turns
(append-only); and, as the `tail` of the newest message, the namespace digest. A tail is sent after its message in
this request only: the next request holds the same message without it, so everything before stays byte for byte the
same. The cache marks stand where that prefix ends: after the index, and after the newest message.

Whatever the history was, the messages are valid: the first after the system prompt is the user's, calls and results
come in pairs under ids that are unique in the request, user and assistant alternate, no text is blank. Nothing
rendered here is ever stored as conversation.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from scroll_context.messages import Message, canonical
from scroll_context.view.entries import MARK, Entry, Form, Step, spare_id
from scroll_context.view.index import SEAM
from scroll_context.view.tokens import MESSAGE_TOKENS, estimate
from scroll_context.view.working import WorkingView

CONTINUE = MARK + "nothing new was said; continue from the state above]"
BEGIN = MARK + "the conversation begins with the assistant]"


class Rendered(msgspec.Struct, frozen=True):
    """A request ready for a provider, and what the log keeps of it."""

    messages: tuple[Message, ...]
    hash: str  # sha256 of the messages
    tokens: int  # raw estimate of the messages, without tool schemas
    upto: int  # the last event that the model may have read from it
    visible: frozenset[int]  # seqs shown in full, which search need not return
    renderer: int  # the version of the rules that made the messages

    def metadata(self) -> dict[str, Any]:
        """What the view needs to find in the metadata of the `request` event; add the tokens of tool schemas."""
        return {"hash": self.hash, "tokens": self.tokens, "upto": self.upto, "renderer": self.renderer}


def render(view: WorkingView, system: str = "", digest: str = "", *, preface: str | None = None) -> Rendered:
    """The messages for the next call. Costs what the view is long, whatever the session was.

    A `preface` stands in the place of index and seam; a caller that gives one keeps room for it in the budget.
    """
    messages = [Message(role="system", text=system)] if system.strip() else []
    body = view.tokens if preface is None else view.entry_tokens + estimate(preface)
    if preface is None:
        preface = f"{view.index.render()}\n\n{SEAM}" if not view.index.is_empty else ""
    if preface:
        messages.append(Message(role="user", text=preface, cache_mark=True))
    taken: set[str] = set()
    visible: set[int] = set()
    for entry in view.entries:
        _append(messages, _messages(entry, taken))
        if isinstance(entry, Step):
            visible.update(entry.seqs_in_full)
        elif entry.body.form is Form.FULL:
            visible.add(entry.seq)
    if not messages or messages[-1].role in ("assistant", "system"):
        messages.append(Message(role="user", text=CONTINUE))
    messages[-1] = replace(messages[-1], cache_mark=True, tail=digest.strip())
    tokens = body + sum(estimate(text) + MESSAGE_TOKENS for text in (system, digest) if text.strip())
    sent = hashlib.sha256(canonical(messages)).hexdigest()
    return Rendered(tuple(messages), sent, tokens, view.last_seq, frozenset(visible), view.version)


def shared_prefix(before: Rendered, after: Rendered) -> float:
    """The share of `after` that a provider can take from its cache of `before`, by characters."""
    a, b = ("".join(_wire(rendered.messages)) for rendered in (before, after))
    lo, hi = 0, min(len(a), len(b))
    while lo < hi:
        middle = (lo + hi + 1) // 2
        lo, hi = (middle, hi) if a[lo:middle] == b[lo:middle] else (lo, middle - 1)
    return lo / len(b) if b else 1.0


def _messages(entry: Entry, taken: set[str]) -> tuple[Message, ...]:
    """The messages of an entry, its calls under ids that are not `taken`: some providers give every call the same."""
    messages = entry.messages
    ids = [call.id for call in messages[0].tool_calls]
    if len(set(ids)) < len(ids) or not taken.isdisjoint(ids):
        ids = [_unique(wanted, spare_id(entry.seq, i), taken) for i, wanted in enumerate(ids)]
        calls = tuple(replace(call, id=one) for call, one in zip(messages[0].tool_calls, ids, strict=True))
        results = (replace(result, tool_call_id=one) for result, one in zip(messages[1:], ids, strict=True))
        messages = (replace(messages[0], tool_calls=calls), *results)
    taken.update(ids)
    return messages


def _unique(wanted: str, instead: str, taken: set[str]) -> str:
    unique = instead if wanted in taken else wanted
    while unique in taken:
        unique += "_"
    taken.add(unique)
    return unique


def _append(messages: list[Message], more: tuple[Message, ...]) -> None:
    """Add the messages of an entry. User messages that follow each other are joined, assistant messages parted."""
    previous, role = messages[-1].role if messages else "system", more[0].role
    if role == "user" and previous == "user":
        messages[-1] = replace(messages[-1], text=f"{messages[-1].text}\n\n{more[0].text}")
        return
    if role == "assistant" and previous in ("system", "assistant"):
        messages.append(Message(role="user", text=BEGIN if previous == "system" else CONTINUE))
    messages += more


def _wire(messages: tuple[Message, ...]) -> Iterator[str]:
    """The messages as one text in the order in which a provider reads them; marks are no part of it, a tail is last."""
    for message in messages:
        yield canonical(replace(message, cache_mark=False, tail="")).decode()
        yield message.tail
