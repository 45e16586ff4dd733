"""A model that can be stopped by whoever lends it: for requests that somebody else makes with it, such as summaries."""

import threading

from scroll_context.models.protocol import Model, OnText, Reply, Request


class Stoppable:
    """The same model; a reply that is given no `cancel` of its own ends, with ModelCancelled, when `stop` is set."""

    def __init__(self, model: Model, stop: threading.Event) -> None:
        self.name = model.name
        self.window = model.window
        self._model = model
        self._stop = stop

    def reply(
        self,
        request: Request,
        *,
        on_text: OnText | None = None,
        cancel: threading.Event | None = None,
        timeout: float | None = None,
    ) -> Reply:
        return self._model.reply(request, on_text=on_text, cancel=cancel or self._stop, timeout=timeout)
