"""Redaction: secrets are replaced before an event is recorded, and found in what was recorded before.

Secrets are keys, tokens and private keys, found by the patterns of `detect-secrets` (a kept set for the credentials of
many services; optional, `scroll-context[secrets]`) and by rules of our own. Its patterns often match only the beginning
of a token, so a match is taken to the end of the token. Of a private key it matches the first line; here the whole
block is found, also inside JSON text, where line breaks are written with a backslash. Guesses by entropy and by keyword
are left out: they take hashes and ordinary words for secrets. So a password in a sentence is not found.

A marker stands in the place of a secret: its kind and a fingerprint, keyed with a secret that lies outside the store
(secret.py). Equal secrets have equal fingerprints, and nothing can be recovered from one.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing
from scroll_context.events import Draft, Progress
from scroll_context.store import secret
from scroll_context.store.log import EventLog

_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?!-----BEGIN )[\s\S]){0,20000}?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
)
_KEY_HEAD = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s\\]{0,20000}")
_REST = re.compile(r"[A-Za-z0-9_\-+/=.]*[A-Za-z0-9_\-+/=]")  # of a token whose beginning a pattern matched
_OWN = (
    ("Anthropic key", re.compile(r"\bsk-ant-[A-Za-z0-9_-]{20,}")),  # before OpenAI's, whose pattern matches it too
    ("OpenAI key", re.compile(r"\bsk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,}")),
    ("Google API key", re.compile(r"\bAIza[A-Za-z0-9_-]{35}")),
)
_LEFT_OUT = ("IPPublicDetector", "KeywordDetector", "PrivateKeyDetector")


class Secret(NamedTuple):
    """Where in a text a secret stands, and what kind it is."""

    kind: str
    start: int
    end: int


def find_secrets(text: str) -> list[Secret]:
    """The secrets of a text, in order, none inside another."""
    found = [Secret("private key", *match.span()) for match in _KEY_BLOCK.finditer(text)]
    found += [Secret("private key", *match.span()) for match in _KEY_HEAD.finditer(text)]
    for kind, pattern in _patterns():
        for match in pattern.finditer(text):
            rest = _REST.match(text, match.end())
            start = match.start() + len(match[0]) - len(match[0].lstrip("\"' \t=:"))
            found.append(Secret(kind, start, rest.end() if rest else match.end()))
    chosen: list[Secret] = []
    for one in sorted(found, key=lambda secret: (secret.start, -secret.end)):
        if not chosen or one.start >= chosen[-1].end:
            chosen.append(one)
    return chosen


@functools.cache
def _patterns() -> tuple[tuple[str, "re.Pattern[str]"], ...]:
    try:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.plugins.base import RegexBasedDetector
    except ImportError as error:
        raise BadInput(
            "finding secrets needs detect-secrets, which is not installed: pip install 'scroll-context[secrets]'"
        ) from error
    detectors: dict[str, Any] = get_mapping_from_secret_type_to_class()
    kept = [
        (kind, pattern)
        for kind, detector in sorted(detectors.items())
        if issubclass(detector, RegexBasedDetector) and detector.__name__ not in _LEFT_OUT
        for pattern in detector().denylist
    ]
    return (*_OWN, *kept)


class Redactor:
    """Replaces secrets in texts and drafts. Give one to a journal, or to an import."""

    def __init__(self) -> None:
        self._key = secret.make_key()
        self.replaced: Counter[str] = Counter()  # how many secrets of each kind so far
        find_secrets("")  # fail now, not at the first event, when the patterns are not installed

    def text(self, text: str) -> str:
        found = find_secrets(text)
        self.replaced.update(one.kind for one in found)
        for one in reversed(found):
            text = f"{text[: one.start]}{self.marker(one.kind, text[one.start : one.end])}{text[one.end :]}"
        return text

    def marker(self, kind: str, value: str) -> str:
        """What stands in the place of a secret."""
        return f"[redacted {kind} {self.fingerprint(value)}]"

    def fingerprint(self, value: str) -> str:
        return secret.keyed_hash(self._key, value)[:12]

    def draft(self, draft: Draft) -> Draft:
        """The draft with every secret in its texts replaced."""
        content, headline = self.text(draft.content), self.text(draft.headline)
        metadata = self._value(draft.metadata)
        if (content, headline, metadata) == (draft.content, draft.headline, draft.metadata):
            return draft
        return replace(draft, content=content, headline=headline, metadata={**metadata, "redacted": True})

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {name: self._value(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(one) for one in value]
        return value


class Finding(msgspec.Struct, frozen=True):
    """A secret in the log. The value itself is in no report that is printed or stored."""

    seq: int
    kind: str
    fingerprint: str
    value: str


def scan(log: EventLog, progress: Progress | None = None) -> Iterator[Finding]:
    """The secrets in everything that was recorded, payloads of text included."""
    redactor = Redactor()
    last = log.last_seq()
    for event in log.iterate():
        if progress and event.seq % 200 == 0:
            progress(event.seq, last)
        if event.is_erased:
            continue
        try:
            content = log.text(event)
        except (PayloadMissing, PayloadDamaged):
            content = event.content
        metadata = msgspec.json.encode(event.metadata).decode() if event.metadata else ""
        seen: set[str] = set()
        for text in (content, event.headline, metadata):
            for one in find_secrets(text):
                value = text[one.start : one.end]
                if value not in seen:
                    seen.add(value)
                    yield Finding(event.seq, one.kind, redactor.fingerprint(value), value)
