"""The names in the metadata of events that Scroll gives a meaning to. This is the only list.

Metadata is open: hosts and imports may record anything there. A name of this list means something
to Scroll, so metadata that an import brings under it is set aside and has no effect (foreign.py).
Scroll's own exports may bring the names in EXPORTED, because they only describe what happened; any
other file cannot. SEQ_NAMES and SEQ_LIST_NAMES hold seqs, which a merge changes to the addresses in
the new log (upkeep/addresses.py).

A test finds names that the code reads and that are missing here. The shapes of the values are in
contents.py (`_SHAPES`).
"""

from scroll_context.origin import DAMAGED, UNREDACTED

SET_ASIDE = "set_aside"
"""Where a foreign event keeps metadata under names that Scroll gives a meaning to."""

PAYLOAD_MISSING = "payload_missing"
"""Set for an event of a foreign export that names a body and does not bring it: it has none here.
"""

RESERVED = frozenset(
    (
        # Where an event comes from, and what happened to it on the way.
        "captured",
        "host_id",
        "imported",
        "moved_from",
        "named_there",
        "altered",
        "replaced_surrogates",
        DAMAGED,
        UNREDACTED,
        PAYLOAD_MISSING,
        SET_ASIDE,
        # Events that repeat history, and events of the log about itself.
        "echo",
        "erased",
        "rule",
        "spans",
        "kind",
        # Sessions, forks and settings.
        "session_id",
        "settings",
        "context",
        "earlier",
        "lost",
        "at_seq",
        # Requests, evictions and retractions.
        "digest",
        "hash",
        "plan",
        "renderer",
        "retraction",
        "tools",
        "window",
        "upto",
        # Messages of hosts in their exact bytes.
        "wire",
        "wire_seq",
        # The model reads a shape as a fact about the tool.
        "shape",
    )
)
"""Names that no import may use."""

EXPORTED = frozenset(
    (
        # Replies, cells and tool calls.
        "bound",
        "bytes",
        "continues",
        "cost",
        "cut",
        "effects",
        "tokens",
        "tool_calls",
        "unknown",
        "usage",
        "inside_cell",
        "made_from",
        "seqs",
    )
)
"""Names that only an export of a store may use."""

SEQ_NAMES = ("at_seq", "upto", "wire_seq", "inside_cell")
"""Names that hold one seq."""

SEQ_LIST_NAMES = ("made_from", "seqs")
"""Names that hold a list of packed seqs (`events.packed_seqs`)."""
