"""The cells that a text prints with their outputs, and the history that such cells speak of.

The prompt and docs/MS.md show calls of `ms` as a Python prompt would: `>>> ` before each line of a
cell, its output below.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scroll_context.events import Draft
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store

TURNS = (
    ("user", "2024-05-03", "The hotel needs parking. Always quote prices in euros."),
    ("assistant", "2024-05-03", "Hotel Tejo has parking and costs 140 euros."),
    ("user", "2024-05-09", "Devin likes trains: we decided to skip the rental car."),
    ("user", "2024-06-01", "Book Hotel Tejo for Devin and me."),
)


@contextmanager
def session_about_a_trip(folder: Path) -> Iterator[Session]:
    """A session that reaches the four messages."""
    with Store(folder, create=True) as store:
        for role, day, text in TURNS:
            store.append(Draft(session_id="trip", role=role, content=text, created_at=day))
        options = SessionOptions(reach="all")
        with Session.open(store, session_id="probe", options=options) as session:
            yield session


def printed_cells(block: str) -> list[tuple[str, str]]:
    """The cells of a block and their outputs; a call without an output belongs to the next."""
    cells: list[tuple[str, str]] = []
    source: list[str] = []
    output: list[str] = []
    for line in [*block.strip("\n").splitlines(), ">>> "]:
        if not line.startswith(">>> "):
            output.append(line)
            continue
        if output:
            cells.append(("\n".join(source), "\n".join(output)))
            source, output = [], []
        source.append(line.removeprefix(">>> ").partition("  # ")[0])
    return cells
