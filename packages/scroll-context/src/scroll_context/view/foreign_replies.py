"""Which events of a captured or imported history form one reply.

A session records a reply as one event that names its calls. A transcript has a line for each part,
so its text and each of its calls are events of their own. They belong together while nothing else
stands between them, and as long as they name the same reply of the provider.
"""

import msgspec

from scroll_context.events import Event, Kind
from scroll_context.origin import REPLY_ID


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
