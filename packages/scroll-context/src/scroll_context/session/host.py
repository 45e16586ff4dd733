"""The values that pass between a session and a host: the host's messages in, a layout out.

A host is a program that keeps its own list of messages: a framework, a gateway, a wrapped client.
It describes each message with a `HostMessage` and gets a `Layout` back, which says for each of them
whether it is sent as it is, sent with another text, or left out, and where text of Scroll's own is
inserted. Scroll decides what leaves; everything else is sent as the host's own objects, which
Scroll never looks into. So images, unknown parts, the order of blocks and a provider's cache marks
stay exactly as the host has them.

This module holds values only. `session/follow.py` compares a host's list with the record, and
`Session.follow` makes the layout.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from scroll_context.messages import Media, Role, Thinking, ToolCall


class HostMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a host, described for Scroll.

    A message of the host that holds several things becomes several HostMessages in a row: each tool
    result is one, and so is the user's text beside it. A reply stays one, with its text and all of
    its tool calls, as it is reported to `Session.replied`.

    >>> from scroll_context.hosts import HostMessage
    >>> HostMessage(role="tool", call_id="c1", name="read", text="no such file", state="error").role
    'tool'
    """

    role: Role
    text: str = ""
    # The tool calls of an assistant message.
    calls: tuple[ToolCall, ...] = ()
    # The call that a tool message answers, and the name of its tool.
    call_id: str = ""
    name: str = ""
    # How the call ended, as the host says.
    state: Literal["ok", "error"] = "ok"
    media: tuple[Media, ...] = ()
    # Reasoning that an assistant message carries.
    thinking: tuple[Thinking, ...] = ()
    # A reminder, or other text that is not a request of the user. A system message without this
    # mark belongs to the system prompt: it is always kept, and it is not recorded.
    notice: bool = False
    # A recall call or its result, which only repeats history: search never returns it.
    echo: bool = False
    # The host's own id of the message, "" where it has none.
    id: str = ""
    # The host's own object, for the adapter. Scroll never reads it.
    wire: Any = None
    # The exact bytes of the message on the wire, where there are any. For several HostMessages
    # with one `wire`, each has its own slice, and the slices in order are the complete message.
    raw: bytes = b""


class Keep(msgspec.Struct, frozen=True, gc=False):
    """Send message `index` as it is; without its reasoning blocks if `thinking` is False.

    >>> from scroll_context.hosts import Keep
    >>> Keep(0).thinking
    True
    """

    index: int
    thinking: bool = True


class Replace(msgspec.Struct, frozen=True):
    """Send message `index` with this text in place of its content: media leave with the old text.

    `calls` are the tool calls of an assistant message with shortened arguments, in order; empty if
    the calls stay as they are. The reasoning blocks of a replaced message leave.

    >>> from scroll_context.hosts import Replace
    >>> Replace(4, "[scroll: folded seq 9 · read ok · 8,000 characters]").index
    4
    """

    index: int
    text: str
    calls: tuple[ToolCall, ...] = ()


class Drop(msgspec.Struct, frozen=True, gc=False):
    """Leave message `index` out.

    >>> from scroll_context.hosts import Drop
    >>> Drop(3).index
    3
    """

    index: int


class Insert(msgspec.Struct, frozen=True, gc=False):
    """Send a user message with this text here. `is_index` marks the index of evicted steps, where
    a cache mark is worth having.

    >>> from scroll_context.hosts import Insert
    >>> Insert("[scroll: notice] The disk is nearly full.").is_index
    False
    """

    text: str
    is_index: bool = False


Item = Keep | Replace | Drop | Insert


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The request to send: one item for each message of the host's list, in order, and insertions.

    >>> from scroll_context import Session, Store
    >>> from scroll_context.hosts import HostMessage
    >>> with Store("work.scroll", create=True) as store, Session.open(store) as session:
    ...     layout = session.follow([HostMessage(role="user", text="hello")])
    >>> list(layout)
    [Keep(index=0, thinking=True)]
    """

    items: tuple[Item, ...]
    # The variable list, sent after everything else, in this request only.
    tail: str = ""
    # The address of each message of the list; 0 for system messages.
    seqs: tuple[int, ...] = ()
    # The address of the recorded request, and a hash of what the layout shows.
    request: int = 0
    hash: str = ""
    # Estimated tokens of the request.
    tokens: int = 0
    # Whether this request begins with other text than the request before: something was evicted.
    evicted: bool = False

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    @property
    def is_unchanged(self) -> bool:
        """Whether the host's list is sent exactly as it is."""
        return not self.tail and all(
            isinstance(item, Keep) and item.thinking for item in self.items
        )
