"""Memory and open files of a process over time, and whether they are flat.

Only anonymous memory counts, since mapped index files come and go. The first and the last third of
the samples are compared, by their medians and without a warm-up, so that a moment in which an index
is merged decides nothing.
"""

import contextlib
import statistics
import time
from pathlib import Path

import msgspec

from scroll_context.search.indexer import HEAP

# The share of the samples, at the beginning, that is not looked at.
WARM_UP = 0.2
# Bytes, beside 15 %, that the last third may have more than the first and be called flat.
MORE_MEMORY = 32 << 20
# In a soak shorter than this, the heap of an index writer is filled for the first time, and the files
# of readers, SQL workers and kernels are opened for the first time.
SETTLING = 180.0
MORE_FILES = 8


class Sample(msgspec.Struct, frozen=True):
    """One moment."""

    at: float
    # In bytes.
    memory: int
    files: int


class Vitals:
    """The samples of one process."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def take(self, pid: int) -> None:
        # It has just ended.
        with contextlib.suppress(OSError):
            proc = Path(f"/proc/{pid}")
            status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
            if "RssAnon" not in status:
                # It has ended, and nobody has waited for it yet.
                return
            memory = int(status["RssAnon"].split()[0]) << 10
            self.samples.append(
                Sample(time.monotonic(), memory, len(list((proc / "fd").iterdir())))
            )

    def growth(self) -> tuple[Sample, Sample] | None:
        """The first and the last third; None when there are too few samples."""
        settled = self.samples[int(len(self.samples) * WARM_UP) :]
        third = len(settled) // 3
        return (_middle(settled[:third]), _middle(settled[-third:])) if third >= 3 else None

    @property
    def memory_is_flat(self) -> bool:
        if (grown := self.growth()) is None:
            return True
        slack = MORE_MEMORY if self._is_long else HEAP
        return grown[1].memory <= grown[0].memory * 1.15 + slack

    @property
    def files_are_flat(self) -> bool:
        if (grown := self.growth()) is None:
            return True
        slack = MORE_FILES if self._is_long else 2 * MORE_FILES
        return grown[1].files <= grown[0].files + slack

    @property
    def _is_long(self) -> bool:
        return self.samples[-1].at - self.samples[0].at > SETTLING


def _middle(samples: list[Sample]) -> Sample:
    memory = int(statistics.median(sample.memory for sample in samples))
    files = int(statistics.median(sample.files for sample in samples))
    return Sample(samples[0].at, memory, files)
