"""The names in the metadata of events that Scroll gives a meaning to. This is the only list.

Metadata is open: hosts and imports may record anything there. A name of this table means something
to Scroll, so metadata that an import brings under it is set aside and has no effect (foreign.py).
A name with `is_structure` describes how the events of a session belong together: an export of a
store keeps it, and any other file cannot use it. Where a name holds seqs, `seqs` says in which
form, and a merge changes them to the addresses in the new log (upkeep/addresses.py).

A test finds names that the code reads and that are missing here.
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
    """A name with a meaning: for exports too, and with seqs as its value or not."""

    is_structure: bool = False
    seqs: Literal["", "one", "list"] = ""


_PLAIN = MetadataName()
_STRUCTURE = MetadataName(is_structure=True)

NAMES: dict[str, MetadataName] = {
    # Where an event comes from, and what happened to it on the way.
    "captured": _PLAIN,
    "host_id": _PLAIN,
    "imported": _PLAIN,
    "moved_from": _PLAIN,
    "named_there": _PLAIN,
    "altered": _PLAIN,
    "replaced_surrogates": _PLAIN,
    DAMAGED: _PLAIN,
    UNREDACTED: _PLAIN,
    PAYLOAD_MISSING: _PLAIN,
    SET_ASIDE: _PLAIN,
    # Events that repeat history, and events of the log about itself.
    "echo": _PLAIN,
    "erased": _PLAIN,
    "rule": _PLAIN,
    "spans": _PLAIN,
    "kind": _PLAIN,
    # Sessions, forks and settings.
    "session_id": _PLAIN,
    "settings": _PLAIN,
    "context": _PLAIN,
    "earlier": _PLAIN,
    "lost": _PLAIN,
    "at_seq": MetadataName(seqs="one"),
    # Requests, evictions and retractions.
    "digest": _PLAIN,
    "hash": _PLAIN,
    "plan": _PLAIN,
    "renderer": _PLAIN,
    "retraction": _PLAIN,
    "tools": _PLAIN,
    "window": _PLAIN,
    "upto": MetadataName(seqs="one"),
    # Messages of hosts in their exact bytes.
    "wire": _PLAIN,
    "wire_seq": MetadataName(seqs="one"),
    # Replies, cells and tool calls.
    "bound": _STRUCTURE,
    "bytes": _STRUCTURE,
    "continues": _STRUCTURE,
    "cost": _STRUCTURE,
    "cut": _STRUCTURE,
    "shape": _PLAIN,
    "effects": _STRUCTURE,
    "tokens": _STRUCTURE,
    "tool_calls": _STRUCTURE,
    "unknown": _STRUCTURE,
    "usage": _STRUCTURE,
    "inside_cell": MetadataName(is_structure=True, seqs="one"),
    "made_from": MetadataName(is_structure=True, seqs="list"),
    "seqs": MetadataName(is_structure=True, seqs="list"),
}

RESERVED = frozenset(name for name, use in NAMES.items() if not use.is_structure)
"""Names that no import may use."""

STRUCTURE = frozenset(name for name, use in NAMES.items() if use.is_structure)
"""Names that only an export of a store may use."""

SEQ_NAMES = tuple(name for name, use in NAMES.items() if use.seqs == "one")
SEQ_LIST_NAMES = tuple(name for name, use in NAMES.items() if use.seqs == "list")
