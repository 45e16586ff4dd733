"""Trying again when a provider failed for now: the one place where that happens.

Only `ModelUnavailable` is retried; an overflow, a refusal and a cancelled reply go up at once. The wait
doubles from `first_wait` with jitter, or is what the provider asked for. A provider that asks for more than
`max_wait` is not waited for: the error goes up and the run can be resumed later. The SDKs' own retries are
switched off where the models are made, so a fault is never multiplied behind the caller's back.
"""

import random
import threading
import time
from collections.abc import Callable

from scroll_context.errors import ModelCancelled, ModelUnavailable
from scroll_context.models.protocol import Model, OnText, Reply, Request

OnRetry = Callable[[int, float, ModelUnavailable], None]
"""Told before each wait: how many attempts have failed, the seconds to wait, and why. Text that a failed
attempt streamed will come again."""


def with_retries(
    model: Model,
    *,
    attempts: int = 5,
    max_wait: float = 60.0,
    first_wait: float = 1.0,
    on_retry: OnRetry | None = None,
) -> Model:
    """The same model, asked up to `attempts` times for each reply."""
    return _Retrying(model, attempts, max_wait, first_wait, on_retry)


class _Retrying:
    def __init__(
        self, model: Model, attempts: int, max_wait: float, first_wait: float, on_retry: OnRetry | None
    ) -> None:
        self.name = model.name
        self.window = model.window
        self._model = model
        self._attempts = attempts
        self._max_wait = max_wait
        self._first_wait = first_wait
        self._on_retry = on_retry

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
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return self._model.reply(request, on_text=on_text, cancel=cancel, timeout=remaining)
            except ModelUnavailable as error:
                failed += 1
                wait = self._wait(failed, error)
                out_of_time = deadline is not None and time.monotonic() + wait >= deadline
                if failed >= self._attempts or wait > self._max_wait or out_of_time:
                    raise
                if self._on_retry is not None:
                    self._on_retry(failed, wait, error)
                _pause(wait, cancel)

    def _wait(self, failed: int, error: ModelUnavailable) -> float:
        if error.retry_after is not None:
            return error.retry_after
        longest = min(self._max_wait, self._first_wait * 2.0 ** (failed - 1))
        return longest * random.uniform(0.5, 1.0)


def _pause(seconds: float, cancel: threading.Event | None) -> None:
    if cancel is None:
        time.sleep(seconds)
    elif cancel.wait(seconds):
        raise ModelCancelled("the caller stopped waiting between two attempts")
