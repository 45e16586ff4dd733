"""The one place where a request is sent again: `with_retries`.

Only `ModelUnavailable` is retried; an overflow, a refusal and a cancelled reply are raised at once.
The wait doubles from `first_wait` with jitter, or is what the provider asked for. A provider that
asks for more than `max_wait` is not waited for: the error is raised and the run can be resumed
later. The SDKs' own retries are switched off where the models are made.
"""

import logging
import random
import threading
import time
from collections.abc import Callable

import msgspec

from scroll_context.errors import ModelCancelled, ModelUnavailable
from scroll_context.models.protocol import Model, OnText, Reply, Request

RETRIES = 4
"""How often a failed reply is asked for again by default."""

OnRetry = Callable[[int, float, ModelUnavailable], None]
"""Called before each wait: how many attempts have failed, the seconds to wait, and why. Text that a
failed attempt streamed will come again."""

_logger = logging.getLogger("scroll_context.models")


def with_retries(
    model: Model,
    *,
    attempts: int = RETRIES + 1,
    max_wait: float = 60.0,
    first_wait: float = 1.0,
    on_retry: OnRetry | None = None,
) -> Model:
    """The same model, asked up to `attempts` times for each reply, however often it would be asked
    already.
    """
    if isinstance(model, _Retrying):
        model = model.once
    return _Retrying(model, attempts, max_wait, first_wait, on_retry)


def with_observer(model: Model, observe: OnRetry) -> Model:
    """The same model; if it retries, `observe` is called before each wait too."""
    if not isinstance(model, _Retrying):
        return model
    on_retry = model.on_retry

    def both(failed: int, wait: float, error: ModelUnavailable) -> None:
        observe(failed, wait, error)
        if on_retry is not None:
            on_retry(failed, wait, error)

    return msgspec.structs.replace(model, on_retry=both)


class _Retrying(msgspec.Struct, frozen=True):
    """The model that `with_retries` returns."""

    once: Model
    attempts: int
    max_wait: float
    first_wait: float
    on_retry: OnRetry | None

    @property
    def name(self) -> str:
        return self.once.name

    @property
    def window(self) -> int:
        return self.once.window

    def reply(
        self,
        request: Request,
        *,
        on_text: OnText | None = None,
        cancel: threading.Event | None = None,
        timeout: float | None = None,
    ) -> Reply:
        deadline = None if timeout is None else time.monotonic() + timeout
        failed = 0
        while True:
            try:
                return self.once.reply(request, on_text=on_text, cancel=cancel, timeout=timeout)
            except ModelUnavailable as error:
                failed += 1
                wait = self._wait(failed, error)
                is_too_late = deadline is not None and time.monotonic() + wait >= deadline
                if failed >= self.attempts or wait > self.max_wait or is_too_late:
                    raise
                _logger.warning(
                    "%s failed (attempt %d of %d): %s; trying again in %.1f s",
                    self.name,
                    failed,
                    self.attempts,
                    error,
                    wait,
                )
                if self.on_retry is not None:
                    self.on_retry(failed, wait, error)
            _pause(wait, cancel)
            if deadline is not None:
                timeout = max(0.0, deadline - time.monotonic())

    def _wait(self, failed: int, error: ModelUnavailable) -> float:
        if error.retry_after is not None:
            return error.retry_after
        longest = min(self.max_wait, self.first_wait * 2.0 ** (failed - 1))
        return longest * random.uniform(0.5, 1.0)


def _pause(seconds: float, cancel: threading.Event | None) -> None:
    if cancel is None:
        time.sleep(seconds)
    elif cancel.wait(seconds):
        raise ModelCancelled("the caller stopped waiting between two attempts")
