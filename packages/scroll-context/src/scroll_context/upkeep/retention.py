"""Retention in a service that runs for long: what is older than a period is erased now and then.

Whether a run is due is read from the log, where each run is an event with its rule. So
however many services have the store open, and however often they are started, there is one run in
each interval; two that begin in the same moment may both run, and the second finds nothing. A run
that fails is logged and tried again; the service goes on.
"""

import datetime as dt
import logging
import threading
from collections.abc import Collection

from scroll_context.errors import ScrollError
from scroll_context.events import STORE_SESSION, Kind
from scroll_context.upkeep.erase import ErasureReport, StoreFiles, expire

_LOOK = dt.timedelta(hours=1)  # how often it is looked whether a run is due

_logger = logging.getLogger("scroll_context.retention")


class Retention:
    """Erases what was recorded longer ago than `older_than`, once in every interval, while it is
    entered.
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
        """Wait for a run that is under way; what is killed instead is finished by the next opening
        of the store.
        """
        self._stop.set()
        self._thread.join()

    def run_if_due(self) -> ErasureReport | None:
        """Erase what is due, unless that was done within the interval."""
        if (last := self._last_run()) is not None and dt.datetime.now(dt.UTC) - last < self._every:
            return None
        return expire(self._store, self._older_than, kinds=self._kinds, by="scroll retention")

    def _last_run(self) -> dt.datetime | None:
        rule = {"older_than": self._older_than.total_seconds(), "kinds": list(self._kinds)}
        for event in reversed(
            self._store.log.tail(100, session_id=STORE_SESSION, kind=Kind.ERASURE)
        ):
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
            is_over = self._stop.wait(min(self._every, _LOOK).total_seconds())
