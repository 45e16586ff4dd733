"""What a request says about the conversation that it belongs to.

Coding assistants name their session in a header, in the metadata of the request or in its cache
key. SDKs name none; then the conversation is the longest known list that the request's list
extends, which is for the caller to find.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

SESSION_HEADERS = (
    # Claude Code, Codex, opencode.
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "thread-id",
    "x-session-id",
)
AGENT_HEADERS = ("x-claude-code-agent-id",)
TURN_HEADER = "x-codex-turn-metadata"

_SESSION_IN_USER = re.compile(r"session_([0-9A-Za-z-]{8,})$")


class SessionHints(msgspec.Struct, frozen=True, kw_only=True):
    """How a client names the conversation of a request; "" where it does not."""

    # The client's session, from the best source that it offers.
    session: str = ""
    # A sub-agent inside that session.
    agent: str = ""
    # The response that the request continues.
    previous: str = ""
    # The client's own word for the request, such as "compaction".
    kind: str = ""


def session_hints(headers: Mapping[str, str], fields: Mapping[str, bytes]) -> SessionHints:
    """Read the headers, whose names are in lower case, and the fields of a body but its list."""
    turn = _object(headers.get(TURN_HEADER, "").encode())
    session = (
        _first(headers, SESSION_HEADERS)
        or _session_in_metadata(fields)
        or _text(fields.get("prompt_cache_key"))
    )
    return SessionHints(
        session=session,
        agent=_first(headers, AGENT_HEADERS),
        previous=_text(fields.get("previous_response_id")),
        kind=str(turn.get("request_kind") or ""),
    )


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((headers[name] for name in names if headers.get(name)), "")


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
