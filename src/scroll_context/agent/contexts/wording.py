"""The marks in a view, in the words of a context that recovers things in another way, or not at all.

A view writes its marks for a model that has `ms` and an index. Where there is none of that, the rendered messages are
reworded on their way out; the view, its plans and the log stay the same. New words are never longer than the old, so
what was within budget stays so.
"""

import hashlib
import re

import msgspec
from msgspec.structs import replace

from scroll_context.messages import Message, canonical
from scroll_context.view.entries import MARK
from scroll_context.view.index import HEADER
from scroll_context.view.render import Rendered
from scroll_context.view.working import WorkingView

_RETURNS = re.compile(
    r"(\[scroll: (?:folded|clipped) seq \d+ [^\]\\]{1,160}) · ms\.(expand\(\d+\) returns (?:it|all))\]"
)
_MOVED = re.compile(r"(\[scroll: \d+ steps? of work on this, seq [\d-]+, )moved to the index;")


def reworded(rendered: Rendered, *, ms: str, moved: str = "moved to the index") -> Rendered:
    """The request with `ms` before the names of memory functions; if empty, marks do not say how to recover."""
    wire = msgspec.json.encode(rendered.messages).decode()
    wire = _RETURNS.sub(rf"\1 · {ms}\2]" if ms else r"\1]", wire)
    wire = _MOVED.sub(rf"\1{moved};", wire).replace(HEADER, HEADER.replace("ms.", ms))
    messages = msgspec.json.decode(wire, type=tuple[Message, ...])
    return replace(rendered, messages=messages, hash=hashlib.sha256(canonical(messages)).hexdigest())


def left(view: WorkingView, then: str) -> str:
    """One line about everything that left a view; empty while nothing has."""
    entries = sum(line.entries for line in view.index.lines)
    if not entries:
        return ""
    return f"{MARK}earlier work ({entries} steps and messages) is no longer shown; {then}. The rest follows.]"
