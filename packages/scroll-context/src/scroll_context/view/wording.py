"""The words that Scroll itself puts into a request: stubs, clip notes, markers, frame of the index.

They stand here once, for the view, the inspector, the demo and the evaluations. `Words` holds the
names under which the model of a session gets recorded content back. A stub must name a call that
exists in that session: `ms.expand` where the model writes cells, a tool such as `expand` where it
does not, and none where nothing can be recovered.
"""

import msgspec

MARK = "[scroll: "
"""How every text begins that Scroll itself writes into a view."""

NO_RESULT = MARK + "no result was recorded for this call; it may have been interrupted]"
BLANK = MARK + "empty]"
NOTICE = MARK + "notice] "
CONTINUE = MARK + "nothing new was said; continue from the state above]"
BEGIN = MARK + "the conversation begins with the assistant]"
SEAM = (
    MARK
    + "end of the index. The live conversation follows; work on the newest user request below.]"
)
HOST_SEAM = (
    MARK + "end of the index. The conversation continues; work on the newest request of the user.]"
)
STATE = (
    MARK + "state of the work up to seq {}, by rules from the record; newer steps are below. "
    "Notes about what happened, not requests.]"
)
STANDING = (
    "what the user asked for once and for all, newest last. "
    "Quoted lines come from an imported history."
)
PREFERENCES = (
    "preferences and decisions of the user, newest last; those about one subject stand together."
)


def without_marks(text: str) -> str:
    """Words of a model, a tool or a user, which must not look like a text that Scroll wrote."""
    return text.replace("[scroll:", "(scroll:")


class Words(msgspec.Struct, frozen=True):
    """How the model of a session gets recorded content back."""

    # The names of the calls, "" where there is none.
    expand: str = "ms.expand"
    search: str = "ms.search"
    standing: str = "ms.standing"
    # Where evicted steps go.
    moved: str = "moved to the index"

    @property
    def header(self) -> str:
        """The first line of the index."""
        return (
            f"{MARK}index of earlier work that is no longer shown. Nothing is lost: each line "
            f"names the seqs it stands for, {self.expand}(lo, hi) returns them word for word, and "
            f"{self.search}(query) finds them by content. Oldest first; lines are notes about what "
            "happened, not requests. A task stands above its steps.]"
        )

    def more_standing(self, count: int) -> str:
        """The end of the line above the standing instructions, if `count` have no room there."""
        if not count or not self.standing:
            return ""
        return f" {count} older ones: {self.standing}(topic)."

    @property
    def all_standing(self) -> str:
        """The end of the line above the preferences, which are never all that there are."""
        return f" {self.standing}(topic) has all." if self.standing else ""

    def stub(self, seq: int, label: str, extent: str) -> str:
        """The text in place of a folded result: how it ended, its size, the call that returns it.

        There is one for each step, so every word counts.
        """
        call = f" · {self.expand}({seq})" if self.expand else ""
        return f"{MARK}folded seq {seq} · {label} · {extent}{call}]"

    def clip_note(self, seq: int, left_out: int, extent: str) -> str:
        """The note between the two ends of a clipped text."""
        missing = f"{left_out:,} characters of {extent} are not shown"
        return f"{MARK}clipped seq {seq} · {missing}{self._returns(seq, 'all')}]"

    def preview_note(self, seq: int, extent: str) -> str:
        """The note below the preview of a payload that was not read."""
        return f"{MARK}clipped seq {seq} · not all of {extent} is shown{self._returns(seq, 'all')}]"

    def media_note(self, seq: int, label: str) -> str:
        """The text in place of an image or a file."""
        return f"{MARK}{label}, seq {seq}, is not shown{self._returns(seq, 'it')}]"

    def steps_moved(self, span: tuple[int, int], count: int, undone: int, subject: str) -> str:
        """The text in place of the steps of a turn that left the view."""
        steps = "1 step" if count == 1 else f"{count} steps"
        again = "not to be done again"
        if undone:
            others = f", the others are {again}" if undone < count else ""
            again = f"{undone} did not succeed{others}"
        return (
            f"{MARK}{steps} of work on {subject}, seq {span[0]}-{span[1]}, {self.moved}; {again}]"
        )

    def _returns(self, seq: int, what: str) -> str:
        return f" · {self.expand}({seq}) returns {what}" if self.expand else ""


CELLS = Words()
"""For a model that writes cells with `ms`."""


def tool_words(prefix: str = "") -> Words:
    """For a model that recalls with plain tools, whose names begin with `prefix`."""
    return Words(f"{prefix}expand", f"{prefix}search", "")
