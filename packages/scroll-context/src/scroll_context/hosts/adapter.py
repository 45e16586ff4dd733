"""The part that all framework adapters share: a session that is opened for them, and its tools.

An adapter maps the objects of its framework to `HostMessage`s, applies the layout to the same
objects, and reports the reply. Everything else is here: opening and closing the store and the
session, the tools for recall, the text for the system prompt, and one request at a time.

Each adapter declares the jobs that it does (`Adapter`), and the shared scenario in the tests checks
each of them.
"""

import asyncio
import base64
import binascii
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, Unpack

from scroll_context.errors import BadInput
from scroll_context.messages import Media, ToolCall, ToolSpec
from scroll_context.models.overflow import has_overflow_phrase
from scroll_context.models.protocol import DEFAULT_WINDOW
from scroll_context.recall.memory_tools import recall_tools, tool_specs
from scroll_context.session.host import Drop, HostMessage, Insert, Keep, Layout, Replace
from scroll_context.session.options import SessionParts
from scroll_context.session.prompt import exec_spec, system_prompt
from scroll_context.session.requests import FollowOptions
from scroll_context.session.session import Session
from scroll_context.store import Store

EXEC = "exec"
NO_OBJECT = "not run: the arguments must be a JSON object"
PLAIN_TOOLS = ("search", "expand")
"""The recall tools of a session without cells, under the names that its stubs use."""


class Adapter(Protocol):
    """The jobs of an adapter, also of one that is not a `HostAdapter`."""

    # Requests stay within the window of the model.
    bounds: ClassVar[bool]
    # The history is recorded, searchable and resumable.
    stores: ClassVar[bool]
    # The model can run Python cells in the jail.
    executes: ClassVar[bool]


class Closing:
    """Closes what an adapter opened: with `close`, with `with`, or at the end of Python.

    `_close` is the finalizer that does it, which runs once.
    """

    _close: "weakref.finalize[..., Any]"

    def close(self) -> None:
        """Close what this adapter opened."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HostAdapter(Closing):
    """A session under a framework.

    `place` is a path or an address, a Store, or an open Session. With a path or a Store, the
    session of the given name is resumed, or begun. `close` closes what the adapter opened; an
    adapter that is not closed is closed when Python exits. `window` is for models whose context
    window the framework does not know.

    A model gets the tool `exec`, for cells with `ms`. With
    `options=SessionOptions(context="plain")` no kernel is started, and the model gets the tools
    `search` and `expand`.

    An adapter names this class first among its bases. It needs no `__init__` of its own: values
    that it makes from `specs` are cached properties.

    >>> from scroll_context.hosts import HostAdapter, HostMessage
    >>> with HostAdapter("trip.scroll", "trip", window=8_000) as adapter:
    ...     layout = adapter.follow([HostMessage(role="user", text="Where do we go?")])
    ...     [spec.name for spec in adapter.specs], layout.is_unchanged
    (['exec'], True)
    """

    bounds: ClassVar[bool] = True
    stores: ClassVar[bool] = True
    executes: ClassVar[bool] = True

    def __init__(
        self,
        place: Session | Store | str | Path,
        session: str = "",
        *,
        window: int | None = None,
        **parts: Unpack[SessionParts],
    ) -> None:
        self.window = window
        self._one_at_a_time = threading.Lock()
        if isinstance(place, Session):
            if session or parts:
                raise BadInput(
                    "the session is open already: leave out its name, its options and its tools"
                )
            self.session = place
            self._close = weakref.finalize(self, _closed, None, None)
        else:
            self.session, own_store = _opened(place, session, parts)
            self._close = weakref.finalize(self, _closed, self.session, own_store)
        self._has_cells = self.session.context.actions.exec
        if not self._has_cells:
            recalls = recall_tools(self.session.environment.memory, PLAIN_TOOLS)
            # Some contexts bring these tools themselves.
            own = self.session.environment.toolbox.tools
            self.session.add_tools(tool for tool in recalls if tool.name not in own)

    # for the framework's request ----------------------------------------------------------------

    @property
    def instructions(self) -> str:
        """Text for the end of the framework's system prompt."""
        return system_prompt(self.session, (EXEC,)) if self._has_cells else ""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the model is offered beside the framework's own."""
        if self._has_cells:
            return (exec_spec(EXEC),)
        return tool_specs(recall_tools(self.session.environment.memory, PLAIN_TOOLS))

    def follow(self, messages: Sequence[HostMessage], **options: Unpack[FollowOptions]) -> Layout:
        """`Session.follow` for one request at a time. The window given to the adapter wins.

        System messages of the list are recorded with `system`, as the beginning of the request.
        """
        heads = [message.text for message in messages if is_head(message)]
        options["system"] = joined(options.get("system"), *heads)
        options["window"] = self.window or options.get("window") or DEFAULT_WINDOW
        with self._one_at_a_time:
            return self.session.follow(messages, **options)

    # for the model's calls ----------------------------------------------------------------------

    def answer(self, name: str, arguments: Mapping[str, Any] | str, call_id: str) -> str:
        """Carry out a call of one of `specs`. The call and its result are recorded.

        Arguments that are a text are those of a model that wrote no JSON object.
        """
        if isinstance(arguments, str):
            return NO_OBJECT
        if name == EXEC:
            source = str(arguments.get("source", ""))
            return self.session.run(source, call_id, name=EXEC).content
        event = self.session.call_tool(ToolCall(call_id, name, dict(arguments)))
        return self.session.store.log.text_or_preview(event)

    async def aanswer(self, name: str, arguments: Mapping[str, Any] | str, call_id: str) -> str:
        """Like `answer`, for asyncio. Cancelling the task interrupts the cell."""
        if name == EXEC and not isinstance(arguments, str):
            source = str(arguments.get("source", ""))
            return (await self.session.arun(source, call_id, name=EXEC)).content
        return await asyncio.to_thread(self.answer, name, arguments, call_id)


# for the objects of a framework -----------------------------------------------------------------


AnyMessage = TypeVar("AnyMessage")


def applied(
    layout: Layout,
    messages: Sequence[AnyMessage],
    *,
    inserted: Callable[[str], AnyMessage],
    replaced: Callable[[AnyMessage, Replace], AnyMessage],
    without_reasoning: Callable[[AnyMessage], AnyMessage],
) -> list[AnyMessage]:
    """The messages to send: the framework's own objects wherever nothing is folded.

    For frameworks in which each message of the list is one `HostMessage`.
    """
    sent: list[AnyMessage] = []
    for item in layout:
        match item:
            case Insert():
                sent.append(inserted(item.text))
            case Keep(thinking=True):
                sent.append(messages[item.index])
            case Keep():
                sent.append(without_reasoning(messages[item.index]))
            case Replace():
                sent.append(replaced(messages[item.index], item))
            case Drop():
                pass
    if layout.tail:
        sent.append(inserted(layout.tail))
    return sent


def is_head(message: HostMessage) -> bool:
    """Whether a message belongs to the system prompt."""
    return message.role == "system" and not message.notice


def joined(*texts: str | None) -> str:
    """Texts as paragraphs; those that are empty are left out."""
    return "\n\n".join(text for text in texts if text)


def media_of_base64(text: str, media_type: str, name: str = "") -> Media:
    """A file that a framework keeps as base64."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        # The provider will refuse it. Until then it is a file without content.
        return Media(media_type=media_type, url="unreadable", name=name)
    return Media(media_type=media_type, data=data, name=name)


def is_overflow_error(error: BaseException) -> bool:
    """Whether an error says, in the words of a provider, that the request is too long."""
    return has_overflow_phrase(str(error))


def _opened(
    place: Store | str | Path, session: str, parts: SessionParts
) -> tuple[Session, Store | None]:
    if not session:
        raise BadInput(
            "name the session that keeps this conversation, as in session='trip': a later run "
            "resumes it by that name"
        )
    if isinstance(place, Store):
        return Session.open_or_resume(place, session, **parts), None
    store = Store(place, create=True)
    try:
        return Session.open_or_resume(store, session, **parts), store
    except BaseException:
        store.close()
        raise


def _closed(session: Session | None, store: Store | None) -> None:
    try:
        if session is not None:
            session.close()
    finally:
        if store is not None:
            store.close()
