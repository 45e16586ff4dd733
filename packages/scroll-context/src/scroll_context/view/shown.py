"""One event as shown to a host that already has the message: the host's own message, or another
text in its place. `view/layout.py` puts these together.
"""

import msgspec

from scroll_context.messages import ToolCall
from scroll_context.view.passage import Form, Passage


class Shown(msgspec.Struct, frozen=True):
    """One event as shown: the host's own message, or `text` in its place."""

    seq: int
    # The entry of the view that it is part of: a reply and its results are one.
    entry: int
    text: str | None = None
    calls: tuple[ToolCall, ...] = ()
    thinking: bool = True
    # The words of a notice, which are inserted if it is not a message of the host.
    notice: str = ""


def replacement(body: Passage) -> str | None:
    """The text in place of a message; None if the message is shown as it is."""
    return None if body.form is Form.FULL else body.shown
