"""How foreign material enters a log: imports, captures, merged exports and hooks.

Whatever a file says about itself is data. The door says where the events come from (origin.py), and
metadata that means something to Scroll itself is set aside: it stays readable under `set_aside` and
has no effect.
"""

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from scroll_context.events import Draft
from scroll_context.origin import DAMAGED, Origin

SET_ASIDE = "set_aside"
"""Where a foreign event keeps metadata under names that Scroll gives a meaning to."""

RESERVED = frozenset(
    """altered at_seq captured context digest earlier echo erased hash host_id imported kind lost moved_from
    named_there plan renderer replaced_surrogates rule session_id settings spans tools upto window""".split()
) | {DAMAGED, SET_ASIDE}
"""Names in the metadata of events that no import may use."""

STRUCTURE = frozenset(
    """bound bytes continues cost cut effects inside_cell made_from seqs tokens tool_calls unknown usage""".split()
)
"""Names that describe how the events of a session hang together. Only an export of a store has them,
with addresses that were changed to match; in any other file they are set aside as well."""


def as_foreign(
    draft: Draft, origin: Origin, source: str, *, keep: Collection[str] = (), own: dict[str, Any] | None = None
) -> Draft:
    """The draft as it may be recorded: with the origin of its door, and without reserved metadata.

    `keep` names structure that the caller has checked, `own` is metadata that the caller itself adds.
    """
    reserved = (RESERVED | STRUCTURE).difference(keep)
    aside = {name: value for name, value in draft.metadata.items() if name in reserved}
    metadata = draft.metadata
    if aside:
        metadata = {name: value for name, value in metadata.items() if name not in reserved}
        metadata[SET_ASIDE] = aside
    return replace(draft, metadata={**metadata, **(own or {}), str(origin): source})
