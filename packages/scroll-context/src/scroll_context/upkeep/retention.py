"""Retention in a long-running service: events older than a period are erased at intervals.

The log shows whether a run is due, since each run is an event with its rule. So there is one run in
each interval, however many services have the store open and however often they start. Two services
that begin at the same moment may both run; the second finds nothing to erase. A run that fails is
logged and tried again, and the service continues.
"""

import datetime as dt
import logging
import threading
from collections.abc import Collection

from scroll_context.errors import ScrollError
from scroll_context.events import STORE_SESSION, Kind
from scroll_context.upkeep.erase import StoreFiles, expire
from scroll_context.upkeep.erasure_plan import ErasureReport

# How often the service checks whether a run is due.
_CHECK_INTERVAL = dt.timedelta(hours=1)

_logger = logging.getLogger("scroll_context.retention")


class Retention:
    """Erases events that were recorded longer ago than `older_than`, once in every interval.

    It works in a thread inside its `with` block.
    """

    def __init__(
        self,
        store: StoreFiles,
        older_than: dt.timedelta,
        *,
        every: dt.timedelta = dt.timedelta(days=1),
        kinds: Collection[str] = (),
    ) -> None:
        self._store = store
        self._older_than = older_than
        self._every = every
        self._kinds = tuple(kinds)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="scroll-retention", daemon=True)

    def __enter__(self) -> "Retention":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for a run that has begun.

        If the process is killed instead, the next opening of the store finishes the run.
        """
        self._stop.set()
        self._thread.join()

    def run_if_due(self) -> ErasureReport | None:
        """Erase the events that are due, unless a run was recorded within the interval."""
        last = self._last_run()
        if last is not None and dt.datetime.now(dt.UTC) - last < self._every:
            return None
        return expire(self._store, self._older_than, kinds=self._kinds, by="scroll retention")

    def _last_run(self) -> dt.datetime | None:
        rule = {"older_than": self._older_than.total_seconds(), "kinds": list(self._kinds)}
        erasures = self._store.log.tail(100, session_id=STORE_SESSION, kind=Kind.ERASURE)
        for event in reversed(erasures):
            if event.metadata.get("rule") == rule:
                return dt.datetime.fromisoformat(event.recorded_at)
        return None

    def _work(self) -> None:
        is_over = False
        while not is_over:
            try:
                report = self.run_if_due()
                if report is not None:
                    _logger.info("%d events erased by retention, seq %s", report.events, report.seq)
            except (ScrollError, OSError) as error:
                _logger.warning("retention could not run, and is tried again later: %s", error)
            is_over = self._stop.wait(min(self._every, _CHECK_INTERVAL).total_seconds())
