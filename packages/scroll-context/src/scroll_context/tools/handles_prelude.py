"""Lazy handles inside the kernel: a body that stays in the store until it is asked for.

This file is not imported by the host: its source runs inside the jail, where `call` reaches the
host.
"""

import json as _json
from collections.abc import Callable, Iterator
from typing import Any

# The kernel puts it here.
call: Callable[..., Any]


class Handle:
    """A body in the store. Its seq, size and type are known; its content is loaded on request."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.seq, self.size = facts["seq"], facts["size"]
        self.media_type, self.preview = facts["media_type"], facts["preview"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} seq={self.seq} {self.media_type} {self.size:,} bytes>"

    def bytes(self) -> bytes:
        parts: list[Any] = []
        start = 0
        while True:
            answer = call("payload.read", self.seq, start)
            parts.append(answer["piece"])
            start += len(answer["piece"])
            if not answer["more"]:
                return b"".join(parts)


class ToolResultRef(Handle):
    """A text: .text(), .json(), .lines()."""

    def text(self) -> str:
        return self.bytes().decode("utf-8", "replace")

    def json(self) -> Any:
        return _json.loads(self.text())

    def lines(self) -> Iterator[str]:
        return iter(self.text().split("\n"))


class ArtifactRef(Handle):
    """Bytes: .bytes(), .save_as(path)."""

    def save_as(self, path: str) -> str:
        with open(path, "wb") as file:
            file.write(self.bytes())
        return path


def handle(facts: dict[str, Any]) -> Handle:
    """The handle that fits a body."""
    return (ToolResultRef if facts["text"] else ArtifactRef)(facts)


def load(facts: dict[str, Any]) -> Any:
    """The value itself of a tool's result that was too large to be sent at once."""
    body = handle(facts)
    if not isinstance(body, ToolResultRef):
        return body.bytes()
    return body.json() if body.media_type == "application/json" else body.text()
