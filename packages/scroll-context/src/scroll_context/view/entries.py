"""The entries of a working view: user messages, steps and notices, as frozen values with their
addresses and costs.

Values here never change in place and never reach outside themselves; `WorkingView` decides what
happens to them. A session records a reply as one event that names its calls. A captured or imported
transcript has a line for each part, so its text and each of its calls are events of their own.
`ForeignReplies` finds those that belong together: nothing else stands between them, and they name
the same reply of the provider.
"""

import msgspec
from msgspec.structs import force_setattr, replace

from scroll_context.events import Event, Kind
from scroll_context.messages import Message
from scroll_context.origin import REPLY_ID
from scroll_context.view.headline import FIELD_CHARS, Headline, headline
from scroll_context.view.passage import Passage
from scroll_context.view.steps import Step
from scroll_context.view.tokens import MESSAGE_TOKENS, estimate
from scroll_context.view.wording import MARK


class _MessageEntry(msgspec.Struct, frozen=True):
    """An entry that is one message."""

    body: Passage
    # Seq of the user message that began the turn: its own, unless it continues a turn.
    turn: int

    @property
    def seq(self) -> int:
        return self.body.seq

    @property
    def last(self) -> int:
        return self.body.seq


class UserMessage(_MessageEntry, frozen=True):
    """A message of the user.

    `gone` is the span of its steps that left the view, and how many they were.
    """

    gone: tuple[int, int, int] | None = None
    # The steps that left without success.
    undone: int = 0
    # False in an imported history: nothing in it is a standing instruction.
    is_from_user: bool = True
    # Counted here; a value that is given is ignored.
    tokens: int = 0

    def __post_init__(self) -> None:
        force_setattr(self, "tokens", self.body.tokens + MESSAGE_TOKENS + estimate(self.marker))

    @property
    def marker(self) -> str:
        """The text in place of the steps that left."""
        return self._steps_moved("this")

    @property
    def note(self) -> str:
        """The marker as it stands in the index of a host, away from the message."""
        return self._steps_moved(f"the request at seq {self.seq}")

    def _steps_moved(self, subject: str) -> str:
        if self.gone is None:
            return ""
        first, last, count = self.gone
        return self.body.words.steps_moved((first, last), count, self.undone, subject)

    @property
    def own_messages(self) -> tuple[Message, ...]:
        """The message alone, without the marker."""
        return (Message(role="user", text=self.body.sent_text, media=self.body.sent_media),)

    @property
    def messages(self) -> tuple[Message, ...]:
        text, marker = self.body.sent_text, self.marker
        if marker:
            text = f"{text}\n\n{marker}"
        return (Message(role="user", text=text, media=self.body.sent_media),)

    def headline(self) -> Headline:
        return headline(f"user: {self.body.shown[: FIELD_CHARS * 2]}", status="asked")

    def losing(self, entry: "Step | Notice", undone: bool) -> "UserMessage":
        """The message after `entry` of its turn left the view.

        `undone` says that the entry is a step that did not succeed.
        """
        first, last, count = self.gone or (entry.seq, entry.last, 0)
        if isinstance(entry, Step):
            count += 1
        gone = (min(first, entry.seq), max(last, entry.last), count)
        return replace(self, gone=gone, undone=self.undone + undone)


class Notice(_MessageEntry, frozen=True):
    """A message from Scroll to the model; role user on the wire, never the user's words."""

    @property
    def tokens(self) -> int:
        return self.body.tokens + MESSAGE_TOKENS

    @property
    def messages(self) -> tuple[Message, ...]:
        return (Message(role="user", text=self.body.sent_text),)

    def headline(self) -> Headline:
        return headline("notice", self.body.shown[len(MARK) : FIELD_CHARS * 2], status="told")


Entry = UserMessage | Step | Notice


def passages(entry: Entry) -> tuple[Passage, ...]:
    """The texts of an entry that can be folded or clipped by themselves.

    Those of a step are its results, not its reply.
    """
    if isinstance(entry, Step):
        return tuple(result.body for result in entry.results if result)
    return (entry.body,)


# replies of a foreign history ---------------------------------------------------------------------


def is_part_of_reply(event: Event) -> bool:
    """Whether an event is the text of a reply or one of its calls."""
    if event.kind == Kind.TOOL_CALL:
        return "inside_cell" not in event.metadata
    return event.kind == Kind.CONVERSATION and event.role == "assistant"


class ForeignReplies(msgspec.Struct):
    """Follows the events of a session, and groups those of foreign replies."""

    # The first event of the newest reply; 0 before the first one, and after a user message.
    seq: int = 0
    reply_id: str = ""
    is_answered: bool = False

    def first_of(self, event: Event) -> int:
        """The seq of the first event of the reply that a foreign text or call is part of."""
        reply_id = str(event.metadata.get(REPLY_ID, ""))
        is_same_reply = not self.is_answered
        if reply_id and self.reply_id:
            is_same_reply = reply_id == self.reply_id
        if not (self.seq and event.kind == Kind.TOOL_CALL and is_same_reply):
            self.seq, self.reply_id, self.is_answered = event.seq, reply_id, False
        return self.seq

    def pass_by(self, event: Event) -> None:
        """Take note of an event that is not part of a foreign reply."""
        if event.kind == Kind.TOOL_RESULT:
            self.is_answered = True
        elif event.kind == Kind.CONVERSATION:
            self.seq = 0
