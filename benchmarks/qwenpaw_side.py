"""The half of beside_qwenpaw.py that runs in QwenPaw's environment: one JSON line in, one out.

It calls QwenPaw's own classes: the history store, its search and its recall cell. The cell runs
without QwenPaw's sandbox, which only its application sets up, so its time is the least that a user
of QwenPaw waits.
"""

import asyncio
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from qwenpaw.agents.context.scroll.history import HistoryStore
from qwenpaw.agents.context.scroll.memoryspace import MemorySpace
from qwenpaw.agents.context.scroll.repl import make_recall_history_python
from qwenpaw.agents.context.types import LogEntry

CHUNK = 1_000


class Side:
    """QwenPaw's store in a folder, and one measurement for each method that a line can name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "history.db"
        self.history = HistoryStore(self.database)
        self.space = MemorySpace(history_db_path=self.database)
        self.run_cell = make_recall_history_python(
            history_db_path=str(self.database),
            session_id=None,
            scratch_root=str(folder / "scratch"),
            allow_unsandboxed=True,
        )

    def version(self) -> str:
        return version("qwenpaw")

    def load(self, file: str) -> float:
        """Seconds until the messages of a file are searchable."""
        messages = [json.loads(line) for line in Path(file).read_text().splitlines()]
        begun = time.perf_counter()
        for start in range(0, len(messages), CHUNK):
            part = messages[start : start + CHUNK]
            entries = [(_entry(message), None) for message in part]
            self.history.append_many(session_id=part[0]["session_id"], entries=entries)
        return time.perf_counter() - begun

    def append(self, message: dict[str, str]) -> float:
        entry = _entry(message)
        begun = time.perf_counter()
        self.history.append(session_id=message["session_id"], entry=entry)
        return time.perf_counter() - begun

    def open(self) -> float:
        begun = time.perf_counter()
        HistoryStore(self.database).close()
        return time.perf_counter() - begun

    def search(self, words: str) -> float:
        begun = time.perf_counter()
        self.space.search(words, k=10)
        return time.perf_counter() - begun

    def cell(self, source: str) -> float:
        begun = time.perf_counter()
        chunk: Any = asyncio.run(self.run_cell(source))
        seconds = time.perf_counter() - begun
        text = chunk.content[0].text
        if "RECALL" in text:
            raise RuntimeError(text)
        return seconds


def _entry(message: dict[str, str]) -> LogEntry:
    return LogEntry(
        kind="context_msg",
        role=message["role"],
        content=message["content"],
        created_at=message["created_at"],
    )


def main() -> None:
    side = Side(Path(sys.argv[1]))
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(side, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
