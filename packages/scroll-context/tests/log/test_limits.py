"""The limits of a whole store: refused before the disk is full, with what is there kept and
readable.
"""

from pathlib import Path

import pytest

from scroll_context.errors import StoreFull
from scroll_context.events import Draft
from scroll_context.log.file_backend import StoreLimits
from scroll_context.store import Store
from scroll_context.upkeep.salvage import salvage


def test_an_append_that_would_leave_nothing_on_the_device_is_refused(folder: Path) -> None:
    with Store(folder, create=True) as store:
        store.append(Draft(content="early"))
    with Store(folder, limits=StoreLimits(min_free=1 << 62)) as store:
        with pytest.raises(
            StoreFull, match=r"bytes are free on the device .* refused.*`scroll stats --store"
        ):
            store.append(Draft(content="late"))
        assert [event.content for event in store.log.iterate()] == ["early"]
    with Store(folder) as store:
        assert store.append(Draft(content="again")) == 2


def test_a_store_does_not_outgrow_its_limit_and_erasing_makes_room(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCROLL_KEY_FILE", str(tmp_path / "key"))
    limits = StoreLimits(max_bytes=1_000_000)
    with Store(folder, create=True, limits=limits) as store:
        seqs = []
        with pytest.raises(StoreFull, match="may hold 1,000,000"):
            for n in range(100):
                seqs.append(store.append(Draft(content=f"{n} " * 30_000)))
        assert 3 < len(seqs) < 20
    with Store(folder, limits=limits) as store:
        with pytest.raises(StoreFull):
            for n in range(5):
                seqs.append(store.append(Draft(content=f"more {n} " * 30_000)))
        store.erase(seqs=seqs)
        assert store.append(Draft(content="there is room")) > seqs[-1]


def test_stats_show_where_the_bytes_are_and_what_may_go(folder: Path) -> None:
    with Store(folder, create=True) as store:
        store.append(Draft(content="short", metadata={"a": 1}))
        store.append(Draft(kind="tool_result", content="é" * 50_000))
        unused = store.payloads.put(b"nobody names this" * 100, "text/plain")
        stats = store.stats()
        assert list(stats.kind_bytes) == ["tool_result", "conversation"]
        assert stats.kind_bytes["tool_result"] == 100_000 + 2 * 2_000 + len("{}")
        assert (stats.unused_payloads, stats.leftover_bytes) == (1, unused.size)
    salvage(folder)
    with Store(folder) as store:
        assert store.stats().leftover_bytes > unused.size
