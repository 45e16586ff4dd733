"""Turning what goes wrong at a provider into Scroll's own errors.

pydantic-ai sorts provider errors into classes; this maps them to the `ModelError` branch and adds what it
leaves out: overflow texts of servers it does not know, the token counts inside those texts, and a remedy.
An error text never carries a key: providers echo parts of it in their messages, so texts are cleaned, and
the original exception is not chained.
"""

import re

from pydantic_ai import exceptions as foreign

from scroll_context.errors import ContextOverflow, ModelError, ModelRefused, ModelUnavailable

OVERFLOW_PHRASES = (
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
SECRET = re.compile(r"\b(?:sk|pk|rk|gsk|xai|hf|key)[-_][\w*.\-]{6,}|\bAIza[\w\-]{10,}|\bbearer\s+\S+", re.IGNORECASE)
SHORTEST_SECRET = 6  # anything shorter is a placeholder, and would be found in ordinary words
LONGEST_TEXT = 500
PASSING_STATUS = frozenset({408, 409, 425, 429})


def as_model_error(error: Exception, name: str, secret: str = "") -> ModelError:
    """The error of ours for one that a provider or its client library raised while `name` was replying."""
    said = _said(error, secret)
    status = error.status_code if isinstance(error, foreign.ModelHTTPError) else None
    where = f"{name} (HTTP {status})" if status else name
    if isinstance(error, foreign.ModelQuotaExceededError):
        return ModelRefused(f"{where} refused: {said}. The account is out of credit: top it up, then resume.")
    # A limit on tokens a minute is worded like an overflow, but passes with time.
    if status not in PASSING_STATUS and _is_overflow(error, status, said):
        return ContextOverflow(
            f"{where} says that the request is too long: {said}. Nothing was lost; send a smaller view, or "
            "set the model's window to what the provider allows.",
            tokens=_number(TOKENS, said),
            limit=_number(LIMITS, said),
        )
    if isinstance(error, foreign.ModelAuthenticationError):
        return ModelRefused(f"{where} refused the credentials: {said}. Check the API key and what it may use.")
    if isinstance(error, foreign.ModelNotFoundError):
        return ModelRefused(f"{where} was not found: {said}. Check the model's name and the base URL.")
    if _is_rejection(error, status):
        return ModelRefused(f"{where} rejected the request: {said}. Sending it again unchanged will not help.")
    return ModelUnavailable(
        f"{where} failed for now: {said}. Nothing was lost; try again, or resume later.",
        retry_after=error.retry_after if isinstance(error, foreign.ModelAPIError) else None,
    )


def _is_overflow(error: Exception, status: int | None, said: str) -> bool:
    lowered = said.lower().replace("`", "")
    return (
        isinstance(error, foreign.ModelContextWindowExceededError)
        or status == 413
        or any(phrase in lowered for phrase in OVERFLOW_PHRASES)
    )


def _is_rejection(error: Exception, status: int | None) -> bool:
    if status is not None:
        return status < 500 and status not in PASSING_STATUS
    rejections = foreign.ModelRequestRejectedError | foreign.ContentFilterError | foreign.UserError
    return isinstance(error, rejections)


def _said(error: Exception, secret: str) -> str:
    """What the provider said, in one short line and without keys."""
    body = getattr(error, "body", None)
    text = _message_in(body) or (str(body) if body else str(error)) or type(error).__name__
    if len(secret) >= SHORTEST_SECRET:
        text = text.replace(secret, "[key]")
    text = " ".join(SECRET.sub("[key]", text).split())
    return text[:LONGEST_TEXT].rstrip(". ")


def _message_in(body: object) -> str:
    """The human text inside an error body: `message`, directly or under `error`, with llama.cpp's counts."""
    if not isinstance(body, dict):
        return ""
    inner = body.get("error")
    if isinstance(inner, dict):
        return _message_in(inner)
    message = body.get("message") or body.get("detail") or (inner if isinstance(inner, str) else "")
    counts = [f"{key}={body[key]}" for key in ("n_prompt_tokens", "n_ctx") if key in body]
    return " ".join([str(message), *counts]) if message else ""


def _number(patterns: tuple[str, ...], text: str) -> int | None:
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", text.replace("`", ""))
    for pattern in patterns:
        found = re.search(pattern, plain, re.IGNORECASE)
        if found:
            return int(found.group(1))
    return None
