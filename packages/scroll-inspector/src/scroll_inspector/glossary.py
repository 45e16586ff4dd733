"""The words of the pages that a reader may not know, with their meaning in one or two sentences.

A page shows the meaning when the reader presses the word (the macro `term` in parts.html). The
words are those of docs/glossary.md; a test compares them.
"""

TERMS = {
    "eviction": (
        "Moving old steps out of the request, to the index, because the window fills up. "
        "Nothing is deleted: every event stays in the log."
    ),
    "plan": (
        "The recorded decision of one eviction: which results become stubs, and which steps "
        "move to the index."
    ),
    "high mark": "The share of the window at which an eviction starts.",
    "low mark": "The share of the window down to which an eviction removes steps.",
    "window": "The number of tokens that the model can take in one request.",
    "stub": (
        "One line in place of a long result. It says how the call ended and names the seq "
        "under which the model can get the result back."
    ),
    "fold": "Replacing a result with a stub.",
    "index": (
        "The list of the steps that left, at the beginning of the request. Each line names "
        "the seqs that it stands for."
    ),
    "level": (
        "The index has levels. The finest has the newest lines; when a level is full, its "
        "lines are joined into fewer, coarser ones on the next level."
    ),
    "variable list": (
        "The lines at the end of a request that describe the variables of the session. They "
        "are sent with the newest message only."
    ),
    "estimate": (
        "A token count made by Scroll before sending. The provider counts in another way; "
        "Scroll learns the ratio from its answers, so in estimated tokens the marks move a "
        "little."
    ),
    "seq": "The number of an event in the log. It never changes.",
}
