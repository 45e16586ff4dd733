"""Following the histories of assistants as they grow, until somebody stops it.

A file is captured when it has changed, so what a killed watcher had not recorded, the next one does. Changes are
reported by the system where `watchfiles` is installed (`scroll-context[watch]`); otherwise, and from time to time in
any case, the files are looked at. What a capture left, since another process was writing, is tried again then.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from scroll_context.importers.capture import file_stamp
from scroll_context.importers.installed import capture_all
from scroll_context.importers.run import ImportReport
from scroll_context.importers.sources import subagent_files
from scroll_context.store.store import Store

_logger = logging.getLogger("scroll_context.importers")

EVERY = 2.0  # seconds between two looks
Listing = Callable[[], list[str]]
"""Which files there are to follow; asked at each look, since sessions begin."""


def watch(
    store: Store,
    listing: Listing,
    *,
    stop: threading.Event,
    told: Callable[[ImportReport], None],
    folders: list[Path] | None = None,
    every: float = EVERY,
    redact: bool = True,
) -> None:
    """Capture what changes until `stop` is set. With `folders`, changes in them are noticed at once where possible."""
    seen: dict[str, str] = {}

    def tell(report: ImportReport) -> None:
        if report.left or report.error:
            seen.pop(report.file, None)  # look again
        told(report)

    for _ in _moments(folders or [], every, stop):
        changed = []
        for path in listing():
            stamp = " ".join(map(file_stamp, (Path(path), *subagent_files(Path(path)))))
            if seen.get(path) != stamp:
                seen[path] = stamp
                changed.append(path)
        capture_all(store, changed, redact=redact, told=tell)


def _moments(folders: list[Path], every: float, stop: threading.Event) -> Iterator[None]:
    """When to look: at once, then at each change of the folders, and in any case every so many seconds."""
    yield
    there = [folder for folder in folders if folder.is_dir()]
    try:
        import watchfiles
    except ImportError:
        there = []
    if there and not stop.is_set():
        every_ms = int(every * 1000)
        try:
            for _ in watchfiles.watch(
                *there, watch_filter=None, stop_event=stop, rust_timeout=every_ms, yield_on_timeout=True, debounce=500
            ):
                yield
            return
        except (OSError, RuntimeError) as error:  # as many folders are watched as the system allows
            _logger.warning("the system does not report changes (%s): files are looked at instead", error)
    while not stop.wait(every):
        yield
