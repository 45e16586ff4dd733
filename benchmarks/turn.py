"""How much code one turn with a recall crosses in the host, and how much one event: files,
functions, and switches from file to file.

The turn is `Agent.run` with a cell that searches once and prints once, then an answer. The event is
a notice: `Session.notice`, which returns when it is on disk and in the view. A turn and an event
like them have run before, so imports and first uses are not counted. Nor are other software, the
kernel process, comprehensions, and the thread that indexes when it has time. A switch is a call or
a return after which a thread runs in another file of Scroll than before. The names used here are in
older revisions too: `PYTHONPATH=OLD/src python benchmarks/turn.py`.
"""

import argparse
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import scroll_context
from scroll_context import Agent, Draft, ScriptedModel, Session, SessionOptions, Store
from scroll_context.models.scripted import exec_cell

PACKAGE = str(Path(scroll_context.__file__).parent)
CELL = "for row in ms.search('harbour', k=5): print(row['seq'], row['content'])"


class Crossed:
    """The code of the package that runs while `counts` is set, in this thread and those begun after
    this was made.
    """

    def __init__(self) -> None:
        self.counts = False
        self.functions: set[CodeType] = set()
        self.switches = 0
        self._here: dict[int, str] = {}
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def _see(self, frame: FrameType | None, event: str, _: Any) -> None:
        if event == "return" and frame is not None:
            frame = frame.f_back
        if not self.counts or event not in ("call", "return") or frame is None:
            return
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if threading.current_thread().name.startswith("scroll-index"):
            return
        if event == "call" and not frame.f_code.co_name.startswith("<"):
            self.functions.add(frame.f_code)
        thread, file = threading.get_ident(), frame.f_code.co_filename
        self.switches += self._here.get(thread, file) != file
        self._here[thread] = file

    @property
    def files(self) -> Counter[str]:
        """The files that were crossed, with how many functions of each ran."""
        return Counter(str(Path(code.co_filename).relative_to(PACKAGE)) for code in self.functions)


def finish_background_work(session: Session) -> None:
    """Wait for the save that runs beside the session."""
    environment: Any = session.environment
    variables = getattr(environment, "variables", None)
    # Older revisions call it `settle`.
    wait = environment.settle if variables is None else variables.wait_for_save
    wait()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--list", action="store_true", help="name the files and their functions")
    arguments = options.parse_args()
    turn = Crossed()
    with tempfile.TemporaryDirectory() as folder, Store(folder, create=True) as store:
        store.log.append_many(
            [Draft(role="user", content=f"message {n} about the harbour") for n in range(200)]
        )
        with Session.open(store, session_id="turn", options=SessionOptions(reach="all")) as session:
            agent = Agent(
                session,
                ScriptedModel([exec_cell(CELL), "There are five.", exec_cell(CELL), "Five again."]),
            )
            agent.run("What do you know about the harbour?")
            finish_background_work(session)
            turn.counts = True
            agent.run("And what else?")
            finish_background_work(session)
            turn.counts = False
            event = Crossed()
            session.notice("a first event")
            event.counts = True
            session.notice("the event that is counted")
            event.counts = False
        *_, printed = store.log.iterate(kind="observation")
        assert printed.content.count("about the harbour") == 5, printed.content
    report("one turn", turn, arguments.list)
    report("one event", event, arguments.list)


def report(name: str, crossed: Crossed, with_list: bool) -> None:
    print(
        f"{name}: {len(crossed.files)} files, {len(crossed.functions)} functions, "
        f"{crossed.switches} switches of file"
    )
    for file, count in sorted(crossed.files.items()) if with_list else ():
        names = sorted(
            code.co_qualname
            for code in crossed.functions
            if code.co_filename == f"{PACKAGE}/{file}"
        )
        print(f"  {count:3}  {file}: {', '.join(names)}")


if __name__ == "__main__":
    main()
