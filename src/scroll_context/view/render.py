"""A view as the messages that a provider receives, in an order that keeps the cached prefix whole.

System prompt (constant); one user message with the index and the seam (changed only by an eviction); the live turns
(append-only); and, as the `tail` of the newest message, the namespace digest. A tail is sent after its message in
this request only: the next request holds the same message without it, so everything before stays byte for byte the
same. The cache marks stand where that prefix ends: after the index, and after the newest message.

Whatever the history was, the messages are valid: the first after the system prompt is the user's, calls and results
come in pairs under ids that are unique in the request, user and assistant alternate, no text is blank. Nothing
rendered here is ever stored as conversation.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from scroll_context.messages import Message, Thinking, ToolCall, canonical
from scroll_context.view.index import SEAM
from scroll_context.view.items import MARK, NO_RESULT, Call, Entry, Form, Step, decoded, passages
from scroll_context.view.tokens import MESSAGE_TOKENS, estimate
from scroll_context.view.working import WorkingView

CONTINUE = MARK + "nothing new was said; continue from the state above]"
BEGIN = MARK + "the conversation begins with the assistant]"
BLANK = MARK + "empty]"


class Rendered(msgspec.Struct, frozen=True):
    """A request ready for a provider, and what the log keeps of it."""

    messages: tuple[Message, ...]
    hash: str  # sha256 of the messages
    tokens: int  # raw estimate of the messages, without tool schemas
    upto: int  # the last event that the model may have read from it
    visible: frozenset[int]  # seqs shown in full, which search need not return

    def metadata(self) -> dict[str, Any]:
        """What the view needs to find in the metadata of the `request` event; add the tokens of tool schemas."""
        return {"hash": self.hash, "tokens": self.tokens, "upto": self.upto}


def render(view: WorkingView, system: str = "", digest: str = "", *, preface: str | None = None) -> Rendered:
    """The messages for the next call. Costs what the view is long, whatever the session was.

    A `preface` stands in the place of index and seam; whoever gives one keeps room for it in the budget.
    """
    messages = [Message(role="system", text=system)] if system.strip() else []
    body = view.tokens if preface is None else view.entry_tokens + estimate(preface)
    if preface is None:
        preface = f"{view.index.render()}\n\n{SEAM}" if view.index.tiers else ""
    if preface:
        messages.append(Message(role="user", text=preface, cache_mark=True))
    ids = _UniqueIds()
    for entry in view.entries:
        for message in _entry_messages(entry, ids):
            _append(messages, message)
    if not messages or messages[-1].role in ("assistant", "system"):
        messages.append(Message(role="user", text=CONTINUE))
    messages[-1] = replace(messages[-1], cache_mark=True, tail=digest.strip())
    tokens = body + sum(estimate(text) + MESSAGE_TOKENS for text in (system, digest) if text.strip())
    visible = frozenset(seq for entry in view.entries for seq in _seqs_in_full(entry))
    digest_hash = hashlib.sha256(canonical(messages)).hexdigest()
    return Rendered(tuple(messages), digest_hash, tokens, view.last_seq, visible)


def shared_prefix(before: Rendered, after: Rendered) -> float:
    """The share of `after` that a provider can take from its cache of `before`, by characters."""
    a, b = ("".join(_wire(rendered.messages)) for rendered in (before, after))
    lo, hi = 0, min(len(a), len(b))
    while lo < hi:
        middle = (lo + hi + 1) // 2
        lo, hi = (middle, hi) if a[lo:middle] == b[lo:middle] else (lo, middle - 1)
    return lo / len(b) if b else 1.0


class _UniqueIds:
    """Ids of calls made unique within one request: some providers give every call of a model the same one."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, wanted: str, seq: int, position: int) -> str:
        unique = wanted or f"call_{seq}_{position}"
        while unique in self._taken:
            unique = f"call_{seq}_{position}" if unique == wanted else unique + "_"
        self._taken.add(unique)
        return unique


def _entry_messages(entry: Entry, ids: _UniqueIds) -> Iterator[Message]:
    if not isinstance(entry, Step):
        marker = getattr(entry, "marker", "")
        said = _said(entry.body.shown)
        yield Message(role="user", text=f"{said}\n\n{marker}" if marker else said)
        return
    reply = entry.reply
    calls = tuple(
        ToolCall(ids.take(call.id, entry.seq, i), call.name or "unknown", _object(call), call.provider, call.opaque)
        for i, call in enumerate(reply.calls)
    )
    text = reply.body.shown if reply.body.shown.strip() else "" if calls else BLANK
    yield Message(role="assistant", text=text, tool_calls=calls, thinking=tuple(_thinking(reply.thinking)))
    for call, result in zip(calls, entry.results, strict=True):
        shown = _said(result.body.shown) if result else NO_RESULT
        yield Message(role="tool", text=shown, tool_call_id=call.id, name=call.name)


def _append(messages: list[Message], message: Message) -> None:
    """Join user messages that follow each other, and part assistant messages that do."""
    previous = messages[-1].role if messages else "system"
    if message.role == "user" and previous == "user":
        messages[-1] = replace(messages[-1], text=f"{messages[-1].text}\n\n{message.text}")
        return
    if message.role == "assistant" and previous in ("system", "assistant"):
        messages.append(Message(role="user", text=BEGIN if previous == "system" else CONTINUE))
    messages.append(message)


def _object(call: Call) -> dict[str, Any]:
    """The arguments as an object, since providers refuse a history that holds anything else."""
    value = decoded(call.shown)
    return value if isinstance(value, dict) else {"arguments": value}


def _thinking(blocks: tuple[dict[str, Any], ...]) -> Iterator[Thinking]:
    for block in blocks:
        with contextlib.suppress(msgspec.ValidationError):  # not ours to repair, and no provider would take it
            yield msgspec.convert(block, Thinking)


def _said(text: str) -> str:
    return text if text.strip() else BLANK


def _seqs_in_full(entry: Entry) -> Iterator[int]:
    yield from (one.seq for one in passages(entry) if one.form is Form.FULL)
    if isinstance(entry, Step):
        if entry.reply.form is Form.FULL:
            yield entry.seq
        for address, call in zip(entry.addresses, entry.reply.calls, strict=True):
            if address and call.shown == call.arguments:
                yield address


def _wire(messages: tuple[Message, ...]) -> Iterator[str]:
    """The messages as one text in the order in which a provider reads them; marks are no part of it, a tail is last."""
    for message in messages:
        yield canonical(replace(message, cache_mark=False, tail="")).decode()
        yield message.tail
