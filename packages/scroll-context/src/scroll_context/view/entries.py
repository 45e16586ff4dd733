"""The entries of a working view: user messages, steps and notices, as frozen values with their
addresses and costs.

Values here never change in place and never reach outside themselves; `WorkingView` decides what
happens to them.
"""

import msgspec
from msgspec.structs import force_setattr, replace

from scroll_context.messages import Message
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
