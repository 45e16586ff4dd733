"""Where an event comes from, and the one answer to "is this the user speaking?".

The origin is set by the code through which an event enters the log, never by the data:

* OWN: said or done in a session of this store;
* HOST: a message of a program that keeps its own list (`Session.follow`);
* CAPTURED: read from the user's own assistant, by a hook, by `import --all`, or from a file that
  the user declared to be their own history (`import --mine`);
* IMPORTED: read from a file that somebody named. Whose words it holds is not known.

It is kept in the metadata of the event, under a key that only our own code writes: `captured` with
the name of the assistant, `imported` with the name of the file, or `host_id`. Whatever an import
brings under these names is set aside first (log/foreign.py), so a file cannot choose its origin.

Format readers tell the user from everybody else by two fields. A message that the user wrote has
role `user` and kind `conversation`. Everything that only looks like one keeps its words and has one
of the kinds in NOT_SPOKEN (a notification, a summary, the prompt of a sub-agent) or another role
than `user` (SPEAKER, for a person in a chat who is not the owner). No reader sets an origin.

The hand-over asks in SQL, since an assistant waits for it and the imports of the log take too long.
So this module imports next to nothing, and a test compares the two forms of the answer.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

LABELS = ("session_id", "agent_id", "task_id", "kind", "role")
"""The texts that say whose an event is and what it is. Filters compare them, and the search index
keeps them as they are.
"""

IMPORT_KEY = "import:"
"""How the source keys of captured and imported events begin."""

DAMAGED = "damaged_metadata"
"""Where a row keeps metadata that can no longer be read, its origin included."""


REPLY_ID = "reply_id"
"""Where a captured event has the provider's id of the reply that it is part of."""

UNREDACTED = "unredacted"
"""Where an event with replaced secrets has a hash of its words before that."""


NOT_SPOKEN = (
    "thinking meta compaction branch document note notice "
    "tool_call tool_result artifact cell observation "
    "session request failure eviction retraction wire snapshot fork salvage erasure foreign"
).split()
"""Kinds in which nobody speaks, whatever their role. Kinds that other programs choose count as
conversation: benchmarks have kinds of their own for user messages."""


class Origin(StrEnum):
    """The way an event entered the log; the values are keys of its metadata."""

    OWN = "own"
    HOST = "host_id"
    CAPTURED = "captured"
    IMPORTED = "imported"


def origin_of(source_key: str, metadata: Mapping[str, Any]) -> Origin:
    """The origin of an event. In doubt it is imported, which is trusted least."""
    if Origin.IMPORTED in metadata or DAMAGED in metadata:
        return Origin.IMPORTED
    if Origin.CAPTURED in metadata:
        return Origin.CAPTURED
    if source_key.startswith(IMPORT_KEY):
        return Origin.IMPORTED
    return Origin.HOST if Origin.HOST in metadata else Origin.OWN


SPEAKER = "speaker"
"""The role of people in a chat who are not the user."""


def is_from_person(kind: str, role: str) -> bool:
    """Whether any human speaks here."""
    return role in ("user", SPEAKER) and kind not in NOT_SPOKEN


def is_from_user(kind: str, role: str, source_key: str, metadata: Mapping[str, Any]) -> bool:
    """Whether the user of this store speaks, so that this may be quoted as the user's words."""
    if role != "user" or not is_from_person(kind, role):
        return False
    return origin_of(source_key, metadata) is not Origin.IMPORTED


_KINDS = ", ".join(f"'{kind}'" for kind in NOT_SPOKEN)

FROM_PERSON_SQL = f"(role IN ('user', '{SPEAKER}') AND kind NOT IN ({_KINDS}))"
"""`is_from_person` as a condition on the event table."""

NOT_IMPORTED_SQL = f"""(CASE
    WHEN NOT json_valid(metadata) THEN 0
    WHEN json_type(metadata) <> 'object' THEN 0
    WHEN json_type(metadata, '$.{Origin.IMPORTED}') IS NOT NULL THEN 0
    WHEN json_type(metadata, '$.{Origin.CAPTURED}') IS NOT NULL THEN 1
    ELSE substr(ifnull(source_key, ''), 1, {len(IMPORT_KEY)}) <> '{IMPORT_KEY}' END)"""
"""Whether the origin of an event is not IMPORTED, as a condition on the event table."""

FROM_USER_SQL = f"(role = 'user' AND {FROM_PERSON_SQL} AND {NOT_IMPORTED_SQL})"
"""`is_from_user` as a condition on the event table."""
