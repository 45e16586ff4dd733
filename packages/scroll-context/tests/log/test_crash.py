"""kill -9: four writers at once, many times; what was acknowledged is there, whole, chained and
searchable.
"""

import subprocess
import sys
from pathlib import Path

from forms import form
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify

ROUNDS = form(20, 60)


def test_acknowledged_appends_survive_sigkill(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    folder = tmp_path / "store"
    driver = Path(__file__).with_name("crash_driver.py")
    done = subprocess.run(
        [sys.executable, str(driver), str(folder), str(notes), str(ROUNDS), "11"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    acknowledged = {}
    for file in notes.iterdir():
        for line in file.read_text().splitlines():
            seq, _, start = line.partition(" ")
            acknowledged[int(seq)] = start
    assert len(acknowledged) >= ROUNDS

    with Store(folder) as store:
        assert verify(store.log).ok
        with_payload = 0
        for event in store.log.iterate():
            text = store.log.text(event)
            with_payload += event.payload is not None
            if event.seq in acknowledged:
                assert text.startswith(acknowledged.pop(event.seq))
        assert not acknowledged
        assert with_payload >= ROUNDS  # the first append of each writer has one
        store.index.catch_up()
        assert store.index.indexed_seq == store.log.last_seq()
        for event in [*store.log.iterate(until=40), *store.log.tail(40)]:
            name, number, part = event.content.split(" ")[:3]
            hits = store.index.search(f'"{name} {number} {part}"', session_id=event.session_id, k=5)
            assert [hit.seq for hit in hits] == [event.seq]
