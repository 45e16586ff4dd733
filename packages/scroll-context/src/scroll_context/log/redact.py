"""Redaction: secrets are replaced before an event is recorded, and found in what was recorded
before.

Secrets are found by their shape: the keys and tokens of many services, complete private keys,
passwords and tokens in addresses, and lines of an `.env` file whose name says what they hold. JSON
text is read too, where line breaks are written with a backslash. Guesses by entropy are left out:
they take hashes for secrets. So a password in a sentence is not found.

Nearly every text holds none. So all shapes are first searched for at once, loosely and in linear
time (RE2); only a text with a suspect is searched shape by shape.

A marker stands in the place of a secret: its kind and a fingerprint, keyed with a secret that lies
outside the store (keys.py). Equal secrets have equal fingerprints, and nothing can be recovered
from one.
"""

import codecs
import functools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from scroll_context.events import Draft, Payload, Progress
from scroll_context.log.keys import keyed_hash, make_key
from scroll_context.log.log import EventLog

_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?!-----BEGIN )[\s\S]){0,20000}?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
)
_KEY_HEAD = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s\\]{0,20000}"
)

# The start of a token: not inside a word, but after a line break in JSON text.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
_LOOSE_START = r"(?:^|[^A-Za-z0-9]|\\[nrt])"
_ASSIGNED = r"""["']?\]?[ ]{0,40}(?:=>|::|:=|=|:|[ ])[ ]{0,40}["']?"""
_NAMED = r"[\w-]{0,40}(?:key|pwd?|password|pass|token)" + _ASSIGNED
_SHAPES = (
    # Each entry has a kind of secret and its shape. If the shape covers more than the secret, a
    # group marks the secret. Anthropic keys come before OpenAI's, whose shape they also have.
    ("Anthropic key", r"sk-ant-[A-Za-z0-9_-]{20,}"),
    ("OpenAI key", r"sk-(?:proj-|svcacct-|admin-)?(?=[A-Za-z_-]{0,200}\d)[A-Za-z0-9_-]{20,}"),
    ("Google API key", r"AIza[A-Za-z0-9_-]{35,}"),
    ("Google OAuth token", r"ya29\.[A-Za-z0-9_-]{20,}"),
    ("AWS Access Key", r"(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[A-Z0-9]{16,}"),
    (
        "AWS Access Key",
        r"""(?i:aws.{0,20}?(?:key|pw|pass|token).{0,20}?["'= ]([0-9a-z/+]{40})(?![0-9a-z/+]))""",
    ),
    (
        "Artifactory token",
        r"AKC[a-zA-Z0-9]{10,}|AP[0-9A-F](?=[a-zA-Z]{0,200}\d)[a-zA-Z0-9]{8,}(?![\w-])",
    ),
    ("Azure storage key", r"AccountKey=([a-zA-Z0-9+/=]{80,})"),
    (
        "Cloudant or SoftLayer key",
        (
            r"(?i:(?:cloudant|clou|cl|softlayer|sl)[_-]?(?:api)?"
            r"[_-]?(?:key|pwd?|password|pass|token)"
            rf"{_ASSIGNED}([0-9a-z]{{64}}|[a-z]{{24}})(?![0-9a-z]))"
        ),
    ),
    ("SoftLayer key", r"(?i:api\.softlayer\.com/soap/v3(?:\.1)?/([a-z0-9]{64}))"),
    (
        "IBM key",
        rf"(?i:[\w-]{{0,20}}secret[_-]?(?:access)?[_-]?key{_ASSIGNED}([a-f0-9]{{48}})(?![a-f0-9]))",
    ),
    ("IBM key", rf"(?i:{_NAMED}([a-z0-9_-]{{44}})(?![a-z0-9_-]))"),
    ("Discord token", r"[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}"),
    ("GitHub Token", r"gh[pousr]_[A-Za-z0-9_]{36,}|github_pat_[A-Za-z0-9_]{22,}"),
    (
        "GitLab token",
        r"(?:gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas)-|GR1348941)[A-Za-z0-9_-]{20,}",
    ),
    # A client that has the name of a kernel of the MCP server may use that kernel.
    ("kernel name", r"scroll_kernel_[0-9a-f]{32}"),
    ("Hugging Face token", r"hf_[A-Za-z0-9]{30,}"),
    ("JSON Web Token", r"eyJ[A-Za-z0-9_=-]{1,1000}\.[A-Za-z0-9_=-]+(?:\.[A-Za-z0-9_+/=-]*)?"),
    ("Mailchimp key", r"[0-9a-z]{32}-us[0-9]{1,2}"),
    ("npm token", r"npm_[A-Za-z0-9]{30,}"),
    ("npm token", r"""_authToken=\s*([^\s"'\\]{8,})"""),
    ("PyPI token", r"pypi-[A-Za-z0-9_-]{40,}"),
    ("SendGrid key", r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43,}"),
    ("Slack token", r"(?i:xox[abeoprs]-(?:\d+-)+[a-z0-9-]+|xapp-\d-[a-z0-9-]{20,})"),
    ("Slack token", r"(?i:hooks\.slack\.com/services/(T\w+/B\w+/\w+))"),
    ("Square secret", r"sq0csp-[0-9A-Za-z\\_-]{43,}"),
    ("Stripe key", r"[rs]k_(?:live|test)_[0-9a-zA-Z]{24,}"),
    ("Telegram token", r"\d{8,10}:[0-9A-Za-z_-]{35,}"),
    ("Twilio key", r"(?:AC|SK)[a-z0-9]{32}(?![A-Za-z0-9])"),
    ("bearer token", r"[Bb]earer\s{1,9}(?=[A-Za-z._~+/=-]{0,200}\d)([A-Za-z0-9._~+/=-]{20,})"),
    (
        ".env line",
        (
            r"(?:[A-Z]{0,12}(?:SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)|(?<=_)(?:PASS|PWD))"
            r"(?:_?\d{1,3})?"
            r"""(?:=|[ ]=[ ](?=["']))["']?([^\s"'`$<{(\[\\][^\s"'`\\]{3,})"""
        ),
    ),
    (
        ".env line",
        (
            r"""[A-Z]{0,12}(?:KEY|TOKEN|AUTH|DSN|SALT)(?:_?\d{1,3})?(?:=|[ ]=[ ](?=["']))["']?"""
            r"""(?=[^\s"'`0-9]{0,200}\d)([^\s"'`$<{(\[\\][^\s"'`\\]{11,})"""
        ),
    ),
)
_IN_ADDRESSES = (
    (
        "password in a URL",
        r"""://[^\s:/?#@"'<>{}\\]{0,200}:([^\s/@"'<>{}$\\][^\s/@"'<>{}\\]{0,300})@""",
    ),
    ("token in a URL", r"://(?=[A-Za-z_-]{0,200}\d)([A-Za-z0-9_-]{20,})(?::x-oauth-basic)?@"),
    (
        "token in a URL",
        (
            r"(?i:[?&#](?:access_?token|refresh_?token|id_?token|token|api_?key|key|auth|sig"
            r"|signature|client_?secret|secret|passw(?:or)?d"
            r"|x-amz-(?:signature|credential|security-token))="
            r"(?=[a-z%._~+/-]{0,200}\d)([a-z0-9%._~+/=-]{12,}))"
        ),
    ),
)


class Secret(NamedTuple):
    """Where in a text a secret stands, and what kind it is."""

    kind: str
    start: int
    end: int


def find_secrets(text: str) -> list[Secret]:
    """The secrets of a text, in order, none inside another."""
    data = text.encode("utf-8", "surrogatepass")
    if _suspect().search(data) is None:
        return []
    secrets = [Secret("private key", *match.span()) for match in _KEY_BLOCK.finditer(text)]
    secrets += [Secret("private key", *match.span()) for match in _KEY_HEAD.finditer(text)]
    for kind, loose, pattern in _patterns():
        if loose.search(data) is not None:
            secrets += [
                Secret(kind, *match.span(match.lastindex or 0)) for match in pattern.finditer(text)
            ]
    outermost: list[Secret] = []
    for secret in sorted(secrets, key=lambda secret: (secret.start, -secret.end)):
        if not outermost or secret.start >= outermost[-1].end:
            outermost.append(secret)
    return outermost


@functools.cache
def _suspect() -> Any:
    """One pattern that matches wherever a shape may."""
    tokens = "|".join(_loose(shape) for _, shape in _SHAPES)
    addresses = "|".join(_loose(shape) for _, shape in _IN_ADDRESSES)
    return _linear(f"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|{_LOOSE_START}(?:{tokens})|{addresses}")


@functools.cache
def _patterns() -> tuple[tuple[str, Any, "re.Pattern[str]"], ...]:
    """Each kind with its shape, before it a fast pattern that matches wherever the shape may."""
    shapes = [
        (kind, f"{_LOOSE_START}(?:{_loose(shape)})", f"{_START}(?:{shape})")
        for kind, shape in _SHAPES
    ]
    shapes += [(kind, _loose(shape), shape) for kind, shape in _IN_ADDRESSES]
    return tuple(
        (kind, _linear(loose), re.compile(shape, re.ASCII)) for kind, loose, shape in shapes
    )


def _loose(shape: str) -> str:
    """A shape without lookaround, which RE2 lacks. It matches at least where the shape does."""
    return re.sub(r"\(\?<?[=!](?:\[[^]]*\]|[^()\[\]])*\)", "", shape)


def _linear(pattern: str) -> Any:
    # Imported only when something is to be redacted.
    import re2

    options = re2.Options()
    options.never_capture = True
    options.max_mem = 64 << 20
    return re2.compile(pattern, options)


_TEXT_FIELDS = ("content", "headline", "name", "role", "tool_call_id", "tool_state", "agent_id")
"""Fields of an event that may hold any text. The names of sessions and tasks stay: they are what
events are found by, and leases are taken on them."""


class Redactor:
    """Replaces secrets in texts and drafts. Give one to a journal, or to an import."""

    def __init__(self) -> None:
        self._key = make_key()
        self.replaced: Counter[str] = Counter()
        """How many secrets of each kind were replaced so far."""

    def text(self, text: str) -> str:
        secrets = find_secrets(text)
        self.replaced.update(secret.kind for secret in secrets)
        parts: list[str] = []
        end = 0
        for secret in secrets:
            value = text[secret.start : secret.end]
            parts += (text[end : secret.start], self.marker(secret.kind, value))
            end = secret.end
        return "".join((*parts, text[end:]))

    def body(self, body: bytes, media_type: str) -> bytes:
        """The body of a payload with every secret replaced, if it is text.

        Bytes that call themselves no media type are text when they are UTF-8. What is not UTF-8
        stays as it is, to the byte, around the secrets that are replaced.
        """
        if not Payload("", 0, media_type).is_text and not _is_unlabelled_text(body, media_type):
            return body
        encoding = _encoding_of(body)
        errors = "surrogateescape" if encoding == "utf-8" else "surrogatepass"
        text = body.decode(encoding, errors)
        redacted = self.text(text)
        return body if redacted == text else redacted.encode(encoding, errors)

    def marker(self, kind: str, value: str) -> str:
        """The text that replaces a secret."""
        return f"[redacted {kind} {self.fingerprint(value)}]"

    def fingerprint(self, value: str) -> str:
        return keyed_hash(self._key, value)[:12]

    def draft(self, draft: Draft) -> Draft:
        """The draft with every secret in its texts replaced."""
        texts = [getattr(draft, field) for field in _TEXT_FIELDS]
        _collect(draft.metadata, texts)
        whole = "\n".join(texts)
        if _suspect().search(whole.encode("utf-8", "surrogatepass")) is None:
            return draft
        redacted: dict[str, Any] = {
            field: self.text(getattr(draft, field)) for field in _TEXT_FIELDS
        }
        redacted["metadata"] = self._value(draft.metadata)
        if all(value == getattr(draft, field) for field, value in redacted.items()):
            return draft
        redacted["metadata"] = {**redacted["metadata"], "redacted": True}
        return replace(draft, **redacted)

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self._value(name): self._value(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(item) for item in value]
        return value


def _collect(value: Any, texts: list[str]) -> None:
    """Add the texts in a JSON value, its names included."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        for name, item in value.items():
            _collect(name, texts)
            _collect(item, texts)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, texts)


_NO_TYPE = ("", "application/octet-stream", "binary/octet-stream", "application/x-octet-stream")


def _is_unlabelled_text(body: bytes, media_type: str) -> bool:
    """Whether bytes whose media type says nothing are text: UTF-8 without a zero byte."""
    if media_type.split(";", 1)[0].strip().lower() not in _NO_TYPE or b"\0" in body:
        return False
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _encoding_of(body: bytes) -> str:
    """UTF-8, unless the body begins with the mark of UTF-16 and has only complete characters."""
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and len(body) % 2 == 0:
        return "utf-16-le" if body.startswith(codecs.BOM_UTF16_LE) else "utf-16-be"
    return "utf-8"


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
        metadata = msgspec.json.encode(event.metadata).decode() if event.metadata else ""
        seen: set[str] = set()
        for text in (log.text_or_preview(event), event.headline, metadata):
            for secret in find_secrets(text):
                value = text[secret.start : secret.end]
                if value not in seen:
                    seen.add(value)
                    yield Finding(event.seq, secret.kind, redactor.fingerprint(value), value)
