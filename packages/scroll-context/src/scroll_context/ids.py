"""Ids that are made of several parts.

Joined text is ambiguous: session `alice` with message `2:m1` and session `alice:2` with message
`m1` gave one key, and the second message was lost in silence. So an id is a hash in which each part
stands behind its length.
"""

import hashlib


def id_of(*parts: str | bytes) -> str:
    """32 hexadecimal digits that stand for these parts in this order, and for no others."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "big") + data)
    return hasher.hexdigest()[:32]


def text_id(text: str) -> str:
    """32 hexadecimal digits that stand for the words of a text, however its lines are broken."""
    return id_of(" ".join(text.split()))
