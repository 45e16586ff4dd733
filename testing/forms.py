"""The two forms of a long test: a short one in `make test`, the whole one in `make test-long`."""

import os
from typing import TypeVar

T = TypeVar("T")

LONG = bool(os.environ.get("SCROLL_LONG"))


def form(short: T, long: T) -> T:
    """How many rounds, examples or kills a test takes: `long` in `make test-long`, `short`
    elsewhere.
    """
    return long if LONG else short
