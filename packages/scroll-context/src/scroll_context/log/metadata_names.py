"""The names in the metadata of events that Scroll gives a meaning to. This is the only list.

Metadata is open: hosts and imports may record anything there. A name of this table means something
to Scroll, so metadata that an import brings under it is set aside and has no effect (foreign.py).
Scroll's own exports may bring a name that is `kept_from_export`, because it only describes what
happened; any other file cannot. Where a name holds seqs, `seqs` says in which form, and a merge
changes them to the addresses in the new log (upkeep/addresses.py).

A test finds names that the code reads and that are missing here. The shapes of the values are in
contents.py (`_SHAPES`).
"""

from typing import Literal

import msgspec

from scroll_context.origin import DAMAGED, UNREDACTED

SET_ASIDE = "set_aside"
"""Where a foreign event keeps metadata under names that Scroll gives a meaning to."""

PAYLOAD_MISSING = "payload_missing"
"""Set for an event of a foreign export that names a body and does not bring it: it has none here.
"""


class MetadataName(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the name is kept when an export of a store brings it, and whether it holds seqs."""

    kept_from_export: bool = False
    seqs: Literal["", "one", "list"] = ""


_OWN = MetadataName()
_FROM_EXPORTS = MetadataName(kept_from_export=True)

NAMES: dict[str, MetadataName] = {
    # Where an event comes from, and what happened to it on the way.
    "captured": _OWN,
    "host_id": _OWN,
    "imported": _OWN,
    "moved_from": _OWN,
    "named_there": _OWN,
    "altered": _OWN,
    "replaced_surrogates": _OWN,
    DAMAGED: _OWN,
    UNREDACTED: _OWN,
    PAYLOAD_MISSING: _OWN,
    SET_ASIDE: _OWN,
    # Events that repeat history, and events of the log about itself.
    "echo": _OWN,
    "erased": _OWN,
    "rule": _OWN,
    "spans": _OWN,
    "kind": _OWN,
    # Sessions, forks and settings.
    "session_id": _OWN,
    "settings": _OWN,
    "context": _OWN,
    "earlier": _OWN,
    "lost": _OWN,
    "at_seq": MetadataName(seqs="one"),
    # Requests, evictions and retractions.
    "digest": _OWN,
    "hash": _OWN,
    "plan": _OWN,
    "renderer": _OWN,
    "retraction": _OWN,
    "tools": _OWN,
    "window": _OWN,
    "upto": MetadataName(seqs="one"),
    # Messages of hosts in their exact bytes.
    "wire": _OWN,
    "wire_seq": MetadataName(seqs="one"),
    # Replies, cells and tool calls.
    "bound": _FROM_EXPORTS,
    "bytes": _FROM_EXPORTS,
    "continues": _FROM_EXPORTS,
    "cost": _FROM_EXPORTS,
    "cut": _FROM_EXPORTS,
    # The model reads a shape as a fact about the tool, so an export cannot bring one either.
    "shape": _OWN,
    "effects": _FROM_EXPORTS,
    "tokens": _FROM_EXPORTS,
    "tool_calls": _FROM_EXPORTS,
    "unknown": _FROM_EXPORTS,
    "usage": _FROM_EXPORTS,
    "inside_cell": MetadataName(kept_from_export=True, seqs="one"),
    "made_from": MetadataName(kept_from_export=True, seqs="list"),
    "seqs": MetadataName(kept_from_export=True, seqs="list"),
}

RESERVED = frozenset(name for name, use in NAMES.items() if not use.kept_from_export)
"""Names that no import may use."""

EXPORTED = frozenset(name for name, use in NAMES.items() if use.kept_from_export)
"""Names that only an export of a store may use."""

SEQ_NAMES = tuple(name for name, use in NAMES.items() if use.seqs == "one")
SEQ_LIST_NAMES = tuple(name for name, use in NAMES.items() if use.seqs == "list")
