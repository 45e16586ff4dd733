"""Hints in a request about the conversation that it belongs to.

Coding assistants name their session in a header, in the metadata of the request or in its cache
key. SDKs name none; then the conversation is the longest known list that the request's list
extends, which is for the caller to find.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

SESSION_HEADERS = {
    "x-claude-code-session-id": "claude-code",
    # Before its session: a sub-agent has a thread of its own in the session of its parent.
    "thread-id": "codex",
    "session-id": "codex",
    "session_id": "codex",
    "x-session-id": "opencode",
    "x-session-affinity": "opencode",
}
"""The headers that name a session, and the program that sends each."""
AGENT_HEADERS = ("x-claude-code-agent-id",)
TURN_HEADER = "x-codex-turn-metadata"

_SESSION_IN_USER = re.compile(r"session_([0-9A-Za-z-]{8,})$")


class SessionHints(msgspec.Struct, frozen=True, kw_only=True):
    """How a client names the conversation of a request; "" where it does not."""

    # The client's session, from the best source that it offers.
    session: str = ""
    # The program, as importers of its history name it.
    program: str = ""
    # A sub-agent inside that session.
    agent: str = ""
    # The response that the request continues.
    previous: str = ""
    # The client's own word for the request, such as "compaction".
    kind: str = ""


def session_hints(headers: Mapping[str, str], fields: Mapping[str, bytes]) -> SessionHints:
    """Read the headers, whose names are in lower case, and the fields of a body but its list."""
    turn = _object(headers.get(TURN_HEADER, "").encode())
    named = [header for header in SESSION_HEADERS if headers.get(header)]
    session = (
        (headers[named[0]] if named else "")
        or _session_in_metadata(fields)
        or _text(fields.get("prompt_cache_key"))
    )
    return SessionHints(
        session=session,
        program=SESSION_HEADERS[named[0]] if named else "",
        agent=next((headers[name] for name in AGENT_HEADERS if headers.get(name)), ""),
        previous=_text(fields.get("previous_response_id")),
        kind=str(turn.get("request_kind") or ""),
    )


def _session_in_metadata(fields: Mapping[str, bytes]) -> str:
    """Claude Code puts its session into `metadata.user_id`: as JSON, or at the end of a name."""
    user = _object(fields.get("metadata", b"")).get("user_id")
    if not isinstance(user, str):
        return ""
    session = _object(user.encode()).get("session_id")
    if isinstance(session, str):
        return session
    match = _SESSION_IN_USER.search(user)
    return match[1] if match else ""


def _object(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _text(data: bytes | None) -> str:
    try:
        return msgspec.json.decode(data or b'""', type=str)
    except msgspec.DecodeError:
        return ""
