"""A passage: one text under one seq, shown in full, clipped, or folded.

A clipped passage shows head and tail around a note; a folded one is a one-line stub. Both marks
name the seq and the call that returns the complete text, both are smaller than what they replace,
and repeating either changes nothing.

What is shown of a text does not depend on where the log keeps it. The text of a payload comes in as
an excerpt that somebody else has read: all of it, or both ends of a text that no window could take.

A host has the message already. To it, an event is shown as that message or with another text in its
place (`Shown`); view/layout.py puts these together.
"""

from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from scroll_context.contents import MediaFacts, media_of
from scroll_context.events import Event, Excerpt
from scroll_context.messages import Media, ToolCall
from scroll_context.text.stance import Statement, statements
from scroll_context.text.terms import CountedTurn, counted_turn, title_sentences
from scroll_context.view.headline import cut
from scroll_context.view.outcome import OUTCOME_CHARS
from scroll_context.view.tokens import estimate
from scroll_context.view.wording import BLANK, CELLS, Words

STUB_CHARS = 48
"""Characters of an outcome in the stub of a short text."""
LABEL_CHARS = 60
"""Characters of a call's name and state in its stub."""
TOPIC_CHARS = 1_500
"""Characters of a text that are read for its terms."""
HELD_CHARS = 32 * 1024
"""Characters of a clipped text that a view keeps in memory, unless it shows more."""


class Form(StrEnum):
    """How much of a text is shown."""

    FULL = "full"
    CLIPPED = "clipped"
    FOLDED = "folded"


class Passage(msgspec.Struct, frozen=True, dict=True):
    """One text under one seq.

    `text` is what the view holds of it: all, or after a clip its two ends, which are enough for
    every later clip. A folded passage holds nothing.
    """

    seq: int
    text: str
    shown: str
    # The size of the complete text, for a reader.
    extent: str
    tokens: int
    form: Form = Form.FULL
    # Where `left_out` characters of the complete text are missing in `text`.
    cut: int = 0
    left_out: int = 0
    words: Words = CELLS
    # Images and files that are shown with the text, so none once it is folded or clipped; `tokens`
    # counts them.
    media: tuple[MediaFacts, ...] = ()

    @property
    def length(self) -> int:
        return len(self.text)

    @cached_property
    def topic_terms(self) -> CountedTurn:
        """The terms of the beginning of the text.

        Kept, because each eviction compares all texts that are shown. They are counted when the
        text is new, so that no eviction has to count all of them at once.
        """
        return counted_turn(self.text[:TOPIC_CHARS])

    @cached_property
    def topic_sentences(self) -> list[str]:
        """The sentences from the beginning of the text, of which its title is made. Kept too."""
        return title_sentences(self.text[:TOPIC_CHARS])

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """The instructions, preferences and decisions in a message of the user. Kept too."""
        return tuple(statements(self.text))

    @property
    def sent_text(self) -> str:
        """The text as it is sent: providers refuse a blank one, unless an image is with it."""
        return self.shown if self.shown.strip() or self.media else BLANK

    @property
    def sent_media(self) -> tuple[Media, ...]:
        """The images and files by digest: the view has no disk to read their bytes."""
        return tuple(
            Media(media_type=item.media_type, name=item.name, url=item.url, digest=item.digest)
            for item in self.media
        )

    def folded(self, label: str, report: str = "") -> "Passage":
        """The one-line stub for this passage, or the passage itself if a stub is not smaller.

        The outcome takes a share of the text that the stub replaces; if even that is not smaller,
        the stub has none.
        """
        if self.form is Form.FOLDED:
            return self
        short_label = cut(label, LABEL_CHARS)
        if report:
            room = min(OUTCOME_CHARS, max(STUB_CHARS, len(self.shown) // 8))
            stub = self._stub(f"{short_label}: {cut(report, room)}")
            if self._is_smaller(stub):
                return stub
        stub = self._stub(short_label)
        return stub if self._is_smaller(stub) else self

    def _stub(self, label: str) -> "Passage":
        stub = self.words.stub(self.seq, label, self.extent)
        return replace(self, text="", shown=stub, tokens=estimate(stub), form=Form.FOLDED, media=())

    def clipped(self, chars: int) -> "Passage":
        """About `chars` characters of head and tail around a note, and a note for each image.

        The passage itself, if that is not smaller.
        """
        is_short = len(self.text) <= chars
        if self.form is Form.FOLDED or (is_short and not self.media):
            return self
        shown = self.text
        if not is_short:
            head, left_out, tail = self._ends(chars)
            shown = f"{head}\n{self.words.clip_note(self.seq, left_out, self.extent)}\n{tail}"
        parts = [shown] if shown else []
        parts += [self.words.media_note(item.seq or self.seq, item.label) for item in self.media]
        shown = "\n".join(parts)
        clipped = replace(self, shown=shown, tokens=estimate(shown), form=Form.CLIPPED, media=())
        return clipped._holding(max(chars, HELD_CHARS)) if self._is_smaller(clipped) else self

    def _ends(self, chars: int) -> tuple[str, int, str]:
        """The two ends of the text in about `chars` characters, and how many of the complete text
        are between them.
        """
        head = chars * 2 // 3
        tail = chars - head
        if self.left_out:
            head, tail = min(head, self.cut), min(tail, len(self.text) - self.cut)
        rest = len(self.text) - head - tail
        return self.text[:head], self.left_out + rest, self.text[len(self.text) - tail :]

    def _holding(self, chars: int) -> "Passage":
        """The passage with no more of its text in memory than this."""
        if len(self.text) <= chars:
            return self
        head, left_out, tail = self._ends(chars)
        return replace(self, text=head + tail, cut=len(head), left_out=left_out)

    def _is_smaller(self, other: "Passage") -> bool:
        """Whether another form of this passage is smaller."""
        if other.tokens >= self.tokens:
            return False
        # An image leaves for a note, which is longer than the text beside it.
        return bool(self.media) or len(other.shown) < len(self.shown)


class Clip(NamedTuple):
    """The rule by which the strings of one value are clipped."""

    chars: int
    seq: int
    extent: str
    words: Words

    def text(self, text: str) -> str:
        """Head and tail of a text around a note that says what is missing and how to get it."""
        if len(text) <= self.chars:
            return text
        head = self.chars * 2 // 3
        tail = self.chars - head
        note = self.words.clip_note(self.seq, len(text) - self.chars, self.extent)
        return f"{text[:head]}\n{note}\n{text[len(text) - tail :]}"

    def strings(self, value: Any) -> Any:
        """A JSON value with every long string clipped."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.strings(item) for item in value]
        if isinstance(value, dict):
            return {key: self.strings(item) for key, item in value.items()}
        return value


def passage(
    event: Event, excerpt: Excerpt | None = None, prefix: str = "", words: Words = CELLS
) -> Passage:
    """The passage of an event.

    `excerpt` is the text of its payload; without it, a preview is shown as clipped.
    """
    media = media_of(event)
    payload = event.payload
    is_media = bool(media) and payload is not None and not payload.is_text
    if payload is not None and excerpt is None and not is_media:
        return _preview(event, f"{payload.size:,} bytes", prefix, words)
    excerpt = excerpt or Excerpt(event.content)
    left_out = excerpt.left_out
    text = prefix + excerpt.text
    length = len(excerpt.text) + left_out
    extent = ", ".join([f"{length:,} characters", *(item.label for item in media)])
    shown, form, cut_at = text, Form.FULL, 0
    if left_out:
        cut_at = len(prefix) + excerpt.cut
        shown = f"{text[:cut_at]}\n{words.clip_note(event.seq, left_out, extent)}\n{text[cut_at:]}"
        form = Form.CLIPPED
    return Passage(
        event.seq,
        text,
        shown,
        extent,
        estimate(shown) + sum(item.tokens for item in media),
        form,
        cut_at,
        left_out,
        words,
        media,
    )


def _preview(event: Event, extent: str, prefix: str, words: Words) -> Passage:
    """The passage of a payload that was not read."""
    text = f"{prefix}{event.content}\n{words.preview_note(event.seq, extent)}"
    return Passage(event.seq, text, text, extent, estimate(text), Form.CLIPPED, words=words)


# passages for hosts -------------------------------------------------------------------------------


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
