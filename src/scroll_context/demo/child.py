"""The process that the demonstration kills: it resumes the session and books rooms until an answer never comes.

Run as `python -m scroll_context.demo.child STORE BOOK`. It prints one line when the office is silent, and that is when
to kill it: the booking is made, and its answer is not in the log.
"""

import sys
from pathlib import Path

from scroll_context.agent.agent import Agent
from scroll_context.demo import script
from scroll_context.demo.cast import SESSION, SLOW_AT, model
from scroll_context.demo.tools import Office
from scroll_context.session.session import Session
from scroll_context.store.store import Store


def main(folder: Path, book: Path) -> None:
    office = Office(book, SLOW_AT, lambda: print("silent", flush=True))
    with Store(folder) as store, Session.resume(store, SESSION, tools=office.tools()) as session:
        Agent(session, model(script.all_rooms())).run(script.FOURTH)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
