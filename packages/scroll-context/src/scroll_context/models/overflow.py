"""Recognise a provider's answer that a request is too long, by its words.

Providers and local servers report an overflow as HTTP 400 or 413 with a text of their own. The
texts, and the token counts inside them, are gathered here for whoever reads an error body: the
bridge to pydantic-ai and the wire protocols of hosts. No provider library is imported.
"""

import re

PHRASES = (
    "context_length_exceeded",
    "maximum context length",
    "exceeds the context window",
    "exceed context limit",
    "exceed_context_size",
    "exceeds the available context size",
    "longer than the model's context length",
    "greater than the context length",
    "prompt is too long",
    "input is too long",
    "input token count",
    "reduce the length of the messages",
    "inputs tokens + ",
)
TOKENS = (
    r"prompt is too long:\s*(\d+)",
    r"limit:\s*(\d+)\s*\+",
    r"token count \(?(\d+)",
    r"resulted in (\d+) tokens",
    r"\((\d+) in the messages",
    r"has (\d+) input tokens",
    r"request(?:ed)? \(?(\d+) tokens",
    r"input \((\d+) tokens\)",
    r"contains (?:at least )?(\d+) (?:input )?tokens",
    r"given: (\d+)",
    r"n_prompt_tokens\W+(\d+)",
)
LIMITS = (
    r"context length (?:is|of) (?:only )?(\d+)",
    r">\s*(\d+)",
    r"allowed \(?(\d+)",
    r"context size \((\d+)",
    r"context length \((\d+)",
    r"must be <= (\d+)",
    r"n_ctx\W+(\d+)",
)
# A limit on tokens per minute is worded like an overflow, but passes with time.
PASSING_STATUS = frozenset({408, 409, 425, 429})


def is_overflow(status: int, body: bytes) -> bool:
    """Whether an HTTP error says that the request is longer than the model's window."""
    if status < 400 or status >= 500 or status in PASSING_STATUS:
        return False
    return status == 413 or has_overflow_phrase(body.decode(errors="replace"))


def has_overflow_phrase(text: str) -> bool:
    """Whether an error text contains the words of a known overflow."""
    lowered = text.lower().replace("`", "")
    return any(phrase in lowered for phrase in PHRASES)


def token_count(text: str) -> int | None:
    """How many tokens the refused request has, if the text says so."""
    return _number(TOKENS, text)


def token_limit(text: str) -> int | None:
    """How many tokens the model takes, if the text says so."""
    return _number(LIMITS, text)


def message_in(body: object) -> str:
    """The human text inside an error body: `message`, directly or under `error`, with llama.cpp's
    counts.
    """
    if not isinstance(body, dict):
        return ""
    inner = body.get("error")
    if isinstance(inner, dict):
        return message_in(inner)
    message = body.get("message") or body.get("detail") or (inner if isinstance(inner, str) else "")
    counts = [f"{key}={body[key]}" for key in ("n_prompt_tokens", "n_ctx") if key in body]
    return " ".join([str(message), *counts]) if message else ""


def _number(patterns: tuple[str, ...], text: str) -> int | None:
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", text.replace("`", ""))
    for pattern in patterns:
        match = re.search(pattern, plain, re.IGNORECASE)
        if match:
            return int(match.group(1))
    return None
