"""Errors of providers as errors of ours.

pydantic-ai sorts provider errors into classes; `as_model_error` maps them to the `ModelError`
branch and adds what it leaves out: overflow texts of servers it does not know, the token counts
inside those texts, and a remedy. An error text never carries a key: providers echo parts of it in
their messages, so texts are cleaned, and the original exception is not chained.
"""

import re

from pydantic_ai import exceptions as foreign_errors

from scroll_context.errors import ContextOverflow, ModelError, ModelRefused, ModelUnavailable
from scroll_context.models.overflow import (
    PASSING_STATUS,
    has_overflow_phrase,
    message_in,
    token_count,
    token_limit,
)

SECRET = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|key)[-_][\w*.\-]{6,}|\bAIza[\w\-]{10,}|\bbearer\s+\S+", re.IGNORECASE
)
# Anything shorter is a placeholder, and would be found in ordinary words.
SHORTEST_SECRET = 6
LONGEST_TEXT = 500


def as_model_error(error: Exception, name: str, secret: str = "") -> ModelError:
    """The error of ours for one that a provider or its client library raised while `name` was
    replying.
    """
    text = _error_text(error, secret)
    status = error.status_code if isinstance(error, foreign_errors.ModelHTTPError) else None
    where = f"{name} (HTTP {status})" if status else name
    if isinstance(error, foreign_errors.ModelQuotaExceededError):
        return ModelRefused(
            f"{where} refused: {text}. The account is out of credit: top it up, then resume."
        )
    # A limit on tokens a minute is worded like an overflow, but passes with time.
    if status not in PASSING_STATUS and _is_overflow(error, status, text):
        return ContextOverflow(
            f"{where} says that the request is too long: {text}. Nothing was lost; send a smaller "
            "view, or set the model's window to what the provider allows.",
            tokens=token_count(text),
            limit=token_limit(text),
        )
    if isinstance(error, foreign_errors.ModelAuthenticationError):
        return ModelRefused(
            f"{where} refused the credentials: {text}. Check the API key and its permissions."
        )
    if isinstance(error, foreign_errors.ModelNotFoundError):
        return ModelRefused(
            f"{where} was not found: {text}. Check the model's name and the base URL."
        )
    if _is_rejection(error, status):
        return ModelRefused(
            f"{where} rejected the request: {text}. Sending it again unchanged will not help."
        )
    return ModelUnavailable(
        f"{where} failed for now: {text}. Nothing was lost; try again, or resume later.",
        retry_after=error.retry_after if isinstance(error, foreign_errors.ModelAPIError) else None,
    )


def _is_overflow(error: Exception, status: int | None, text: str) -> bool:
    return (
        isinstance(error, foreign_errors.ModelContextWindowExceededError)
        or status == 413
        or has_overflow_phrase(text)
    )


def _is_rejection(error: Exception, status: int | None) -> bool:
    if status is not None:
        return status < 500 and status not in PASSING_STATUS
    rejections = (
        foreign_errors.ModelRequestRejectedError
        | foreign_errors.ContentFilterError
        | foreign_errors.UserError
    )
    return isinstance(error, rejections)


def _error_text(error: Exception, secret: str) -> str:
    """The provider's error text, in one short line and without keys."""
    body = getattr(error, "body", None)
    text = message_in(body) or (str(body) if body else str(error)) or type(error).__name__
    if len(secret) >= SHORTEST_SECRET:
        text = text.replace(secret, "[key]")
    text = " ".join(SECRET.sub("[key]", text).split())
    return text[:LONGEST_TEXT].rstrip(". ")
